import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.tasks.spans import Span, detect_scheme, first_illegal, may_follow, read_spans, write_tags

SCHEMES = ["iob1", "bio", "bioul", "bioes"]


@st.composite
def layouts(draw):
    """(spans, length): non-overlapping spans over a sentence."""
    spans, position = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = position + draw(st.integers(0, 2))
        position = start + draw(st.integers(1, 3))
        spans.append(Span(start, position, draw(st.sampled_from(["A", "B-c"]))))
    return spans, position + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(layout=layouts())
def test_what_is_written_is_legal_and_read_back(scheme, layout):
    spans, length = layout
    tags = write_tags(spans, length, scheme)
    assert len(tags) == length
    assert first_illegal(tags, scheme) is None
    assert read_spans(tags) == spans


def test_the_schemes_spell_the_same_spans_differently():
    spans = [Span(0, 2, "X"), Span(2, 3, "X"), Span(4, 7, "Y")]
    assert write_tags(spans, 7, "iob1") == "I-X I-X B-X O I-Y I-Y I-Y".split()
    assert write_tags(spans, 7, "bio") == "B-X I-X B-X O B-Y I-Y I-Y".split()
    assert write_tags(spans, 7, "bioul") == "B-X L-X U-X O B-Y I-Y L-Y".split()
    assert write_tags(spans, 7, "bioes") == "B-X E-X S-X O B-Y I-Y E-Y".split()


@pytest.mark.parametrize(
    ("scheme", "tags", "position", "reason"),
    [
        ("bio", "O I-X", 1, "I-X may not follow O"),
        ("bio", "I-X O", 0, "I-X may not begin a sentence"),
        ("bio", "B-X I-Y", 1, "I-Y may not follow B-X"),
        ("bio", "B-X L-X", 1, "'L-X' is none of O, B-LABEL, I-LABEL"),
        ("bio", "B-", 0, "'B-' is none of"),
        ("iob1", "O B-X", 1, "B-X may not follow O"),
        ("bioul", "B-X O", 1, "O may not follow B-X"),
        ("bioul", "O B-X", 1, "B-X may not end a sentence"),
        ("bioul", "U-X L-X", 1, "L-X may not follow U-X"),
    ],
)
def test_illegal_tags_are_found_and_explained(scheme, tags, position, reason):
    found = first_illegal(tags.split(), scheme)
    assert found is not None
    assert found[0] == position
    assert reason in found[1]


@given(layout=layouts())
def test_a_scheme_is_told_from_its_tags(layout):
    spans, length = layout
    for scheme in ("bioul", "bioes"):
        if any(len(tags) > 1 or "-" in tags[0] for tags in [write_tags(spans, length, scheme)] if tags and spans):
            assert detect_scheme([write_tags(spans, length, scheme)]) == scheme
    if spans:
        assert detect_scheme([write_tags(spans, length, "iob1")]) == "iob1"
    assert detect_scheme([write_tags(spans, length, "bio")]) == "bio"


def test_one_illegal_tag_does_not_turn_bio_into_iob1():
    assert detect_scheme([["B-X", "I-X"], ["O", "I-X"]]) == "bio"


def test_overlapping_spans_cannot_be_written():
    with pytest.raises(InputError, match="overlaps another"):
        write_tags([Span(0, 2, "X"), Span(1, 3, "Y")], 3, "bio")


def test_borders_of_a_sentence():
    assert not may_follow(None, "I-X", "bio")
    assert not may_follow("B-X", None, "bioul")
    assert may_follow("L-X", None, "bioul")
