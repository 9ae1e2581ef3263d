"""Interpolated modified Kneser-Ney n-gram models: the baseline every language model is judged by.

    polyseme ngram 'text/*.txt.xz' --vocabulary vocab.txt --order 5 --test heldout.txt

The estimate is that of KenLM's `lmplz` without pruning. With a(g) the adjusted count of an n-gram g (ngram_counts.py), or
its raw count at the model's highest order, c the words before w, and c' those without the first:

    p(w | c) = (a(c w) - D(a(c w))) / a(c .)  +  sum_v D(a(c v)) / a(c .) · p(w | c')

where a(c .) is the sum over all v, the discount D depends on the order and on whether a count is 1, 2, or 3 and more,

    D(k) = k - (k + 1) Y n(k+1) / n(k),   Y = n(1) / (n(1) + 2 n(2)),   n(k) the number of n-grams whose count is k,

and the recursion ends in the uniform distribution over all events. A context that was never followed by anything passes its
whole weight on. Events are all words of the closed vocabulary, `<UNK>` and `</S>`; `<S>` is read and never predicted.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from polyseme.errors import FormatError, InputError
from polyseme.pretraining import ngram_counts
from polyseme.pretraining.ngram_counts import Encoder, batches
from polyseme.pretraining.perplexity import Likelihood
from polyseme.progress import Report
from polyseme.vocabulary import Vocabulary

#: Discounts of an order whose counts of counts allow no estimate, as lmplz's --discount_fallback.
FALLBACK = (0.5, 1.0, 1.5)
_BATCH = 1 << 17  # tokens scored at once
_GATHER = 1 << 22  # continuations of contexts held at once


@dataclass(frozen=True)
class Discounts:
    """What is taken from counts of 1, 2, and 3 or more; `estimated` is False where the text allowed no estimate."""

    values: tuple[float, float, float]
    estimated: bool

    @classmethod
    def estimate(cls, counts_of_counts: Sequence[int], *, fallback: tuple[float, float, float] | None = FALLBACK) -> "Discounts":
        """Chen and Goodman's closed form from the numbers of n-grams with count 1, 2, 3 and 4.

        It needs n-grams of counts 1 to 3, and discounts above 0 and up to the count; otherwise `fallback` is taken, or, where
        that is None, InputError raised. A discount of exactly 0 (small texts hit it, and fractions tell it from rounding) would
        leave nothing for words that were not seen after a context whose followers all have that count.
        """
        one, two, three, four = counts_of_counts
        if one and two and three:
            y = Fraction(one, one + 2 * two)
            exact = (1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three)
            if all(0 < value <= k for k, value in enumerate(exact, 1)):
                return cls((float(exact[0]), float(exact[1]), float(exact[2])), True)
        if fallback is None:
            raise InputError(
                f"no discounts can be estimated from {one}, {two}, {three} and {four} n-grams of counts 1 to 4; give more text, "
                "or discounts to fall back on."
            )
        return cls(fallback, False)

    def table(self) -> np.ndarray:
        """Indexed by min(count, 3)."""
        return np.asarray((0.0, *self.values))


@dataclass(frozen=True)
class _Level:
    """The n-grams of one order; see ngram_counts.py."""

    words: np.ndarray | None
    raw: np.ndarray
    adjusted: np.ndarray | None
    start: np.ndarray | None


class NgramModel:
    """A model of the folder's order, or of any lower one, over counts on disk that are mapped, not loaded.

    The folder is written by `train`. `vocabulary` is the closed vocabulary, `discounts[n - 1]` what order n takes.
    """

    def __init__(
        self, folder: str | Path, *, order: int | None = None, fallback: tuple[float, float, float] | None = FALLBACK
    ) -> None:
        folder = Path(folder)
        meta = _read_meta(folder)
        self.order = meta["order"] if order is None else order
        if not 1 <= self.order <= meta["order"]:
            raise InputError(f"order is {order}; {folder} holds counts for orders 1 to {meta['order']}.")
        self.words, self.sentences = int(meta["words"]), int(meta["sentences"])
        self.entries = tuple(int(meta["entries"][str(k)]) for k in range(1, self.order + 1))
        self.vocabulary = Vocabulary.read(folder / "vocab.txt", markers=tuple(meta["markers"]))
        self._encoder = Encoder(self.vocabulary)
        if len(self.vocabulary) != meta["entries"]["1"]:
            raise FormatError(f"{folder}: vocab.txt has {len(self.vocabulary)} words, ngrams.json says {meta['entries']['1']}.")
        self.discounts = tuple(
            Discounts.estimate(meta["counts_of_counts"]["raw" if k == self.order else "adjusted"][str(k)], fallback=fallback)
            for k in range(1, self.order + 1)
        )
        self._levels = [self._open(folder, k, meta) for k in range(1, self.order + 1)]

    def log_probabilities(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """For each sentence of n words, natural logarithms of p(w1), ..., p(wn), p(</S>)."""
        kept = [sentence if sentence else None for sentence in sentences]
        if None in kept:
            raise InputError(f"sentence {kept.index(None)} has no words; leave such sentences out.")
        if not sentences:
            return []
        ids = self._encoder(sentences)
        predicted = ids != self._encoder.events.begin
        ends = np.cumsum([len(sentence) + 1 for sentence in sentences])
        return np.split(np.log(self._probabilities(ids)[predicted]), ends[:-1])

    def evaluate(self, sentences: Iterable[Sequence[str]], *, report: Report | None = None) -> Likelihood:
        """The likelihood of a text, streamed; sentences without words are left out."""
        total = Likelihood()
        for batch in batches(sentences, _BATCH):
            ids = self._encoder(batch)
            predicted = ids != self._encoder.events.begin
            losses = -np.log(self._probabilities(ids)[predicted])
            unknown = ids[predicted] == self._encoder.events.unknown
            total += Likelihood(
                sentences=len(batch),
                words=int(predicted.sum()) - len(batch),
                unknown=int(unknown.sum()),
                characters=sum(len(word) + 1 for sentence in batch for word in sentence),
                forward=float(losses.sum()),
                forward_unknown=float(losses[unknown].sum()),
            )
            if report is not None:
                report(total.words)
        return total

    def _open(self, folder: Path, k: int, meta: dict) -> _Level:
        """Maps one order's files, whose sizes must be those announced."""
        entries = int(meta["entries"][str(k)])
        top = k == self.order

        def array(name: str, dtype: np.dtype, size: int) -> np.ndarray:
            path = folder / f"{k}.{name}"
            found = path.stat().st_size if path.exists() else -1
            if found != size * dtype.itemsize:
                raise FormatError(f"{path} has {max(found, 0)} bytes, wanted {size * dtype.itemsize}; count the text again.")
            return np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.zeros(0, dtype=dtype)

        return _Level(
            words=None if k == 1 else array("words", self._encoder.events.dtype, entries),
            raw=array("raw", np.dtype(np.uint32), entries),
            adjusted=None if top else array("adjusted", np.dtype(np.uint32), entries),
            start=None if top else array("start", np.dtype(np.int64), entries + 1),
        )

    def _counts(self, k: int) -> np.ndarray:
        """The counts order k is estimated from."""
        level = self._levels[k - 1]
        return level.raw if level.adjusted is None else level.adjusted

    def _probabilities(self, ids: np.ndarray) -> np.ndarray:
        """The probability of every token of whole sentences after those before it; at `<S>` what stands is of no meaning."""
        events = self._encoder.events
        counts, discount = self._counts(1), self.discounts[0].table()
        held = discount[np.minimum(counts, 3)]
        unigrams = (counts - held + held.sum() / (events.size - 1)) / counts.sum(dtype=np.int64)
        probability = unigrams[ids]
        # Entry of the k-gram that ends at each position, or -1; context: of the one that ends right before it.
        node = ids.astype(np.int64)
        for k in range(2, self.order + 1):
            context = np.concatenate([[-1], node[:-1]])
            context[ids == events.begin] = -1
            known = np.flatnonzero(context >= 0)
            total, reserve = self._contexts(k, context[known])
            known, total, reserve = known[total > 0], total[total > 0], reserve[total > 0]
            entry = self._find(k, context[known], ids[known])
            count = np.where(entry >= 0, self._counts(k)[np.maximum(entry, 0)], 0) if len(known) else np.zeros(0, dtype=np.int64)
            own = count - self.discounts[k - 1].table()[np.minimum(count, 3)]
            probability[known] = (own + reserve * probability[known]) / total
            node = np.full(len(ids), -1, dtype=np.int64)
            node[known] = entry
        return probability

    def _contexts(self, k: int, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For contexts (entries of order k - 1): the sum of the counts of all that follows, and of their discounts."""
        start = self._levels[k - 2].start
        assert start is not None
        counts, discount = self._counts(k), self.discounts[k - 1].table()
        distinct, back = np.unique(nodes, return_inverse=True)
        first, size = start[distinct], start[distinct + 1] - start[distinct]
        total, reserve = np.zeros(len(distinct), dtype=np.int64), np.zeros(len(distinct))
        followed = np.flatnonzero(size)
        ends = np.cumsum(size[followed])
        begin = 0
        while begin < len(followed):
            held = ends[begin - 1] if begin else 0
            stop = max(int(np.searchsorted(ends, held + _GATHER, side="right")), begin + 1)
            chosen = followed[begin:stop]
            offsets = ends[begin:stop] - size[chosen] - held
            where = np.repeat(first[chosen] - offsets, size[chosen]) + np.arange(ends[stop - 1] - held)
            found = counts[where].astype(np.int64)
            total[chosen] = np.add.reduceat(found, offsets)
            reserve[chosen] = np.add.reduceat(discount[np.minimum(found, 3)], offsets)
            begin = stop
        return total[back], reserve[back]

    def _find(self, k: int, nodes: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The entry of order k that continues each entry of order k - 1 by a word, or -1: all binary searches side by side."""
        start, listed = self._levels[k - 2].start, self._levels[k - 1].words
        assert start is not None
        assert listed is not None
        low, end = start[nodes], start[nodes + 1]
        if not len(nodes) or not len(listed):
            return np.full(len(nodes), -1, dtype=np.int64)
        high = end.copy()
        while (open_ := low < high).any():
            middle = (low + high) // 2
            below = open_ & (listed[np.minimum(middle, len(listed) - 1)] < words)
            low = np.where(below, middle + 1, low)
            high = np.where(open_ & ~below, middle, high)
        found = (low < end) & (listed[np.minimum(low, len(listed) - 1)] == words)
        return np.where(found, low, -1)


def train(
    sentences: Iterable[Sequence[str]],
    vocabulary: Vocabulary,
    folder: str | Path,
    *,
    order: int = 5,
    memory: int = 2 << 30,
    overwrite: bool = False,
    report: Report | None = None,
) -> NgramModel:
    """Counts a text into a folder and opens the model; see `ngram_counts.count` for the arguments."""
    ngram_counts.count(sentences, vocabulary, folder, order=order, memory=memory, overwrite=overwrite, report=report)
    return NgramModel(folder)


def _read_meta(folder: Path) -> dict:
    path = folder / "ngrams.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no n-gram counts (no ngrams.json); make them with `polyseme ngram TEXT... --output`.")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: not valid JSON ({error}); count the text again.") from error
    if not isinstance(meta, dict) or (meta.get("format"), meta.get("version")) != (ngram_counts.FORMAT, ngram_counts.VERSION):
        raise FormatError(f"{path}: wanted {ngram_counts.FORMAT}, version {ngram_counts.VERSION}; count the text again.")
    return meta
