"""The forward of model.py, fast: every distinct word once, sentences packed by length, each direction on a core of its own.

Same numbers as the reference but for the order of additions, and the same bits for the same sentence whatever else stands in the
call: no row of a product depends on the others.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme.batching import WARM_LIMIT, WARM_TOLERANCE
from polyseme.characters import Words
from polyseme.kernels.recent import RecentVectors
from polyseme.kernels.spelling import Speller
from polyseme.kernels.sweep import LayerSweep, Packing, Precision, alike, room
from polyseme.kernels.workers import side_by_side
from polyseme.lstm import LSTMState
from polyseme.model import BiLM

#: What the vectors of recent words may take.
_CACHE_BYTES = 1 << 25
#: What a batch's layers may take where nobody says how many tokens it has, and the bounds of its tokens.
_BATCH_BYTES = 1 << 27
_FEWEST_TOKENS, _MOST_TOKENS = 2048, 16384
#: And of its sentences: more rows make no product faster, but the gates of one step of short sentences would take much memory.
_MOST_SENTENCES = 512
#: A batch that does not fit into memory is halved, but not below this many tokens.
_SMALLEST_TOKENS = 16
#: After how many empty sentences the warm state is looked at.
_WARM_STRIDE = 20


class Engine:
    """A model's weights laid out for speed, in one precision, and the vectors of the words seen last.

    It is a copy: build another one when the weights have changed. It may be used from several threads at once.
    """

    # Whatever mode the caller is in: words are kept from call to call, and threads have modes of their own.
    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, model: BiLM, *, precision: Precision = "float32") -> None:
        self.config = model.config
        self.precision: Precision = precision
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.device = model.lstm.stack("forward")[0].bias.device
        self.stacks = {
            direction: [LayerSweep(layer, precision=precision) for layer in model.lstm.stack(direction)]
            for direction in model.config.lstm.directions
        }
        self._speller = Speller(model.token_encoder, model.config, precision=precision)
        width = model.config.token_width
        self._recent = RecentVectors(width, max(1, _CACHE_BYTES // (4 * width)), device=self.device)

    @property
    def batch_tokens(self) -> int:
        """How many tokens to hold at once: fewer of a larger model."""
        lstm = self.config.lstm
        each = len(lstm.directions) * (4 + self.dtype.itemsize) * (self.config.token_width + lstm.layers * lstm.width)
        return min(_MOST_TOKENS, max(_FEWEST_TOKENS, _BATCH_BYTES // each))

    def forget(self) -> None:
        """Empties the cache of words: only for measuring what that changes."""
        self._recent.clear()

    @torch.inference_mode(False)
    @torch.no_grad()
    def vectors(self, names: Sequence[str], read: Callable[[Sequence[str]], Words]) -> Float[Tensor, "words width"]:
        """The token vectors of different words; `read` is asked for those that were not seen lately."""
        vectors, missing = self._recent.find(names)
        if missing:
            new = [names[number] for number in missing]
            found = self._speller(read(new).to(self.device))
            vectors[torch.tensor(missing, device=self.device)] = found
            self._recent.keep(new, found)
        return vectors

    @torch.inference_mode(False)
    @torch.no_grad()
    def encode(
        self,
        vectors: Float[Tensor, "words width"],
        index: Sequence[Sequence[int]],
        state: LSTMState,
        *,
        layers: Sequence[int],
        batch_tokens: int,
        carry: bool = False,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[int, list[Float[Tensor, "tokens width"]]]]:
        """The wanted layers of every sentence, as (number of the sentence, layers) pairs in no promised order.

        Args:
            vectors: the token vectors of the distinct words.
            index: each sentence, of one token at least, as positions in `vectors`, markers included.
            state: one row from which every sentence starts, or, with `carry`, one row for each sentence.
            layers: numbers of the layers wanted, 0 for the token vectors; each is yielded in float32.
            batch_tokens: no more tokens than this are held at once; a longer sentence is read in pieces of this size, which
                changes nothing in its vectors. Where memory does not suffice the number is halved.
            carry: whether `state` is replaced, in place, by the state after each row's sentence.
            device: where the layers are wanted.
        """
        last = self.config.lstm.layers if carry else max(layers, default=0)
        call = _Call(self, vectors, index, state, tuple(layers), last, carry, torch.device(device))
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        lanes = max(1, threads // len(self.stacks))
        size = max(1, batch_tokens // lanes)
        batches = _batches([len(sentence) for sentence in index], size)
        while together := list(islice(batches, lanes)):
            for batch in call.read(together, size):
                if carry:
                    with torch.inference_mode():  # in which tensors of every mode may be written
                        state.h[:, batch.rows] = batch.end.h.to(state.h)
                        state.c[:, batch.rows] = batch.end.c.to(state.c)
                yield from batch.results()

    @torch.inference_mode(False)
    @torch.no_grad()
    def warm_state(self, markers: Words) -> LSTMState:
        """`batching.warm_state`: some empty sentences at a time, which are one long sentence when the state is carried."""
        state = LSTMState.zeros(self.config.lstm, 1, device=self.device)
        if self.config.warm == "zero":
            return state
        vectors = self._speller(markers)
        for _ in range(WARM_LIMIT // _WARM_STRIDE):
            self._read_empty(vectors, _WARM_STRIDE - 1, state)
            before = state.clone()
            self._read_empty(vectors, 1, state)
            if max(float((state.h - before.h).abs().max()), float((state.c - before.c).abs().max())) <= WARM_TOLERANCE:
                break
        return state

    def _read_empty(self, markers: Tensor, sentences: int, state: LSTMState) -> None:
        for _ in self.encode(markers, [[0, 1] * sentences], state, layers=[0], batch_tokens=self.batch_tokens, carry=True):
            pass

    @torch.inference_mode(False)
    @torch.no_grad()
    def forward(
        self, words: Words, index: Int[Tensor, "sentences tokens"], lengths: Int[Tensor, "sentences"], state: LSTMState
    ) -> tuple[list[Float[Tensor, "sentences tokens _"]], LSTMState]:
        """What `BiLM.forward` gives, without a graph."""
        vectors = self._spelled(words)
        out = [torch.zeros(*index.shape, width, device=self.device) for width in self.config.layer_dims]
        sizes, places = lengths.tolist(), index.tolist()
        filled = [row for row, size in enumerate(sizes) if size]
        sentences = [places[row][: sizes[row]] for row in filled]
        after = state.clone()
        held = LSTMState(h=after.h[:, filled], c=after.c[:, filled])
        found = self.encode(
            vectors, sentences, held, layers=range(len(out)), batch_tokens=self.batch_tokens, carry=True, device=self.device
        )
        for number, layers in found:
            row = filled[number]
            for target, layer in zip(out, layers, strict=True):
                target[row, : sizes[row]] = layer
        after.h[:, filled], after.c[:, filled] = held.h, held.c
        return out, after

    def _spelled(self, words: Words) -> Float[Tensor, "words width"]:
        """Token vectors of words given by their ids, the recent ones by what they are made of."""
        if self.device.type != "cpu":
            return self._speller(words)  # looking them up would wait for the device
        columns = [part.reshape(len(words), -1) for part in (words.characters, words.ids) if part is not None]
        made = torch.cat(columns, dim=1).to(torch.int32).numpy()
        keys = [row.tobytes() for row in made]
        distinct = list(dict.fromkeys(keys))
        first = {key: number for number, key in reversed(list(enumerate(keys)))}
        vectors, missing = self._recent.find(distinct)
        if missing:
            new = [distinct[number] for number in missing]
            rows = torch.tensor([first[key] for key in new])
            parts = [None if part is None else part[rows] for part in (words.characters, words.ids)]
            found = self._speller(Words(characters=parts[0], ids=parts[1]))
            vectors[torch.tensor(missing)] = found
            self._recent.keep(new, found)
        if len(distinct) == len(keys):
            return vectors
        places = {key: number for number, key in enumerate(distinct)}
        return vectors[torch.tensor([places[key] for key in keys])]


class _Call:
    """What all batches of one call share."""

    def __init__(
        self,
        engine: Engine,
        vectors: Tensor,
        index: Sequence[Sequence[int]],
        state: LSTMState,
        layers: tuple[int, ...],
        last: int,
        carry: bool,
        device: torch.device,
    ) -> None:
        self.engine, self.index, self.state, self.layers = engine, index, state, layers
        self.last, self.carry, self.device = last, carry, device
        self.vectors = vectors
        self.low = vectors.to(engine.dtype)

    def read(self, together: list[list[int]], size: int) -> Iterator["_Batch"]:
        """Batches read side by side; where memory does not suffice, in halves one after the other."""
        try:
            batches = [_Batch(self, rows, size) for rows in together]
            here = all(batch.light() for batch in batches)
            side_by_side(*(piece for batch in batches for piece in batch.pieces()), here=here)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error) or size <= _SMALLEST_TOKENS:
                raise
        else:
            yield from batches
            return
        # Here, not above: an error holds on to what was computed before it.
        for rows in together:
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]) if middle else (rows,):
                yield from self.read([half], size // 2)


class _Part:
    """Where the tokens of a batch, or of a piece of it, lie: made before the directions begin, lest they wait for each other."""

    def __init__(self, batch: "_Batch", tokens: slice) -> None:
        engine = batch.call.engine
        self.tokens = tokens
        self.packing = Packing.of(batch.lengths if len(batch.rows) > 1 else [tokens.stop - tokens.start])
        self.last = self.packing.last().to(engine.device)
        self.places = {
            direction: self.packing.places(reverse=direction == "backward").to(engine.device) for direction in engine.stacks
        }


class _Batch:
    """Some sentences, the longest first; or, if it alone exceeds `size` tokens, one that is read in pieces."""

    def __init__(self, call: _Call, rows: list[int], size: int) -> None:
        engine = call.engine
        self.call, self.rows = call, rows
        self.lengths = [len(call.index[row]) for row in rows]
        flat = np.concatenate([np.asarray(call.index[row], dtype=np.int64) for row in rows])
        self.flat = torch.from_numpy(flat).to(engine.device)
        tokens = len(flat)
        piece = size if len(rows) == 1 else tokens
        self.parts = [_Part(self, slice(start, min(start + piece, tokens))) for start in range(0, tokens, piece)]
        widths = [engine.config.layer_dims[layer] for layer in call.layers]
        self.out = [torch.empty(alike(tokens), width, device=call.device, dtype=torch.float32)[:tokens] for width in widths]
        # A copy for every batch: a batch that is read again in halves begins anew.
        if call.carry:
            self.end = LSTMState(h=call.state.h[:, rows].float(), c=call.state.c[:, rows].float())
        else:
            self.end = call.state.expand(len(rows))

    def results(self) -> Iterator[tuple[int, list[Float[Tensor, "tokens width"]]]]:
        """(number of the sentence, its layers)."""
        parts = zip(*(layer.split(self.lengths) for layer in self.out), strict=True)
        for row, layers in zip(self.rows, parts, strict=True):
            yield row, list(layers)

    def light(self) -> bool:
        """Whether there is so little to do that torch would not divide it among threads."""
        sweeps = [sweep for stack in self.call.engine.stacks.values() for sweep in stack[: self.call.last]]
        return len(self.parts) == 1 and all(sweep.light(self.parts[0].packing) for sweep in sweeps)

    def pieces(self) -> Iterator[Callable[[], None]]:
        """The work, one piece a direction."""
        for direction in self.call.engine.stacks:
            yield lambda direction=direction: self._read(direction)

    @torch.no_grad()
    def _read(self, direction: str) -> None:
        call, reverse = self.call, direction == "backward"
        lstm = call.engine.config.lstm
        number = list(call.engine.stacks).index(direction)
        h = self.end.h[:, :, number * lstm.width : (number + 1) * lstm.width]
        c = self.end.c[:, :, number * lstm.dim : (number + 1) * lstm.dim]
        for part in reversed(self.parts) if reverse else self.parts:
            tokens = part.tokens
            self._put(0, number, tokens, call.vectors[self.flat[tokens]] if 0 in call.layers else None)
            if not call.last:
                continue
            places = part.places[direction]
            sweeps = call.engine.stacks[direction][: call.last]
            x = call.low.new_zeros(room(part.packing, sweeps), call.low.shape[1])
            x[places] = call.low[self.flat[tokens]]
            value = x
            for layer, sweep in enumerate(sweeps):
                cells = c[layer].contiguous()
                hidden = sweep(x, part.packing, h[layer], cells)
                h[layer], c[layer] = hidden[part.last], cells
                # The sum is what is exported and read by the next layer; the carried h is the bare projection.
                value = hidden.float().add_(value) if layer and lstm.residual else hidden.float()
                x = value.to(call.low)
                self._put(layer + 1, number, tokens, value[places] if layer + 1 in call.layers else None)

    def _put(self, layer: int, number: int, part: slice, value: Float[Tensor, "tokens width"] | None) -> None:
        """Stores one direction's half of a layer where it is wanted."""
        if value is not None:
            width = value.shape[1]
            for wanted, target in zip(self.call.layers, self.out, strict=True):
                if wanted == layer:
                    target[part, number * width : (number + 1) * width] = value


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Groups of sentence numbers, the longest sentences first: at most so many tokens, or one sentence."""
    rows: list[int] = []
    held = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and (held + lengths[row] > tokens or len(rows) == _MOST_SENTENCES):
            yield rows
            rows, held = [], 0
        rows.append(row)
        held += lengths[row]
    if rows:
        yield rows


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory was asked for and not given; torch says so in words on the CPU."""
    text = str(error)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in text or "enough memory" in text
