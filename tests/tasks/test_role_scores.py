"""srl-eval's worked examples: the numbers below are what the official program (2005/04/21) prints for these columns."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.tasks.role_readers import read_role_columns
from polyseme.tasks.role_scores import read_arguments, role_scores
from polyseme.tasks.spans import Span, write_tags

# Sentences are parted by "|", tokens by ";"; a token has its predicate and the gold and the predicted brackets.
CONTINUATIONS = (
    "- (A1*;- *);say (V*);- (A0*);- (C-A1*;- *)|- (A1*);run (V*);- *;- (C-A1*)|- (A1*);run (V*);- (C-V*);- *|"
    "- (C-A0*);see (V*);- (A1*);- (C-A1*);- (C-A1*)",
    "- (A1*;- *);say (V*);- (A0*);- (C-A1*;- *)|- (A1*);run (V*);- *;- (A1*)|- (A1*);run (V*);- *;- *|"
    "- (A0*);see (V*);- (A1*);- (C-A1*);- *",
    {"Overall": (4, 3, 2), "A0": (2, 0, 0), "A1": (2, 3, 2), "V": (3, 1, 1)},
    "50.00",
)
REFERENCES = (
    "- (A0*);- (R-A0*);sell (V*);- (A1*);- (C-R-A0*)|- (A0*);- (R-A0*);sell (V*);- *;- *",
    "- (A0*);- (R-A0*);sell (V*);- (A1*);- (C-R-A0*)|- (A0*);- (A0*);sell (V*);- *;- (R-A0*)",
    {"Overall": (4, 2, 1), "A0": (2, 1, 0), "A1": (1, 0, 0), "R-A0": (1, 1, 1), "V": (2, 0, 0)},
    "50.00",
)
NESTED = (
    "- (A0*) (A0*) *;want (V*) * *;- (A1* * (A0*);buy * (V*) *;- * (A1* *;say * * (V*);- *) *) (C-A0*)",
    "- (A0*) * *;want (V*) * (A0*);- (A1* * *;buy * (V*) *;- * (A1* *;say * * (V*);- *) *) (C-A0*)",
    {"Overall": (3, 1, 2), "A0": (1, 1, 2), "A1": (2, 0, 0), "V": (3, 0, 0)},
    "33.33",
)
MISSING = (
    "- (A0*) (A0*) *;want (V*) * *;- (A1* * *;buy * (V*) *;- * (A1*) (A0*);say *) * (V*)",
    "sold (V*) (A0*);want (A0*) (V*);- * (A1*;- * *;- * *;- * *)",
    {"Overall": (2, 0, 3), "A0": (1, 0, 2), "A1": (1, 0, 1), "V": (1, 0, 2)},
    "33.33",
)


def read(text, path):
    lines = [[f"w {token}" for token in sentence.split(";")] for sentence in text.split("|")]
    path.write_text("\n\n".join("\n".join(sentence) for sentence in lines) + "\n")
    return [{found.index: found.tags for found in sentence.propositions} for sentence in read_role_columns(path)]


@pytest.mark.parametrize("case", [CONTINUATIONS, REFERENCES, NESTED, MISSING], ids=["C-", "R-", "nested", "missing"])
def test_the_official_programs_numbers(case, tmp_path):
    gold, predicted, printed, perfect = case
    scores = role_scores(read(gold, tmp_path / "gold"), read(predicted, tmp_path / "predicted"))
    counts = {"Overall": scores.overall, **scores.roles, "V": scores.verb}
    # Correct, excess and missed, as they are printed.
    assert {role: (c.correct, c.found - c.correct, c.wanted - c.correct) for role, c in counts.items()} == printed
    assert f"{scores.perfect_share:.2f}" == perfect


def test_precision_recall_and_f1_as_printed(tmp_path):
    gold, predicted, *_ = CONTINUATIONS
    overall = role_scores(read(gold, tmp_path / "gold"), read(predicted, tmp_path / "predicted")).overall
    assert [f"{value:.2f}" for value in (overall.precision, overall.recall, overall.f1)] == ["57.14", "66.67", "61.54"]


ROLES = ("A0", "A1", "V", "C-A0", "C-A1", "R-A0", "C-R-A0", "C-V")


@st.composite
def tagged(draw, length):
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    spans = [Span(start, end, draw(st.sampled_from(ROLES))) for start, end in pairwise(cuts)]
    return write_tags([span for span in spans if draw(st.booleans())], length, "bio")


@given(st.data(), st.integers(1, 9))
def test_arguments_are_those_of_a_slow_reading(data, length):
    tags = data.draw(tagged(length))
    found = read_arguments(tags)
    # Every token of a span belongs to exactly one argument, of the role its tag has without C-.
    covered = {token: role for role, pieces in found for start, end in pieces for token in range(start, end)}
    assert covered == {token: tag[2:].removeprefix("C-") for token, tag in enumerate(tags) if tag != "O"}
    # An argument begins where a role stands without C-, or with it for the first time.
    plain = {(token, tag[2:]) for token, tag in enumerate(tags) if tag.startswith("B-") and not tag.startswith("B-C-")}
    begun = {(pieces[0][0], role) for role, pieces in found}
    assert plain <= begun
    for start, role in begun - plain:
        assert all(tag[2:].removeprefix("C-") != role for tag in tags[:start])
    for _, pieces in found:
        for start, _ in pieces[1:]:
            assert tags[start].startswith("B-C-")


@given(st.data(), st.integers(1, 9))
def test_gold_is_perfect_and_both_sides_may_be_exchanged(data, length):
    one, other = data.draw(tagged(length)), data.draw(tagged(length))
    same = role_scores([{0: one}], [{0: one}])
    assert (same.perfect, same.overall.wanted, same.overall.found) == (1, same.overall.correct, same.overall.correct)
    there, back = role_scores([{0: one}], [{0: other}]).overall, role_scores([{0: other}], [{0: one}]).overall
    assert (there.precision, there.recall, there.f1) == (back.recall, back.precision, back.f1)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InputError, match="2 gold sentences but 1 predicted"):
        role_scores([{}, {}], [{}])
    with pytest.raises(InputError, match="sentence 1, predicate at 3: 2 gold tags but 1 predicted"):
        role_scores([{3: ["O", "O"]}], [{3: ["O"]}])
    assert role_scores([{}], [{}]).perfect_share == 0
