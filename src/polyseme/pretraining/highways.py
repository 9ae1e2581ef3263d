"""Linear and highway layers over a window's distinct words, with hand-written backward passes.

Same arithmetic as token_encoder.Highway and nn.Linear. The products run in `dtype`; biases are added in float32.
"""

import functools
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from polyseme.kernels.products import product
from polyseme.kernels.training import highway_backward, highway_forward
from polyseme.kernels.workers import side_by_side
from polyseme.token_encoder import Highway


def _in_halves(rows: int, work: Callable[[slice, int], None]) -> None:
    """Gives half of the rows to each core."""
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    side_by_side(*(functools.partial(work, half, number) for number, half in enumerate(halves)))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, dtype):
        low, low_weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(low, low_weight)
        return product(low, low_weight).float() + bias

    @staticmethod
    def backward(ctx, grad):  # pyrefly: ignore[bad-override]
        low, low_weight = ctx.saved_tensors
        low_grad = grad.to(low.dtype)
        return product(low_grad, low_weight.T).float(), product(low_grad.T, low.T).float(), grad.sum(dim=0), None


class _HighwayLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate_weight, gate_bias, transform_weight, transform_bias, dtype):
        x = x.contiguous()
        low, weights = x.to(dtype), (gate_weight.to(dtype), transform_weight.to(dtype))
        gate, transform = (product(low, weight) for weight in weights)
        y = torch.empty_like(x)
        biases = gate_bias, transform_bias
        _in_halves(len(x), lambda part, _: highway_forward(gate[part], transform[part], x[part], biases, y=y[part]))
        ctx.kept = gate, transform, x, low, weights
        return y

    @staticmethod
    def backward(ctx, grad):  # pyrefly: ignore[bad-override]
        gate, transform, x, low, weights = ctx.kept
        ctx.kept = None  # the activations become gradients
        dx, grad = torch.empty_like(x), grad.contiguous()
        dbiases = dx.new_zeros(2, 2, x.shape[1])  # of each half of the rows

        def work(part: slice, number: int) -> None:
            gate_part, transform_part, own = gate[part], transform[part], (dbiases[number, 0], dbiases[number, 1])
            highway_backward(gate_part, transform_part, x[part], grad[part], dx=dx[part], dbiases=own)

        _in_halves(len(x), work)
        dgate_bias, dtransform_bias = dbiases.sum(dim=0)
        for output, weight in zip((gate, transform), weights, strict=True):
            dx += product(output, weight.T)
        dgate_weight, dtransform_weight = (product(output.T, low.T).float() for output in (gate, transform))
        return dx, dgate_weight, dgate_bias, dtransform_weight, dtransform_bias, None


def linear(layer: nn.Linear, x: Float[Tensor, "words input"], *, dtype: torch.dtype) -> Float[Tensor, "words output"]:
    """`layer(x)` in float32, by products of `dtype`."""
    return _Linear.apply(x, layer.weight, layer.bias, dtype)


def highway(layer: Highway, x: Float[Tensor, "words width"], *, dtype: torch.dtype) -> Float[Tensor, "words width"]:
    """`layer(x)` in float32, by products of `dtype`."""
    gate, transform = layer.gate, layer.transform
    return _HighwayLayer.apply(x, gate.weight, gate.bias, transform.weight, transform.bias, dtype)
