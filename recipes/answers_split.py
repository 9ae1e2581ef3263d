"""Questions to train and test on from what is free of SQuAD v1.1: a sample of its training set, and its development set.

    python recipes/answers_split.py --data data/answers/squad --output split

The 48 articles of the development set are put in the order of SHA-256 over their titles: the first 12 are the test set, the
next 4 the dev set, and the other 32 are trained on, with the sample. Three SQuAD files are written; they depend on the two
files alone. The sample is tokenized: its texts are its tokens parted by blanks. One of its 4,858 questions has an empty answer
and is left out.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from polyseme.tasks.questions import read_json, split_articles
from polyseme.tasks.readers import read_lines

TEST, DEV = 12, 4


def sample_article(path: Path) -> dict[str, Any]:
    """The tokenized sample as one article; a context's questions stand together."""
    paragraphs: dict[str, list[dict[str, Any]]] = {}
    for number, line in read_lines(path):
        values = json.loads(line)
        tokens = values["context"]
        first, last = values["span"]
        if not 0 <= first <= last < len(tokens):
            continue  # one question of the sample has an empty span
        begin = sum(len(token) + 1 for token in tokens[:first])
        answer = {"text": " ".join(tokens[first : last + 1]), "answer_start": begin}
        question = {"id": f"sample-{number}", "question": " ".join(values["question"]), "answers": [answer]}
        paragraphs.setdefault(" ".join(tokens), []).append(question)
    return {"title": "sample", "paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs.items()]}


def split(folder: Path) -> dict[str, dict[str, Any]]:
    """The three parts as SQuAD files."""
    test, dev, rest = split_articles(read_json(folder / "dev-v1.1.json.xz")["data"], TEST, DEV)
    train = [sample_article(folder / "train-sample.jsonl.xz"), *rest]
    return {part: {"version": "1.1", "data": articles} for part, articles in (("train", train), ("dev", dev), ("test", test))}


def write(folder: Path, output: Path) -> dict[str, Path]:
    """Writes the parts where they are not yet; the paths of the three files."""
    places = {part: output / f"{part}.json" for part in ("train", "dev", "test")}
    if not all(place.exists() for place in places.values()):
        output.mkdir(parents=True, exist_ok=True)
        for part, value in split(folder).items():
            beside = places[part].with_name(f"{part}.{os.getpid()}.new")
            beside.write_text(json.dumps(value), encoding="utf-8")
            beside.replace(places[part])
    return places


def files(folder: Path) -> dict[str, Path]:
    """The three files for the table, written under runs/ and named by the two files they are made from."""
    key = hashlib.sha256()
    for name in ("dev-v1.1.json.xz", "train-sample.jsonl.xz"):
        key.update((folder / name).read_bytes())
    return write(folder, Path("runs/paper_table") / f"squad-{key.hexdigest()[:12]}-{TEST}-{DEV}")


def main() -> None:
    """Writes the three files and says how many questions each has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with dev-v1.1.json.xz and train-sample.jsonl.xz")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    for part, path in write(options.data, options.output).items():
        articles = read_json(path)["data"]
        questions = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
        print(f"{part}: {len(articles)} articles, {questions:,} questions")


if __name__ == "__main__":
    main()
