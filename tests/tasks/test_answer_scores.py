from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.tasks.answer_scores import answer_scores, exact_match, plain, word_f1

# Answer, wanted answers, and what SQuAD's official script for version 1.1 gives: exact match, F1.
OFFICIAL = [
    ("the Denver Broncos", ["Denver Broncos"], 1, 1.0),
    ("Broncos of Denver", ["Denver Broncos", "The Broncos"], 0, 0.8),
    ("a the", ["an"], 1, 0),
    ("", ["x"], 0, 0),
    ("24–10", ["24-10"], 0, 0),
    ("U.S.A.", ["USA"], 1, 1.0),
    ("an apple-pie", ["apple pie"], 0, 0),
    ("the the cat", ["cat cat"], 0, 2 / 3),
    ("February 7, 2016", ["7 February 2016"], 0, 1.0),
    ("theatre", ["atre"], 0, 0),
]


@pytest.mark.parametrize(("answer", "wanted", "exact", "f1"), OFFICIAL)
def test_the_official_scripts_numbers(answer, wanted, exact, f1):
    assert exact_match(answer, wanted) == exact
    assert word_f1(answer, wanted) == pytest.approx(f1)
    assert answer_scores([answer], [wanted]) == pytest.approx({"exact_match": 100 * exact, "f1": 100 * f1})


words = st.lists(st.sampled_from(["The", "a", "cat", "Dog,", "dog", "U.S.", "x-y", "\n", "ét\u00a0é"]), max_size=6).map(" ".join)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_scores_equal_their_definitions(answer, wanted):
    best = 0.0
    for text in wanted:
        ours, theirs = Counter(plain(answer).split()), Counter(plain(text).split())
        common = sum(min(ours[word], theirs[word]) for word in ours)
        if common:
            best = max(best, 2 * common / (sum(ours.values()) + sum(theirs.values())))
    assert word_f1(answer, wanted) == pytest.approx(best)
    assert exact_match(answer, wanted) == any(plain(answer) == plain(text) for text in wanted)
    assert word_f1(wanted[0], wanted) == (1 if plain(wanted[0]) else 0)
    assert plain(plain(answer)) == plain(answer) == plain(f" THE {answer} !")


def test_means_over_questions():
    assert answer_scores(["cat", "dog"], [["the cat"], ["hot dog"]]) == pytest.approx(
        {"exact_match": 50, "f1": 100 * (1 + 2 / 3) / 2}
    )
    assert answer_scores([], []) == {"exact_match": 0, "f1": 0}
    with pytest.raises(InputError, match="1 answers to 0 questions"):
        answer_scores(["a"], [])
