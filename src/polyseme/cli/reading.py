"""Sentences for a command: from its arguments, from files, or from the standard input."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import click

from polyseme.progress import ProgressDisplay

if TYPE_CHECKING:
    from polyseme.elmo import Elmo
    from polyseme.sources import Reader


class SentenceSource:
    """Tokenized sentences as they come, and how much of the input has been read.

    Sentences given as arguments come first, then the files; with neither, the standard input is read. A blank line is an
    empty sentence, except where texts are split into sentences.
    """

    def __init__(self, texts: Sequence[str], inputs: Sequence[str], elmo: "Elmo", *, tokenized: bool, split: bool) -> None:
        from polyseme.sources import Reader, find

        if tokenized and split:
            raise click.UsageError("--tokenized and --split exclude each other: a tokenized line is one sentence.")
        if not texts and not inputs:
            inputs = ("-",)
            if sys.stdin.isatty():
                click.echo("Reading sentences from the terminal, one a line; end with Ctrl-D.", err=True)
        unspaced = not any(character.isspace() for text in texts for character in text)
        if len(texts) > 1 and unspaced and elmo.config.tokenization != "characters":
            raise click.UsageError(
                f"{len(texts)} sentences of one word each were given; put quotes around a sentence, or one a line into a file."
            )
        if inputs:
            find(inputs)  # standard input can be named once
        self._texts, self._tokenized = texts, tokenized
        self._cut = _cutter("whitespace" if tokenized else elmo.config.tokenization, split=split)
        self._readers = [Reader([item]) for item in inputs]
        self.tokens = 0
        self._bytes = 0.0  # of the inputs as stored, up to the last sentence

    @property
    def only_arguments(self) -> bool:
        """Whether all sentences were given on the command line."""
        return not self._readers

    def documents(self) -> Iterator[Iterator[list[str]]]:
        """The sentences of the arguments as one document, then those of each input."""
        if self._texts:
            yield (self._count(tokens) for text in self._texts for tokens in self._cut(text))
        for reader in self._readers:
            yield self._read(reader)

    def __iter__(self) -> Iterator[list[str]]:
        for document in self.documents():
            yield from document

    def _read(self, reader: "Reader") -> Iterator[list[str]]:
        begun, before = self._bytes, 0
        for block in reader.sentences(None if self._tokenized else self._cut):
            share = (reader.bytes_read - before) / max(len(block.sentences), 1)  # a block is read at once
            for number, tokens in enumerate(block.sentences, 1):
                self._bytes = begun + before + share * number
                yield self._count(tokens)
            before = reader.bytes_read

    def _count(self, tokens: list[str]) -> list[str]:
        self.tokens += len(tokens)
        return tokens

    @property
    def _kilobytes(self) -> int | None:
        sizes = [reader.bytes_total for reader in self._readers]
        return None if not sizes or None in sizes else math.ceil(sum(size or 0 for size in sizes) / 1024)

    def progress(self, title: str) -> ProgressDisplay:
        """A display of how far the input has been read: in kB where its size is known, else in tokens."""
        total = self._kilobytes
        return ProgressDisplay(title, unit="tokens" if total is None else "kB", total=total)

    def report(self, display: ProgressDisplay) -> None:
        """Tells the display how far things are."""
        if self._kilobytes is None:
            display(self.tokens)
        else:
            display(math.ceil(self._bytes / 1024), note=f"{self.tokens:,} tokens")


def _cutter(name: Literal["penn", "whitespace", "characters"], *, split: bool) -> Callable[[str], list[list[str]]]:
    """What turns a text into sentences of tokens."""
    from polyseme.text import split_sentences, tokenizer

    tokenize = tokenizer(name).tokenize
    if not split:
        return lambda text: [tokenize(text)]
    return lambda text: [tokenize(text[span.start : span.end]) for span in split_sentences(text)]
