"""One LSTM layer over a training window, every direction at once, with a hand-written backward pass.

Same arithmetic as lstm.py. What autograd would do step by step is done once per window: the products with the inputs and
all weight gradients. Rows never end inside a window, so there is no mask.

Shapes: D directions, T time steps, B rows, I input width, W output width, N cells.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.config import LSTMConfig
from polyseme.kernels import cell_backward, cell_forward
from polyseme.lstm import LSTMLayer


class _LayerWindow(torch.autograd.Function):
    """See `layer_window`. Parameters come one direction after the other: input, recurrent, bias[, projection] weights."""

    @staticmethod
    def forward(ctx, x, h0, c0, config, dtype, *parameters):
        directions, time, rows, _ = x.shape
        each = len(parameters) // directions
        input_weight, recurrent_weight = (torch.stack([p.to(dtype) for p in parameters[k::each]]) for k in range(2))
        bias = torch.stack(parameters[2::each])
        projection = torch.stack([p.to(dtype) for p in parameters[3::each]]) if each == 4 else None
        low = x.to(dtype)
        gates = torch.baddbmm(bias[:, None].to(dtype), low.flatten(1, 2), input_weight.mT).view(directions, time, rows, -1)
        # Tensors of their own: views of one buffer, one of them written, are not safe in a compiled cell.
        cells = [x.new_empty(directions, rows, config.dim) for _ in range(time)]
        inner = x.new_empty(directions, time, rows, config.dim, dtype=dtype)
        # With a projection `hidden` holds its results; without one the cell's own output is the layer's.
        hidden = inner if projection is None else x.new_empty(directions, time, rows, config.projection, dtype=dtype)

        def sweep(d: slice) -> None:
            h, c = h0[d].to(dtype), c0[d]
            for t in range(time):
                now = _rows(gates[d, t].baddbmm_(h, recurrent_weight[d].mT))
                cell_forward(
                    now, _rows(c), c=_rows(cells[t][d]), m=_rows(inner[d, t]), activated=now,
                    forget_bias=config.forget_bias, cell_clip=config.cell_clip,
                )  # fmt: skip
                c = cells[t][d]
                if projection is not None:
                    torch.bmm(inner[d, t], projection[d].mT, out=hidden[d, t])
                    if config.projection_clip is not None:
                        hidden[d, t].clamp_(-config.projection_clip, config.projection_clip)
                h = hidden[d, t]

        _sweep_all(sweep, directions, x.device)
        ctx.config, ctx.dtype = config, dtype
        ctx.save_for_backward(low, h0, c0, gates, inner, hidden, input_weight, recurrent_weight, projection, *cells)
        last_h, last_c = hidden[:, -1].to(torch.float32, copy=True), cells[-1].clone()
        ctx.mark_non_differentiable(last_h, last_c)
        return hidden.float(), last_h, last_c

    @staticmethod
    def backward(ctx, grad, _h, _c):  # pyrefly: ignore[bad-override]
        config, dtype = ctx.config, ctx.dtype
        low, h0, c0, gates, inner, hidden, input_weight, recurrent_weight, projection, *cells = ctx.saved_tensors
        directions, time = grad.shape[:2]
        grad = grad.to(dtype, copy=True)
        clip = None if projection is None else config.projection_clip
        unclipped = None if clip is None else hidden.abs() < clip
        dgates = gates  # each step's activated gates are read once, then overwritten by their gradients

        def sweep(d: slice) -> None:
            dc = _rows(torch.zeros_like(c0[d]))
            for t in reversed(range(time)):
                dh = grad[d, t]
                if t + 1 < time:
                    dh.baddbmm_(dgates[d, t + 1], recurrent_weight[d])
                if unclipped is not None:
                    dh.mul_(unclipped[d, t])
                dm = dh if projection is None else torch.bmm(dh, projection[d])
                before, now = (cells[t - 1][d] if t else c0[d]), _rows(gates[d, t])
                cell_backward(now, _rows(before), _rows(cells[t][d]), dm=_rows(dm), dc=dc, dgates=now, dc_prev=dc)

        _sweep_all(sweep, directions, grad.device)
        flat = dgates.flatten(1, 2)
        previous = torch.cat([h0.to(dtype)[:, None], hidden[:, :-1]], dim=1)
        dx = torch.bmm(flat, input_weight).view_as(low).float() if ctx.needs_input_grad[0] else None
        parts = [
            torch.bmm(flat.mT, low.flatten(1, 2)),
            torch.bmm(flat.mT, previous.flatten(1, 2)),
            flat.sum(dim=1, dtype=torch.float32),
        ]
        if projection is not None:
            parts.append(torch.bmm(grad.flatten(1, 2).mT, inner.flatten(1, 2)))
        return dx, None, None, None, None, *(part[d].float() for d in range(directions) for part in parts)


def _rows(x: Tensor) -> Tensor:
    """One direction by itself loses the axis of directions: the C kernel wants rows and columns."""
    return x[0] if len(x) == 1 else x


def _sweep_all(sweep: Callable[[slice], None], directions: int, device: torch.device) -> None:
    """All directions in one batched product on an accelerator, one after the other on CPU."""
    if device.type != "cpu":
        sweep(slice(0, directions))
        return
    for d in range(directions):
        sweep(slice(d, d + 1))


def layer_window(
    cells: Sequence[LSTMLayer],
    x: Float[Tensor, "D T B I"],
    h: Float[Tensor, "D B W"],
    c: Float[Tensor, "D B N"],
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "D T B W"], Float[Tensor, "D B W"], Float[Tensor, "D B N"]]:
    """One layer of every direction: outputs without the residual connection, and the last h and c.

    Gradients flow into x and the parameters, not into the carried state. `dtype` is that of the products.
    """
    config: LSTMConfig = cells[0].config
    parameters = []
    for cell in cells:
        parameters += [cell.input_weight, cell.recurrent_weight, cell.bias]
        if cell.projection_weight is not None:
            parameters.append(cell.projection_weight)
    return _LayerWindow.apply(x, h, c, config, dtype, *parameters)
