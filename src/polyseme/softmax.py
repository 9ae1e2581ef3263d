"""Next-word probabilities from one direction's top layer: the full softmax, in chunks of bounded memory."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Softmax(nn.Module):
    """The output layer both directions share; row k of `weight` is word k of the vocabulary."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, width))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(
        self, hidden: Float[Tensor, "positions width"], targets: Int[Tensor, "positions"], *, chunk: int = 1024
    ) -> Float[Tensor, "positions"]:
        """The natural log-probability of each target, `chunk` positions at a time."""
        weight, bias = self.weight, self.bias
        parts = [
            -F.cross_entropy(F.linear(piece, weight, bias), wanted, reduction="none")
            for piece, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat(parts) if parts else hidden.new_zeros(0)

    def log_probabilities(self, hidden: Float[Tensor, "positions width"]) -> Float[Tensor, "positions words"]:
        """The natural log-probability of every word at few positions."""
        return F.log_softmax(F.linear(hidden, self.weight, self.bias), dim=1)
