"""polyseme train, evaluate and predict for the tasks that read whole texts: coreference and answers."""

import json

import pytest
from click.testing import CliRunner

from polyseme.cli import main
from tasks.test_answers import write_quiz
from tasks.test_coreference import write_stories

# The small configurations of tests/tasks, told on the command line.
INPUTS = [
    "--set", "inputs.words.dim=16", "--set", "inputs.words.unknown=each", "--set", "inputs.spelling.dim=8",
    "--set", "inputs.spelling.filters=[[3, 16]]", "--set", "fit.learning_rate=0.01",
]  # fmt: skip
COREFERENCE = [
    "--set", "model.hidden=8", "--set", "model.layers=1", "--set", "model.dense=12", "--set", "model.max_width=3",
    "--set", "model.features=4", "--set", "model.antecedents=4", "--set", "model.input_dropout=0",
    "--set", "model.encoder_dropout=0", "--set", "model.dense_dropout=0", "--set", "fit.epochs=10", *INPUTS,
]  # fmt: skip
ANSWERS = [
    "--set", "model.hidden=12", "--set", "model.dense=24", "--set", "model.dropout=0", "--set", "model.longest=4",
    "--set", "fit.batch=8", "--set", "fit.optimizer=adam", "--set", "fit.epochs=8", *INPUTS,
]  # fmt: skip


def run(*arguments, stdin=None, code=0):
    result = CliRunner().invoke(main, list(map(str, arguments)), input=stdin, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_coreference(tmp_path):
    for seed, part in enumerate(("train", "dev", "test")):
        write_stories(tmp_path / f"{part}.jsonl", seed=seed, count=10 if part == "train" else 4)
    folder = tmp_path / "model"
    assert run("train", "coreference", "--data", tmp_path, "--elmo", "none", "-o", folder, *COREFERENCE).stdout.startswith(
        "dev: mean_f1"
    )
    out = tmp_path / "out.jsonl"
    scores = json.loads(run("evaluate", folder, tmp_path / "test.jsonl", "--predictions", out, "--json").stdout)["scores"]
    assert scores["mean_f1"] > 80
    assert len(out.read_text().splitlines()) == 4
    text = "Ann was there.\nThen she and Ann ran.\n"
    (line,) = run("predict", folder, stdin=text).stdout.splitlines()
    values = json.loads(line)
    assert values["marked"] == "[1 Ann] was there.\nThen [1 she] and [1 Ann] ran."
    tokens = run("predict", folder, "--input", "tokens", stdin="Ann was there .\nthen she and Ann ran\n").stdout
    assert json.loads(tokens)["sentences"] == [["Ann", "was", "there", "."], ["then", "she", "and", "Ann", "ran"]]
    assert len(run("predict", folder, tmp_path / "test.jsonl", "--input", "task", "--output", "task").stdout.splitlines()) == 4
    refused = run("predict", folder, "--question", "Who?", stdin=text, code=2)
    assert "holds a coreference" in refused.stderr


def test_answers(tmp_path):
    for seed, part in enumerate(("train", "dev", "test")):
        write_quiz(tmp_path / f"{part}.json", seed=seed, count=100 if part == "train" else 20)
    folder = tmp_path / "model"
    run("train", "answers", "--data", tmp_path, "--elmo", "none", "-o", folder, *ANSWERS)
    out = tmp_path / "out.json"
    scores = json.loads(run("evaluate", folder, tmp_path / "test.json", "--predictions", out, "--json").stdout)["scores"]
    assert scores["exact_match"] > 80
    assert set(json.loads(out.read_text())) == {f"q{number}" for number in range(20)}
    article = tmp_path / "article.txt"
    article.write_text("All is well.\nBob is in New York.\n")
    asked = run("predict", folder, article, "--question", "Where is that?", "--question", "Who is there?").stdout
    assert [json.loads(line)["answer"] for line in asked.splitlines()] == ["New York", "Bob"]
    tokens = run(
        "predict", folder, "--input", "tokens", "--question", "Who is there ?", stdin="All is well . Eve is in Rome ."
    ).stdout
    assert json.loads(tokens)["answer"] == "Eve"
    line = run("predict", folder, stdin="Who is there?\tAnn is in Oslo. All is well.\n", code=0).stdout
    assert json.loads(line)["answer"] == "Ann"
    assert "has no tab" in run("predict", folder, stdin="Who is there?\n", code=1).stderr
    assert "leave --question away" in run("predict", folder, article, "--input", "task", "--question", "Who?", code=2).stderr


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        (
            "coreference",
            "train.jsonl",
            '{"sentences": [["a"]], "clusters": [[[0, 3]]]}',
            r"line 1: the mention [0, 3] lies outside",
        ),
        ("coreference", "train.jsonl", '{"sentences": [], "clusters": []}', "line 1: the document '1' is empty"),
        (
            "answers",
            "train.json",
            '{"data": [{"title": "T", "paragraphs": [{"context": "", "qas": []}]}]}',
            "the context is empty",
        ),
    ],
)
def test_bad_data_is_named(tmp_path, task, name, text, message):
    (tmp_path / name).write_text(text)
    result = run(
        "train", task, "--train", tmp_path / name, "--dev", tmp_path / name, "--elmo", "none", "-o", tmp_path / "o", code=1
    )
    assert message in result.stderr
