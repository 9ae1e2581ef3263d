"""Readers of semantic roles: JSON lines, columns as in CoNLL-2005 and in CoNLL-2012; and what writes them.

Roles stand in BIO tags, one sequence for each predicate; columns spell them with brackets: (A0* * *) for three tokens.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyseme.errors import FormatError
from polyseme.tasks.json_lines import is_tokens, read_objects
from polyseme.tasks.readers import read_lines
from polyseme.tasks.spans import Span, first_illegal, read_spans, write_tags

_OBJECT = '{"tokens": [...], "predicates": [{"index": 3, "tags": ["O", "B-ARG0", ...]}]}'
_BRACKETS = re.compile(r"((?:\([^()*\s]+)*)\*((?:[^()*\s]*\))*)")
_COLUMNS_2012 = 12


@dataclass(frozen=True)
class Proposition:
    """A predicate: its token, the BIO tags of its roles (None where they are not known), and its lemma and sense if given."""

    index: int
    tags: tuple[str, ...] | None
    lemma: str | None = None
    sense: str | None = None


@dataclass(frozen=True)
class RoleSentence:
    """A sentence and its predicates, None where they are to be found; parts of speech if given.

    A sentence may stand for a single one of its predicates, the one with the number `part`.
    """

    tokens: tuple[str, ...]
    propositions: tuple[Proposition, ...] | None
    pos: tuple[str, ...] | None = None
    document: int = 0
    lines: tuple[int, ...] = ()
    part: int | None = None

    def line(self, position: int) -> int:
        """The line a token stands on."""
        return self.lines[min(position, len(self.lines) - 1)] if self.lines else 0


def read_role_objects(path: str | Path, *, labelled: bool = True) -> list[RoleSentence]:
    """JSON lines with `tokens` and `predicates`, each with `index` and `tags`; `pos`, `doc`, `lemma` and `roleset` may stand.

    Not `labelled`, tags are not looked at and a line without `predicates` is a sentence whose predicates are to be found.
    """
    sentences = []
    document, name = 0, None
    for number, values in read_objects(path, wanted=_OBJECT):
        where = f"{path}, line {number}"
        tokens, predicates, pos = values.get("tokens"), values.get("predicates"), values.get("pos")
        if not isinstance(tokens, list) or not is_tokens(tokens):
            raise FormatError(f"{where}: 'tokens' is {_short(tokens)}; wanted a list of strings that are not empty.")
        if pos is not None and (not isinstance(pos, list) or len(pos) != len(tokens)):
            raise FormatError(f"{where}: 'pos' does not go with the {len(tokens)} tokens; wanted one for each, or none at all.")
        if predicates is None and not labelled:
            propositions = None
        elif isinstance(predicates, list):
            propositions = tuple(_proposition(value, len(tokens), where, labelled) for value in predicates)
        else:
            raise FormatError(f"{where}: 'predicates' is {_short(predicates)}; wanted a list: {_OBJECT}.")
        document += values.get("doc", name) != name
        name = values.get("doc", name)
        sentences.append(RoleSentence(tuple(tokens), propositions, None if pos is None else tuple(pos), document, (number,)))
    return sentences


def _proposition(value: object, length: int, where: str, labelled: bool) -> Proposition:
    index = value.get("index") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < length:
        raise FormatError(f"{where}: the predicate {_short(value)}; wanted an index between 0 and {length - 1} in each.")
    tags = value.get("tags")
    if not labelled:
        tags = None
    elif not isinstance(tags, list) or len(tags) != length or not all(isinstance(tag, str) for tag in tags):
        count = len(tags) if isinstance(tags, list) else "no list of"
        raise FormatError(f"{where}, predicate at {index}: {count} tags; wanted one BIO tag for each of the {length} tokens.")
    elif wrong := first_illegal(tags, "bio"):
        raise FormatError(f"{where}, predicate at {index}, token {wrong[0]}: {wrong[1]}; wanted BIO tags.")
    lemma, sense = (text if isinstance(text := value.get(name), str) else None for name in ("lemma", "roleset"))
    return Proposition(index, None if tags is None else tuple(tags), lemma, sense)


def _short(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


def read_role_columns(path: str | Path, *, token: int = 0, labelled: bool = True) -> list[RoleSentence]:
    """Columns as in CoNLL-2005: tokens, anything between, the predicates' lemmas or -, and a column of brackets for each.

    Not `labelled`, the columns of brackets may be absent and are not looked at; a file that has no predicates at all leaves
    them to be found.
    """
    sentences = []
    place: int | None = None
    for rows in _sentences(path):
        first, width = rows[0][0], len(rows[0][1])
        if place is None:
            arguments = 0
            while arguments < width and all(_BRACKETS.fullmatch(fields[-1 - arguments]) for _, fields in rows):
                arguments += 1
            place = width - arguments - 1
            if place <= token:
                raise FormatError(
                    f"{path}, line {first}: no column with the predicates between the tokens and the brackets; wanted columns of "
                    "a token, a predicate or -, and one of brackets such as (A0* for each predicate."
                )
        if width <= place:
            raise FormatError(f"{path}, line {first}: {width} columns; wanted the predicates or - in column {place + 1}.")
        found = [(position, fields[place]) for position, (_, fields) in enumerate(rows) if fields[place] != "-"]
        columns = range(place + 1, width)
        if len(columns) != len(found) and (labelled or columns):
            raise FormatError(
                f"{path}, line {first}: {len(found)} predicates in column {place + 1}, but {len(columns)} columns after it; "
                "wanted one for each predicate of the sentence."
            )
        tags = [_tags(path, rows, column) for column in columns] if labelled else [None] * len(found)
        propositions = [Proposition(index, own, lemma) for (index, lemma), own in zip(found, tags, strict=True)]
        sentences.append(_sentence(rows, token, propositions))
    return _finish(sentences, path, labelled)


def read_role_columns_2012(path: str | Path, *, labelled: bool = True) -> list[RoleSentence]:
    """CoNLL-2012's columns: the token is the fourth, the lemma the seventh, roles stand from the twelfth to the last but one.

    A column of roles belongs to the token at which its (V begins. Each part of a document is a document of its own. Not
    `labelled`, only those tokens are looked at, and a file without roles leaves the predicates to be found.
    """
    sentences = []
    parts: dict[tuple[str, ...], int] = {}
    for rows in _sentences(path):
        first, fields = rows[0]
        if len(fields) < _COLUMNS_2012:
            raise FormatError(f"{path}, line {first}: {len(fields)} columns; wanted the {_COLUMNS_2012} or more of CoNLL-2012.")
        propositions = []
        for column in range(_COLUMNS_2012 - 1, len(fields) - 1):
            tags = _tags(path, rows, column)
            verbs = [span.start for span in read_spans(tags) if span.label == "V"]
            if not verbs:
                raise FormatError(f"{path}, line {first}: column {column + 1} has no (V*); wanted one, at the predicate.")
            lemma, sense = (None if text == "-" else text for text in rows[verbs[0]][1][6:8])
            propositions.append(Proposition(verbs[0], tags if labelled else None, lemma, sense))
        document = parts.setdefault(tuple(fields[:2]), len(parts))
        sentence = _sentence(rows, 3, propositions)
        sentences.append(replace(sentence, pos=tuple(row[4] for _, row in rows), document=document))
    return _finish(sentences, path, labelled)


_Rows = list[tuple[int, list[str]]]


def _sentences(path: str | Path) -> Iterator[_Rows]:
    """The numbered lines of each sentence as columns, of which all its lines have the same number."""
    rows: _Rows = []
    for number, line in [*read_lines(path), (0, "")]:
        fields = line.split()
        if not fields:
            if rows:
                yield rows
            rows = []
        elif not line.startswith(("#begin", "#end")):
            if rows and len(fields) != len(rows[0][1]):
                raise FormatError(
                    f"{path}, line {number}: {len(fields)} columns; wanted {len(rows[0][1])} as on line {rows[0][0]}, and blank "
                    "lines between sentences."
                )
            rows.append((number, fields))


def _sentence(rows: _Rows, token: int, propositions: Sequence[Proposition]) -> RoleSentence:
    tokens = tuple(fields[token] for _, fields in rows)
    return RoleSentence(tokens, tuple(propositions), lines=tuple(number for number, _ in rows))


def _finish(sentences: list[RoleSentence], path: str | Path, labelled: bool) -> list[RoleSentence]:
    if not sentences:
        raise FormatError(f"{path}: the file is empty; wanted columns of tokens, predicates and roles.")
    if not labelled and not any(sentence.propositions for sentence in sentences):
        return [replace(sentence, propositions=None) for sentence in sentences]
    return sentences


def _tags(path: str | Path, rows: _Rows, column: int) -> tuple[str, ...]:
    """The BIO tags that a column of brackets spells."""
    spans: list[Span] = []
    begun: tuple[int, str] | None = None
    for position, (number, fields) in enumerate(rows):
        where = f"{path}, line {number}, column {column + 1}: {fields[column]!r}"
        match = _BRACKETS.fullmatch(fields[column])
        if match is None:
            raise FormatError(f"{where}; wanted brackets such as *, (A0*, *) or (A0*).")
        for label in match[1].split("(")[1:]:
            if begun is not None:
                raise FormatError(f"{where} begins inside ({begun[1]}; wanted roles that do not overlap.")
            begun = (position, label)
        for label in match[2].split(")")[:-1]:
            if begun is None or label not in ("", begun[1]):
                raise FormatError(f"{where} closes {label or 'a role'}, which is not open; wanted one that is.")
            spans.append(Span(begun[0], position + 1, begun[1]))
            begun = None
    if begun is not None:
        where = f"{path}, line {rows[begun[0]][0]}, column {column + 1}"
        raise FormatError(f"{where}: ({begun[1]} is not closed in its sentence; wanted a closing bracket.")
    return tuple(write_tags(spans, len(rows), "bio"))


def write_brackets(tags: Sequence[str]) -> list[str]:
    """The column of brackets that spells BIO tags."""
    column = ["*"] * len(tags)
    for span in read_spans(tags):
        column[span.start] = f"({span.label}{column[span.start]}"
        column[span.end - 1] += ")"
    return column


def write_role_columns(sentence: RoleSentence) -> str:
    """Tokens, predicates and brackets: from the second column on, what srl-eval reads. Without a lemma the word stands."""
    propositions = sorted(sentence.propositions or (), key=lambda proposition: proposition.index)
    predicates = ["-"] * len(sentence.tokens)
    for proposition in propositions:
        predicates[proposition.index] = proposition.lemma or sentence.tokens[proposition.index]
    columns = [sentence.tokens, predicates, *(write_brackets(proposition.tags or ()) for proposition in propositions)]
    return "".join("\t".join(fields) + "\n" for fields in zip(*columns, strict=True)) + "\n"


def role_object(sentence: RoleSentence) -> dict[str, Any]:
    """The sentence as `read_role_objects` reads it, tags where they are known."""
    values: dict[str, Any] = {"tokens": list(sentence.tokens)}
    if sentence.pos is not None:
        values["pos"] = list(sentence.pos)
    if sentence.propositions is not None:
        values["predicates"] = [_predicate(proposition) for proposition in sentence.propositions]
    return values


def _predicate(proposition: Proposition) -> dict[str, Any]:
    named = {"index": proposition.index, "lemma": proposition.lemma, "roleset": proposition.sense}
    tags = {} if proposition.tags is None else {"tags": list(proposition.tags)}
    return {name: value for name, value in named.items() if value is not None} | tags
