"""The C files of pretraining against their torch twins, on every instruction set of this machine."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyseme.kernels import Kernel, available, training, twin

KERNELS = [kernel for kernel in available() if kernel != "torch"]
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(not KERNELS, reason="the C files are not built here")


def _close(found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    tolerance = {"atol": 2e-6, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 2e-3, "rtol": 1e-2}
    torch.testing.assert_close(found.float(), expected.float(), **tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=30, deadline=None)
@given(
    words=st.integers(1, 4),
    positions=st.integers(1, 6),
    filters=st.integers(1, 300),
    narrow=st.booleans(),
    seed=st.integers(0, 99),
)
def test_maxima(kernel: Kernel, words: int, positions: int, filters: int, narrow: bool, seed: int):
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers: equal maxima are frequent, and the first one counts.
    results = torch.randint(-3, 4, (words, positions, filters), generator=generator).to(DTYPES[narrow])
    best, wide = twin.maxima(results)[0], torch.zeros(words, filters + 2)
    at = training.maxima(results, best=wide[:, 1:-1], kernel=kernel)
    assert torch.equal(wide[:, 1:-1], best)
    assert (wide[:, [0, -1]] == 0).all()
    assert torch.equal(at.long(), results.float().eq(best[:, None]).float().argmax(dim=1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_maximum_that_is_no_number_stays_one(kernel: Kernel):
    results = torch.zeros(1, 3, 40)
    results[0, 1, 7] = math.nan
    best = torch.empty(1, 40)
    training.maxima(results, best=best, kernel=kernel)
    assert best.isnan().nonzero().tolist() == [[0, 7]]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("step", "reach"), [(4, 12), (16, 16), (3, 21)])
def test_gradients_of_maxima(kernel: Kernel, step: int, reach: int):
    torch.manual_seed(1)
    words, positions, filters = 5, 6, 33
    embedded = torch.randn(words, (positions - 1) * step + reach)
    weight, dbest = torch.randn(filters, reach), torch.randn(words, filters)
    at = torch.randint(0, positions, (words, filters), dtype=torch.uint8)
    before = torch.randn_like(embedded), torch.randn_like(weight)
    found = before[0].clone(), before[1].clone()
    training.maxima_backward(embedded, weight, dbest, at, step=step, dembedded=found[0], dweight=found[1], kernel=kernel)
    for got, start, gradient in zip(found, before, twin.maxima_backward(embedded, weight, dbest, at, step=step), strict=True):
        _close(got, start + gradient)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_the_sampled_softmaxs_error(kernel: Kernel, dtype: torch.dtype, scale: float):
    torch.manual_seed(2)
    rows, columns = 6, 517
    logits = (torch.randn(rows, columns) * scale).to(dtype)
    shift, wanted = torch.randn(columns), torch.randn(rows) * scale
    hits = torch.tensor([-1, 0, 516, -1, 100, 3])
    error, norm = twin.sampled_error(logits, shift, hits, wanted)
    dshift = torch.ones(columns)
    found = training.sampled_error(logits, shift, hits, wanted, dshift=dshift, kernel=kernel)
    _close(found, norm)
    _close(logits, error, dtype)
    _close(dshift, 1 + error.sum(dim=0))


@pytest.mark.parametrize("kernel", [*KERNELS, "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 300])
def test_highways_are_those_of_autograd(kernel: Kernel, dtype: torch.dtype, width: int):
    torch.manual_seed(3)
    rows = 7
    gate, transform = torch.randn(2, rows, width).to(dtype).unbind()
    x, dy = torch.randn(2, rows, width).unbind()
    biases = torch.randn(2, width).unbind()
    leaves = [tensor.clone().float().requires_grad_() for tensor in (gate, transform, x, *biases)]
    share = torch.sigmoid(leaves[0] + leaves[3])
    expected = share * F.relu(leaves[1] + leaves[4]) + (1 - share) * leaves[2]
    expected.backward(dy)
    gate, transform, y, dx = gate.clone(), transform.clone(), torch.empty_like(x), torch.empty_like(x)
    training.highway_forward(gate, transform, x, biases, y=y, kernel=kernel)
    _close(y, expected.detach())
    dbiases = torch.ones(2, width).unbind()
    training.highway_backward(gate, transform, x, dy, dx=dx, dbiases=dbiases, kernel=kernel)
    gradients = [leaf.grad for leaf in leaves]
    assert all(gradient is not None for gradient in gradients)
    for found, wanted, kind in (
        (gate, gradients[0], dtype), (transform, gradients[1], dtype), (dx, gradients[2], dtype),
        (dbiases[0] - 1, gradients[3], dtype), (dbiases[1] - 1, gradients[4], dtype),
    ):  # fmt: skip
        tolerance = {"atol": 5e-6, "rtol": 1e-5} if kind is torch.float32 else {"atol": 3e-2, "rtol": 2e-2}
        torch.testing.assert_close(found.float(), wanted, **tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [1, 15, 16, 1000])
def test_updates(kernel: Kernel, size: int):
    torch.manual_seed(4)
    value, gradient, first = torch.randn(3, size).unbind()
    second = torch.rand(size) + 0.5
    for method in ("adagrad", "adamw"):
        mine = [tensor.clone() for tensor in (value, gradient, first, second)]
        theirs = [tensor.clone() for tensor in mine]
        if method == "adagrad":
            training.adagrad(mine[0], mine[1], mine[3], rate=0.2, scale=0.7, kernel=kernel)
            twin.adagrad(theirs[0], theirs[1], theirs[3], rate=0.2, scale=0.7)
        else:
            numbers = {"rate": 0.01, "scale": 0.7, "betas": (0.9, 0.99), "decay": 0.999, "root": 1.3, "epsilon": 1e-8}
            training.adamw(*mine, **numbers, kernel=kernel)
            twin.adamw(*theirs, **numbers)
        for found, expected in zip(mine, theirs, strict=True):
            _close(found, expected)
