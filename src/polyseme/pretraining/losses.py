"""Sums of next-word negative log-likelihoods, with their gradients, in chunks of bounded memory.

Both losses compute the gradient while the logits are at hand: the logits of a chunk are made once and never kept.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme.errors import InputError
from polyseme.kernels.products import product
from polyseme.kernels.training import sampled_error


@dataclass(frozen=True)
class Draw:
    """Distinct sampled words, and how often each word of the vocabulary was expected among the tries."""

    ids: Int[Tensor, "samples"]
    expected: Float[Tensor, "samples"]
    tries: int
    size: int

    def expected_of(self, ids: Int[Tensor, "positions"]) -> Float[Tensor, "positions"]:
        """The expected count of any words, by the same tries."""
        return expected_count(ids, samples=len(self.ids), tries=self.tries, size=self.size)

    def to(self, device: torch.device | str) -> "Draw":
        """The same draw on another device."""
        return Draw(ids=self.ids.to(device), expected=self.expected.to(device), tries=self.tries, size=self.size)


def expected_count(ids: Int[Tensor, "n"], *, samples: int, tries: int, size: int) -> Float[Tensor, "n"]:
    """-expm1(tries * log1p(-P)) with P(k) = log((k+2)/(k+1)) / log(size+1).

    Where the first draws already differed (tries == samples) TensorFlow takes tries * P instead.
    """
    probability = torch.log1p(1.0 / (ids.double() + 1.0)) / math.log(size + 1)
    if tries == samples:
        return (tries * probability).float()
    return (-torch.expm1(tries * torch.log1p(-probability))).float()


def sample_log_uniform(generator: np.random.Generator, samples: int, size: int) -> Draw:
    """`samples` distinct words out of `size`, the frequent (low ids) more often, by drawing until enough differ."""
    if samples > size:
        raise InputError(f"{samples} distinct words cannot be drawn from a vocabulary of {size}; draw fewer.")
    drawn = np.empty(0, dtype=np.int64)
    while True:
        uniform = generator.random(max(64, 2 * samples))
        block = np.minimum(np.exp(uniform * math.log(size + 1)).astype(np.int64) - 1, size - 1)
        drawn = np.concatenate([drawn, block])
        _, first = np.unique(drawn, return_index=True)
        if len(first) >= samples:
            break
    first = np.sort(first)[:samples]
    ids = torch.from_numpy(drawn[first])
    tries = int(first[-1]) + 1
    return Draw(ids=ids, expected=expected_count(ids, samples=samples, tries=tries, size=size), tries=tries, size=size)


def _softmax_error(
    logits: Float[Tensor, "positions words"], wanted: Int[Tensor, "positions 1"], dtype: torch.dtype
) -> tuple[Float[Tensor, ""], Float[Tensor, "positions words"]]:
    """The sum of losses, and the gradient of the logits in `dtype`."""
    norm = logits.logsumexp(dim=1, keepdim=True)
    total = (norm - logits.gather(1, wanted)).sum()
    hit = torch.arange(logits.shape[1], device=logits.device) == wanted
    return total, ((logits - norm).exp() - hit.float()).to(dtype)


@functools.cache
def _compiled_softmax_error() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_softmax_error)


def _float_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y.T in float32, without rounding the result to low-precision operands where the device can."""
    if x.dtype != torch.float32 and x.is_cuda:
        return torch.mm(x, y.T, out_dtype=torch.float32)
    return product(x, y).float()


class _FullLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, dtype, chunk):
        low_weight = weight.to(dtype)
        error_of = _compiled_softmax_error() if hidden.is_cuda else _softmax_error
        total = hidden.new_zeros(())
        dhidden = torch.empty_like(hidden)
        dweight, dbias = torch.zeros_like(weight), torch.zeros_like(bias)
        for start in range(0, len(hidden), chunk):
            piece, wanted = hidden[start : start + chunk].to(dtype), targets[start : start + chunk, None]
            loss, error = error_of(_float_product(piece, low_weight).add_(bias), wanted, dtype)
            total += loss
            dhidden[start : start + chunk] = product(error, low_weight.T)
            dweight += _float_product(piece.T, error.T).T
            dbias += error.sum(dim=0, dtype=torch.float32)
        ctx.save_for_backward(dhidden, dweight, dbias)
        return total

    @staticmethod
    def backward(ctx, grad):  # pyrefly: ignore[bad-override]
        dhidden, dweight, dbias = ctx.saved_tensors
        return dhidden * grad, dweight * grad, dbias * grad, None, None, None


class _SampledLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, rows, bias, columns, hits, expected, true_expected, dtype, chunk):
        # rows: the sampled words first, then the distinct targets. columns: each position's row among the targets;
        # hits: each position's own word among the samples, or -1.
        samples = len(expected)
        low = rows.to(dtype)
        shift = bias[:samples] - expected.log()
        total = hidden.new_zeros(())
        dhidden = torch.empty_like(hidden)
        drows, dbias = torch.zeros_like(rows), torch.zeros_like(bias)
        dsampled = rows.new_zeros(rows.shape[1], samples)  # turned: see `product`
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            exact, piece, column = hidden[part], hidden[part].to(dtype), columns[part]
            true_row = rows[column]
            true = (exact * true_row).sum(dim=1) + bias[column] - true_expected[part].log()
            # bfloat16 rounds the logits of accelerators only after the sum: their products are wider.
            logits = product(piece, low[:samples]) if piece.device.type == "cpu" else _float_product(piece, low[:samples])
            norm = sampled_error(logits, shift, hits[part], true, dshift=dbias[:samples])
            total += (norm - true).sum()
            true_error = torch.expm1(true - norm)
            dbias.index_add_(0, column, true_error)
            error = logits.to(dtype)
            dhidden[part] = product(error, low[:samples].T).float() + true_error[:, None] * true_row
            dsampled += _float_product(piece.T, error.T)
            drows.index_add_(0, column, true_error[:, None] * exact)
        drows[:samples] += dsampled.T
        ctx.save_for_backward(dhidden, drows, dbias)
        return total

    @staticmethod
    def backward(ctx, grad):  # pyrefly: ignore[bad-override]
        dhidden, drows, dbias = ctx.saved_tensors
        return dhidden * grad, drows * grad, dbias * grad, None, None, None, None, None, None


def full_loss(
    hidden: Float[Tensor, "positions width"],
    weight: Float[Tensor, "words width"],
    bias: Float[Tensor, "words"],
    targets: Int[Tensor, "positions"],
    *,
    dtype: torch.dtype = torch.float32,
    chunk: int = 1024,
) -> Float[Tensor, ""]:
    """The sum over positions of -log p(target) under the full softmax."""
    return _FullLoss.apply(hidden, weight, bias, targets, dtype, chunk)


def sampled_loss(
    hidden: Float[Tensor, "positions width"],
    rows: Float[Tensor, "rows width"],
    bias: Float[Tensor, "rows"],
    targets: Int[Tensor, "positions"],
    columns: Int[Tensor, "positions"],
    draw: Draw,
    true_expected: Float[Tensor, "positions"],
    *,
    dtype: torch.dtype = torch.float32,
    chunk: int = 512,
) -> Float[Tensor, ""]:
    """The sum over positions of the sampled-softmax loss, as TensorFlow defines it for unique log-uniform samples.

    `rows` and `bias` are the softmax rows of `draw.ids` followed by those of the targets; `columns` says which row is each
    position's own, `true_expected` how often its target was expected among the tries. The log of a word's expected count
    is subtracted from its logit, and a sample that is the target itself is removed.
    """
    order = torch.argsort(draw.ids)
    ordered = draw.ids[order]
    place = torch.searchsorted(ordered, targets).clamp_max_(len(ordered) - 1)
    hits = torch.where(ordered[place] == targets, order[place], -1)
    return _SampledLoss.apply(hidden, rows, bias, columns, hits, draw.expected, true_expected, dtype, chunk)
