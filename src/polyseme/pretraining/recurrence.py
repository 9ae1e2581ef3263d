"""One LSTM layer over a training window, every direction, with a hand-written backward pass.

Same arithmetic as lstm.py. Each step is one product of [input, previous output] with [input weight | recurrent weight], and all
weight gradients of a window are one product more. Rows never end inside a window, so there is no mask.

Shapes: D directions, T time steps, B rows, I input width, W output width, N cells. On an accelerator the directions are one
batch of products; on a CPU each is worked off by itself, on a core of its own, and its tensors have no axis D ("*D").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.config import LSTMConfig
from polyseme.kernels import cell_backward, cell_forward
from polyseme.kernels.products import PackedWeight, product
from polyseme.kernels.workers import side_by_side
from polyseme.lstm import LSTMLayer


@dataclass
class _Sweep:
    """One direction's window, or on accelerators all directions' at once; what the backward pass needs stays here."""

    config: LSTMConfig
    weight: Float[Tensor, "*D gates read"]
    bias: Float[Tensor, "*D gates"]
    projection: Float[Tensor, "*D W N"] | None
    read: Float[Tensor, "*D T B read"]  # what each step reads: its input, then the previous output
    c0: Float[Tensor, "*D B N"]
    gates: Float[Tensor, "*D T B gates"]
    inner: Float[Tensor, "*D T B N"]
    hidden: Float[Tensor, "*D T B W"]
    cells: list[Float[Tensor, "*D B N"]] = field(default_factory=list)

    @classmethod
    def of(cls, config: LSTMConfig, x: Tensor, h0: Tensor, c0: Tensor, dtype: torch.dtype, parameters: list[Tensor]) -> "_Sweep":
        """Room for a window; parameters are input weight, recurrent weight, bias[, projection]."""
        projection = parameters[3].to(dtype) if len(parameters) == 4 else None
        before, inputs = x.shape[:-1], x.shape[-1]
        read = x.new_empty(*before, inputs + h0.shape[-1], dtype=dtype)
        read[..., :inputs] = x
        read.select(-3, 0)[..., inputs:] = h0
        inner = x.new_empty(*before, config.dim, dtype=dtype)
        return cls(
            config=config,
            weight=torch.cat(parameters[:2], dim=-1).to(dtype),
            bias=parameters[2],
            projection=projection,
            read=read,
            c0=c0,
            gates=x.new_empty(*before, 4 * config.dim, dtype=dtype),
            inner=inner,
            # Without a projection the cell's own output is the layer's.
            hidden=inner if projection is None else x.new_empty(*before, config.width, dtype=dtype),
        )

    def forward(self) -> None:
        """Fills gates (activated), cells, inner and hidden."""
        config, inputs = self.config, self.read.shape[-1] - self.hidden.shape[-1]
        gates_of = _times(self.weight)
        project = None if self.projection is None else _times(self.projection)
        bias = self.bias if self.bias.ndim == 1 else None
        added = None if self.bias.ndim == 1 else self.bias[:, None]
        c = self.c0
        for t in range(self.read.shape[-3]):
            # Tensors of their own: views of one buffer, one of them written, are not safe in a compiled cell.
            self.cells.append(torch.empty_like(c))
            inner, hidden = self.inner.select(-3, t), self.hidden.select(-3, t)
            cell_forward(
                gates_of(self.read.select(-3, t)), c, c=self.cells[t], m=inner, activated=self.gates.select(-3, t),
                added=added, bias=bias, forget_bias=config.forget_bias, cell_clip=config.cell_clip,
            )  # fmt: skip
            c = self.cells[t]
            if project is not None:
                limit = config.projection_clip
                torch.clamp(project(inner), -limit, limit, out=hidden) if limit is not None else hidden.copy_(project(inner))
            if t + 1 < self.read.shape[-3]:
                self.read.select(-3, t + 1)[..., inputs:] = hidden

    def backward(self, grad: Float[Tensor, "*D T B W"], dx: Float[Tensor, "*D T B I"]) -> list[Tensor]:
        """Fills dx; returns the gradients of input weight, recurrent weight, bias[, projection]."""
        config, inputs = self.config, dx.shape[-1]
        dread_of = _times(self.weight.mT)
        unproject = None if self.projection is None else _times(self.projection.mT)
        clip = None if self.projection is None else config.projection_clip
        outputs = torch.empty_like(self.hidden) if self.projection is not None else None
        dbias, dc = torch.zeros_like(self.bias), torch.zeros_like(self.c0)
        dread = None
        for t in reversed(range(grad.shape[-3])):
            dh = grad.select(-3, t) if dread is None else grad.select(-3, t) + dread[..., inputs:]
            if clip is not None:
                dh = dh * (self.hidden.select(-3, t).abs() < clip)
            dm = dh
            if unproject is not None and outputs is not None:
                low = outputs.select(-3, t).copy_(dh)
                dm = unproject(low)
            # Each step's activated gates are read once, then overwritten by their gradients.
            gates, before = self.gates.select(-3, t), self.cells[t - 1] if t else self.c0
            cell_backward(gates, before, self.cells[t], dm=dm, dc=dc, dgates=gates, dc_prev=dc, dbias=dbias)
            dread = dread_of(gates)
            dx.select(-3, t).copy_(dread[..., :inputs])
        both = _gradient(self.gates, self.read)
        parts = [both[..., :inputs], both[..., inputs:], dbias]
        if outputs is not None:
            parts.append(_gradient(outputs, self.inner))
        return parts


def _times(weight: Float[Tensor, "*D outputs inputs"]) -> Callable[[Tensor], Tensor]:
    """The function x → x @ weight.T, for every direction."""
    if weight.ndim == 3:
        return lambda x: torch.bmm(x, weight.mT)
    return PackedWeight(weight, precision="bfloat16" if weight.dtype == torch.bfloat16 else "float32").product


def _gradient(output: Float[Tensor, "*D T B O"], read: Float[Tensor, "*D T B K"]) -> Float[Tensor, "*D O K"]:
    """The gradient, in float32, of a weight that made outputs with this gradient from what was read."""
    output, read = output.flatten(-3, -2), read.flatten(-3, -2)
    if output.ndim == 3:
        return torch.bmm(output.mT, read).float()
    return product(read.T, output.T).T.float()


class _LayerWindow(torch.autograd.Function):
    """See `layer_window`. Parameters come one direction after the other."""

    @staticmethod
    def forward(ctx, x, h0, c0, config, dtype, *parameters):
        directions = len(x)
        each = len(parameters) // directions
        if x.device.type == "cpu":
            sweeps = [
                _Sweep.of(config, x[d], h0[d], c0[d], dtype, list(parameters[d * each : (d + 1) * each]))
                for d in range(directions)
            ]
        else:
            sweeps = [_Sweep.of(config, x, h0, c0, dtype, [torch.stack(parameters[k::each]) for k in range(each)])]
        side_by_side(*(sweep.forward for sweep in sweeps))
        ctx.sweeps, ctx.shape, ctx.alone = sweeps, x.shape, x.device.type == "cpu"
        hidden = _joined([sweep.hidden for sweep in sweeps], alone=ctx.alone).float()
        last_h = hidden[:, -1].clone()
        last_c = _joined([sweep.cells[-1] for sweep in sweeps], alone=ctx.alone)
        ctx.mark_non_differentiable(last_h, last_c)
        return hidden, last_h, last_c

    @staticmethod
    def backward(ctx, grad, _h, _c):  # pyrefly: ignore[bad-override]
        dx = grad.new_empty(ctx.shape)
        found: list[list[Tensor]] = [[] for _ in ctx.sweeps]

        def run(number: int) -> None:
            place = (grad[number], dx[number]) if ctx.alone else (grad, dx)
            found[number] = ctx.sweeps[number].backward(*place)

        side_by_side(*(lambda number=number: run(number) for number in range(len(ctx.sweeps))))
        ctx.sweeps = None  # its gates have become gradients
        if ctx.alone:
            return dx, None, None, None, None, *(part for parts in found for part in parts)
        return dx, None, None, None, None, *(part[d] for d in range(len(grad)) for part in found[0])


def _joined(parts: list[Tensor], *, alone: bool) -> Tensor:
    return torch.stack(parts) if alone else parts[0]


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
