"""Text → a corpus folder: every distinct word with its count, and the text as memory-mapped word ids.

    polyseme prepare 'text/*.txt.xz' --output corpus

The text is read once. That pass numbers words as they appear, counts them, and spools the numbers to disk; a second pass
over the spool turns the numbers into frequency ranks. The folder holds

    meta.json               format, counts, shards, the sources' names, a hash of words and text
    vocab.txt               <S>, </S>, <UNK> and the most frequent words, the softmax's vocabulary
    lexicon.txt             every distinct word, most frequent first, one a line; equal counts in code point order
    lexicon_offsets.npy     int64: where in lexicon.txt word k begins (its newline included in its span)
    lexicon_counts.npy      int64
    tokens-00000.npy ...    uint32: the text, a word's id being its line in lexicon.txt, from 0
    sentences.npy           int64: where each sentence begins, over all shards, and the end
"""

import hashlib
import json
import os
import shutil
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Literal

import numpy as np

from polyseme.errors import InputError
from polyseme.progress import Report
from polyseme.sources import Form, Reader
from polyseme.vocabulary import BILM_MARKERS, MANY_LANGS_MARKERS

FORMAT = "polyseme corpus"
VERSION = 1
_SIZES = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 800_000)
_REMAP = 1 << 22
#: Words of the text that a vocabulary file cannot hold as words of their own.
_LEFT_OUT = frozenset({*BILM_MARKERS, "!!!MAXTERMID"})


@dataclass(frozen=True, kw_only=True)
class PrepareReport:
    """What one pass over the text found.

    cut        share of tokens longer than the character limit, in UTF-8 bytes; their ends are not seen by the model
    unknown    vocabulary size → share of tokens that are not in a vocabulary of that size
    """

    tokens: int
    sentences: int
    blank: int
    distinct: int
    cut: float
    max_characters: int
    unknown: dict[int, float]
    skipped: int
    first_skipped: tuple[str, ...]


def prepare(
    inputs: Sequence[str | Path],
    folder: str | Path,
    *,
    vocabulary_size: int = 50_000,
    tokenizer: Literal["penn", "whitespace", "characters"] | None = None,
    form: Form | None = None,
    field: str = "text",
    column: int | None = None,
    damaged: Literal["error", "skip"] = "error",
    max_characters: int = 50,
    shard_tokens: int = 1 << 26,
    overwrite: bool = False,
    report: Report | None = None,
) -> PrepareReport:
    """Writes the corpus folder (docs: this module) and reports what the text is like.

    Args:
        inputs: Paths, patterns, or "-" for standard input; see `polyseme.sources.find`.
        folder: Where to write; it appears when everything is done.
        vocabulary_size: Lines of vocab.txt, the three markers included. Other sizes can be had from the folder later.
        tokenizer: None: every line is a sentence whose tokens are separated by blanks. Else the text is raw: it is split
            into sentences (a line's end always ends one) and these by this tokenizer of `polyseme.text`.
        form: What the inputs are; None: told by their names.
        field: The field (JSON lines) or column (Parquet) that holds the text.
        column: The column (CoNLL) that holds the words.
        damaged: Whether damaged lines are an "error" or are counted and left out ("skip").
        max_characters: The character limit of the model to be trained, for the report.
        shard_tokens: Tokens per file.
        overwrite: Replace a folder that is there.
        report: Told the stored bytes read and the tokens so far, about once a megabyte.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists; give another folder, or overwrite it (overwrite=True, --overwrite).")
    if vocabulary_size < 4:
        raise InputError(f"vocabulary_size is {vocabulary_size}; wanted at least 4 (three markers and a word).")
    reader = Reader(inputs, form=form, field=field, column=column, damaged=damaged)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    beside.mkdir()
    try:
        counting = _Counting(beside, _splitter(tokenizer))
        counting.read(reader, report)
        found = _write(beside, counting, reader, vocabulary_size, tokenizer, max_characters, shard_tokens)
        _replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return found


def _splitter(name: Literal["penn", "whitespace", "characters"] | None) -> Callable[[str], list[list[str]]] | None:
    """How raw text becomes sentences of tokens."""
    if name is None:
        return None
    from polyseme.text import split_sentences, tokenizer

    tokenize = tokenizer(name).tokenize
    if name == "characters":
        return lambda text: [tokenize(text)]
    return lambda text: [tokenize(text[span.start : span.end]) for span in split_sentences(text)]


def _replace(beside: Path, folder: Path) -> None:
    """Puts the finished folder in place; an old one is moved away first and then deleted."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(old)
        beside.rename(folder)
        shutil.rmtree(old)
    else:
        beside.rename(folder)


class _Counting:
    """The first pass: provisional ids in order of appearance, counts, and the spool."""

    def __init__(self, folder: Path, split: Callable[[str], list[list[str]]] | None) -> None:
        self.split = split
        self.ids: defaultdict[str, int] = defaultdict()
        self.ids.default_factory = self.ids.__len__
        self.counts = np.zeros(1 << 16, dtype=np.int64)
        self.tokens = self.blank = 0
        self.lengths = array("I")
        self.spool = folder / "spool"

    def read(self, reader: Reader, report: Report | None) -> None:
        with open(self.spool, "wb") as spool:
            for block in reader.sentences(self.split):
                self._add([sentence for sentence in block.sentences if sentence], spool)
                self.blank += sum(not sentence for sentence in block.sentences)
                if report is not None:
                    report(reader.bytes_read, reader.bytes_total, note=f"{self.tokens:,} tokens")
        if not self.tokens:
            raise InputError(f"no tokens were found in {', '.join(source.name for source in reader.sources)}.")

    def _add(self, sentences: list[list[str]], spool: IO[bytes]) -> None:
        lengths = list(map(len, sentences))
        total = sum(lengths)
        ids = np.fromiter(map(self.ids.__getitem__, chain.from_iterable(sentences)), dtype=np.uint32, count=total)
        if len(self.ids) > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(len(self.ids), dtype=np.int64)])
        np.add.at(self.counts, ids, 1)
        spool.write(ids.tobytes())
        self.lengths.extend(lengths)
        self.tokens += total


def _write(
    folder: Path, counting: _Counting, reader: Reader, size: int, tokenizer: str | None, max_characters: int, shard_tokens: int
) -> PrepareReport:
    """The second pass, and everything that follows from the counts."""
    appeared = list(counting.ids)
    counting.ids.clear()
    counts = counting.counts[: len(appeared)]
    # Sorting by word first and stably by count afterwards breaks ties by code point.
    order = np.asarray(sorted(range(len(appeared)), key=appeared.__getitem__))
    order = order[np.argsort(-counts[order], kind="stable")]
    words = [appeared[position] for position in order.tolist()]
    del appeared
    counts = counts[order]
    digest = hashlib.sha256()
    spans = _write_lexicon(folder, words, counts, digest)
    known = list(_vocabulary_words(words, size))
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in known), encoding="utf-8", newline="\n")
    ranks = np.empty(len(words), dtype=np.uint32)
    ranks[order] = np.arange(len(words), dtype=np.uint32)
    del order
    offsets = np.zeros(len(counting.lengths) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(counting.lengths, dtype=np.uint32), out=offsets[1:])
    np.save(folder / "sentences.npy", offsets)
    digest.update(offsets.tobytes())
    shards = _write_shards(folder, counting.spool, ranks, offsets, shard_tokens, digest)
    counting.spool.unlink()
    special = {*BILM_MARKERS, *MANY_LANGS_MARKERS}
    markers = {word: position for position, word in enumerate(words) if word in special}
    typed = [position for position, word in enumerate(words) if word in _LEFT_OUT]
    cut = spans - 1 > max_characters - 2
    report = PrepareReport(
        tokens=counting.tokens,
        sentences=len(counting.lengths),
        blank=counting.blank,
        distinct=len(words),
        cut=float(counts[cut].sum() / counting.tokens),
        max_characters=max_characters,
        unknown=_unknown(np.delete(counts, typed), len(known), counting.tokens),
        skipped=reader.skipped,
        first_skipped=tuple(reader.first_skipped),
    )
    meta = {
        "format": FORMAT,
        "version": VERSION,
        **asdict(report),
        "tokenizer": tokenizer,
        "vocabulary_size": len(known),
        "markers": markers,
        "sources": ["-" if source.path is None else source.path.name for source in reader.sources],
        "shards": shards,
        "sha256": digest.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def _write_lexicon(folder: Path, words: list[str], counts: np.ndarray, digest: "hashlib._Hash") -> np.ndarray:
    """Writes the lexicon; returns the bytes each word takes, newline included."""
    spans = np.empty(len(words), dtype=np.int64)
    with open(folder / "lexicon.txt", "wb") as file:
        for first in range(0, len(words), 1 << 16):
            spelled = [word.encode() + b"\n" for word in words[first : first + (1 << 16)]]
            spans[first : first + len(spelled)] = list(map(len, spelled))
            blob = b"".join(spelled)
            digest.update(blob)
            file.write(blob)
    offsets = np.zeros(len(words) + 1, dtype=np.int64)
    np.cumsum(spans, out=offsets[1:])
    np.save(folder / "lexicon_offsets.npy", offsets)
    np.save(folder / "lexicon_counts.npy", counts)
    return spans


def _vocabulary_words(words: Sequence[str], size: int) -> list[str]:
    """The markers and the first words, up to `size` lines."""
    chosen = list(BILM_MARKERS)
    for word in words:
        if len(chosen) == size:
            break
        if word not in _LEFT_OUT:
            chosen.append(word)
    return chosen


def _unknown(counts: np.ndarray, size: int, tokens: int) -> dict[int, float]:
    """Vocabulary size → share of tokens outside."""
    covered = np.cumsum(counts)
    sizes = sorted({*(size for size in _SIZES if size - 3 < len(counts)), size})
    return {size: 1.0 - float(covered[min(size - 3, len(counts)) - 1]) / tokens for size in sizes}


def _write_shards(
    folder: Path, spool: Path, ranks: np.ndarray, offsets: np.ndarray, shard_tokens: int, digest: "hashlib._Hash"
) -> list[dict[str, int | str]]:
    """Provisional ids → frequency ranks, whole sentences to a shard."""
    shards: list[dict[str, int | str]] = []
    begin = 0
    with open(spool, "rb") as file:
        while begin < offsets[-1]:
            last = max(int(np.searchsorted(offsets, begin + shard_tokens, side="right")) - 1, 0)
            end = int(offsets[last]) if offsets[last] > begin else int(offsets[last + 1])
            name = f"tokens-{len(shards):05d}.npy"
            out = np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.uint32, shape=(end - begin,))
            for first in range(0, end - begin, _REMAP):
                ids = np.fromfile(file, dtype=np.uint32, count=min(_REMAP, end - begin - first))
                part = ranks[ids]
                digest.update(part.tobytes())
                out[first : first + len(part)] = part
            out.flush()
            shards.append({"file": name, "tokens": end - begin})
            begin = end
    return shards
