import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyseme.errors import InputError
from polyseme.tasks.coreference_scores import assign, b_cubed, ceaf, coreference_scores, muc

RECORDED = Path(__file__).parent.parent / "golden" / "coreference_scores.json"


def clusters(text):
    """["a", "bc"] from "a bc": a letter is a mention."""
    return [list(word) for word in text.split()]


# The test cases that come with the official scorer: key, response, and (recall, precision) of MUC, B³, CEAFφ4.
OFFICIAL = {
    "A1 perfect": ("a bc def", "a bc def", (1, 1), (1, 1), (1, 1)),
    "A2 missing mentions": ("a bc def", "a de", (1 / 3, 1), (7 / 18, 1), (0.6, 0.9)),
    "A3 invented mentions": ("a bc def", "a bcx defy z", (1, 3 / 5), (1, 55 / 108), (0.885714, 0.664286)),
    "A4 both": ("a bc def", "a bcx dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (0.733333, 0.55)),
    "A5 overlapping, same cluster": ("a bc def", "a bcxB dy z", (1 / 3, 1 / 4), (5 / 9, 5 / 16), (0.688889, 0.516667)),
    "A6 overlapping, other cluster": ("a bc def", "a bcx dy Bz", (1 / 3, 1 / 4), (5 / 9, 17 / 48), (0.733333, 0.55)),
    "A7 repeated in its cluster": ("a bc def", "a bcxb dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (0.733333, 0.55)),
    "A8 repeated in another cluster": ("a bc def", "a bcx dy bz", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (0.733333, 0.55)),
    "A10 all alone": ("a bc def", "a b c d e f", (0, 0), (1 / 2, 1), None),
    "A11 all in one": ("a bc def", "abcdef", (1, 3 / 5), (1, 7 / 18), None),
}


@pytest.mark.parametrize("case", OFFICIAL)
def test_the_worked_examples_of_the_official_scorer(case):
    key, response, *wanted = OFFICIAL[case]
    scores = coreference_scores([clusters(key)], [clusters(response)])
    for ratio, numbers in zip((scores.muc, scores.b_cubed, scores.ceaf), wanted, strict=True):
        if numbers is not None:
            assert (ratio.recall, ratio.precision) == pytest.approx([100 * number for number in numbers], abs=1e-4)
    assert scores.mean_f1 == pytest.approx((scores.muc.f1 + scores.b_cubed.f1 + scores.ceaf.f1) / 3)


def test_what_the_official_scorer_printed():
    """Random clusters, with singletons, repeats, invented and missing mentions and empty documents; recorded from 8.01."""
    cases = json.loads(RECORDED.read_text())
    assert len(cases) == 40
    for case in cases:
        scores = coreference_scores(case["gold"], case["predicted"])
        for ratio, name in ((scores.muc, "muc"), (scores.b_cubed, "bcub"), (scores.ceaf, "ceafe")):
            assert [ratio.recalled, ratio.wanted, ratio.correct, ratio.found] == pytest.approx(case[name], abs=1e-9), case


def test_nothing_to_find_and_nothing_found():
    nothing = coreference_scores([[]], [[]])
    assert nothing.mean_f1 == nothing.mentions.f1 == 0
    assert coreference_scores([clusters("ab")], [[]]).mean_f1 == 0
    assert coreference_scores([[]], [clusters("ab")]).b_cubed.precision == 0
    alone = coreference_scores([clusters("a b")], [clusters("a b")])
    assert (alone.muc.f1, alone.b_cubed.f1, alone.ceaf.f1) == (0, 100, 100)
    assert ceaf([[]], [[], []]).wanted == 0
    with pytest.raises(InputError, match="2 gold documents but 1 predicted"):
        coreference_scores([[], []], [[]])


partitions = st.dictionaries(st.integers(0, 9), st.integers(0, 4)).map(
    lambda places: [[m for m, c in places.items() if c == number] for number in sorted(set(places.values()))]
)


@given(partitions, partitions)
def test_scores_equal_their_definitions(key, response):
    links = {frozenset(pair) for cluster in key for pair in itertools.combinations(cluster, 2)}
    found = {frozenset(pair) for cluster in response for pair in itertools.combinations(cluster, 2)}
    # MUC: the links that have to be added to join what both clusterings hold together.
    both = links & found
    left = {mention: frozenset([mention]) for cluster in key for mention in cluster}
    correct = 0
    for first, second in map(tuple, both):
        if left[first] != left[second]:
            joined = left[first] | left[second]
            left.update(dict.fromkeys(joined, joined))
            correct += 1
    assert muc(key, response).correct == correct
    own = {mention: set(cluster) for cluster in response for mention in cluster}
    recall = [len(set(cluster) & own.get(mention, set())) / len(cluster) for cluster in key for mention in cluster]
    assert b_cubed(key, response).recalled == pytest.approx(sum(recall))
    turned, straight = b_cubed(response, key), b_cubed(key, response)
    assert (turned.recall, turned.precision) == pytest.approx((straight.precision, straight.recall))

    def similar(a, b):
        return 2 * len(set(a) & set(b)) / (len(a) + len(b))

    few, many = sorted((key, response), key=len)
    best = max(sum(map(similar, few, chosen)) for chosen in itertools.permutations(many, len(few)))
    assert ceaf(key, response).correct == pytest.approx(best)


@given(partitions)
def test_a_clustering_is_its_own_best_answer(key):
    scores = coreference_scores([key], [key])
    assert scores.b_cubed.f1 == pytest.approx(100 if key else 0)
    assert scores.ceaf.f1 == pytest.approx(100 if key else 0)
    assert scores.muc.f1 == (100 if any(len(cluster) > 1 for cluster in key) else 0)


@given(st.tuples(st.integers(0, 5), st.integers(0, 5)).flatmap(lambda shape: arrays(float, shape, elements=st.floats(-5, 5))))
def test_the_assignment_is_the_best(values):
    found = assign(values)
    chosen = [column for column in found.tolist() if column >= 0]
    assert len(found) == values.shape[0]
    assert len(set(chosen)) == len(chosen) == min(values.shape)
    few = values if values.shape[0] <= values.shape[1] else values.T
    best = max(
        sum(few[row, column] for row, column in enumerate(columns))
        for columns in itertools.permutations(range(few.shape[1]), few.shape[0])
    )
    total = sum(values[row, column] for row, column in enumerate(found.tolist()) if column >= 0)
    assert total == pytest.approx(best, abs=1e-9)


def test_a_large_assignment_is_quick():
    values = np.random.default_rng(0).random((150, 120))
    found = assign(values)
    assert (found >= 0).sum() == 120
