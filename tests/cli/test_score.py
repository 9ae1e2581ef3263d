import json
import math

import pytest
from click.testing import CliRunner

import polyseme
from polyseme.cli import main

CANDIDATES = ["He drank powerful tea .", "He drank strong tea .", "He drank tea .", "He drank zebra tea ."]


def run(workshop, *arguments, stdin=None, model="model"):
    command = ["score", "--model", str(workshop / model), *map(str, arguments)]
    return CliRunner().invoke(main, command, input=stdin, catch_exceptions=False)


def test_candidates_are_ranked(workshop):
    expected = polyseme.load(workshop / "model").score(CANDIDATES)
    rows = [json.loads(line) for line in run(workshop, *CANDIDATES, "--json").stdout.splitlines()]
    totals = [row["log_probability"] for row in rows]
    assert totals == sorted(totals, reverse=True)
    assert sorted(row["sentence"] for row in rows) == [0, 1, 2, 3]
    for row in rows:
        score = expected[row["sentence"]]
        assert row["log_probability"] == pytest.approx(score.total, abs=1e-5)
        assert row["forward"] == pytest.approx(score.forward.tolist(), abs=1e-6)
        assert row["backward"] == pytest.approx(score.backward.tolist(), abs=1e-6)
        assert row["per_word"] == pytest.approx(score.total / len(score.forward), abs=1e-5)
        assert row["perplexity"] == pytest.approx(math.exp(-row["per_word"]), rel=1e-5)
        assert row["unknown"] == ([2] if "zebra" in row["tokens"] else [])
    by_word = [json.loads(line)["per_word"] for line in run(workshop, *CANDIDATES, "--json", "--by", "word").stdout.splitlines()]
    assert by_word == sorted(by_word, reverse=True)


def test_files_keep_their_order_unless_ranked(workshop):
    (workshop / "in.txt").write_text("\n".join(CANDIDATES) + "\n")
    plain = run(workshop, "-i", workshop / "in.txt").stdout.splitlines()
    assert plain[0].split() == ["log-probability", "per", "word", "perplexity", "unknown", "sentence"]
    assert [line.split(maxsplit=4)[4] for line in plain[1:]] == CANDIDATES
    ranked = run(workshop, "-i", workshop / "in.txt", "--rank").stdout.splitlines()
    assert ranked[1:] == sorted(plain[1:], key=lambda line: -float(line.split()[0]))
    assert run(workshop, stdin="\n".join(CANDIDATES)).stdout.splitlines() == plain
    assert run(workshop, "--no-rank", *CANDIDATES).stdout.splitlines() == plain


def test_every_word(workshop):
    (score,) = polyseme.load(workshop / "model").score(["He drank zebra"])
    lines = run(workshop, "--words", "He drank zebra").stdout.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["from", "(begin)", "He", "drank", "zebra", "(end)"]
    assert lines[1].split()[1:] == [f"{score.backward[0]:.3f}"]
    assert lines[2].split()[1:] == [f"{score.forward[0]:.3f}", f"{score.backward[1]:.3f}"]
    assert lines[4].endswith("not in the vocabulary")
    assert lines[5].split()[1:] == [f"{score.forward[3]:.3f}"]


def test_a_model_without_softmax(golden):
    result = run(golden, "a b", model="allennlp/relu2")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "softmax" in result.stderr


def test_nothing_to_score(workshop):
    result = run(workshop, stdin="")
    assert (result.exit_code, result.output) == (0, "")
