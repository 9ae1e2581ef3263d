"""The interleaved LSTM of the role labeller: layers that read in turn forwards and backwards, joined by highways.

One layer is one autograd function over packed rows: the inputs of all tokens are multiplied at once, the cell is the fused
one, and the gradients of both matrices are one product each.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from polyseme.kernels import cell_backward, cell_forward


class InterleavedLSTM(nn.Module):
    """Stacked LSTMs of one direction each: even layers read forwards, odd ones backwards, each what the one below wrote.

    A highway gate lets a layer pass its input, through a linear map, by the cell: r * cell's output + (1 - r) * W x. What a
    layer hands on, to the layer above and to its own next step, is dropped where one mask of the row says so (recurrent
    dropout). The products with the input have no bias.
    """

    def __init__(self, width: int, hidden: int, *, layers: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.width, self.rate = hidden, dropout
        inputs = [width] + [hidden] * (layers - 1)
        self.enter = nn.ParameterList(_orthogonal(6, hidden, size) for size in inputs)
        self.carry = nn.ParameterList(_orthogonal(5, hidden, hidden) for _ in inputs)
        # In the order input, forget, candidate, output, highway; forget gates begin open.
        begin = F.pad(torch.ones(hidden), (hidden, 3 * hidden))
        self.bias = nn.ParameterList(nn.Parameter(begin.clone()) for _ in inputs)

    def forward(self, x: Float[Tensor, "rows tokens input"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows tokens width"]:
        """The top layer's outputs, zero past each row's end."""
        # An empty row is read as one token and blanked.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        sizes = tuple(packed.batch_sizes.tolist())
        data = packed.data
        for number, (enter, carry, bias) in enumerate(zip(self.enter, self.carry, self.bias, strict=True)):
            mask = None
            if self.training and self.rate:
                mask = F.dropout(data.new_ones(sizes[0], self.width), self.rate)
            data = _Layer.apply(data, enter, carry, bias, mask, sizes, number % 2 == 1)
        packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        out, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return out * (lengths > 0)[:, None, None]


def _orthogonal(blocks: int, hidden: int, width: int) -> nn.Parameter:
    parts = [nn.init.orthogonal_(torch.empty(hidden, width)) for _ in range(blocks)]
    return nn.Parameter(torch.cat(parts))


class _Layer(torch.autograd.Function):
    """One layer over packed rows: the tokens of one time stand together, those of the longest row first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, enter: Tensor, carry: Tensor, bias: Tensor, mask: Tensor | None, sizes: tuple[int, ...], back: bool
    ) -> Tensor:
        hidden = carry.shape[1]
        gates = x @ enter.T
        gates[:, : 5 * hidden] += bias
        inner = gates.new_empty(len(x), hidden)
        # One entry more, of zeros, for what stands before a row's first token.
        cells, outputs = gates.new_zeros(2, len(x) + 1, hidden)
        c, h = gates.new_zeros(2, sizes[0], hidden)
        for here, count in _steps(sizes, back):
            step = gates[here]
            step[:, : 5 * hidden].addmm_(h[:count], carry.T)
            four = step[:, : 4 * hidden]
            cell_forward(four, c[:count], c=cells[here], m=inner[here], activated=four)
            c[:count] = cells[here]
            share = step[:, 4 * hidden : 5 * hidden].sigmoid_()
            out = torch.lerp(step[:, 5 * hidden :], inner[here], share, out=outputs[here])
            if mask is not None:
                out *= mask[:count]
            h[:count] = out
        ctx.save_for_backward(x, enter, carry, mask, gates, inner, cells, outputs)
        ctx.sizes, ctx.back = sizes, back
        return outputs[:-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, enter, carry, mask, gates, inner, cells, outputs = ctx.saved_tensors
        hidden = carry.shape[1]
        previous = _previous(ctx.sizes, ctx.back)
        before = cells[previous]
        share, skip = gates[:, 4 * hidden : 5 * hidden], gates[:, 5 * hidden :]
        to_inner, to_skip = share, 1 - share
        to_share = (inner - skip) * share * to_skip
        if mask is not None:
            wide = torch.cat([mask[:count] for count in ctx.sizes])
            to_inner, to_skip, to_share = to_inner * wide, to_skip * wide, to_share * wide
        total, errors = torch.empty_like(inner), torch.empty_like(gates)
        dc, dh = gates.new_zeros(2, ctx.sizes[0], hidden)
        for here, count in reversed(list(_steps(ctx.sizes, ctx.back))):
            whole = torch.add(grad[here], dh[:count], out=total[here])
            error = errors[here]
            torch.mul(whole, to_share[here], out=error[:, 4 * hidden : 5 * hidden])
            cell_backward(
                gates[here, : 4 * hidden],
                before[here],
                cells[here],
                dm=whole * to_inner[here],
                dc=dc[:count],
                dgates=error[:, : 4 * hidden],
                dc_prev=dc[:count],
            )
            torch.mm(error[:, : 5 * hidden], carry, out=dh[:count])
        torch.mul(total, to_skip, out=errors[:, 5 * hidden :])
        gated = errors[:, : 5 * hidden]
        return errors @ enter, errors.T @ x, gated.T @ outputs[previous], gated.sum(0), None, None, None


def _steps(sizes: tuple[int, ...], back: bool) -> Iterator[tuple[slice, int]]:
    """Where the tokens of each time stand, and how many they are, in reading order."""
    begin, steps = 0, []
    for count in sizes:
        steps.append((slice(begin, begin + count), count))
        begin += count
    return reversed(steps) if back else iter(steps)


def _previous(sizes: tuple[int, ...], back: bool) -> Int[Tensor, "tokens"]:
    """For each token the place of the one its row has read before; the last place, of zeros, at a row's first."""
    nothing = sum(sizes)
    found = torch.full((nothing,), nothing)
    before, until = slice(0, 0), 0
    for here, count in _steps(sizes, back):
        shared = min(count, until)
        found[here.start : here.start + shared] = torch.arange(before.start, before.start + shared)
        before, until = here, count
    return found
