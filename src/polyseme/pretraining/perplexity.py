"""Held-out perplexity of a biLM: exact, over all tokens of a text, whatever the batch size.

    polyseme perplexity --model MODEL --tokenized heldout.txt

A sentence of n words holds n + 1 predictions in each direction: forward of w1, ..., wn and the end from what stands to
their left, backward of wn, ..., w1 and the begin from what stands to their right. The perplexity of a direction is
exp(sum of -ln p over all predictions of the text / number of predictions), the average one exp of the mean of both directions'
exponents, that is, the geometric mean. Every prediction counts the same, wherever it stands.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme import batching
from polyseme.characters import WordReader, distinct
from polyseme.engine import Engine
from polyseme.errors import InputError
from polyseme.lstm import LSTMState
from polyseme.model import BiLM
from polyseme.progress import Report
from polyseme.scoring import softmax_of
from polyseme.vocabulary import Vocabulary

Direction = Literal["forward", "backward", "average"]
State = Literal["warm", "zero", "carry"]

_WINDOW_TOKENS = 1 << 18  # tokens whose sentences are sorted by length together
_STREAM_STEPS = 32  # steps of a carried stream read at once
_SOFTMAX_ROWS = 128  # predictions whose logits over the whole vocabulary are held at once: what a processor's cache holds
_SOFTMAX_ROWS_ELSEWHERE = 2048
_WORDS = 1 << 17  # distinct words whose vectors are kept while streaming


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """What a model makes of a text, as sums: texts add up.

    `forward` and `backward` are sums of -ln p over all predictions of a direction, `..._unknown` the parts of them that fall on
    `<UNK>`; `backward` is None for a model that only reads forward. `characters` counts each word and one character after it,
    the blank or the end of the line.
    """

    sentences: int = 0
    words: int = 0
    unknown: int = 0
    characters: int = 0
    forward: float = 0.0
    forward_unknown: float = 0.0
    backward: float | None = None
    backward_unknown: float | None = None

    def __add__(self, other: "Likelihood") -> "Likelihood":
        def added(one: float | None, two: float | None) -> float | None:
            return one if two is None else two if one is None else one + two

        return Likelihood(
            sentences=self.sentences + other.sentences,
            words=self.words + other.words,
            unknown=self.unknown + other.unknown,
            characters=self.characters + other.characters,
            forward=self.forward + other.forward,
            forward_unknown=self.forward_unknown + other.forward_unknown,
            backward=added(self.backward, other.backward),
            backward_unknown=added(self.backward_unknown, other.backward_unknown),
        )

    @property
    def predictions(self) -> int:
        """Predictions in each direction: every word, and one marker a sentence."""
        return self.words + self.sentences

    @property
    def unknown_rate(self) -> float:
        """The share of words that are not in the vocabulary."""
        return self.unknown / max(self.words, 1)

    def loss(self, direction: Direction = "average", *, unknown: bool = True) -> float:
        """The mean of -ln p in nats; `unknown=False` leaves out the predictions of `<UNK>`."""
        if direction == "average":
            directions: tuple[Direction, ...] = ("forward",) if self.backward is None else ("forward", "backward")
            return sum(self.loss(each, unknown=unknown) for each in directions) / len(directions)
        total, part = (self.forward, self.forward_unknown) if direction == "forward" else (self.backward, self.backward_unknown)
        if total is None or part is None:
            raise InputError("this model reads forward only; wanted direction='forward' or 'average'.")
        number = self.predictions if unknown else self.predictions - self.unknown
        if not number:
            raise InputError("no words were found; give text with one sentence a line.")
        return (total if unknown else total - part) / number

    def perplexity(self, direction: Direction = "average", *, unknown: bool = True) -> float:
        """exp(loss); 1 for a model that is always sure and right."""
        return math.exp(min(self.loss(direction, unknown=unknown), 700.0))

    def bits_per_character(self, direction: Direction = "average") -> float:
        """Bits for each character of the text; comparable across vocabularies in so far as few words are unknown."""
        return self.loss(direction) * self.predictions / math.log(2) / self.characters

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain JSON values: the counts and everything that follows from the sums."""
        values: dict[str, float | int | None] = {
            "sentences": self.sentences,
            "words": self.words,
            "predictions": self.predictions,
            "characters": self.characters,
            "unknown_rate": self.unknown_rate,
        }
        directions: tuple[Direction, ...] = ("forward",) if self.backward is None else ("forward", "backward", "average")
        for direction in directions:
            values[f"perplexity_{direction}"] = self.perplexity(direction)
            values[f"perplexity_{direction}_without_unknown"] = self.perplexity(direction, unknown=False)
            values[f"bits_per_character_{direction}"] = self.bits_per_character(direction)
        return values


class Scorer:
    """A model with its words, ready to be asked for the likelihood of texts.

    Args:
        model: A network in float32 with a softmax; it decides the device.
        reader: How words become its input.
        vocabulary: The words of the softmax, with the markers.
        batch_tokens: Tokens, padding included, that are read at once.
    """

    def __init__(
        self,
        model: BiLM,
        reader: WordReader,
        vocabulary: Vocabulary | None,
        *,
        batch_tokens: int = 1 << 14,
    ) -> None:
        self.model, self.reader, self.batch_tokens = model, reader, batch_tokens
        self.softmax, self.vocabulary = softmax_of(model, vocabulary)
        self._engine = Engine(model)
        if len(self.vocabulary) != len(self.softmax.bias):
            raise InputError(
                f"the vocabulary has {len(self.vocabulary)} words but the model's softmax {len(self.softmax.bias)}; give the "
                "list it was trained with."
            )
        missing = [marker for marker in self.vocabulary.markers[:2] if marker not in self.vocabulary]
        if missing:
            raise InputError(f"the vocabulary has no line {', '.join(missing)}; perplexity counts the ends of sentences.")
        if batch_tokens < 1:
            raise InputError(f"batch_tokens is {batch_tokens}; wanted 1 or more.")
        self._device = self.softmax.bias.device
        self._unknown = -2 if self.vocabulary.unknown is None else self.vocabulary.unknown
        self._bidirectional = model.config.lstm.bidirectional

    def evaluate(
        self, documents: Sequence[Iterable[Sequence[str]]], *, state: State = "warm", report: Report | None = None
    ) -> list[Likelihood]:
        """The likelihood of each document, a stream of sentences; sentences without words are left out.

        Args:
            documents: Texts; with state "carry" sentences follow each other within one, and each begins at zero.
            state: Where the LSTMs start in each sentence: "warm", the model's constant; "zero"; or "carry", where the
                sentence before it ended.
            report: Called with the number of words read.
        """
        if state not in ("warm", "zero", "carry"):
            raise InputError(f"state is {state!r}; wanted 'warm', 'zero' or 'carry'.")
        totals = [Likelihood() if not self._bidirectional else Likelihood(backward=0.0, backward_unknown=0.0) for _ in documents]
        texts: list[_Text] = [(number, (sentence for sentence in text if sentence)) for number, text in enumerate(documents)]
        found = self._carried(texts) if state == "carry" else self._independent(texts, state)
        words = 0
        for number, part in found:
            totals[number] += part
            words += part.words
            if report is not None:
                report(words)
        return totals

    def as_bilm_tf(
        self, sentences: Iterable[Sequence[str]], *, rows: int = 256, report: Report | None = None
    ) -> tuple[float, int]:
        """The average perplexity as bilm-tf's `test` computes it, and the number of steps it is the mean of.

        Sentences are dealt to `rows` streams as these run empty, states are carried along each stream from zero, one position
        of every row is a step, and what is left when a row finds no more sentence is dropped. So the number depends on `rows`.
        """
        if rows < 1:
            raise InputError(f"rows is {rows}; wanted 1 or more.")
        steps, loss = 0, 0.0
        for window in self._streamed(self._dealt(iter(sentences), [_Row(number, iter(())) for number in range(rows)])):
            loss += float(window.losses.mean(dim=0).sum())
            steps += window.losses.shape[2]
            if report is not None:
                report(steps * rows)
        if not steps:
            raise InputError(
                f"the text has too few sentences for {rows} rows: not one step is complete, and bilm-tf gives no number; "
                "give fewer rows."
            )
        return math.exp(loss / (steps * rows)), steps

    @torch.inference_mode()
    def _independent(self, texts: "list[_Text]", state: State) -> Iterator[tuple[int, Likelihood]]:
        """Sentences that start from one constant state."""
        markers = self.reader.read([self.reader.begin, self.reader.end]).to(self._device)
        start = LSTMState.zeros(self.model.config.lstm, 1, device=self._device)
        if state == "warm":
            start = self._engine.warm_state(markers)
        top = self.model.config.lstm.layers
        for window in _windows(texts):
            names, index = distinct([[self.reader.begin, *sentence, self.reader.end] for _, sentence in window])
            ids = self._targets(names)
            pending: list[tuple[int, Tensor, Tensor]] = []
            held = 0
            vectors = self._engine.vectors(names, self.reader.read)
            found = self._engine.encode(vectors, index, start, layers=[top], batch_tokens=self.batch_tokens)
            for row, (hidden,) in found:
                pending.append((row, hidden, ids[torch.tensor(index[row])]))
                held += len(hidden)
                if held >= self.batch_tokens:
                    yield from self._settled(window, pending)
                    pending, held = [], 0
            yield from self._settled(window, pending)

    def _settled(
        self, window: "list[tuple[int, Sequence[str]]]", pending: list[tuple[int, Tensor, Tensor]]
    ) -> Iterator[tuple[int, Likelihood]]:
        """The likelihoods of sentences whose top layers are known."""
        if not pending:
            return
        width = self.model.config.lstm.width
        sizes = [len(ids) - 1 for _, _, ids in pending]
        targets = torch.cat([ids[1:] for _, _, ids in pending])
        forward = self._losses(torch.cat([hidden[:-1, :width] for _, hidden, _ in pending]), targets)
        parts = [forward, forward * (targets == self._unknown)]
        if self._bidirectional:
            targets = torch.cat([ids[:-1] for _, _, ids in pending])
            backward = self._losses(torch.cat([hidden[1:, width:] for _, hidden, _ in pending]), targets)
            parts += [backward, backward * (targets == self._unknown)]
        sums = torch.stack([torch.stack([piece.sum() for piece in part.split(sizes)]) for part in parts]).T.tolist()
        for (row, _, ids), values in zip(pending, sums, strict=True):
            number, sentence = window[row]
            yield number, self._counts(sentence, ids) + _from_sums(values)

    def _carried(self, texts: "list[_Text]") -> Iterator[tuple[int, Likelihood]]:
        """Documents side by side, as many as a batch has room for, each a row whose state goes on from sentence to sentence."""
        room = max(self.batch_tokens // _STREAM_STEPS, 1)
        for first in range(0, len(texts), room):
            rows = [_Row(number, text) for number, text in texts[first : first + room]]
            for window in self._streamed(self._own(rows)):
                for row in window.rows:
                    yield from ((row.number, counts) for counts in row.counts)
                    row.counts.clear()
                unknown = (window.targets == self._unknown) * window.losses
                sums = torch.stack([window.losses.sum(dim=2), unknown.sum(dim=2)], dim=1).flatten(0, 1).T.tolist()
                for row, values in zip(window.rows, sums, strict=True):
                    yield row.number, _from_sums(values)

    def _own(self, rows: "list[_Row]") -> "Iterator[tuple[list[_Row], int]]":
        """Windows over rows that each have a text of their own, markers read at both ends of every sentence."""
        while rows:
            for row in rows:
                while len(row.pending) < _STREAM_STEPS and (sentence := next(row.sentences, None)) is not None:
                    ids = self._push(row, sentence, closing=True)
                    row.counts.append(self._counts(sentence, ids))
            rows = [row for row in rows if row.pending]
            if rows:
                yield rows, _STREAM_STEPS

    def _dealt(self, sentences: Iterator[Sequence[str]], rows: "list[_Row]") -> "Iterator[tuple[list[_Row], int]]":
        """Windows over rows that take the text's next sentence whenever they run empty, the first row first."""
        steps = _STREAM_STEPS
        while steps == _STREAM_STEPS:
            filled = [(len(row.pending), number) for number, row in enumerate(rows)]
            heapq.heapify(filled)
            while filled[0][0] < _STREAM_STEPS:
                sentence = next(sentences, None)
                if sentence is None:
                    steps = filled[0][0]
                    break
                number = filled[0][1]
                self._push(rows[number], sentence, closing=False)
                heapq.heapreplace(filled, (len(rows[number].pending), number))
            if steps:
                yield rows, steps

    def _push(self, row: "_Row", sentence: Sequence[str], *, closing: bool) -> Int[Tensor, "tokens"]:
        """Appends a sentence to a row, with or without reading the marker that was predicted last."""
        tokens = [self.reader.begin, *sentence, self.reader.end]
        ids = self._targets(tokens)
        targets = ids.tolist()
        words = zip(tokens, reversed(tokens), strict=True)
        predicted = zip([*targets[1:], -1], [*targets[-2::-1], -1], strict=True)
        steps = itertools.starmap(_Step, zip(words, predicted, strict=True))
        row.pending += steps if closing else itertools.islice(steps, len(tokens) - 1)
        return ids

    @torch.inference_mode()
    def _streamed(self, windows: "Iterable[tuple[list[_Row], int]]") -> "Iterator[_Window]":
        """Reads windows of rows one after the other, the state of each row carried from window to window."""
        lstm, config = self.model.lstm, self.model.config.lstm
        table = _Table(self.model, self.reader)
        before: list[_Row] = []
        states: list[tuple[Tensor, Tensor]] = []
        for rows, steps in windows:
            if not before:
                zeros = LSTMState.zeros(config, len(rows), device=self._device)
                states = [lstm.part(zeros, number) for number in range(len(config.directions))]
            elif len(rows) < len(before):
                kept = torch.tensor([before.index(row) for row in rows], device=self._device)
                states = [(h[:, kept], c[:, kept]) for h, c in states]
            before = rows
            taken = [row.take(steps) for row in rows]
            length = max(map(len, taken))
            mask = torch.tensor([[True] * len(part) + [False] * (length - len(part)) for part in taken], device=self._device)
            filler = _Step((self.reader.begin, self.reader.end), (-1, -1))
            padded = [part + [filler] * (length - len(part)) for part in taken]
            directions = range(len(states))
            targets = torch.tensor([[[step.targets[number] for step in part] for part in padded] for number in directions])
            losses = torch.zeros(targets.shape, dtype=torch.float64)
            words = table.index(step.words[number] for number in directions for part in padded for step in part)
            for number, (direction, index) in enumerate(zip(config.directions, words.view(targets.shape), strict=True)):
                hidden, h, c = lstm.read(direction, table.vectors[index.to(self._device)], mask, *states[number])
                states[number] = h, c
                wanted = targets[number] >= 0
                losses[number][wanted] = self._losses(hidden[-1][wanted.to(self._device)], targets[number][wanted])
            yield _Window(rows, losses, targets)

    def _losses(self, hidden: Float[Tensor, "positions width"], targets: Int[Tensor, "positions"]) -> Float[Tensor, "positions"]:
        """-ln p of each target, in float64 on the CPU."""
        hidden, targets = hidden.to(self.softmax.weight), targets.to(self._device)
        chunk = _SOFTMAX_ROWS if self._device.type == "cpu" else _SOFTMAX_ROWS_ELSEWHERE
        return -self.softmax(hidden, targets, chunk=chunk).to("cpu", torch.float64)

    def _targets(self, names: Sequence[str]) -> Int[Tensor, "words"]:
        """The ids to be predicted; the reader's markers stand for the vocabulary's."""
        markers = {self.reader.begin: self.vocabulary.markers[0], self.reader.end: self.vocabulary.markers[1]}
        return torch.from_numpy(self.vocabulary.ids([markers.get(name, name) for name in names]))

    def _counts(self, sentence: Sequence[str], ids: Int[Tensor, "tokens"]) -> Likelihood:
        return Likelihood(
            sentences=1,
            words=len(sentence),
            unknown=int((ids == self._unknown).sum()),
            characters=sum(map(len, sentence)) + len(sentence),
        )


_Text = tuple[int, Iterator[Sequence[str]]]


class _Step(NamedTuple):
    """One position of a row: for each direction the word that is read and the id that is to be predicted, or -1."""

    words: tuple[str, str]
    targets: tuple[int, int]


class _Row:
    """One stream of a batch: steps not read yet, and counts of the sentences they belong to."""

    def __init__(self, number: int, sentences: Iterator[Sequence[str]]) -> None:
        self.number, self.sentences = number, sentences
        self.pending: list[_Step] = []
        self.counts: list[Likelihood] = []

    def take(self, steps: int) -> list[_Step]:
        taken, self.pending = self.pending[:steps], self.pending[steps:]
        return taken


@dataclass(frozen=True)
class _Window:
    """Losses (0 where nothing is predicted) and targets (-1 there) of consecutive steps, one line a row."""

    rows: list[_Row]
    losses: Float[Tensor, "directions rows steps"]
    targets: Int[Tensor, "directions rows steps"]


class _Table:
    """The vectors of words met so far, each encoded once, and all forgotten when they become too many."""

    def __init__(self, model: BiLM, reader: WordReader) -> None:
        self._model, self._reader = model, reader
        self._device = next(model.parameters()).device
        self._rows: dict[str, int] = {}
        self.vectors: Float[Tensor, "words width"] = torch.zeros(0, model.config.token_width, device=self._device)

    def index(self, words: Iterable[str]) -> Int[Tensor, "words"]:
        """Where in `vectors` each word stands, until the next call."""
        words = list(words)
        if len(self._rows) > _WORDS:
            self._rows, self.vectors = {}, self.vectors[:0]
        new = [word for word in dict.fromkeys(words) if word not in self._rows]
        for first in range(0, len(new), batching.WORD_BLOCK):
            block = new[first : first + batching.WORD_BLOCK]
            self._rows.update(zip(block, range(len(self._rows), len(self._rows) + len(block)), strict=True))
            encoded = self._model.token_encoder(self._reader.read(block).to(self._device))
            self.vectors = torch.cat([self.vectors, encoded])
        return torch.tensor([self._rows[word] for word in words])


def _windows(texts: list[_Text]) -> Iterator[list[tuple[int, Sequence[str]]]]:
    """Runs of sentences, each with the number of its text."""
    window, held = [], 0
    for number, sentences in texts:
        for sentence in sentences:
            window.append((number, sentence))
            held += len(sentence) + 2
            if held >= _WINDOW_TOKENS:
                yield window
                window, held = [], 0
    if window:
        yield window


def _from_sums(values: Sequence[float]) -> Likelihood:
    """From (forward, of it unknown) or (forward, of it unknown, backward, of it unknown)."""
    backward, backward_unknown = (None, None) if len(values) == 2 else values[2:]
    return Likelihood(forward=values[0], forward_unknown=values[1], backward=backward, backward_unknown=backward_unknown)
