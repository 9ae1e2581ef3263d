"""Attention of a text to itself, and poolings of a text to one vector; positions past the end never count."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

_NOTHING = -1e4


def masked_softmax(scores: Float[Tensor, "*batch tokens"], mask: Bool[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens"]:
    """Softmax over the last axis where the mask is True, 0 elsewhere; all 0 where nothing is left."""
    shares = torch.softmax(scores.masked_fill(~mask, _NOTHING), dim=-1)
    return shares * mask


def attend(
    questions: Float[Tensor, "rows ours width"], answers: Float[Tensor, "rows theirs width"], mask: Bool[Tensor, "rows theirs"]
) -> Float[Tensor, "rows ours width"]:
    """For each question the mean of the answers, weighted by the softmax of their dot products."""
    scores = questions @ answers.transpose(1, 2)
    return masked_softmax(scores, mask[:, None, :].expand_as(scores)) @ answers


def pool_extremes(
    x: Float[Tensor, "rows tokens width"], mask: Bool[Tensor, "rows tokens"]
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
    """Maximum, minimum and mean over each row's tokens; zero for a row without any."""
    wide = mask[:, :, None]
    some = mask.any(dim=1)[:, None]
    largest = x.masked_fill(~wide, _NOTHING).amax(dim=1) * some
    smallest = x.masked_fill(~wide, -_NOTHING).amin(dim=1) * some
    mean = (x * wide).sum(dim=1) / mask.sum(dim=1).clamp(min=1)[:, None]
    return largest, smallest, mean


class SelfPooling(nn.Module):
    """The mean over a row's tokens, weighted by a learned score of each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x: Float[Tensor, "rows tokens width"], mask: Bool[Tensor, "rows tokens"]) -> Float[Tensor, "rows width"]:
        """One vector per row."""
        shares = masked_softmax(self.score(x).squeeze(2), mask)
        return (shares[:, None, :] @ x).squeeze(1)


class Maxout(nn.Module):
    """A dense layer of `pool` pieces a unit, of which the largest counts."""

    def __init__(self, width: int, units: int, *, pool: int = 4) -> None:
        super().__init__()
        self.pool = pool
        self.dense = nn.Linear(width, units * pool)

    def forward(self, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows units"]:
        """The largest piece of each unit."""
        return self.dense(x).unflatten(1, (-1, self.pool)).amax(dim=2)
