"""The input cut into portions, one for each part: where they are cut depends on the text alone."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from polyseme.bulk.settings import BulkSettings
from polyseme.sources import Reader
from polyseme.text import split_sentences


@dataclass(frozen=True)
class Portion:
    """Consecutive sentences, and for each the number of the text it stands in, over all inputs, and its first character there."""

    number: int
    first: int
    sentences: list[str | list[str]]
    texts: list[int]
    starts: list[int]

    def digest(self) -> str:
        """SHA-256 of the content: a stored part belongs to a portion if it was made from this."""
        content = json.dumps([self.first, self.sentences, self.texts, self.starts], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass
class InputCounts:
    """How many texts (lines, records, rows) were read of each input, in the order of reading."""

    texts: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Of all inputs."""
        return sum(self.texts.values())


def portions(reader: Reader, settings: BulkSettings, counts: InputCounts) -> Iterator[Portion]:
    """The sentences of the input in portions of about `settings.portion` letters; `counts` is filled in on the way.

    A text longer than that is a portion of its own.
    """
    number = first = held = 0
    sentences: list[str | list[str]] = []
    texts: list[int] = []
    starts: list[int] = []
    for value, text, start in _stream(reader, settings, counts):
        size = len(value) + 1 if isinstance(value, str) else sum(map(len, value)) + len(value) + 1
        if held and held + size > settings.portion:
            yield Portion(number, first, sentences, texts, starts)
            number, first, held = number + 1, first + len(sentences), 0
            sentences, texts, starts = [], [], []
        sentences.append(value)
        texts.append(text)
        starts.append(start)
        held += size
    if sentences:
        yield Portion(number, first, sentences, texts, starts)


def _stream(reader: Reader, settings: BulkSettings, counts: InputCounts) -> Iterator[tuple[str | list[str], int, int]]:
    """Each sentence, the number of its text and its first character there."""
    for source in reader.sources:
        counts.texts.setdefault(source.name, 0)
    if settings.tokenization is None:
        for found in reader.sentences():
            for text, value in enumerate(found.sentences, counts.total):
                yield value, text, 0
            counts.texts[found.source.name] += len(found.sentences)
        return
    for block in reader.blocks():
        before = counts.total
        for text, value in enumerate(block.values, before):
            if isinstance(value, str) and settings.split:
                for span in split_sentences(value):
                    yield value[span.start : span.end], text, span.start
            else:
                yield value, text, 0
        counts.texts[block.source.name] += len(block.values)
