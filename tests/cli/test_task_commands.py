import json

import pytest
from click.testing import CliRunner

from polyseme.cli import main
from tasks.examples import write_entities, write_opinions

SMALL = [
    "--set", "model.hidden=8", "--set", "model.layers=1", "--set", "model.dropout=0", "--set", "inputs.words.dim=8",
    "--set", "inputs.spelling.filters=[[3, 16]]", "--set", "fit.epochs=8", "--set", "fit.batch=4",
    "--set", "fit.learning_rate=0.02",
]  # fmt: skip


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, list(map(str, arguments)), input=stdin, catch_exceptions=False)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for seed, part in enumerate(("train", "dev", "test")):
        write_entities(tmp_path / f"data/{part}.conll", seed=seed)
    return tmp_path / "data"


def test_train_evaluate_and_predict(data, tmp_path):
    folder = tmp_path / "tagger"
    trained = run("train", "ner", "--data", data, "--elmo", "none", "-o", folder, *SMALL)
    assert trained.exit_code == 0, trained.output
    assert trained.stdout.startswith("dev: f1 ")
    assert "test: f1 " in trained.stdout
    again = json.loads(run("train", "ner", "--data", data, "--elmo", "none", "-o", folder, *SMALL, "--json").stdout)
    assert again["runs"][0]["test"]["f1"] > 90

    out = tmp_path / "out.conll"
    scores = json.loads(run("evaluate", folder, data / "test.conll", "--predictions", out, "--json").stdout)
    assert scores["scores"]["f1"] == again["runs"][0]["test"]["f1"]
    assert all(len(line.split("\t")) == 3 for line in out.read_text().splitlines() if line)
    assert run("evaluate", folder, data / "test.conll").stdout.startswith("48 records\nf1 ")

    answers = [
        json.loads(line) for line in run("predict", folder, stdin="she met Bob Miller.\n\nfrom Rome\n").stdout.splitlines()
    ]
    assert answers[0]["tokens"] == ["she", "met", "Bob", "Miller", "."]
    assert answers[0]["spans"][0]["text"] == "Bob Miller"
    assert answers[1] == {"tokens": [], "tags": [], "spans": []}
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("from Rome\n")
    assert run("predict", folder, tokens, "--input", "tokens", "--output", "task").stdout == "from\tO\nRome\tB-place\n\n"
    columns = run("predict", folder, data / "test.conll", "--input", "task", "--output", "task").stdout
    assert columns.count("\n\n") == 48
    assert run("predict", folder, "--input", "task").exit_code == 2


def test_with_elmo_several_seeds_and_a_chart(workshop, tmp_path):
    train, dev = write_opinions(tmp_path / "train.tsv"), write_opinions(tmp_path / "dev.tsv", seed=1)
    result = run(
        "train", "classification", "--train", train, "--dev", dev, "--elmo", workshop / "model", "-o", tmp_path / "out",
        "--seed", 1, "--seed", 2, "--set", "fit.epochs=1", "--set", "model.dense=8", "--set", "model.hidden=4",
        "--set", "inputs.elmo.place=both", "--chart", tmp_path / "layers.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "over 2 seeds" in result.stdout
    assert "layers at the input: token 0.3" in result.stdout
    assert "layers at the output: token 0.3" in result.stdout
    assert "outside the biLM's vocabulary" in result.stdout
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert run("predict", tmp_path / "out/seed-2", stdin="the film was great\n").exit_code == 0


def test_the_training_text_is_written_as_the_bilm_reads_it(tmp_path):
    train = tmp_path / "train.conll"
    train.write_text("``\tO\nHi\tO\n''\tO\n\n-LRB-\tO\n1\\/2\tO\n-RRB-\tO\n\n" * 2, encoding="utf-8")
    out = tmp_path / "text.txt"
    result = run("train", "ner", "--train", train, "--dev", train, "-o", tmp_path / "out", "--text", out)
    assert result.exit_code == 0, result.output
    assert out.read_text() == '" Hi "\n( 1/2 )\n'
    assert not (tmp_path / "out").exists()


def test_a_recipe(data, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("from polyseme.tasks.config import named_entities as config\n")
    shown = run("train", recipe, "--data", data, "-o", tmp_path / "out", "--set", "fit.epochs=3", "--show")
    values = json.loads(shown.stdout)
    assert values["fit"]["epochs"] == 3
    assert values["elmo"] == "en-small"
    baseline = run("train", recipe, "--data", data, "-o", tmp_path / "out", "--elmo", "none", "--show")
    assert json.loads(baseline.stdout)["elmo"] is None
    recipe.write_text("config = 3\n")
    assert "wanted a function config()" in run("train", recipe, "-o", "out").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no task 'nothing'; wanted one of ner"),
        (["ner"], "no training data: give --data"),
        (["ner", "--set", "fit.epoch=3"], "names nothing that can be set; wanted NAME=VALUE with a name among epochs, patience"),
        (["ner", "--set", "fit.epochs=many"], "FitConfig.epochs is 'many'; wanted int"),
        (["ner", "--elmo", "none", "--set", "inputs.elmo.place=both"], "names nothing that can be set"),
        (["ner", "--train", "none.conll", "--dev", "none.conll", "--elmo", "none"], "none.conll: no such file"),
    ],
)
def test_what_cannot_be_trained(arguments, message, tmp_path):
    result = run("train", *arguments, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_folder_that_is_no_task_model(tmp_path):
    result = run("predict", tmp_path, stdin="a\n")
    assert result.exit_code == 1
    assert "is no task model" in result.stderr
