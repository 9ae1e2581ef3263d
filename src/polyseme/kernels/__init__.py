"""The fused LSTM cell, forward and backward: a C file where one was built, its torch twin elsewhere.

`cell_forward` and `cell_backward` write into tensors they are given; rows may lie apart (slices of larger buffers), the
columns of a row must be adjacent. On CPU the C file runs, on one thread and without holding the interpreter, so two Python
threads can run the two directions on two cores. Other devices run the twin, compiled; it also takes more axes than rows.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.errors import InputError
from polyseme.kernels import twin

Kernel = Literal["c avx512", "c avx2", "c plain", "torch"]

_INSTRUCTIONS: Final = {"c plain": 0, "c avx2": 1, "c avx512": 2}
_FUNCTIONS: Final = (
    "cell_forward", "cell_backward", "maxima", "maxima_backward", "sampled_error", "highway_forward", "highway_backward",
    "adagrad", "adamw", "few_product", "few_steps",
)  # fmt: skip


class _Forward(ctypes.Structure):
    """The struct `Forward` of cell.c."""

    _fields_ = (
        [("rows", ctypes.c_int64), ("dim", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in ("gates", "added", "bias", "c_prev", "c", "m", "activated")]
        + [(name, ctypes.c_int64) for name in ("gates_stride", "added_stride", "c_prev_stride", "c_stride", "m_stride")]
        + [("activated_stride", ctypes.c_int64)]
        + [(name, ctypes.c_int32) for name in ("gates_bf16", "added_bf16", "m_bf16", "activated_bf16")]
        + [("clip", ctypes.c_float), ("forget_bias", ctypes.c_float)]
    )


class _Backward(ctypes.Structure):
    """The struct `Backward` of cell.c."""

    _fields_ = (
        [("rows", ctypes.c_int64), ("dim", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in ("activated", "c_prev", "c", "dm", "dc", "dgates", "dc_prev", "dbias")]
        + [(name, ctypes.c_int64) for name in ("activated_stride", "c_prev_stride", "c_stride", "dm_stride", "dc_stride")]
        + [(name, ctypes.c_int64) for name in ("dgates_stride", "dc_prev_stride")]
        + [(name, ctypes.c_int32) for name in ("activated_bf16", "dm_bf16", "dgates_bf16")]
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled C files, or None where none was built or it does not load on this machine."""
    path = Path(__file__).parent / "_cell.so"
    if not path.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    for name in ("instructions", "dots"):
        function = getattr(loaded, f"polyseme_{name}")
        function.restype = ctypes.c_int32
        function.argtypes = []
    for name in _FUNCTIONS:
        function = getattr(loaded, f"polyseme_{name}")
        function.restype = None
        function.argtypes = [ctypes.c_int32, ctypes.c_void_p]
    return loaded


@functools.cache
def available() -> tuple[Kernel, ...]:
    """The kernels this machine can run on CPU tensors, the fastest first."""
    loaded = library()
    widest = -1 if loaded is None else loaded.polyseme_instructions()
    return tuple(kernel for kernel in get_args(Kernel) if kernel == "torch" or _INSTRUCTIONS[kernel] <= widest)


def in_use() -> Kernel:
    """The kernel that CPU tensors go through."""
    return available()[0]


def cell_forward(
    gates: Float[Tensor, "*rows gates"],
    c_prev: Float[Tensor, "*rows dim"],
    *,
    c: Float[Tensor, "*rows dim"],
    m: Float[Tensor, "*rows dim"],
    activated: Float[Tensor, "*rows gates"] | None = None,
    added: Float[Tensor, "*rows gates"] | None = None,
    bias: Float[Tensor, "gates"] | None = None,
    forget_bias: float = 0.0,
    cell_clip: float | None = None,
    kernel: Kernel | None = None,
) -> None:
    """One step of the LSTM cell after its products: writes `c`, `m` and, for training, `activated`.

    Args:
        gates: pre-activations, float32 or bfloat16, blocks in the order input, forget, candidate, output.
        c_prev: the previous cell, float32.
        c: receives the new cell, clipped, float32; may be `c_prev`.
        m: receives sigmoid(output) * tanh(c), float32 or bfloat16.
        activated: receives the gates after their non-linearities, for `cell_backward`; float32 or bfloat16; may be `gates`.
            The sign of an input gate marks a clipped cell.
        added: a second part of the pre-activations, float32 or bfloat16.
        bias: a third, the same for every row, float32.
        forget_bias: added to the forget gates.
        cell_clip: limit of the cell's absolute value.
        kernel: one of `available()`; None takes the fastest.
    """
    chosen = _choose(kernel, gates)
    if chosen == "torch":
        call = twin.cell_forward_into if gates.device.type == "cpu" else _compiled(twin.cell_forward_into)
        call(gates, c_prev, c, m, activated, added, bias, forget_bias, cell_clip)
        return
    rows, dim = _size(c_prev)
    gates_at, gates_stride, gates_bf16 = _matrix("gates", gates, rows, 4 * dim)
    c_prev_at, c_prev_stride, _ = _matrix("c_prev", c_prev, rows, dim, narrow=False)
    c_at, c_stride, _ = _matrix("c", c, rows, dim, narrow=False)
    m_at, m_stride, m_bf16 = _matrix("m", m, rows, dim)
    added_at, added_stride, added_bf16 = _matrix("added", added, rows, 4 * dim)
    activated_at, activated_stride, activated_bf16 = _matrix("activated", activated, rows, 4 * dim)
    arguments = _Forward(
        rows, dim, gates_at, added_at, _vector("bias", bias, 4 * dim), c_prev_at, c_at, m_at, activated_at,
        gates_stride, added_stride, c_prev_stride, c_stride, m_stride, activated_stride,
        gates_bf16, added_bf16, m_bf16, activated_bf16,
        float("inf") if cell_clip is None else cell_clip, forget_bias,
    )  # fmt: skip
    run(chosen, "cell_forward", arguments)


def cell_backward(
    activated: Float[Tensor, "*rows gates"],
    c_prev: Float[Tensor, "*rows dim"],
    c: Float[Tensor, "*rows dim"],
    *,
    dm: Float[Tensor, "*rows dim"],
    dc: Float[Tensor, "*rows dim"] | None,
    dgates: Float[Tensor, "*rows gates"],
    dc_prev: Float[Tensor, "*rows dim"],
    dbias: Float[Tensor, "*stacks gates"] | None = None,
    kernel: Kernel | None = None,
) -> None:
    """The gradient of `cell_forward`: writes `dgates` and `dc_prev`.

    Args:
        activated: as written by `cell_forward`, float32 or bfloat16.
        c_prev: the cell that step started from, float32.
        c: the cell it wrote, float32.
        dm: gradient of `m`, float32 or bfloat16.
        dc: gradient of `c` from the next step, float32; None is zero.
        dgates: receives the gradient of the pre-activations, float32 or bfloat16; may be `activated`.
        dc_prev: receives the gradient of `c_prev`, float32; may be `dc`.
        dbias: the sum of the gates' gradients over the rows is added to it, float32, before any rounding to bfloat16.
        kernel: one of `available()`; None takes the fastest.
    """
    chosen = _choose(kernel, activated)
    if chosen == "torch":
        call = twin.cell_backward_into if activated.device.type == "cpu" else _compiled(twin.cell_backward_into)
        call(activated, c_prev, c, dm, dc, dgates, dc_prev, dbias)
        return
    rows, dim = _size(c_prev)
    activated_at, activated_stride, activated_bf16 = _matrix("activated", activated, rows, 4 * dim)
    c_prev_at, c_prev_stride, _ = _matrix("c_prev", c_prev, rows, dim, narrow=False)
    c_at, c_stride, _ = _matrix("c", c, rows, dim, narrow=False)
    dm_at, dm_stride, dm_bf16 = _matrix("dm", dm, rows, dim)
    dc_at, dc_stride, _ = _matrix("dc", dc, rows, dim, narrow=False)
    dgates_at, dgates_stride, dgates_bf16 = _matrix("dgates", dgates, rows, 4 * dim)
    dc_prev_at, dc_prev_stride, _ = _matrix("dc_prev", dc_prev, rows, dim, narrow=False)
    arguments = _Backward(
        rows, dim, activated_at, c_prev_at, c_at, dm_at, dc_at, dgates_at, dc_prev_at,
        _vector("dbias", dbias, 4 * dim),
        activated_stride, c_prev_stride, c_stride, dm_stride, dc_stride, dgates_stride, dc_prev_stride,
        activated_bf16, dm_bf16, dgates_bf16,
    )  # fmt: skip
    run(chosen, "cell_backward", arguments)


def _choose(kernel: Kernel | None, tensor: Tensor) -> Kernel:
    if tensor.device.type != "cpu":
        if kernel not in (None, "torch"):
            raise InputError(f"kernel {kernel!r} works on CPU tensors, got one on {tensor.device}; leave kernel out.")
        return "torch"
    if kernel is None:
        return available()[0]
    if kernel not in available():
        raise InputError(f"kernel {kernel!r} does not run here; this machine has {', '.join(available())}.")
    return kernel


def run(kernel: Kernel, name: str, arguments: ctypes.Structure) -> None:
    """Calls a function of the C files; `kernel` is one of `available()` but "torch"."""
    loaded = library()
    assert loaded is not None, "available() lists C kernels only where the library is loaded"
    getattr(loaded, f"polyseme_{name}")(_INSTRUCTIONS[kernel], ctypes.addressof(arguments))


def _size(c_prev: Tensor) -> tuple[int, int]:
    if c_prev.dim() != 2:
        raise InputError(f"c_prev is {_seen(c_prev)}; wanted rows x dim (the twin alone takes more axes).")
    return c_prev.shape[0], c_prev.shape[1]


def _matrix(name: str, x: Tensor | None, rows: int, columns: int, *, narrow: bool = True) -> tuple[int | None, int, bool]:
    """Address, distance between rows, and whether it is bfloat16; all columns of a row must be adjacent."""
    if x is None:
        return None, 0, False
    dtype = x.dtype
    bf16 = dtype is torch.bfloat16
    if (
        x.shape != (rows, columns)
        or not (dtype is torch.float32 or (bf16 and narrow))
        or (x.stride(1) != 1 and columns > 1)
        or x.device.type != "cpu"
    ):
        kinds = "float32 or bfloat16" if narrow else "float32"
        raise InputError(f"{name} is {_seen(x)}; wanted {rows} x {columns}, {kinds}, on the CPU, columns adjacent.")
    return x.data_ptr(), x.stride(0), bf16


def _vector(name: str, x: Tensor | None, length: int) -> int | None:
    """Address of float32 values that stand side by side."""
    if x is None:
        return None
    if x.dtype is not torch.float32 or x.shape != (length,) or not x.is_contiguous() or x.device.type != "cpu":
        raise InputError(f"{name} is {_seen(x)}; wanted {length} adjacent float32 values on the CPU.")
    return x.data_ptr()


def _seen(x: Tensor) -> str:
    size = " x ".join(map(str, x.shape)) or "a scalar"
    return f"{size}, {str(x.dtype).removeprefix('torch.')}, on {x.device}, strides {tuple(x.stride())}"


@functools.cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """A function of the twin through torch.compile, for devices where the C file does not run."""
    return torch.compile(function)
