"""The steps of an LSTM layer for few rows in one call of a C function, which reads the weights where oneDNN laid them out.

Step by step, a product of few rows costs more for being asked for than for being computed, and threads that ask by turns wait
for each other. steps.c computes all steps without coming back. It knows one layout, and adds in the order of oneDNN, so that a
row has the same bits whatever other rows there are. Neither is promised by oneDNN: both are tried out first, and where they are
not found the usual products serve.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.config import LSTMConfig
from polyseme.kernels import Kernel, library, run
from polyseme.kernels.products import PackedWeight

_BLOCK: Final = 64
_TRYING = threading.Lock()


class _Weight(ctypes.Structure):
    """The struct `Weight` of steps.c."""

    _fields_ = (("blocks", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("outputs", "inputs", "depth", "section")))


class _Product(ctypes.Structure):
    """The struct `Product` of steps.c."""

    _fields_ = (
        ("weight", _Weight), ("rows", ctypes.c_int64), ("x", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("limit", ctypes.c_float), ("bf16", ctypes.c_int32), ("dots", ctypes.c_int32),
    )  # fmt: skip


class _Steps(ctypes.Structure):
    """The struct `Steps` of steps.c."""

    _fields_ = (
        [("recurrent", _Weight), ("projection", _Weight)]
        + [(name, ctypes.c_int64) for name in ("steps", "dim", "width")]
        + [(name, ctypes.c_void_p) for name in ("counts", "before", "added", "bias", "c", "gates", "inner", "hidden")]
        + [(name, ctypes.c_float) for name in ("cell_clip", "projection_clip", "forget_bias")]
        + [("bf16", ctypes.c_int32), ("dots", ctypes.c_int32)]
    )


class FewSteps:
    """One layer of one direction; `FewSteps.of` makes it where that is possible. Any number of rows will do."""

    def __init__(
        self, weights: Sequence[_Weight], bias: Float[Tensor, "gates"], config: LSTMConfig, dtype: torch.dtype, kernel: Kernel
    ) -> None:
        """`weights`: of the inputs, of the recurrence, of the projection."""
        self._input, *self._weights = weights
        self._bias, self._config, self._dtype, self._kernel = bias, config, dtype, kernel
        self._limits = _limit(config.cell_clip), _limit(config.projection_clip, dtype)

    @classmethod
    def of(
        cls, weights: Sequence[PackedWeight | None], bias: Float[Tensor, "gates"], config: LSTMConfig, kernel: Kernel
    ) -> "FewSteps | None":
        """None where the C function cannot read these weights, or would not add as oneDNN does.

        They must be kept as long as what is returned. Call it in a thread that computes as those do which use the products.
        """
        if kernel == "torch":
            return None
        found = [_Weight() if weight is None else readable(weight, kernel) for weight in weights]
        dtype = next(weight.dtype for weight in weights if weight is not None)
        there = [weight for weight in found if weight is not None]
        return cls(there, bias, config, dtype, kernel) if len(there) == len(found) else None

    def inputs(self, x: Float[Tensor, "rows input"]) -> Float[Tensor, "rows gates"]:
        """The inputs' part of the gates."""
        return _product(self._input, x, kernel=self._kernel)

    def __call__(
        self,
        counts: Sequence[int],
        before: Float[Tensor, "_ width"],
        added: Float[Tensor, "_ gates"],
        c: Float[Tensor, "_ dim"],
        hidden: Float[Tensor, "_ width"],
    ) -> None:
        """Steps of so many rows each; all tensors are adjacent, and those that are longer are read from their beginning.

        Args:
            counts: rows of each step, never more than the step before has.
            before: the state before.
            added: the inputs' part of the gates.
            c: the cells before, float32, replaced by those after.
            hidden: receives the outputs.
        """
        config, rows = self._config, counts[0]
        assert before.dtype is added.dtype is hidden.dtype is self._dtype
        assert c.dtype is torch.float32
        gates = added.new_empty(rows * 5 * config.dim)
        arguments = _Steps(
            *self._weights, len(counts), config.dim, config.width,
            ctypes.addressof(steps := (ctypes.c_int64 * len(counts))(*counts)), before.data_ptr(), added.data_ptr(),
            self._bias.data_ptr(), c.data_ptr(), gates.data_ptr(), gates[rows * 4 * config.dim :].data_ptr(), hidden.data_ptr(),
            *self._limits, config.forget_bias, self._dtype is torch.bfloat16, _dots(),
        )  # fmt: skip
        run(self._kernel, "few_steps", arguments)
        del steps  # it had to live until here


def few_product(
    x: Float[Tensor, "rows inputs"], weight: PackedWeight, *, section: int, kernel: Kernel, limit: float | None = None
) -> Float[Tensor, "rows outputs"] | None:
    """`x @ weight.T` of adjacent rows by the C function; None where it cannot know the weight's layout.

    Args:
        x: of the weight's precision.
        weight: the weight.
        section: how many inputs are added up before they are added to those before them.
        kernel: one of `available()` but "torch".
        limit: of the results' absolute value.
    """
    laid = laid_out(weight, section)
    return None if laid is None else _product(laid, x.to(weight.dtype), kernel=kernel, limit=limit)


def _product(weight: _Weight, x: Tensor, *, kernel: Kernel, limit: float | None = None) -> Tensor:
    assert x.is_contiguous()
    assert x.shape[1] == weight.inputs
    out = x.new_empty(len(x), weight.outputs)
    arguments = _Product(weight, len(x), x.data_ptr(), out.data_ptr(), _limit(limit, x.dtype), x.dtype is torch.bfloat16, _dots())
    run(kernel, "few_product", arguments)
    return out


def _limit(clip: float | None, dtype: torch.dtype = torch.float32) -> float:
    """A clip as torch.clamp applies it to numbers of this type; infinity where nothing is clipped."""
    return float("inf") if clip is None else torch.tensor(clip, dtype=dtype).item()


@functools.cache
def _dots() -> bool:
    loaded = library()
    return loaded is not None and bool(loaded.polyseme_dots())


def laid_out(weight: PackedWeight, section: int) -> _Weight | None:
    """Where a weight lies, if its size is that of the layout which the C function knows."""
    found = weight.blocks()
    if found is None or weight.inputs % 2:
        return None
    address, size = found
    columns = -(-weight.outputs // _BLOCK) * _BLOCK * weight.dtype.itemsize
    depth = size // columns
    if size % columns or depth < weight.inputs:
        return None
    return _Weight(address, weight.outputs, weight.inputs, depth, section)


def readable(weight: PackedWeight, kernel: Kernel) -> _Weight | None:
    """A weight as the C function takes it, if the function gives the bits of `weight.product`."""
    narrow: Literal["float32", "bfloat16"] = "bfloat16" if weight.dtype is torch.bfloat16 else "float32"
    with _TRYING:  # two directions have the same shapes
        section = _section(weight.outputs, weight.inputs, narrow, kernel)
    if section is None:
        return None
    # What was found out with another weight of this shape shows the order, this one that it is laid out in the same way.
    x = torch.randn(2, weight.inputs, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    laid = laid_out(weight, section)
    return laid if laid is not None and torch.equal(_product(laid, x, kernel=kernel), weight.product(x)) else None


@functools.cache
def _section(outputs: int, inputs: int, precision: Literal["float32", "bfloat16"], kernel: Kernel) -> int | None:
    """How many inputs oneDNN adds up at a time in weights of this shape, or None where it is not one of the ways known.

    Tried with sums that cancel: what is left of them is what was lost by rounding, which any other order would change.
    """
    generator, half = torch.Generator().manual_seed(0), inputs // 2
    plain, x = torch.randn(outputs, inputs, generator=generator), torch.randn(2, inputs, generator=generator)
    order = torch.randperm(half, generator=generator)
    plain[:, half : 2 * half] = -plain[:, order]
    x[:, half : 2 * half] = x[:, order]
    weight = PackedWeight(plain, precision=precision)
    x = x.to(weight.dtype)
    wanted = weight.product(x)
    if not torch.equal(weight.product(x.repeat(32, 1))[:2], wanted):
        return None
    for section in (inputs, 1024, 512):
        found = few_product(x, weight, section=section, kernel=kernel)
        if found is not None and torch.equal(found, wanted):
            return section
    return None
