"""Labelled spans and the tags that spell them: IOB1, BIO, BIOUL and BIOES."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from polyseme.errors import InputError

Scheme = Literal["iob1", "bio", "bioul", "bioes"]

#: The letters for (begin, inside, last, only) of each scheme; where begin and inside do double duty they stand twice.
_LETTERS = {"iob1": "BIII", "bio": "BIIB", "bioul": "BILU", "bioes": "BIES"}


class Span(NamedTuple):
    """Tokens `start` to `end`, the latter not included."""

    start: int
    end: int
    label: str


@lru_cache(4096)
def split_tag(tag: str) -> tuple[str, str]:
    """("B", "location") of "B-location"; hyphens may stand in the label. A tag without a hyphen has an empty label."""
    kind, _, label = tag.partition("-")
    return kind, label


def read_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of any of the schemes, read as leniently as conlleval does.

    A span begins where the tag says so, where the label changes, and at any tag after an O; so illegal sequences are
    read too, in the way in which the official scorer reads them.
    """
    spans: list[Span] = []
    start, label, closed = 0, None, True
    for position, tag in enumerate(tags):
        kind, new = split_tag(tag)
        if kind == "O":
            if label is not None:
                spans.append(Span(start, position, label))
            label, closed = None, True
            continue
        if label is None or new != label or kind in "BUS" or closed:
            if label is not None:
                spans.append(Span(start, position, label))
            start, label = position, new
        closed = kind in "LEUS"
    if label is not None:
        spans.append(Span(start, len(tags), label))
    return spans


def write_tags(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """The tags of `length` tokens that spell these spans, which must not overlap."""
    begin, inside, last, only = _LETTERS[scheme]
    tags = ["O"] * length
    previous = Span(0, 0, "")
    for span in sorted(spans):
        if not previous.end <= span.start < span.end <= length:
            raise InputError(f"span {tuple(span)} overlaps another one or lies outside the {length} tokens.")
        if span.end == span.start + 1:
            letters = [only]
        else:
            letters = [begin, *[inside] * (span.end - span.start - 2), last]
        if scheme == "iob1":
            touches = previous.label == span.label and previous.end == span.start and span.start > 0
            letters[0] = begin if touches else inside
        tags[span.start : span.end] = [f"{letter}-{span.label}" for letter in letters]
        previous = span
    return tags


@lru_cache(65536)
def may_follow(previous: str | None, tag: str | None, scheme: Scheme) -> bool:
    """Whether `tag` may stand after `previous`; None is the border of the sentence."""
    before, label_before = split_tag(previous or "O")
    kind, label = split_tag(tag or "O")
    same = label == label_before
    if scheme == "iob1":
        return kind != "B" or (before != "O" and same)
    if scheme == "bio":
        return kind != "I" or (before != "O" and same)
    _, inside, last, _ = _LETTERS[scheme]
    if before in ("B", "I"):
        return kind in (inside, last) and same
    return kind not in (inside, last)


def first_illegal(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """The position of the first tag that the scheme forbids, and why; None where all are legal."""
    letters = set(_LETTERS[scheme])
    for position, tag in enumerate(tags):
        kind, label = split_tag(tag)
        if tag != "O" and (kind not in letters or not label):
            wanted = ", ".join(f"{letter}-LABEL" for letter in sorted(letters))
            return position, f"the tag {tag!r} is none of O, {wanted}"
        previous = tags[position - 1] if position else None
        if not may_follow(previous, tag, scheme):
            return position, f"{tag} may not {f'follow {previous}' if position else 'begin a sentence'}"
    if tags and not may_follow(tags[-1], None, scheme):
        return len(tags) - 1, f"{tags[-1]} may not end a sentence"
    return None


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme whose letters and habits these tags show; the strict check is left to `first_illegal`.

    L and U are BIOUL's, E and S BIOES's. Otherwise it is IOB1 where at least one span begins with I and no B stands but
    after a span of its label, and BIO in all other cases.
    """
    inside_begins = begins_alone = False
    for tags in sequences:
        previous: str | None = None
        for tag in tags:
            kind, _ = split_tag(tag)
            if kind in ("L", "U"):
                return "bioul"
            if kind in ("E", "S"):
                return "bioes"
            inside_begins |= not may_follow(previous, tag, "bio")
            begins_alone |= not may_follow(previous, tag, "iob1")
            previous = tag
    return "iob1" if inside_begins and not begins_alone else "bio"
