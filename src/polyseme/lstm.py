"""The readable truth: stacks of projected, clipped, residual LSTMs, one stack a direction."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.config import LSTMConfig


@dataclass
class LSTMState:
    """What is carried from one sentence of a row to its next, forward half first."""

    h: Float[Tensor, "layers rows outputs"]
    c: Float[Tensor, "layers rows cells"]

    @classmethod
    def zeros(cls, config: LSTMConfig, rows: int, *, device: torch.device | str = "cpu") -> "LSTMState":
        """The state before anything was read."""
        directions = len(config.directions)
        return cls(
            h=torch.zeros(config.layers, rows, directions * config.width, dtype=torch.float32, device=device),
            c=torch.zeros(config.layers, rows, directions * config.dim, dtype=torch.float32, device=device),
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.h.shape[1]

    def expand(self, rows: int) -> "LSTMState":
        """A state of one row, repeated."""
        return LSTMState(h=self.h.expand(-1, rows, -1).clone(), c=self.c.expand(-1, rows, -1).clone())

    def clone(self) -> "LSTMState":
        """An independent copy."""
        return LSTMState(h=self.h.clone(), c=self.c.clone())


class LSTMLayer(nn.Module):
    """One layer of one direction, without its residual connection.

    Gates stand in the order input, forget, candidate, output. Where there is no projection the projection clip does
    nothing, as in TensorFlow.
    """

    def __init__(self, config: LSTMConfig, input_width: int) -> None:
        super().__init__()
        self.config = config
        self.input_weight = nn.Parameter(torch.zeros(4 * config.dim, input_width))
        self.recurrent_weight = nn.Parameter(torch.zeros(4 * config.dim, config.width))
        self.bias = nn.Parameter(torch.zeros(4 * config.dim))
        self.projection_weight = None
        if config.projection is not None:
            self.projection_weight = nn.Parameter(torch.zeros(config.projection, config.dim))

    def step(
        self, x: Float[Tensor, "rows input"], h: Float[Tensor, "rows width"], c: Float[Tensor, "rows dim"]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows dim"]]:
        """One time step: the new h and c."""
        gates = x @ self.input_weight.T + h @ self.recurrent_weight.T + self.bias
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        c = torch.sigmoid(forget_gate + self.config.forget_bias) * c + torch.sigmoid(input_gate) * torch.tanh(candidate)
        if self.config.cell_clip is not None:
            c = c.clamp(-self.config.cell_clip, self.config.cell_clip)
        h = torch.sigmoid(output_gate) * torch.tanh(c)
        if self.projection_weight is not None:
            h = h @ self.projection_weight.T
            if self.config.projection_clip is not None:
                h = h.clamp(-self.config.projection_clip, self.config.projection_clip)
        return h, c

    def forward(
        self,
        x: Float[Tensor, "rows time input"],
        mask: Bool[Tensor, "rows time"],
        h: Float[Tensor, "rows width"],
        c: Float[Tensor, "rows dim"],
    ) -> tuple[Float[Tensor, "rows time width"], Float[Tensor, "rows width"], Float[Tensor, "rows dim"]]:
        """All time steps from left to right. Past a row's end outputs are zero and the state is copied through."""
        outputs = []
        for time in range(x.shape[1]):
            active = mask[:, time, None]
            new_h, new_c = self.step(x[:, time], h, c)
            h, c = torch.where(active, new_h, h), torch.where(active, new_c, c)
            outputs.append(torch.where(active, new_h, 0))
        return torch.stack(outputs, dim=1), h, c


class BiLSTM(nn.Module):
    """A stack per direction. The backward stack reads every row reversed within its true length."""

    def __init__(self, config: LSTMConfig, input_width: int) -> None:
        super().__init__()
        self.config = config
        widths = [input_width] + [config.width] * (config.layers - 1)
        for direction in config.directions:
            self.add_module(f"{direction}_layers", nn.ModuleList(LSTMLayer(config, width) for width in widths))

    def stack(self, direction: str) -> list[LSTMLayer]:
        """The layers of one direction, lowest first."""
        return [layer for layer in self.get_submodule(f"{direction}_layers").children() if isinstance(layer, LSTMLayer)]

    def forward(
        self, x: Float[Tensor, "rows time input"], lengths: Int[Tensor, "rows"], state: LSTMState
    ) -> tuple[list[Float[Tensor, "rows time outputs"]], LSTMState]:
        """The outputs of every layer, residual connections added, and the state after each row's last token."""
        positions = torch.arange(x.shape[1], device=x.device)
        mask = positions < lengths[:, None]
        reversal = torch.where(mask, lengths[:, None] - 1 - positions, positions)
        outputs, final_h, final_c = [], [], []
        for number, direction in enumerate(self.config.directions):
            h, c = self.part(state, number)
            if direction == "forward":
                hidden, h, c = self.read(direction, x, mask, h, c)
            else:
                hidden, h, c = self.read(direction, _take(x, reversal), mask, h, c)
                hidden = [_take(value, reversal) for value in hidden]
            outputs.append(hidden)
            final_h.append(h)
            final_c.append(c)
        layers = [torch.cat(parts, dim=2) for parts in zip(*outputs, strict=True)]
        return layers, LSTMState(h=torch.cat(final_h, dim=2), c=torch.cat(final_c, dim=2))

    def part(self, state: LSTMState, number: int) -> tuple[Float[Tensor, "layers rows width"], Float[Tensor, "layers rows dim"]]:
        """The part of a state that belongs to one direction."""
        width, dim = self.config.width, self.config.dim
        return state.h[:, :, number * width : (number + 1) * width], state.c[:, :, number * dim : (number + 1) * dim]

    def read(
        self,
        direction: str,
        x: Float[Tensor, "rows time input"],
        mask: Bool[Tensor, "rows time"],
        h: Float[Tensor, "layers rows width"],
        c: Float[Tensor, "layers rows dim"],
    ) -> tuple[list[Float[Tensor, "rows time width"]], Float[Tensor, "layers rows width"], Float[Tensor, "layers rows dim"]]:
        """One direction's stack over rows given in its own reading order: every layer's outputs, and the states after."""
        outputs, final_h, final_c = [], [], []
        value = x
        for layer, cell in enumerate(self.stack(direction)):
            hidden, last_h, last_c = cell(value, mask, h[layer], c[layer])
            # The sum is what is exported and read by the next layer; the carried h is the bare projection.
            value = hidden + value * mask[:, :, None] if layer > 0 and self.config.residual else hidden
            outputs.append(value)
            final_h.append(last_h)
            final_c.append(last_c)
        return outputs, torch.stack(final_h), torch.stack(final_c)


def _take(x: Float[Tensor, "rows time width"], order: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))
