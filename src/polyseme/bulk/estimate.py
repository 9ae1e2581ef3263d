"""What a run will take, told before it starts: from the size of the input and a few sentences of it."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from polyseme.bulk.settings import BulkSettings
from polyseme.sources import Reader, Sentences
from polyseme.text import split_sentences, tokenizer

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_SAMPLE = 1000  # tokens that are timed


@dataclass(frozen=True)
class Estimate:
    """How many tokens there may be (None where the input does not tell its size), bytes for each, tokens a second."""

    tokens: int | None
    row_bytes: float
    rate: float

    @property
    def bytes(self) -> int | None:
        """Of all parts."""
        return None if self.tokens is None else round(self.tokens * self.row_bytes)

    @property
    def seconds(self) -> float | None:
        """For one process."""
        return None if self.tokens is None else self.tokens / self.rate


def estimate(elmo: "Elmo", reader: Reader, settings: BulkSettings) -> Estimate:
    """Reads the beginning of the input, with a reader of its own, and embeds a thousand tokens of it."""
    blocks = reader.sentences(None if settings.tokenization is None else _cutter(settings))
    sample: list[list[str]] = []
    tokens, share = 0, None
    for block in islice(blocks, 1):
        tokens = sum(map(len, block.sentences))
        share = _share_read(reader, block)
        held = 0
        for sentence in block.sentences:
            sample.append(sentence[:_SAMPLE])
            held += len(sample[-1])
            if held >= _SAMPLE:
                break
    total = None if share is None else round(tokens / share)
    if reader.bytes_total == 0:
        total = 0
    rows = 1 if settings.pool is None else len(sample) / max(sum(map(len, sample)), 1)
    return Estimate(total, settings.row_bytes * rows, _rate(elmo, sample, settings))


def _share_read(reader: Reader, block: Sentences) -> float | None:
    """Which part of all inputs the first block is."""
    if reader.bytes_total is None:
        return None
    if block.source.form == "parquet":
        import pyarrow.parquet

        if any(source.form != "parquet" for source in reader.sources):
            return None
        rows = sum(pyarrow.parquet.read_metadata(source.path).num_rows for source in reader.sources)
        return max(len(set(block.lines)), 1) / max(rows, 1)
    return reader.bytes_read / reader.bytes_total if reader.bytes_read else None


def _cutter(settings: BulkSettings) -> Callable[[str], list[list[str]]]:
    assert settings.tokenization is not None
    cut = tokenizer(settings.tokenization).tokenize
    if settings.split:
        return lambda text: [cut(text[span.start : span.end]) for span in split_sentences(text)]
    return lambda text: [cut(text)]


def _rate(elmo: "Elmo", sample: list[list[str]], settings: BulkSettings) -> float:
    """Tokens a second, the first sentence apart: with it the model gets ready."""

    def embed(sentences: Sequence[list[str]]) -> None:
        elmo.embed(
            sentences,
            layers=settings.embed_layers,
            state=settings.state,
            precision=settings.precision,
            pool=settings.pool,
            batch_tokens=settings.batch_tokens,
        )

    embed(sample[:1] or [["."]])
    started = time.monotonic()
    embed(sample or [["."]])
    return max(sum(map(len, sample)), 1) / max(time.monotonic() - started, 1e-6)


def free_bytes(output: Path) -> int:
    """Room on the disk that will hold the output."""
    folder = output.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
