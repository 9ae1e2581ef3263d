"""Questions about texts: SQuAD v1.1's JSON, with the places of tokens and answers in the text; and a split of its articles."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import FormatError, InputError
from polyseme.tasks.documents import text_sentences
from polyseme.tasks.readers import read_lines
from polyseme.text import PennTokenizer


@dataclass(frozen=True)
class Context:
    """A paragraph: its text, the tokens of its sentences, and where each token stands in the text."""

    text: str
    sentences: tuple[tuple[str, ...], ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def from_text(cls, text: str) -> "Context":
        """A raw text, cut into sentences and Penn-like tokens."""
        sentences = list(text_sentences(text))
        places = tuple((token.start, token.end) for sentence in sentences for token in sentence)
        return cls(text, tuple(tuple(token.text for token in sentence) for sentence in sentences), places)

    @classmethod
    def from_tokens(cls, sentences: Sequence[Sequence[str]]) -> "Context":
        """Sentences of tokens; the text is the tokens parted by blanks."""
        places, begin = [], 0
        for sentence in sentences:
            for token in sentence:
                places.append((begin, begin + len(token)))
                begin += len(token) + 1
        return cls(" ".join(token for sentence in sentences for token in sentence), tuple(map(tuple, sentences)), tuple(places))

    def part(self, start: int, end: int) -> str:
        """The text of the tokens `start` to `end`, the latter not included."""
        return self.text[self.places[start][0] : self.places[end - 1][1]] if start < end else ""

    def cover(self, begin: int, stop: int) -> tuple[int, int] | None:
        """The fewest tokens (from, up to and without) that hold the characters; None where there are none."""
        touched = [number for number, (first, last) in enumerate(self.places) if first < stop and begin < last]
        return (touched[0], touched[-1] + 1) if touched else None


@dataclass(frozen=True)
class Question:
    """A question about a context. `answers` are the texts people gave, None where not known; `spans` the tokens they cover."""

    id: str
    tokens: tuple[str, ...]
    context: Context
    answers: tuple[str, ...] | None = None
    spans: tuple[tuple[int, int], ...] = ()


def read_squad(path: str | Path, *, labelled: bool = True) -> list[Question]:
    """The questions of a SQuAD v1.1 file; an answer that does not stand where the file says is an error.

    `labelled=False` passes over the answers, which need not be there.
    """
    questions: list[Question] = []
    for article in _part(read_json(path), "data", list, str(path)):
        title = str(article.get("title", "?")) if isinstance(article, dict) else "?"
        where = f"{path}, article {title!r}"
        for number, paragraph in enumerate(_part(article, "paragraphs", list, where), 1):
            place = f"{where}, paragraph {number}"
            context = Context.from_text(_part(paragraph, "context", str, place))
            if not context.places:
                raise FormatError(f"{place}: the context is empty; wanted a text.")
            entries = _part(paragraph, "qas", list, place)
            questions.extend(_question(entry, context, place, labelled=labelled) for entry in entries)
    if not questions:
        raise FormatError(f"{path}: no questions; wanted a SQuAD v1.1 file with some.")
    return questions


def read_json(path: str | Path) -> Any:
    """The value of a JSON file, which may be compressed."""
    try:
        return json.loads("\n".join(line for _, line in read_lines(path)))
    except ValueError as error:
        raise FormatError(f"{path}: no JSON ({error}); wanted a SQuAD v1.1 file.") from error


def _part(value: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(name), kind):
        what = {list: "a list", str: "a text", int: "a number"}[kind]
        raise FormatError(f"{where}: no {name}; wanted {what} there, as in SQuAD v1.1.")
    return value[name]


def _question(entry: Any, context: Context, where: str, *, labelled: bool) -> Question:
    text = _part(entry, "question", str, where)
    name = str(entry.get("id", text))
    tokens = tuple(PennTokenizer().tokenize(text))
    if not labelled:
        return Question(name, tokens, context)
    where = f"{where}, question {name!r}"
    answers, spans = [], []
    for answer in _part(entry, "answers", list, where):
        wanted, begin = _part(answer, "text", str, where), _part(answer, "answer_start", int, where)
        found = context.text[begin : begin + len(wanted)] if begin >= 0 else ""
        if found != wanted:
            raise FormatError(
                f"{where}: the answer {wanted!r} does not stand at character {begin} of the context, where {found!r} does; "
                "correct answer_start or the answer."
            )
        span = context.cover(begin, begin + len(wanted))
        if span is None:
            raise FormatError(f"{where}: the answer {wanted!r} holds no token; wanted words of the context.")
        answers.append(wanted)
        spans.append(span)
    if not answers:
        raise FormatError(f"{where}: no answer; wanted at least one (SQuAD v2's questions without answers are not read).")
    return Question(name, tokens, context, tuple(answers), tuple(dict.fromkeys(spans)))


def split_articles(articles: Sequence[dict[str, Any]], *sizes: int) -> list[list[dict[str, Any]]]:
    """The articles in parts of these sizes and a last part with the rest, by the order of SHA-256 over their titles.

    Which part an article falls into depends on the set of titles alone, not on the order of the file.
    """
    if sum(sizes) > len(articles):
        raise InputError(
            f"{len(articles)} articles cannot be split into parts of {', '.join(map(str, sizes))}; give smaller ones."
        )
    order = sorted(articles, key=lambda article: hashlib.sha256(str(article["title"]).encode()).hexdigest())
    parts, done = [], 0
    for size in sizes:
        parts.append(order[done : done + size])
        done += size
    return [*parts, order[done:]]
