import json
import lzma

import answers_split
from polyseme.tasks.questions import read_squad


def write_free_parts(folder, *, articles=20):
    """A tokenized sample and a development set as they are found."""
    folder.mkdir(parents=True)
    context = ["Ann", "ran", ".", "Bob", "did", "not", "."]
    lines = [
        {"context": context, "question": ["Who", "ran", "?"], "answer_text": "Ann", "span": [0, 0]},
        {"context": context, "question": ["Who", "did", "not", "?"], "answer_text": "Bob did", "span": [3, 4]},
        {"context": context, "question": ["Why", "?"], "answer_text": "", "span": [3, 2]},
    ]
    with lzma.open(folder / "train-sample.jsonl.xz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    data = []
    for number in range(articles):
        answers = [{"text": "in Rome", "answer_start": 7}]
        qas = [{"id": f"q{number}", "question": "Where is he?", "answers": answers}]
        data.append({"title": f"T{number}", "paragraphs": [{"context": f"He{number:02} is in Rome.", "qas": qas}]})
        answers[0]["answer_start"] = data[-1]["paragraphs"][0]["context"].index("in Rome")
    with lzma.open(folder / "dev-v1.1.json.xz", "wt", encoding="utf-8") as stream:
        json.dump({"version": "1.1", "data": data}, stream)
    return folder


def test_three_parts_that_share_no_article(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_free_parts(tmp_path / "squad")
    places = answers_split.files(folder)
    parts = {part: read_squad(path) for part, path in places.items()}
    assert {part: len(questions) for part, questions in parts.items()} == {"train": 2 + 4, "dev": 4, "test": 12}
    names = [question.id for questions in parts.values() for question in questions]
    assert len(set(names)) == len(names)
    assert parts["train"][0].id == "sample-1"
    sample = parts["train"][1]
    assert (sample.context.part(*sample.spans[0]), sample.answers) == ("Bob did", ("Bob did",))
    before = places["train"].stat().st_mtime_ns
    assert answers_split.files(folder) == places
    assert places["train"].stat().st_mtime_ns == before  # what is there is not written again
    monkeypatch.setattr("sys.argv", ["answers_split.py", "--data", str(folder), "--output", str(tmp_path / "out")])
    answers_split.main()
    assert "test: 12 articles, 12 questions" in capsys.readouterr().out


def test_the_committed_split_of_the_real_files(shared, tmp_path):
    titles = {
        part: [a["title"] for a in value["data"]] for part, value in answers_split.split(shared / "data/answers/squad").items()
    }
    assert [len(titles[part]) for part in ("train", "dev", "test")] == [33, 4, 12]
    assert "Super_Bowl_50" in titles["train"]
