"""Killed at any moment, a run that goes on ends with the very bytes of one that nothing disturbed."""

import multiprocessing
import random
import time
from pathlib import Path

import corpora
import pytest
from corpora import corpus, files_of, run_to_be_killed

PRELOADED = ["torch", "pyarrow.parquet", "polyseme.bulk.run", "polyseme.elmo", "corpora"]


@pytest.fixture(scope="module")
def processes():
    """Processes forked from one that has everything imported and nothing begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def begin(processes, text: Path, output: Path):
    ready = processes.Event()
    process = processes.Process(target=run_to_be_killed, args=(text, output, ready))
    process.start()
    assert ready.wait(120)
    return process


def whole_time(processes, text: Path, output: Path) -> float:
    process = begin(processes, text, output)
    started = time.monotonic()
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - started


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments(processes, tmp_path, kills):
    text = tmp_path / "corpus.txt"
    text.write_text(corpus(400))
    seconds = whole_time(processes, text, tmp_path / "undisturbed")
    wanted = files_of(tmp_path / "undisturbed")
    assert len(wanted) > 15
    chance = random.Random(kills)
    killed = open_parts = finished = 0
    while killed < kills:
        out = tmp_path / f"disturbed{finished}"
        process = begin(processes, text, out)
        # Short enough that most folders take several runs.
        process.join(chance.uniform(0, seconds / 3))
        process.kill()
        process.join()
        if (out / "_manifest.json").exists():  # it was through
            assert {name: data for name, data in files_of(out).items() if not name.startswith(".work")} == wanted
            finished += 1
        else:
            killed += 1
            open_parts += any((out / ".work").glob("part-*"))
    process = begin(processes, text, out)
    process.join()
    assert process.exitcode == 0
    assert files_of(out) == wanted
    assert open_parts >= kills / 2, f"{open_parts} of {kills} kills fell while a part was open"


def test_workers_end_with_their_parent(processes, tmp_path, monkeypatch):
    text = tmp_path / "corpus.txt"
    text.write_text(corpus(4000))
    ready = processes.Event()
    process = processes.Process(target=corpora.run_with_workers, args=(text, tmp_path / "out", ready))
    process.start()
    for _ in range(1200):
        if any((tmp_path / "out").glob("part-*")):
            break
        time.sleep(0.05)
    children = corpora.children_of(process.pid)
    assert len(children) >= 2
    process.kill()
    process.join()
    for _ in range(200):
        if not any(corpora.runs(child) for child in children):
            break
        time.sleep(0.05)
    assert not any(corpora.runs(child) for child in children)
