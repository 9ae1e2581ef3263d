"""Elmo: sentences in, arrays out. A constant: nothing it computes depends on what it computed before."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme.characters import WordReader, distinct
from polyseme.config import BiLMConfig
from polyseme.engine import Engine
from polyseme.errors import InputError
from polyseme.kernels.sweep import Precision
from polyseme.lstm import LSTMState
from polyseme.mix import Mix
from polyseme.model import BiLM, model_hash, share
from polyseme.scoring import Direction, Expected, Score, Substitute, expected, score, softmax_of
from polyseme.selection import Layers, Pool, pooled, select
from polyseme.sentences import Context, Sentence, read_sentences, spread, windows
from polyseme.text import tokenizer
from polyseme.vocabulary import Vocabulary

State = Literal["warm", "zero"] | LSTMState
_WINDOW_BATCHES = 4  # batches whose sentences are sorted by length together
_WINDOW_SENTENCES = 4096


class TokenIds(NamedTuple):
    """A batch as ElmoEmbedding reads it: the distinct words, and each sentence, markers included, as positions in them.

    A named tuple of tensors, so that loaders can pin it and DistributedDataParallel can move it.
    """

    characters: Int[Tensor, "words characters"] | None
    words: Int[Tensor, "words"] | None
    index: Int[Tensor, "sentences tokens"]
    lengths: Int[Tensor, "sentences"]

    def to(self, device: torch.device | str) -> "TokenIds":
        """The same batch on another device."""
        return TokenIds(*(None if part is None else part.to(device) for part in self))  # pyrefly: ignore


class Elmo:
    """A biLM with the words it was made for: vectors, probabilities and substitutes of words in their sentences.

    An Elmo never changes, and may be used from several threads at once. It shares the memory of the model it is given,
    which should not be trained further while the Elmo is in use.
    """

    def __init__(
        self,
        model: BiLM,
        reader: WordReader,
        *,
        vocabulary: Vocabulary | None = None,
        mixes: Sequence[Mix] = (),
        name: str = "",
    ) -> None:
        self.model = share(model)
        self.reader = reader
        self.vocabulary = vocabulary
        self.mixes = tuple(mixes)
        self.name = name
        self._lock = threading.Lock()
        self._engines: dict[Precision, Engine] = {}
        self._warm: LSTMState | None = None
        self._hash: str | None = None

    @property
    def config(self) -> BiLMConfig:
        """Shapes and arithmetic of the model."""
        return self.model.config

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, the token vectors first: ("token", "lstm1", "lstm2")."""
        return self.config.layer_names

    @property
    def dim(self) -> int:
        """The width of a contextual layer, all directions together."""
        return self.config.dim

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.model.parameters()).device

    @property
    def hash(self) -> str:
        """SHA-256 of configuration and weights; the same in whatever format the model was stored."""
        with self._lock:
            if self._hash is None:
                self._hash = model_hash(self.config, dict(self.model.named_parameters()))
            return self._hash

    def __repr__(self) -> str:
        widths = ", ".join(f"{name} {width}" for name, width in zip(self.layers, self.config.layer_dims, strict=True))
        if len(set(self.config.layer_dims)) == 1:
            shape = f"embed() gives ({len(self.layers)}, tokens, {self.dim}) for each sentence"
        else:
            shape = f"embed(layers='top') gives (tokens, {self.dim}) for each sentence"
        softmax = "no softmax" if self.config.vocabulary_size is None else f"softmax over {self.config.vocabulary_size:,} words"
        return f"Elmo({self.name!r}: layers {widths}; {shape}; {softmax}; on {self.device})"

    def __deepcopy__(self, memory: dict[int, object]) -> "Elmo":
        return self  # a constant

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_engines")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _engines={})

    def to(self, device: torch.device | str) -> "Elmo":
        """The same model on another device; this one stays where it is."""
        try:
            moved = share(self.model).to(device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).split("\n")[0].split(". ")[0]
            raise InputError(
                f"device {str(device)!r} cannot be used ({reason}); give cpu, or a device of this machine."
            ) from error
        return Elmo(moved, self.reader, vocabulary=self.vocabulary, mixes=self.mixes, name=self.name)

    def engine(self, precision: Precision = "float32") -> Engine:
        """What computes: the weights laid out for speed, made when first asked for."""
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"precision is {precision!r}; wanted 'float32' or 'bfloat16'.")
        with self._lock:
            if precision not in self._engines:
                self._engines[precision] = Engine(self.model, precision=precision)
            return self._engines[precision]

    def state(self, rows: int) -> LSTMState:
        """A state to carry from call to call, zero at first: `embed(..., state=state)` reads and replaces it.

        Sentence i of a call continues row i. A call with more sentences than rows adds rows, which begin at zero; rows a
        call does not use keep what they hold.
        """
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise InputError(f"rows is {rows!r}; wanted 0 or more.")
        return LSTMState.zeros(self.config.lstm, rows, device=self.device)

    def warm(self) -> LSTMState:
        """The constant state that sentences start from by default, one row: what reading empty sentences leads to."""
        with self._lock:
            if self._warm is None:
                markers = self.reader.read([self.reader.begin, self.reader.end]).to(self.device)
                self._warm = (self._engines.get("float32") or Engine(self.model)).warm_state(markers)
            return self._warm.clone()

    def characters(self, sentences: Iterable[Sentence], *, raw: bool = False) -> TokenIds:
        """What ElmoEmbedding reads: the ids of the distinct words, and where they stand in the sentences."""
        tokens = self._tokens(sentences, raw)
        names, index = self._indexed(tokens)
        words = self.reader.read(names)
        lengths = torch.tensor([len(row) for row in index], dtype=torch.int64)
        padded = torch.zeros(len(index), max((len(row) for row in index), default=0), dtype=torch.int64)
        for number, row in enumerate(index):
            padded[number, : len(row)] = torch.tensor(row)
        return TokenIds(characters=words.characters, words=words.ids, index=padded, lengths=lengths)

    def embed(
        self,
        sentences: Iterable[Sentence],
        *,
        layers: Layers = "all",
        state: State = "warm",
        boundaries: bool = False,
        precision: Precision = "float32",
        pool: Pool | None = None,
        context: Context = "sentence",
        batch_tokens: int | None = None,
        raw: bool = False,
    ) -> list[Float[np.ndarray, "..."]]:
        """The vectors of every sentence, in the order given, as float32 arrays.

        Args:
            sentences: strings, cut by the tokenizer the model was trained with, or lists of tokens. Every string is a
                legal token.
            layers: "all" gives (layers, tokens, dim) for each sentence; "mean", "top", the name or number of a layer, one
                weight for each layer, or one of `elmo.mixes` gives (tokens, dim).
            state: where the LSTMs start: "warm", a constant of the model; "zero"; or a state of `elmo.state()`, which is
                carried from call to call, sentence i continuing row i, and is updated in place.
            boundaries: keep the vectors of the two sentence markers.
            precision: "float32", or "bfloat16" to compute with half the memory and about two significant digits.
            pool: "mean", "max" or "first_last" (the forward half of the last token with the backward half of the
                first) gives one vector a sentence over its own tokens: (layers, dim) or (dim,); zeros for an empty one.
            context: what the LSTMs read with a sentence: "sentence", nothing; "document", all sentences of the call as
                one; n, up to n words on each side of it.
            batch_tokens: how many tokens, padding included, are computed at a time; None chooses.
            raw: take a list of strings as sentences even where none of them holds white space.

        Raises:
            InputError: the sentences are nested wrongly or hold something else than strings, or an option is unknown.
        """
        results: list[np.ndarray | None]
        tokens = self._tokens(sentences, raw)
        results = [None] * len(tokens)
        for number, array in self._arrays(tokens, layers, state, boundaries, precision, pool, context, batch_tokens):
            results[number] = array
        return [array for array in results if array is not None]

    def embed_iter(
        self,
        sentences: Iterable[Sentence],
        *,
        layers: Layers = "all",
        state: Literal["warm", "zero"] = "warm",
        boundaries: bool = False,
        precision: Precision = "float32",
        pool: Pool | None = None,
        batch_tokens: int | None = None,
        raw: bool = False,
    ) -> Iterator[Float[np.ndarray, "..."]]:
        """The vectors of sentences that come one after another, in the same order and in constant memory.

        Takes the options of `embed` but for a carried state and context, which need all sentences of a call.
        """
        if state not in ("warm", "zero"):
            raise InputError(
                f"state is {_kind(state)}; a stream of sentences starts from 'warm' or 'zero', use embed to carry a state."
            )
        for number, window in enumerate(self.windows(sentences, precision=precision, batch_tokens=batch_tokens)):
            # Which sentences share a window is chance: only the first one is asked whether it is a list of tokens.
            yield from self.embed(
                window,
                layers=layers,
                state=state,
                boundaries=boundaries,
                precision=precision,
                pool=pool,
                batch_tokens=batch_tokens,
                raw=raw or number > 0,
            )

    def windows(
        self, sentences: Iterable[Sentence], *, precision: Precision = "float32", batch_tokens: int | None = None
    ) -> Iterator[list[Sentence]]:
        """The sentences in the runs that `embed_iter` computes together, as a loop over `embed` may do it."""
        yield from windows(sentences, _WINDOW_SENTENCES, self._budget(batch_tokens, precision) * _WINDOW_BATCHES)

    def score(
        self, sentences: Iterable[Sentence], *, state: State = "warm", batch_tokens: int | None = None, raw: bool = False
    ) -> list[Score]:
        """How probable each sentence is, word by word, in both directions; see Score. Needs a model with a softmax.

        Words outside the softmax's vocabulary are scored as its unknown word.
        """
        softmax_of(self.model, self.vocabulary)
        tokens = self._tokens(sentences, raw)
        markers = (self.reader.begin, self.reader.end)
        top = (len(self.layers) - 1,)
        results: list[Score | None] = [None] * len(tokens)
        for row, (hidden,) in self._run(tokens, top, state, "float32", batch_tokens):
            results[row] = score(self.model, self.vocabulary, markers, tokens[row], hidden)
        return [result for result in results if result is not None]

    def expect(
        self,
        tokens: Sentence,
        position: int,
        *,
        top: int = 10,
        direction: Direction = "both",
        state: Literal["warm", "zero"] = "warm",
    ) -> list[Expected]:
        """The words the model expects in the place of token `position`, the most probable first.

        The token that stands there is not looked at. "both" takes the geometric mean of the two directions'
        probabilities; `position` may be the number of tokens, for the word after the last, with direction="forward".
        """
        _, hidden = self._top(tokens, position, state, ahead=direction == "forward")
        return expected(self.model, self.vocabulary, hidden, position, count=_positive("top", top), direction=direction)

    def substitutes(
        self, tokens: Sentence, position: int, *, top: int = 10, state: Literal["warm", "zero"] = "warm"
    ) -> list[Substitute]:
        """Words that could stand in the place of token `position`, those that make the sentence most probable first.

        Of the words expected there, four times as many as asked for are put into the sentence, which is then scored anew.
        """
        row, hidden = self._top(tokens, position, state, ahead=False)
        vocabulary = softmax_of(self.model, self.vocabulary)[1]
        without = (row[position], *vocabulary.markers)
        candidates = expected(
            self.model, self.vocabulary, hidden, position, count=4 * _positive("top", top), direction="both", without=without
        )
        words = [candidate.word for candidate in candidates]
        changed = [[*row[:position], word, *row[position + 1 :]] for word in words]
        original, *scores = (found.total for found in self.score([row, *changed], state=state))
        found = [Substitute(word=word, gain=total - original) for word, total in zip(words, scores, strict=True)]
        return sorted(found, key=lambda substitute: -substitute.gain)[:top]

    def _top(self, tokens: Sentence, position: int, state: State, *, ahead: bool) -> tuple[list[str], Tensor]:
        """The tokens and the top layer of one sentence, once position is known to lie in it."""
        softmax_of(self.model, self.vocabulary)
        (row,) = self._tokens([tokens], raw=True)
        if isinstance(position, bool) or not isinstance(position, (int, np.integer)) or not 0 <= position < len(row) + ahead:
            raise InputError(f"position is {position!r}; the sentence has {len(row)} tokens, wanted 0 to {len(row) - 1 + ahead}.")
        ((_, (hidden,)),) = self._run([row], (len(self.layers) - 1,), state, "float32", None)
        return row, hidden

    def _tokens(self, sentences: Iterable[Sentence], raw: bool) -> list[list[str]]:
        name = self.config.tokenization
        # Letters that are words, as in proteins, hold no white space by nature.
        return read_sentences(sentences, tokenizer(name).tokenize, raw=raw or name == "characters")

    def _indexed(self, tokens: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
        begin, end = self.reader.begin, self.reader.end
        return distinct([[begin, *sentence, end] for sentence in tokens])

    def _arrays(
        self,
        tokens: list[list[str]],
        layers: Layers,
        state: State,
        boundaries: bool,
        precision: Precision,
        pool: Pool | None,
        context: Context,
        batch_tokens: int | None,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the sentence, its array) as the batches come."""
        selection = select(layers, self.config)
        directions = len(self.config.lstm.directions)
        if pool is not None:
            pooled(torch.zeros(1, directions), pool, directions)  # an unknown word is an error with no sentences too
        if boundaries and context not in ("sentence", 0):
            raise InputError(
                f"boundaries=True goes with context='sentence' only: with context={context!r} markers stand elsewhere."
            )
        rows, places = spread(tokens, context)
        sentences_of: dict[int, list[int]] = {}
        for number, (row, _) in enumerate(places):
            sentences_of.setdefault(row, []).append(number)
        for row, found in self._run(rows if places else [], selection.numbers, state, precision, batch_tokens):
            for number in sentences_of[row]:
                begin = places[number][1] + 1
                end = begin + len(tokens[number])
                part = slice(begin - 1, end + 1) if boundaries else slice(begin, end)
                vectors = selection.combine([layer[part] for layer in found])
                yield number, (vectors if pool is None else pooled(vectors, pool, directions)).numpy()

    def _run(
        self, tokens: Sequence[list[str]], numbers: Sequence[int], state: State, precision: Precision, batch_tokens: int | None
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """(row, wanted layers, markers included) as the batches come; a carried state changes when all are through."""
        engine = self.engine(precision)
        budget = self._budget(batch_tokens, precision)
        carried = self._carried(state, len(tokens)) if isinstance(state, LSTMState) else None
        start = carried or self._start(state)
        first = 0
        for window in windows(tokens, _WINDOW_SENTENCES, budget * _WINDOW_BATCHES):
            names, index = self._indexed(window)
            vectors = engine.vectors(names, self.reader.read)
            held = start
            if carried is not None:
                rows = slice(first, first + len(window))
                held = LSTMState(h=carried.h[:, rows], c=carried.c[:, rows])
            found = engine.encode(vectors, index, held, layers=numbers, batch_tokens=budget, carry=carried is not None)
            for row, layers in found:
                yield first + row, layers
            first += len(window)
        if carried is not None and isinstance(state, LSTMState):
            state.h, state.c = carried.h.to(state.h), carried.c.to(state.c)

    def _start(self, state: object) -> LSTMState:
        if isinstance(state, str) and state == "warm":
            return self.warm()
        if isinstance(state, str) and state == "zero":
            return self.state(1)
        raise InputError(f"state is {_kind(state)}; wanted 'warm', 'zero' or a state of elmo.state().")

    def _carried(self, state: LSTMState, rows: int) -> LSTMState:
        """A copy of the state on the model's device, with rows of zeros where it has too few."""
        fresh = self.state(max(rows, state.rows))
        for given, wanted in ((state.h, fresh.h), (state.c, fresh.c)):
            if given.ndim != 3 or given.shape[0] != wanted.shape[0] or given.shape[2] != wanted.shape[2]:
                raise InputError(
                    f"the state has shape {tuple(given.shape)}, this model's is ({wanted.shape[0]}, rows, {wanted.shape[2]}); "
                    "use a state of this model's elmo.state()."
                )
            wanted[:, : given.shape[1]] = given.to(wanted)
        return fresh

    def _budget(self, batch_tokens: int | None, precision: Precision) -> int:
        return self.engine(precision).batch_tokens if batch_tokens is None else _positive("batch_tokens", batch_tokens)


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"{name} is {value!r}; wanted a whole number of at least 1.")
    return int(value)


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"of type {type(value).__name__}"
