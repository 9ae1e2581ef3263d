import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

import paper_rows
import paper_table
from polyseme.tasks.config import make_task
from polyseme.tasks.readers import split_folder
from tasks.examples import SMALL, tagger, write_entities
from tiny import tiny_elmo


@pytest.fixture
def data(tmp_path):
    (tmp_path / "names").mkdir()
    (tmp_path / "vectors").mkdir()
    for seed, part in enumerate(("train", "dev", "test")):
        write_entities(tmp_path / f"names/{part}.conll", seed=seed, count=12)
    np.savez(tmp_path / "vectors/glove-100d.npz", words=np.array(["she"]), vectors=np.ones((1, 4), np.float16))
    return tmp_path


def rescored(line, path, rows):
    """The task and the answers of a cell's predictions."""
    task = make_task(paper_table.TaskConfig.from_dict(line["config"]).model)
    (row,) = [row for row in rows if row.name == line["task"]]
    return task, [row.read(text) for text in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]]


def test_a_cell_is_run_once_and_its_predictions_hold_its_score(data, tmp_path, capsys, monkeypatch):
    config = replace(tagger(tmp_path, inputs=SMALL, epochs=2), train="", dev="", folder="")
    row = replace(paper_rows.named_entities()[0], name="names", title="Names (F1)", data="names", config=config)
    probe = paper_rows.parts_of_speech()[-1]
    config = replace(probe.config, model=replace(probe.config.model, file="columns"))
    probe = replace(probe, name="probe", data="names", config=config, seeds=1)
    monkeypatch.setattr(paper_table, "rows", lambda: [row, probe])
    elmo = tiny_elmo()
    monkeypatch.setattr("polyseme.load", lambda name: elmo)
    results = tmp_path / "results.jsonl"
    arguments = ["paper_table.py", "--data", data, "--elmo", "tiny", "--seeds", 2, "--work", tmp_path / "w", "--results", results]
    monkeypatch.setattr("sys.argv", [*map(str, arguments), "--threads", "1"])
    paper_table.main()
    shown = capsys.readouterr().out
    assert "names without ELMo, seed 1: f1 test" in shown
    assert "| Names (F1) | 2 (fewer than 3) |" in shown
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["task"], line["elmo"] is not None, line["seed"]) for line in lines] == [
        ("names", False, 1),
        ("names", True, 1),
        ("probe", True, 1),
        ("names", False, 2),
        ("names", True, 2),
    ]
    for line in lines:
        task, answers = rescored(line, results.with_suffix("") / line["predictions"], [row, probe])
        assert task.score(task.read(data / "names/test.conll"), answers)[line["metric"]] == line["test"]
    paper_table.main()
    assert len(results.read_text().splitlines()) == 5
    monkeypatch.setattr("sys.argv", ["paper_table.py", "--table", "--results", str(results)])
    paper_table.main()
    assert "| Names (F1) | 2 (fewer than 3) |" in capsys.readouterr().out


def test_the_table_says_what_changed():
    def line(task, elmo, seed, test):
        return {"task": task, "title": task.upper(), "elmo": elmo or None, "seed": seed, "test": test}

    lines = [line("a", elmo, seed, 60 + 20 * elmo + seed) for elmo in (False, True) for seed in (1, 2, 3)]
    assert "| A | 3 | 62.00 ± 1.00 | 82.00 ± 1.00 | +20.00 | -52.6 % |" in paper_table.table([*lines, line("b", False, 1, 5.0)])


@pytest.mark.parametrize("row", paper_rows.rows(), ids=lambda row: row.name)
def test_every_row_is_a_whole_configuration(row):
    assert row.config.from_json(row.config.to_json()) == row.config


def test_the_committed_predictions_give_the_committed_scores(shared):
    lines = paper_table.finished(paper_table.RESULTS)
    assert lines
    gold = {}
    for line in lines:
        task, answers = rescored(line, paper_table.RESULTS.with_suffix("") / line["predictions"], paper_rows.rows())
        if line["data"] not in gold:
            gold[line["data"]] = task.read(split_folder(shared / "data" / line["data"])["test"])
        assert task.score(gold[line["data"]], answers)[line["metric"]] == pytest.approx(line["test"], abs=1e-9)
