"""One direction's LSTM stack over packed sentences: the arithmetic of lstm.py without a graph, without padding, on one core.

Rows are sentences, the longest first, so the rows that are still being read at a step are the first ones; the steps' rows lie one
after the other. What a layer reads is multiplied by its input weights several steps at a time, as many as leave the result in the
cache; only the recurrent product and the projection are done step by step.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme.config import LSTMConfig
from polyseme.kernels import Kernel, _Forward, cell_forward, in_use, run
from polyseme.kernels.products import PackedWeight, rounded
from polyseme.kernels.steps import FewSteps
from polyseme.lstm import LSTMLayer

Precision = Literal["float32", "bfloat16"]

#: Room for the gates of the steps multiplied together: about what a core can call its own of the last cache.
_CHUNK_BYTES = 1 << 22
#: Up to so many rows, and tokens, the C function of steps.py is faster; above them it is not slower, but for other processors.
_FEW_ROWS, _FEW_TOKENS = 32, 64


def few_sizes(rows: int) -> int:
    """A few more rows, so that products have few sizes; never one, which the libraries add up in another order.

    Finer than `rounded`: the last of a batch's sentences leave few rows for many steps.
    """
    if rows > 64:
        return rounded(rows)
    step = 2 if rows <= 4 else 4 if rows <= 32 else 8
    return -(-rows // step) * step


@dataclass(frozen=True)
class Packing:
    """Where the tokens of some sentences lie once they are packed step by step."""

    counts: list[int]
    starts: list[int]
    lengths: Int[np.ndarray, "sentences"]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Packing":
        """For sentences of these lengths, the longest first."""
        ordered = np.asarray(lengths, dtype=np.int64)
        steps = np.arange(ordered[0] if len(ordered) else 0)
        counts = (len(ordered) - np.searchsorted(ordered[::-1], steps, side="right")).tolist()
        return cls(counts=counts, starts=[0, *accumulate(counts)], lengths=ordered)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.starts[-1]

    def places(self, *, reverse: bool) -> Int[Tensor, "tokens"]:
        """The packed place of each token, one sentence after the other; `reverse` where sentences are read from their ends."""
        if len(self.lengths) == 1:
            places = torch.arange(self.tokens)
            return places.flip(0) if reverse else places
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        steps = np.arange(self.tokens) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        if reverse:
            steps = self.lengths[rows] - 1 - steps
        return torch.from_numpy(np.asarray(self.starts)[steps] + rows)

    def last(self) -> Int[Tensor, "sentences"]:
        """The packed place of each sentence's last step; no sentence may be empty."""
        return torch.from_numpy(np.asarray(self.starts)[self.lengths - 1] + np.arange(len(self.lengths)))


class LayerSweep:
    """The weights of one layer of one direction, laid out for products."""

    def __init__(self, layer: LSTMLayer, *, precision: Precision) -> None:
        self.config: LSTMConfig = layer.config
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._input = PackedWeight(layer.input_weight, precision=precision)
        self.recurrent = PackedWeight(layer.recurrent_weight, precision=precision)
        self.projection = None
        if layer.projection_weight is not None:
            self.projection = PackedWeight(layer.projection_weight, precision=precision)
        self.bias = layer.bias.detach().float().contiguous()

    def __call__(
        self, x: Float[Tensor, "room input"], packing: Packing, h: Float[Tensor, "rows width"], c: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "room width"]:
        """The outputs without residual connection, in the products' precision.

        Args:
            x: packed; `room(packing)` rows, those past the tokens are read but mean nothing.
            packing: how it is packed.
            h: the state before.
            c: the cells before, float32, adjacent; replaced by those after each sentence's last step.
        """
        counts, starts = packing.counts, packing.starts
        hidden = x.new_zeros(len(x), self.config.width, dtype=self.dtype)
        before = x.new_zeros(few_sizes(counts[0]), self.config.width, dtype=self.dtype)
        before[: len(h)] = h
        many = next((step for step, count in enumerate(counts) if count <= _FEW_ROWS), len(counts))
        few = self._few if many < len(counts) else None
        if few is None:
            many = len(counts)
        usual = _Usual(self, counts[0], hidden, c) if many else None
        step = 0
        while step < len(counts):
            end = self._chunk(counts, starts, step)
            first, size = starts[step], starts[end] - starts[step]
            if few is not None and size <= _FEW_TOKENS:
                added = few.inputs(x[first : starts[end]])
            else:
                added = self._input.product(x[first : first + few_sizes(size)])
            if usual is not None:
                for now in range(step, min(end, many)):
                    usual(before, added, starts[now] - first, starts[now], counts[now])
                    before = hidden[starts[now] :]
            if few is not None and end > many:
                now = max(step, many)
                few(counts[now:end], before, added[starts[now] - first :], c, hidden[starts[now] :])
                before = hidden[starts[end - 1] :]
            step = end
        return hidden

    def light(self, packing: Packing) -> bool:
        """Whether these sentences are read without torch's products; false as long as no sentences like them were read."""
        return self.__dict__.get("_few") is not None and packing.counts[0] <= _FEW_ROWS and packing.tokens <= _FEW_TOKENS

    @functools.cached_property
    def _few(self) -> FewSteps | None:
        """What reads few rows, made when they first come."""
        kernel = in_use() if self.bias.device.type == "cpu" else "torch"
        return FewSteps.of((self._input, self.recurrent, self.projection), self.bias, self.config, kernel)

    def _chunk(self, counts: Sequence[int], starts: Sequence[int], step: int) -> int:
        """The step before which to stop multiplying inputs."""
        most = max(1, _CHUNK_BYTES // (4 * self.config.dim * self.dtype.itemsize))
        end = step + 1
        while end < len(counts) and starts[end + 1] - starts[step] <= most:
            end += 1
        return end


def room(packing: Packing, sweeps: Sequence[LayerSweep]) -> int:
    """How many rows packed tensors need: products are given a few more than there are tokens."""
    widest = packing.counts[0] if packing.counts else 0
    chunk = max(_CHUNK_BYTES // (4 * sweep.config.dim * sweep.dtype.itemsize) for sweep in sweeps)
    most = min(max(widest, chunk), packing.tokens)
    return alike(packing.tokens + max(2, most // 2 + 16))


def alike(rows: int) -> int:
    """At most a thirtieth more rows, so that batches of about one size ask for memory of one size, and find what they freed."""
    step = 1 << max(0, rows.bit_length() - 6)
    return -(-rows // step) * step


class _Usual:
    """A step of a layer of any number of rows: a product, the cell, a product."""

    def __init__(self, sweep: LayerSweep, rows: int, hidden: Tensor, c: Tensor) -> None:
        self._sweep, self._hidden = sweep, hidden
        self._inner = hidden
        if sweep.projection is not None:
            self._inner = hidden.new_empty(few_sizes(rows), sweep.config.dim)
        self._cell = _Cell(sweep.bias, c, sweep.config)

    def __call__(self, before: Tensor, added: Tensor, added_at: int, start: int, count: int) -> None:
        """Reads `added` from a row on and writes the outputs from row `start` on."""
        sweep, size = self._sweep, few_sizes(count)
        gates = sweep.recurrent.product(before[:size])
        if sweep.projection is None:
            self._cell(gates, added, added_at, self._hidden, start, count)
            return
        self._cell(gates, added, added_at, self._inner, 0, count)
        projected = sweep.projection.product(self._inner[:size])[:count]
        limit = sweep.config.projection_clip
        place = self._hidden[start : start + count]
        place.copy_(projected) if limit is None else torch.clamp(projected, -limit, limit, out=place)


class _Cell:
    """`cell_forward` for the same cells again and again: what stays the same is looked at once."""

    def __init__(self, bias: Float[Tensor, "gates"], c: Float[Tensor, "rows dim"], config: LSTMConfig) -> None:
        self._kernel: Kernel = in_use() if c.device.type == "cpu" else "torch"
        self._bias, self._c, self._config = bias, c, config
        self._arguments = None
        if self._kernel != "torch":
            assert c.is_contiguous()
            assert c.dtype is bias.dtype is torch.float32
            clip = float("inf") if config.cell_clip is None else config.cell_clip
            self._arguments = _Forward(
                dim=config.dim, bias=bias.data_ptr(), c_prev=c.data_ptr(), c=c.data_ptr(), gates_stride=4 * config.dim,
                added_stride=4 * config.dim, c_prev_stride=config.dim, c_stride=config.dim, m_stride=config.dim,
                clip=clip, forget_bias=config.forget_bias,
            )  # fmt: skip

    def __call__(self, gates: Tensor, added: Tensor, added_at: int, m: Tensor, m_at: int, count: int) -> None:
        """One step of the first `count` rows; `added` and `m` are taken from a row on. All are as wide as they lie apart."""
        arguments = self._arguments
        if arguments is None:
            cells = self._c[:count]
            cell_forward(
                gates[:count], cells, c=cells, m=m[m_at : m_at + count], added=added[added_at : added_at + count],
                bias=self._bias, forget_bias=self._config.forget_bias, cell_clip=self._config.cell_clip,
            )  # fmt: skip
            return
        size, narrow = gates.element_size(), gates.dtype is torch.bfloat16
        arguments.rows = count
        arguments.gates = gates.data_ptr()
        arguments.added = added.data_ptr() + added_at * arguments.added_stride * size
        arguments.m = m.data_ptr() + m_at * arguments.m_stride * size
        arguments.gates_bf16 = arguments.added_bf16 = arguments.m_bf16 = narrow
        run(self._kernel, "cell_forward", arguments)
