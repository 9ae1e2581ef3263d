"""Encoders of token vectors: bidirectional LSTM, convolution, feed-forward; and dropout that is shared by all tokens."""

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

EncoderKind = Literal["lstm", "cnn", "feedforward", "none"]


class SharedDropout(nn.Module):
    """Variational dropout: a row drops the same dimensions at all of its tokens."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "rows tokens width"]) -> Float[Tensor, "rows tokens width"]:
        """Drops in training, passes on otherwise."""
        if not self.training or self.rate == 0:
            return x
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.rate)


class BidirectionalLSTM(nn.Module):
    """Stacked bidirectional LSTM without packing: the backward one reads each row reversed within its length.

    On a CPU this runs about 1.5 times as fast as packed sequences and gives the same numbers.
    """

    def __init__(self, width: int, hidden: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        inputs = [width] + [2 * hidden] * (layers - 1)
        self.forward_layers = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in inputs)
        self.backward_layers = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in inputs)
        self.dropout = SharedDropout(dropout)
        for lstm in [*self.forward_layers, *self.backward_layers]:
            for name, parameter in lstm.named_parameters():
                if name.startswith("weight_hh"):
                    for block in parameter.data.chunk(4):
                        nn.init.orthogonal_(block)
                elif name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(parameter)
                else:
                    nn.init.zeros_(parameter)
            lstm.bias_ih_l0.data[hidden : 2 * hidden] = 1  # pyrefly: ignore

    def forward(self, x: Float[Tensor, "rows tokens input"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows tokens width"]:
        """The top layer's outputs, zero past each row's end."""
        positions = torch.arange(x.shape[1], device=x.device)
        mask = positions < lengths[:, None]
        reversal = torch.where(mask, lengths[:, None] - 1 - positions, positions)
        for number, (ahead, back) in enumerate(zip(self.forward_layers, self.backward_layers, strict=True)):
            if number:
                x = self.dropout(x)
            left = ahead(x)[0]
            right = _take(back(_take(x, reversal))[0], reversal)
            x = torch.cat([left, right], dim=2) * mask[:, :, None]
        return x


def _take(x: Float[Tensor, "rows tokens width"], order: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens width"]:
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))


class ConvolutionEncoder(nn.Module):
    """Residual blocks of convolutions over three tokens, as wide as an LSTM encoder of the same hidden size."""

    def __init__(self, width: int, hidden: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        self.enter = nn.Linear(width, self.width)
        self.blocks = nn.ModuleList(nn.Conv1d(self.width, self.width, 3, padding=1) for _ in range(layers))
        self.dropout = SharedDropout(dropout)

    def forward(self, x: Float[Tensor, "rows tokens input"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows tokens width"]:
        """The last block's outputs; what stands past a row's end never enters."""
        mask = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
        x = torch.relu(self.enter(x)) * mask
        for block in self.blocks:
            x = (x + torch.relu(block(self.dropout(x).transpose(1, 2)).transpose(1, 2))) * mask
        return x


class FeedForwardEncoder(nn.Module):
    """Dense layers on each token by itself."""

    def __init__(self, width: int, hidden: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        sizes = [width] + [self.width] * layers
        self.dense = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.dropout = SharedDropout(dropout)

    def forward(self, x: Float[Tensor, "rows tokens input"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows tokens width"]:
        """The last layer's outputs, zero past each row's end."""
        mask = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
        for number, dense in enumerate(self.dense):
            x = torch.relu(dense(self.dropout(x) if number else x))
        return x * mask


class NoEncoder(nn.Module):
    """Passes the token vectors on: what follows is a linear probe."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Float[Tensor, "rows tokens width"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows tokens width"]:
        """The same vectors."""
        return x


Encoder = BidirectionalLSTM | ConvolutionEncoder | FeedForwardEncoder | NoEncoder


def make_encoder(kind: EncoderKind, width: int, hidden: int, *, layers: int, dropout: float) -> Encoder:
    """The encoder of that kind; its `width` says how wide its outputs are."""
    if kind == "lstm":
        return BidirectionalLSTM(width, hidden, layers=layers, dropout=dropout)
    if kind == "cnn":
        return ConvolutionEncoder(width, hidden, layers=layers, dropout=dropout)
    if kind == "feedforward":
        return FeedForwardEncoder(width, hidden, layers=layers, dropout=dropout)
    return NoEncoder(width)
