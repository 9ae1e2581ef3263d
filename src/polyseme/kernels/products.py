"""Products with one weight, many times: the weight is laid out once in the form the recurrence's narrow products like best.

Measured by benchmarks/bench_products.py: oneDNN's own blocked layout, where torch offers it. In float32 it is level with MKL on
Intel's processors and more than twice as fast on AMD's, where MKL leaves half of the vector unit unused. Use from one thread
per core, each with one torch thread.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.errors import InputError


class PackedWeight:
    """A weight (outputs x inputs) ready for `x @ weight.T`. It is a copy: pack again when the weight has changed."""

    def __init__(
        self,
        weight: Float[Tensor, "outputs inputs"],
        *,
        precision: Literal["float32", "bfloat16"] = "float32",
        rows: int | None = None,
    ) -> None:
        """`rows`: how many rows most products will have, where known; any number works."""
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"precision is {precision!r}; wanted 'float32' or 'bfloat16'.")
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.outputs, self.inputs = weight.shape
        weight = weight.detach().to(self.dtype)
        self._blocked = _blocks(weight, rows)
        self._transposed = weight.T.contiguous() if self._blocked is None else None

    def product(self, x: Float[Tensor, "rows inputs"], *, out: Tensor | None = None) -> Float[Tensor, "rows outputs"]:
        """`x @ weight.T`, into `out` where given. `x` and the result have the weight's precision."""
        self._check(x)
        if self._transposed is not None:
            return torch.mm(x, self._transposed, out=out)
        result = _linear(x, self._blocked)
        return result if out is None else out.copy_(result)

    def add_product(self, x: Float[Tensor, "rows inputs"], out: Float[Tensor, "rows outputs"]) -> Tensor:
        """`out += x @ weight.T`."""
        self._check(x)
        if self._transposed is not None:
            return out.addmm_(x, self._transposed)
        return out.add_(_linear(x, self._blocked))

    def blocks(self) -> tuple[int, int] | None:
        """Address and size in bytes of oneDNN's copy, whose layout is its own affair; None where there is none to be seen."""
        kernels = torch.ops.mkldnn
        if self._blocked is None or not all(hasattr(kernels, name) for name in ("data_ptr", "_nbytes")):
            return None
        return kernels.data_ptr(self._blocked), kernels._nbytes(self._blocked)

    def _check(self, x: Tensor) -> None:
        if x.dtype is not self.dtype or x.shape[-1] != self.inputs:
            raise InputError(
                f"x is {' x '.join(map(str, x.shape))}, {x.dtype}; this weight takes rows x {self.inputs}, {self.dtype}."
            )


def rounded(rows: int) -> int:
    """A few more rows, so that products have few sizes: four in each octave, at least 16.

    oneDNN makes code for every shape it meets, in milliseconds, and keeps about a megabyte for each.
    """
    step = max(16, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


def product(x: Float[Tensor, "rows inputs"], weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "rows outputs"]:
    """`x @ weight.T` by the faster library, once; both are of one precision, and may be transposed views."""
    # Both libraries are slow, up to twofold, where the first factor lies turned.
    x = x.contiguous()
    # In bfloat16 torch takes oneDNN by itself.
    if weight.dtype == torch.float32 and _available(weight) and x.numel():
        return _linear(x, weight)
    return torch.mm(x, weight.T)


def _linear(x: Tensor, weight: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def _available(weight: Tensor) -> bool:
    """Whether oneDNN's products can be had for this weight: on this device, with this torch and this processor."""
    kernels = torch.ops.mkldnn
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or not weight.numel():
        return False
    if not all(hasattr(kernels, name) for name in ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")):
        return False
    return weight.dtype == torch.float32 or bool(kernels._is_mkldnn_bf16_supported())


def _blocks(weight: Tensor, rows: int | None) -> Tensor | None:
    """oneDNN's layout of a weight, or None where it cannot be had."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows) if _available(weight) else None
