"""How text is dealt to a step: bilm-tf's rows, packed without padding.

Each of `rows` rows is a stream of its own. A row that has run empty pulls the next sentence from the one queue all rows
share; within a step the rows take turns from the first to the last. A sentence w1..wn fills n + 1 positions: forward reads
<S> w1..wn and predicts w1..wn </S>; backward reads </S> wn..w1 and predicts wn..w1 <S>. Sentences go on across the borders
of windows, and so do the LSTM's states.

The queue is the corpus in order, or shuffled by sentence over the whole corpus, anew in each pass. The shuffle is a keyed
permutation of the sentence numbers (a Feistel network), so it takes no memory and no time to jump into: where a run is in
its data is one number and, for each row, a sentence and a position in it.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Integer

from polyseme.errors import InputError
from polyseme.pretraining.corpus import Corpus

_BLOCK = 8192
_ROUNDS = 6


@dataclass(frozen=True)
class Window:
    """What one step reads: lexicon ids in, vocabulary ids to be predicted. Backward arrays stand in backward's reading order."""

    forward_inputs: Integer[np.ndarray, "rows unroll"]
    forward_targets: Integer[np.ndarray, "rows unroll"]
    backward_inputs: Integer[np.ndarray, "rows unroll"]
    backward_targets: Integer[np.ndarray, "rows unroll"]

    def rows(self, first: int, last: int) -> "Window":
        """Some of the rows."""
        return Window(
            self.forward_inputs[first:last],
            self.forward_targets[first:last],
            self.backward_inputs[first:last],
            self.backward_targets[first:last],
        )


def permutation(numbers: Integer[np.ndarray, "some"], size: int, key: tuple[int, ...]) -> Integer[np.ndarray, "some"]:
    """Where a keyed permutation of 0..size-1 sends these numbers."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.SeedSequence(list(key)).generate_state(_ROUNDS, dtype=np.uint64)

    def scramble(values: np.ndarray) -> np.ndarray:
        left, right = values >> np.uint64(half), values & mask
        for round_key in keys:
            mixed = (right + round_key) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(32)
            left, right = right, left ^ (mixed & mask)
        return (left << np.uint64(half)) | right

    result = scramble(np.asarray(numbers, dtype=np.uint64))
    # The network permutes the next power of four; what falls outside is sent on until it falls inside.
    outside = np.flatnonzero(result >= size)
    while len(outside):
        result[outside] = scramble(result[outside])
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


@dataclass(frozen=True)
class _Pieces:
    """Parts of sentences that fill a window from its first row to its last, left to right."""

    start: np.ndarray  # where the sentence begins in the text
    words: np.ndarray  # its length
    position: np.ndarray  # from which of its words + 1 positions on
    taken: np.ndarray  # how many


class Dealer:
    """Deals sentences to rows; see the module."""

    def __init__(self, corpus: Corpus, rows: int, unroll: int, *, seed: tuple[int, ...] | None) -> None:
        self.corpus = corpus
        self.unroll = unroll
        self.seed = seed
        self.pulled = 0  # sentences taken from the queue, all passes together
        self.sentence = np.zeros(rows, dtype=np.int64)
        self.position = np.zeros(rows, dtype=np.int64)
        self.left = np.zeros(rows, dtype=np.int64)
        self._clear()

    def _clear(self) -> None:
        """Forgets the sentences looked up ahead."""
        self._ids = self._starts = self._words = np.zeros(0, dtype=np.int64)
        self._ends = [0]
        self._used = 0
        self._next = self.pulled

    def _extend(self) -> None:
        """Drops the sentences that were dealt, and looks up more."""
        passed, first = divmod(self._next, self.corpus.sentences)
        ids = np.arange(first, min(first + _BLOCK, self.corpus.sentences))
        self._next += len(ids)
        if self.seed is not None:
            ids = permutation(ids, self.corpus.sentences, (*self.seed, passed))
        starts = self.corpus.offsets[ids]
        used = self._used
        self._ids = np.concatenate([self._ids[used:], ids])
        self._starts = np.concatenate([self._starts[used:], starts])
        self._words = np.concatenate([self._words[used:], self.corpus.offsets[ids + 1] - starts])
        self._ends = [0, *np.cumsum(self._words + 1).tolist()]
        self._used = 0

    def deal(self) -> _Pieces:
        """The next window's pieces."""
        needs = np.maximum(self.unroll - self.left, 0).tolist()
        # Every row may overshoot its need by part of a sentence, so the needs are covered one row at a time; this many
        # sentences are enough, as each fills at least two positions.
        while len(self._ends) - self._used <= sum(need // 2 + 1 for need in needs):
            self._extend()
        first, ends = self._used, self._ends
        counts, over = [], []
        for need in needs:
            last = first if need == 0 else bisect_left(ends, ends[first] + need, first + 1)
            counts.append(last - first)
            over.append(ends[last] - ends[first] - need)
            first = last
        pieces = self._pieces(first, np.asarray(counts), np.asarray(over))
        self.pulled += first - self._used
        self._used = first
        return pieces

    def _pieces(self, stop: int, counts: np.ndarray, over: np.ndarray) -> _Pieces:
        """What the rows had left, each before what it pulled; the last piece of a row is cut at the window's border."""
        kept = np.flatnonzero(self.left)
        where = (np.cumsum(counts) - counts)[kept]
        pulled = slice(self._used, stop)
        ids = np.insert(self._ids[pulled], where, self.sentence[kept])
        begun = self.corpus.offsets[self.sentence[kept]]
        start = np.insert(self._starts[pulled], where, begun)
        words = np.insert(self._words[pulled], where, self.corpus.offsets[self.sentence[kept] + 1] - begun)
        position = np.insert(np.zeros(stop - self._used, dtype=np.int64), where, self.position[kept])
        taken = words + 1 - position
        last = np.cumsum(counts + (self.left > 0)) - 1
        left = np.where(counts > 0, over, self.left - self.unroll)
        taken[last] -= left
        self.sentence, self.left = ids[last], left
        self.position = position[last] + taken[last]
        return _Pieces(start, words, position, taken)

    def skip(self, pulled: int) -> None:
        """Begins after this many sentences, all rows empty."""
        self.pulled = pulled
        self.left = np.zeros_like(self.left)
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        """Where the rows are, as plain JSON values."""
        return {
            "pulled": self.pulled,
            "sentence": self.sentence.tolist(),
            "position": self.position.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.pulled = int(state["pulled"])
        self.sentence = np.asarray(state["sentence"], dtype=np.int64)
        self.position = np.asarray(state["position"], dtype=np.int64)
        lengths = self.corpus.offsets[self.sentence + 1] - self.corpus.offsets[self.sentence]
        self.left = lengths + 1 - self.position if self.pulled else np.zeros_like(self.position)
        self._clear()


class Streams:
    """Windows without end.

    Every process of a distributed run deals all `rows` of the global batch and keeps those from `keep[0]` to `keep[1]`.
    With `streams` "shared" both directions read the same sentences in a step, with "independent" each its own shuffle.
    """

    def __init__(
        self,
        corpus: Corpus,
        targets: Integer[np.ndarray, "words_plus_two"],
        *,
        rows: int,
        unroll: int,
        streams: Literal["shared", "independent"] = "shared",
        shuffle: bool = True,
        seed: int = 1,
        keep: tuple[int, int] | None = None,
    ) -> None:
        self.corpus = corpus
        self.targets = targets
        self.rows, self.unroll = rows, unroll
        self.keep = (0, rows) if keep is None else keep
        number = 1 if streams == "shared" else 2
        self._dealers = [Dealer(corpus, rows, unroll, seed=(seed, stream) if shuffle else None) for stream in range(number)]
        self.identity = {"rows": rows, "unroll": unroll, "shuffle": shuffle, "seed": seed, "corpus": corpus.digest}

    @property
    def passes(self) -> float:
        """How many times the text has been pulled."""
        return self._dealers[0].pulled / self.corpus.sentences

    def __iter__(self) -> "Streams":
        return self

    def __next__(self) -> Window:
        pieces = [self._kept(dealer.deal()) for dealer in self._dealers]
        forward = self._read(pieces[0], backward=False)
        backward = self._read(pieces[-1], backward=True)
        return Window(*forward, *backward)

    def _kept(self, pieces: _Pieces) -> _Pieces:
        if self.keep == (0, self.rows):
            return pieces
        row = (np.cumsum(pieces.taken) - pieces.taken) // self.unroll
        here = (row >= self.keep[0]) & (row < self.keep[1])
        return _Pieces(pieces.start[here], pieces.words[here], pieces.position[here], pieces.taken[here])

    def _read(self, pieces: _Pieces, *, backward: bool) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one direction."""
        corpus = self.corpus
        ends = np.cumsum(pieces.taken)
        begins = ends - pieces.taken
        step = np.arange(int(ends[-1])) - np.repeat(begins - pieces.position, pieces.taken)
        words = np.repeat(pieces.words, pieces.taken)
        start = np.repeat(pieces.start, pieces.taken)
        # Position k of a sentence predicts its k-th word in reading order, or the marker that closes it.
        closing = step == words
        place = words - 1 - step if backward else step
        read = corpus.tokens.take(start + np.where(closing, 0, place))
        read[closing] = corpus.begin if backward else corpus.end
        inputs = np.empty_like(read)
        inputs[1:] = read[:-1]
        # What a piece reads first is not the prediction of the piece before it.
        before = np.where(backward, pieces.words - pieces.position, pieces.position - 1)
        inside = pieces.position > 0
        first = corpus.tokens.take(pieces.start + np.where(inside, before, 0))
        inputs[begins] = np.where(inside, first, corpus.end if backward else corpus.begin)
        shape = (-1, self.unroll)
        return inputs.reshape(shape), self.targets[read].astype(np.int64).reshape(shape)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly here; small."""
        return {"identity": dict(self.identity), "dealers": [dealer.state_dict() for dealer in self._dealers]}

    def skip(self, pulled: list[int]) -> None:
        """Begins anew with empty rows, after this many sentences of each stream; streams not listed are as the first."""
        for number, dealer in enumerate(self._dealers):
            dealer.skip(pulled[number] if number < len(pulled) else pulled[0])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken; it must be of the same corpus and settings."""
        if state["identity"] != self.identity or len(state["dealers"]) != len(self._dealers):
            raise InputError(
                f"the position in the data belongs to {state['identity']} ({len(state['dealers'])} streams), not to "
                f"{self.identity} ({len(self._dealers)} streams); resume with the same corpus and configuration."
            )
        for dealer, part in zip(self._dealers, state["dealers"], strict=True):
            dealer.load_state_dict(part)
