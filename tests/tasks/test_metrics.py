import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.tasks.metrics import Counts, accuracy, span_scores
from polyseme.tasks.spans import split_tag


def test_conlleval_prints_the_same(root):
    examples = json.loads((root / "tests/golden/conlleval.json").read_text())["examples"]
    assert len(examples) > 10
    for example in examples:
        scores, printed = span_scores(example["gold"], example["predicted"]), example["printed"]
        assert scores.tokens == printed["tokens"]
        assert (scores.overall.wanted, scores.overall.found, scores.overall.correct) == (
            printed["wanted"],
            printed["found"],
            printed["correct"],
        )
        for name in ("precision", "recall", "f1"):
            assert getattr(scores.overall, name) == pytest.approx(printed[name], abs=0.005001)
        assert scores.accuracy == pytest.approx(printed["accuracy"], abs=0.005001)
        assert set(scores.labels) == set(printed["labels"])
        for label, (precision, recall, f1, found) in printed["labels"].items():
            counts = scores.labels[label]
            assert [counts.precision, counts.recall, counts.f1] == pytest.approx([precision, recall, f1], abs=0.005001)
            assert counts.found == found


TAGS = st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=6)


def brute_force_spans(tags):
    """Every (start, end, label) of which all tags say: begins here, goes on, ends here."""
    parts = [split_tag(tag) for tag in tags]

    def begins(n):
        kind, label = parts[n]
        return kind != "O" and (n == 0 or parts[n - 1][0] == "O" or parts[n - 1][1] != label or kind == "B")

    return {
        (start, end, parts[start][1])
        for start in range(len(tags))
        for end in range(start + 1, len(tags) + 1)
        if begins(start)
        and all(parts[n][0] == "I" and parts[n][1] == parts[start][1] for n in range(start + 1, end))
        and (end == len(tags) or parts[end][0] == "O" or begins(end))
    }


@given(pairs=st.lists(TAGS.flatmap(lambda tags: st.tuples(st.just(tags), st.permutations(tags))), max_size=4))
def test_span_scores_equal_brute_force(pairs):
    gold = [list(a) for a, _ in pairs]
    predicted = [list(b) for _, b in pairs]
    wanted = [(n, *span) for n, tags in enumerate(gold) for span in brute_force_spans(tags)]
    found = [(n, *span) for n, tags in enumerate(predicted) for span in brute_force_spans(tags)]
    scores = span_scores(gold, predicted)
    assert scores.overall == Counts(len(wanted), len(found), len(set(wanted) & set(found)))
    assert sum(counts.found for counts in scores.labels.values()) == len(found)


def test_nothing_is_zero_percent():
    assert span_scores([], []).overall.f1 == 0
    assert span_scores([["O"]], [["O"]]).accuracy == 100
    assert accuracy([], []) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_accuracy_is_a_share(pairs):
    gold, predicted = zip(*pairs, strict=True)
    assert accuracy(gold, predicted) == pytest.approx(100 * sum(a == b for a, b in pairs) / len(pairs))


def test_gold_and_predicted_must_match():
    with pytest.raises(InputError, match="1 gold items but 2 predicted"):
        span_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(InputError, match="sentence 1 has 1 gold tags, 2 predicted"):
        span_scores([["O"]], [["O", "O"]])
