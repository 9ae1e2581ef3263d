"""Text → a folder of n-gram counts of every order, as a trie in reading order, in bounded memory.

An n-gram is n consecutive tokens of one sentence, `<S>` and `</S>` included. Two counts belong to each:

    raw        how often it occurs
    adjusted   how many different words stand before it; for an n-gram that begins with `<S>`, its raw count

The text is spooled to disk as word ids. Then, from the longest n-grams down, all n-grams of one order are spooled, dealt
into parts that fit into memory by a sample of their distribution, and sorted and counted part by part. The distinct n-grams
without their first word, together with the sentences' beginnings, are the spool of the order below, so that the number of equal
rows is the adjusted count and the sum of their weights the raw one. The folder holds

    ngrams.json      format, order, entries per order, counts of counts, totals; written last
    vocab.txt        the closed vocabulary; a word's id is its line
    K.words          the last word of every K-gram, K-grams sorted by their words (1: absent, entry k is word k)
    K.raw            uint32
    K.adjusted       uint32 (absent at the highest order)
    K.start          int64: where the entry's continuations begin among the (K+1)-grams, and the end (absent at the highest)
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from polyseme.errors import InputError
from polyseme.progress import Report
from polyseme.vocabulary import Vocabulary

FORMAT = "polyseme n-gram counts"
VERSION = 1
_CHUNK = 1 << 21  # tokens or rows handled at once where nothing is sorted
_SAMPLE = 499  # one row in so many is looked at to find out how rows are distributed
_BYTES = 100  # memory that sorting takes for each row


@dataclass(frozen=True)
class Events:
    """The ids of a vocabulary's markers; what is predicted is every word but `begin`."""

    begin: int
    end: int
    unknown: int
    size: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Events":
        """The markers of a vocabulary, which must list all three."""
        begin, end, unknown = (vocabulary.get(marker) for marker in vocabulary.markers)
        if begin is None or end is None or unknown is None:
            missing = [marker for marker in vocabulary.markers if marker not in vocabulary]
            raise InputError(
                f"the vocabulary has no line {', '.join(missing)}; an n-gram model needs all of {', '.join(vocabulary.markers)}."
            )
        if len(set(vocabulary.words)) != len(vocabulary):
            raise InputError("the vocabulary lists a word twice; an n-gram model needs distinct words.")
        return cls(begin, end, unknown, len(vocabulary))

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds an id."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)


class Encoder:
    """Sentences → one array of ids with markers around every sentence.

    A word outside the vocabulary becomes `<UNK>`, and so does a marker typed as a word.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.events = Events.of(vocabulary)
        self.markers = vocabulary.markers
        self._ids = {word: number for number, word in enumerate(vocabulary.words) if word not in vocabulary.markers}

    def __call__(self, sentences: Iterable[Sequence[str]]) -> np.ndarray:
        """The ids of all sentences, one after the other."""
        get, events, flat = self._ids.get, self.events, []
        for sentence in sentences:
            flat.append(events.begin)
            flat += [get(word, events.unknown) for word in sentence]
            flat.append(events.end)
        return np.asarray(flat, dtype=events.dtype)


def batches(sentences: Iterable[Sequence[str]], tokens: int) -> Iterator[list[Sequence[str]]]:
    """Lists of the sentences that have words, each of about so many tokens, markers included."""
    batch, held = [], 0
    for sentence in sentences:
        if sentence:
            batch.append(sentence)
            held += len(sentence) + 2
        if held >= tokens:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def count(
    sentences: Iterable[Sequence[str]],
    vocabulary: Vocabulary,
    folder: str | Path,
    *,
    order: int = 5,
    memory: int = 2 << 30,
    overwrite: bool = False,
    report: Report | None = None,
) -> None:
    """Writes the folder (this module's docs) from a stream of sentences.

    Args:
        sentences: Lists of words; those without words are left out.
        vocabulary: The closed vocabulary with its three markers; everything else is counted as `<UNK>`.
        folder: Where to write; it appears when everything is done. Beside it, while counting, up to about 40 bytes a
            token are in use.
        order: The longest n-grams, 1 to 8. The folder serves as a model of this and every lower order.
        memory: Bytes that sorting may take, about.
        overwrite: Replace a folder that is there.
        report: Called with the number of tokens read, then of n-grams sorted.
    """
    folder = Path(folder)
    if not 1 <= order <= 8:
        raise InputError(f"order is {order}; wanted 1 to 8.")
    if memory < 1 << 20:
        raise InputError(f"memory is {memory} bytes; wanted at least {1 << 20} (1 MiB).")
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists; give another folder, or overwrite it (overwrite=True, --overwrite).")
    encoder = Encoder(vocabulary)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    beside.mkdir()
    try:
        with ExitStack() as files:
            _Counting(beside, encoder, order, memory // _BYTES, files, report).run(sentences)
        vocabulary.write(beside / "vocab.txt")
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


class _Rows:
    """A file of n-grams (rows of ids) with weights, and a sample of it."""

    def __init__(self, path: Path, width: int, dtype: np.dtype, files: ExitStack) -> None:
        self.path, self.width, self.dtype = path.with_suffix(".rows"), width, dtype
        self.total = 0
        self.sample: list[np.ndarray] = []
        self._rows: IO[bytes] = files.enter_context(open(self.path, "wb"))
        self._weights: IO[bytes] = files.enter_context(open(path.with_suffix(".weights"), "wb"))

    def add(self, rows: np.ndarray, weights: np.ndarray) -> None:
        first = -self.total % _SAMPLE
        self.sample.append(rows[first::_SAMPLE].copy())
        rows.astype(self.dtype, copy=False).tofile(self._rows)
        weights.astype(np.uint32, copy=False).tofile(self._weights)
        self.total += len(rows)

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self._rows.close()
        self._weights.close()
        with open(self.path, "rb") as rows, open(self.path.with_suffix(".weights"), "rb") as weights:
            for first in range(0, self.total, size):
                count = min(size, self.total - first)
                found = np.fromfile(rows, dtype=self.dtype, count=count * self.width).reshape(count, self.width)
                yield found, np.fromfile(weights, dtype=np.uint32, count=count)

    def delete(self) -> None:
        self._rows.close()
        self._weights.close()
        self.path.unlink()
        self.path.with_suffix(".weights").unlink()


class _Counting:
    """One run of `count` in its folder."""

    def __init__(self, folder: Path, encoder: Encoder, order: int, rows: int, files: ExitStack, report: Report | None) -> None:
        self.files = files
        self.folder, self.encoder, self.events, self.order = folder, encoder, encoder.events, order
        self.rows = rows  # that may be sorted at once
        self.report = report
        self.bits = max((self.events.size - 1).bit_length(), 1)
        self.packable = 64 // self.bits
        self.spools = {k: _Rows(folder / f"{k}.all", k, self.events.dtype, files) for k in range(2, order + 1)}
        self.entries = {1: self.events.size}
        self.raw = np.zeros(self.events.size, dtype=np.int64)  # of order 1
        self.adjusted = np.zeros(self.events.size, dtype=np.int64)
        self.counts = {
            "raw": {k: [0, 0, 0, 0] for k in range(1, order + 1)},
            "adjusted": {k: [0, 0, 0, 0] for k in range(1, order)},
        }
        self.tokens = self.sentences = 0

    def run(self, sentences: Iterable[Sequence[str]]) -> None:
        self._spool(sentences)
        if not self.sentences:
            raise InputError("no words were found; give text with one sentence a line.")
        for k in range(self.order, 1, -1):
            self._sort(k)
            if k < self.order:
                self._write_start(k)
        self._write_unigrams()
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "order": self.order,
            "words": self.tokens,
            "sentences": self.sentences,
            "markers": list(self.encoder.markers),
            "entries": {str(k): n for k, n in sorted(self.entries.items())},
            "counts_of_counts": {kind: {str(k): n for k, n in sorted(of.items())} for kind, of in self.counts.items()},
        }
        (self.folder / "ngrams.json").write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _spool(self, sentences: Iterable[Sequence[str]]) -> None:
        """Reads the text: order 1 is counted at once, windows of the highest order and sentence beginnings are spooled."""
        for batch in batches(sentences, _CHUNK):
            ids = self.encoder(batch)
            begins = np.flatnonzero(ids == self.events.begin)
            self.sentences += len(begins)
            self.tokens += len(ids) - 2 * len(begins)
            self.raw += np.bincount(ids, minlength=self.events.size)
            # Number of markers before each position: a window holds none after its first token where the number stays.
            before = np.cumsum(ids == self.events.begin)
            for k, spool in self.spools.items():
                starts = np.arange(len(ids) - k + 1) if k == self.order else begins[begins + k <= len(ids)]
                starts = starts[before[starts + k - 1] == before[starts]]
                rows = np.lib.stride_tricks.sliding_window_view(ids, k)[starts] if len(starts) else np.empty((0, k), ids.dtype)
                weights = np.ones(len(rows), dtype=np.uint32)
                if k < self.order:
                    rows, weights, _ = self._combine(rows, weights)
                spool.add(rows, weights)
            if self.report is not None:
                self.report(self.tokens, None, note="tokens read")

    def _packed(self, rows: np.ndarray) -> np.ndarray:
        """Rows that fit into 64 bits as numbers in the same order."""
        packed = rows[:, 0].astype(np.uint64)
        for column in range(1, rows.shape[1]):
            packed <<= np.uint64(self.bits)
            packed |= rows[:, column]
        return packed

    def _sorted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The order that sorts the rows, and whether each row in it differs from the one before.

        As many columns as fit into 64 bits decide first; where they leave ties, the ranks found stand in their place,
        together with the next columns.
        """
        done = self.packable
        key = self._packed(rows[:, :done])
        while True:
            order = np.argsort(key)
            key = key[order]
            new = np.ones(len(rows), dtype=bool)
            new[1:] = key[1:] != key[:-1]
            if done >= rows.shape[1]:
                return order, new
            rank = np.empty(len(rows), dtype=np.uint64)
            rank[order] = np.cumsum(new)
            columns = min((64 - len(rows).bit_length()) // self.bits, rows.shape[1] - done)
            key = rank << np.uint64(columns * self.bits)
            key |= self._packed(rows[:, done : done + columns])
            done += columns

    def _combine(self, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct rows in order, their summed weights, and how many there were of each."""
        if not len(rows):
            return rows, weights, np.zeros(0, dtype=np.int64)
        order, new = self._sorted(rows)
        firsts = np.flatnonzero(new)
        summed = np.add.reduceat(weights[order].astype(np.int64), firsts)
        return rows[order[firsts]], summed, np.diff(firsts, append=len(rows))

    def _parts(self, spool: _Rows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows in parts that may be sorted at once; parts follow each other in order, and no context is divided."""
        wanted = -(-spool.total * 5 // (self.rows * 4))
        if spool.total <= self.rows:
            whole = list(spool.chunks(max(spool.total, 1)))
            spool.delete()
            yield from whole
            return
        sample = self._keys(np.concatenate(spool.sample))
        sample.sort()
        edges = np.unique(sample[np.arange(1, wanted) * len(sample) // wanted])
        paths = [
            _Rows(spool.path.with_name(f"{spool.width}-{part}.part"), spool.width, spool.dtype, self.files)
            for part in range(len(edges) + 1)
        ]
        for rows, weights in spool.chunks(_CHUNK):
            part = np.searchsorted(edges, self._keys(rows), side="right").astype(np.uint16)
            order = np.argsort(part, kind="stable")
            rows, weights = rows[order], weights[order]
            bounds = np.searchsorted(part[order], np.arange(len(paths) + 1))
            for target, first, last in zip(paths, bounds, bounds[1:], strict=False):
                target.add(rows[first:last], weights[first:last])
        spool.delete()
        for target in paths:
            if target.total:
                yield next(target.chunks(target.total))
            target.delete()

    def _keys(self, rows: np.ndarray) -> np.ndarray:
        """What parts are told apart by: the beginnings of the rows' contexts."""
        return self._packed(rows[:, : min(rows.shape[1] - 1, self.packable)])

    def _sort(self, k: int) -> None:
        """Writes the entries of order k and the sizes of their contexts; fills the spool of the order below."""
        spool = self.spools.pop(k)
        total, done, self.entries[k] = spool.total, 0, 0
        lower = k < self.order
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(open(self.folder / name, "wb"))
                for name in [f"{k}.words", f"{k}.raw", *[f"{k}.adjusted"] * lower, f"{k - 1}.sizes"]
            }
            for rows, weights in self._parts(spool):
                done += len(rows)
                rows, raw, number = self._combine(rows, weights)
                if k > 2:
                    self.spools[k - 1].add(rows[:, 1:], raw)
                else:
                    self.adjusted += np.bincount(rows[:, 1], minlength=self.events.size)
                rows[:, -1].tofile(files[f"{k}.words"])
                raw.astype(np.uint32).tofile(files[f"{k}.raw"])
                self._tally("raw", k, raw)
                if lower:
                    adjusted = np.where(rows[:, 0] == self.events.begin, raw, number)
                    adjusted.astype(np.uint32).tofile(files[f"{k}.adjusted"])
                    self._tally("adjusted", k, adjusted)
                _run_lengths(rows[:, :-1]).tofile(files[f"{k - 1}.sizes"])
                self.entries[k] += len(rows)
                if self.report is not None:
                    self.report(done, total, note=f"{k}-grams")

    def _tally(self, kind: str, k: int, counts: np.ndarray) -> None:
        found = np.bincount(counts[(counts > 0) & (counts < 5)], minlength=5)[1:]
        self.counts[kind][k] = [known + int(more) for known, more in zip(self.counts[kind][k], found, strict=True)]

    def _write_unigrams(self) -> None:
        """Order 1: one entry a word of the vocabulary. Nothing predicts `<S>`, so it counts nothing."""
        self.raw[self.events.begin] = 0
        self.raw.astype(np.uint32).tofile(self.folder / "1.raw")
        self._tally("raw", 1, self.raw)
        if self.order > 1:
            self.adjusted.astype(np.uint32).tofile(self.folder / "1.adjusted")
            self._tally("adjusted", 1, self.adjusted)
            begun = np.arange(self.events.size) == self.events.begin
            self._write_start(1, [(self.raw > 0) & (np.arange(self.events.size) != self.events.end) | begun])

    def _write_start(self, k: int, continued: Iterable[np.ndarray] | None = None) -> None:
        """K.start from the sizes of the contexts, which stand in the same order as the entries that are continued.

        Every entry is continued except those that end in `</S>`: what ends otherwise has a token after it.
        """
        if continued is None:
            continued = (words != self.events.end for words in _from_file(self.folder / f"{k}.words", self.events.dtype))
        sizes_path = self.folder / f"{k}.sizes"
        end = 0
        with open(sizes_path, "rb") as sizes, open(self.folder / f"{k}.start", "wb") as start:
            np.zeros(1, dtype=np.int64).tofile(start)
            for flags in continued:
                size = np.zeros(len(flags), dtype=np.int64)
                size[flags] = np.fromfile(sizes, dtype=np.uint32, count=int(flags.sum()))
                ends = end + np.cumsum(size)
                ends.tofile(start)
                end = int(ends[-1])
        assert end == self.entries[k + 1], f"{k}-grams lead to {end} continuations, but there are {self.entries[k + 1]}"
        sizes_path.unlink()


def _run_lengths(rows: np.ndarray) -> np.ndarray:
    """How many equal rows follow each other, uint32."""
    new = np.ones(len(rows), dtype=bool)
    if len(rows):
        new[1:] = False
        for column in range(rows.shape[1]):
            new[1:] |= rows[1:, column] != rows[:-1, column]
    return np.diff(np.flatnonzero(new), append=len(rows)).astype(np.uint32)


def _from_file(path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        while len(part := np.fromfile(file, dtype=dtype, count=_CHUNK)):
            yield part
