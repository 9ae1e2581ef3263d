"""What pretraining adds to the products, as the C files do it where they were built, and as the twin does it elsewhere."""

import ctypes

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from polyseme.kernels import Kernel, in_use, run, twin

_MOST_POSITIONS = 255  # the C file notes positions as bytes


class _Maxima(ctypes.Structure):
    """The struct `Maxima` of training.c."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("words", "positions", "filters")]
        + [(name, ctypes.c_void_p) for name in ("results", "best", "at")]
        + [("best_stride", ctypes.c_int64), ("results_bf16", ctypes.c_int32)]
    )


class _MaximaBackward(ctypes.Structure):
    """The struct `MaximaBackward` of training.c."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("words", "filters", "reach", "step")]
        + [(name, ctypes.c_void_p) for name in ("embedded", "kernel", "dbest", "at", "dembedded", "dkernel")]
        + [(name, ctypes.c_int64) for name in ("length", "dbest_stride")]
    )


class _SampledError(ctypes.Structure):
    """The struct `SampledError` of training.c."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("rows", "columns")]
        + [(name, ctypes.c_void_p) for name in ("logits", "shift", "hits", "wanted", "norm", "dshift", "room")]
        + [("logits_stride", ctypes.c_int64), ("logits_bf16", ctypes.c_int32)]
    )


class _Highway(ctypes.Structure):
    """The struct `Highway` of training.c."""

    _fields_ = (
        [("rows", ctypes.c_int64), ("width", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in ("gate", "transform", "gate_bias", "transform_bias", "x", "y", "dy")]
        + [(name, ctypes.c_void_p) for name in ("dgate_bias", "dtransform_bias")]
        + [("bf16", ctypes.c_int32)]
    )


class _Update(ctypes.Structure):
    """The struct `Update` of training.c."""

    _fields_ = (
        [("size", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in ("value", "first", "second", "gradient")]
        + [(name, ctypes.c_float) for name in ("scale", "rate", "beta1", "beta2", "decay", "root", "epsilon")]
    )


def _kernel(tensor: Tensor, kernel: Kernel | None) -> Kernel:
    if tensor.device.type != "cpu":
        return "torch"
    return in_use() if kernel is None else kernel


def maxima(
    results: Float[Tensor, "words positions filters"], *, best: Float[Tensor, "words filters"], kernel: Kernel | None = None
) -> Integer[Tensor, "words filters"]:
    """Writes into `best`, float32, the largest result of all positions; returns the first position that has it."""
    words, positions, filters = results.shape
    kernel = _kernel(results, kernel)
    if kernel == "torch" or positions > _MOST_POSITIONS:
        found, at = twin.maxima(results)
        best.copy_(found)
        return at
    assert results.is_contiguous()
    assert best.stride(1) == 1 or filters == 1
    at = torch.empty(words, filters, dtype=torch.uint8)
    arguments = _Maxima(
        words, positions, filters, results.data_ptr(), best.data_ptr(), at.data_ptr(), best.stride(0),
        results.dtype is torch.bfloat16,
    )  # fmt: skip
    run(kernel, "maxima", arguments)
    return at


def maxima_backward(
    embedded: Float[Tensor, "words length"],
    weight: Float[Tensor, "filters reach"],
    dbest: Float[Tensor, "words filters"],
    at: Integer[Tensor, "words filters"],
    *,
    step: int,
    dembedded: Float[Tensor, "words length"],
    dweight: Float[Tensor, "filters reach"],
    kernel: Kernel | None = None,
) -> None:
    """Adds to `dembedded` and `dweight` the gradients of `maxima` over windows of `embedded`, all in float32.

    The window of position p begins at p * step and is as long as a row of `weight`.
    """
    kernel = _kernel(embedded, kernel)
    if kernel == "torch" or at.dtype is not torch.uint8:
        found = twin.maxima_backward(embedded, weight, dbest, at, step=step)
        dembedded += found[0]
        dweight += found[1]
        return
    assert all(tensor.is_contiguous() for tensor in (embedded, weight, at, dembedded, dweight))
    arguments = _MaximaBackward(
        len(embedded), *weight.shape, step, embedded.data_ptr(), weight.data_ptr(), dbest.data_ptr(), at.data_ptr(),
        dembedded.data_ptr(), dweight.data_ptr(), embedded.shape[1], dbest.stride(0),
    )  # fmt: skip
    run(kernel, "maxima_backward", arguments)


def sampled_error(
    logits: Float[Tensor, "rows columns"],
    shift: Float[Tensor, "columns"],
    hits: Integer[Tensor, "rows"],
    wanted: Float[Tensor, "rows"],
    *,
    dshift: Float[Tensor, "columns"],
    kernel: Kernel | None = None,
) -> Float[Tensor, "rows"]:
    """Replaces logits by their gradients, adds up the gradient of `shift`; returns the log of the sum of exponentials.

    The softmax runs over the shifted logits and the wanted one; the column `hits` of a row (-1: none) does not count.
    """
    kernel = _kernel(logits, kernel)
    if kernel == "torch":
        error, norm = twin.sampled_error(logits, shift, hits, wanted)
        dshift += error.sum(dim=0)
        logits.copy_(error)
        return norm
    assert all(tensor.is_contiguous() for tensor in (logits, shift, hits, wanted, dshift))
    norm, room = torch.empty(len(logits)), torch.empty(logits.shape[1])
    arguments = _SampledError(
        *logits.shape, logits.data_ptr(), shift.data_ptr(), hits.data_ptr(), wanted.data_ptr(), norm.data_ptr(),
        dshift.data_ptr(), room.data_ptr(), logits.stride(0), logits.dtype is torch.bfloat16,
    )  # fmt: skip
    run(kernel, "sampled_error", arguments)
    return norm


def highway_forward(
    gate: Float[Tensor, "rows width"],
    transform: Float[Tensor, "rows width"],
    x: Float[Tensor, "rows width"],
    biases: tuple[Float[Tensor, "width"], Float[Tensor, "width"]],
    *,
    y: Float[Tensor, "rows width"],
    kernel: Kernel | None = None,
) -> None:
    """Writes the output of a highway layer into `y`; `gate` and `transform` hold the products and are activated in place.

    `x`, `y` and the biases (of gate and transform) are float32.
    """
    kernel = _kernel(gate, kernel)
    if kernel == "torch":
        for place, found in zip((y, gate, transform), twin.highway_forward(gate, transform, x, *biases), strict=True):
            place.copy_(found)
        return
    _run_highway(kernel, "highway_forward", gate, transform, x, y, biases=biases)


def highway_backward(
    gate: Float[Tensor, "rows width"],
    transform: Float[Tensor, "rows width"],
    x: Float[Tensor, "rows width"],
    dy: Float[Tensor, "rows width"],
    *,
    dx: Float[Tensor, "rows width"],
    dbiases: tuple[Float[Tensor, "width"], Float[Tensor, "width"]],
    kernel: Kernel | None = None,
) -> None:
    """Replaces what `highway_forward` left in `gate` and `transform` by the gradients of the products.

    Writes into `dx` the gradient of x as far as it goes around the products, and adds to `dbiases`.
    """
    kernel = _kernel(gate, kernel)
    if kernel == "torch":
        dgate, dtransform, direct = twin.highway_backward(gate, transform, x, dy)
        for place, found in ((gate, dgate), (transform, dtransform), (dx, direct)):
            place.copy_(found)
        for place, found in zip(dbiases, (dgate, dtransform), strict=True):
            place += found.sum(dim=0)
        return
    _run_highway(kernel, "highway_backward", gate, transform, x, dx, dy=dy, dbiases=dbiases)


def _run_highway(
    kernel: Kernel,
    name: str,
    gate: Tensor,
    transform: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    dy: Tensor | None = None,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    dbiases: tuple[Tensor | None, Tensor | None] = (None, None),
) -> None:
    """Either direction of the C file."""
    singles = [tensor for tensor in (*biases, x, y, dy, *dbiases) if tensor is not None]
    assert all(tensor.is_contiguous() for tensor in (gate, transform, *singles))
    assert all(tensor.dtype is torch.float32 for tensor in singles)
    assert gate.dtype is transform.dtype
    assert gate.shape == transform.shape == x.shape == y.shape
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in (gate, transform, *biases, x, y, dy, *dbiases)]
    run(kernel, name, _Highway(*gate.shape, *addresses, gate.dtype is torch.bfloat16))


def adagrad(
    value: Tensor, gradient: Tensor, accumulator: Tensor, *, rate: float, scale: float, kernel: Kernel | None = None
) -> None:
    """One step of TensorFlow's Adagrad, in place; see the twin."""
    kernel = _kernel(value, kernel)
    if kernel == "torch":
        twin.adagrad(value, gradient, accumulator, rate=rate, scale=scale)
        return
    _update(kernel, "adagrad", value, None, accumulator, gradient, (scale, rate, 0.0, 0.0, 1.0, 1.0, 0.0))


def adamw(
    value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *, rate: float, scale: float, betas: tuple[float, float],
    decay: float, root: float, epsilon: float, kernel: Kernel | None = None,
) -> None:  # fmt: skip
    """One step of AdamW, in place; see the twin."""
    kernel = _kernel(value, kernel)
    if kernel == "torch":
        twin.adamw(value, gradient, first, second, rate=rate, scale=scale, betas=betas, decay=decay, root=root, epsilon=epsilon)
        return
    _update(kernel, "adamw", value, first, second, gradient, (scale, rate, *betas, decay, root, epsilon))


def _update(
    kernel: Kernel, name: str, value: Tensor, first: Tensor | None, second: Tensor, gradient: Tensor, numbers: tuple[float, ...]
) -> None:
    gradient = gradient.contiguous()
    tensors = [value, second, gradient] if first is None else [value, first, second, gradient]
    assert all(t.is_contiguous() and t.dtype is torch.float32 and t.numel() == value.numel() for t in tensors)
    addresses = [None if t is None else t.data_ptr() for t in (value, first, second, gradient)]
    run(kernel, name, _Update(value.numel(), *addresses, *numbers))
