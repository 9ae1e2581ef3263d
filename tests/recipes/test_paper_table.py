import argparse
import json
import lzma
from dataclasses import replace

import numpy as np
import pytest

import paper_rows
import paper_table
from paper_senses import SETS, SenseRow
from polyseme.tasks.role_readers import Proposition
from polyseme.tasks.roles import Roles
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


@pytest.fixture
def small_rows(data, tmp_path, monkeypatch):
    """Two rows on small files, and the word senses, over a small biLM."""
    config = replace(tagger(tmp_path, inputs=SMALL, epochs=2), train="", dev="", folder="")
    row = replace(paper_rows.named_entities()[0], name="names", title="Names (F1)", data="names", config=config)
    probe = next(row for row in paper_rows.parts_of_speech() if row.name == "pos-mix")
    config = replace(probe.config, model=replace(probe.config.model, file="columns"))
    probe = replace(probe, name="probe", data="names", config=config, seeds=1)
    rows = {row.name: row for row in (row, probe, SenseRow())}
    monkeypatch.setattr(paper_table, "rows", lambda: rows)
    elmo = tiny_elmo()
    monkeypatch.setattr("polyseme.load", lambda name: elmo)
    return rows


def write_senses(folder):
    """A sense of cat and of dog, and five evaluation sets of one instance each."""
    (folder / "raganato").mkdir(parents=True)
    semcor = [
        {"id": f"d.s{n}", "tokens": [{"form": "the"}, {"form": word, "sense": [f"{word}%1:05:00::"]}]}
        for n, word in enumerate(("cat", "dog"))
    ]
    files = {"semcor.jsonl": "".join(json.dumps(line) + "\n" for line in semcor)}
    files["wordnet-3.0-index.sense"] = "cat%1:05:00:: 1 2 1\ncat%1:18:01:: 2 1 9\ndog%1:05:00:: 3 1 1\n"
    for name in SETS:
        files[f"raganato/{name}.data.xml"] = (
            '<corpus><text id="d"><sentence id="s"><instance id="i1" lemma="cat" pos="NOUN">cat</instance>'
            "</sentence></text></corpus>"
        )
        files[f"raganato/{name}.gold.key.txt"] = f"i1 cat%1:{'18:01' if name == 'senseval3' else '05:00'}::\n"
    for name, text in files.items():
        (folder / f"{name}.xz").write_bytes(lzma.compress(text.encode()))


def test_a_cell_is_run_once_and_its_predictions_hold_its_score(data, small_rows, tmp_path, capsys, monkeypatch):
    write_senses(data / "senses")
    results = tmp_path / "results.jsonl"
    arguments = ["paper_table.py", "--data", data, "--elmo", "tiny", "--seeds", 2, "--work", tmp_path / "w", "--results", results]
    monkeypatch.setattr("sys.argv", [*map(str, arguments), "--jobs", "1"])
    paper_table.main()
    shown = capsys.readouterr().out
    assert "[1/7] names without ELMo, seed 1: f1 test" in shown
    assert "| Names (F1) | 2 (fewer than 3) |" in shown
    assert "| names, input | 0.3" in shown
    assert "| first sense | 0.0 | 0.0 | 100.0 | 0.0 | 0.0 | 20.0 |" in shown
    assert "| lstm2 | 100.0 | 100.0 | 0.0 | 100.0 | 100.0 | 80.0 |" in shown
    assert (tmp_path / "paper_table_layers.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["task"], line["elmo"] is not None, line["seed"]) for line in lines] == [
        ("names", False, 1),
        ("names", True, 1),
        ("probe", True, 1),
        ("senses", False, 1),
        ("senses", True, 1),
        ("names", False, 2),
        ("names", True, 2),
    ]
    for line in lines:
        assert small_rows[line["task"]].rescore(line, paper_table.predictions_of(line, results), data) == line["test"]
    paper_table.main()
    assert len(results.read_text().splitlines()) == 7
    monkeypatch.setattr("sys.argv", ["paper_table.py", "--table", "--results", str(results)])
    paper_table.main()
    assert "| Names (F1) | 2 (fewer than 3) |" in capsys.readouterr().out


@pytest.mark.slow
def test_cells_in_several_processes_give_the_same(data, tmp_path):
    """The table's own row, small files in the place of its data: each process loads what it needs itself."""
    (data / "ner").mkdir()
    (data / "names").rename(data / "ner/wnut17")
    options = argparse.Namespace(
        elmo="none", data=data, work=tmp_path / "w", threads=1, results=tmp_path / "results.jsonl", jobs=2
    )
    cells = [("ner", False, 1), ("ner", False, 2)]
    together = {line["seed"]: (line["test"], answers) for line, answers in paper_table.outcomes(cells, options)}
    options.jobs, options.work = 1, tmp_path / "v"
    alone = {line["seed"]: (line["test"], answers) for line, answers in paper_table.outcomes(cells, options)}
    assert together == alone


def test_a_cell_keeps_its_name_when_options_are_added_and_changes_it_with_the_numbers():
    row = paper_rows.named_entities()[0]
    name = row.identity(None, 1)
    config = replace(row.config, train="x", folder="y", vectors="z")
    assert replace(row, title="other", config=replace(config, train="", folder="", vectors=None)).identity(None, 1) == name
    changed = replace(row.config, fit=replace(row.config.fit, batch=17))
    names = {
        name,
        row.identity(None, 2),
        row.identity("a", 1),
        row.identity("b", 1),
        replace(row, config=changed).identity(None, 1),
    }
    assert len(names) == 5


def test_the_table_says_what_changed():
    def line(task, elmo, seed, test):
        return {"task": task, "title": task.upper(), "elmo": elmo or None, "seed": seed, "test": test, "layer_weights": {}}

    lines = [line("a", elmo, seed, 60 + 20 * elmo + seed) for elmo in (False, True) for seed in (1, 2, 3)]
    assert "| A | 3 | 62.00 ± 1.00 | 82.00 ± 1.00 | +20.00 | -52.6 % |" in paper_table.table([*lines, line("b", False, 1, 5.0)])


def test_the_scores_by_share_are_drawn(tmp_path):
    lines = [
        {
            "task": name if share == 1 else f"{name}-{share:g}",
            "title": name,
            "elmo": elmo,
            "seed": 1,
            "test": 30 + 10 * share,
            "layer_weights": {},
            "config": {"fit": {"share": share}},
        }
        for name in ("sst5", "roles")
        for share in (0.1, 1.0)
        for elmo in (None, {})
    ]
    (path,) = paper_table.draw(lines, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert paper_table.draw(lines[1::4], tmp_path) == []  # one share of each task is no curve


def test_roles_are_kept_without_their_text():
    first, second = ("B-A0", "I-A0", "B-V", "O", "B-C-A0"), ("O", "O", "O", "B-V", "O")
    roles = Roles((Proposition(2, first), Proposition(3, second)), (2,))
    assert paper_rows.read_roles(paper_rows.write_roles(roles)) == roles


@pytest.mark.parametrize("row", paper_rows.rows(), ids=lambda row: row.name)
def test_every_row_is_a_whole_configuration(row):
    assert row.config.from_json(row.config.to_json()) == row.config
    assert row.config.inputs.elmo is None or row.variants == (True,)


def test_the_committed_predictions_give_the_committed_scores(shared):
    lines = paper_table.finished(paper_table.RESULTS)
    assert lines
    for line in lines:
        predictions = paper_table.predictions_of(line, paper_table.RESULTS)
        found = paper_table.rows()[line["task"]].rescore(line, predictions, shared / "data")
        assert found == pytest.approx(line["test"], abs=1e-9), line["task"]
