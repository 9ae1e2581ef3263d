"""A linear-chain conditional random field: log-likelihood and the best sequence, with forbidden transitions."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.tasks.spans import Scheme, may_follow

_FORBIDDEN = -1e4


def allowed_transitions(labels: Sequence[str], scheme: Scheme) -> Bool[Tensor, "states states"]:
    """Which label may follow which under a scheme; the last two rows and columns are the sentence's begin and end."""
    names = [*labels, None, None]
    allowed = torch.tensor([[may_follow(before, after, scheme) for after in names] for before in names])
    allowed[:, -2] = False
    allowed[-1, :] = False
    return allowed


class CRF(nn.Module):
    """Scores a label sequence by the sum of its emissions and transitions.

    Training sums over all sequences; decoding looks only at those that `allowed` permits, as the original taggers do.
    `borders` adds learned scores for the first and the last label.
    """

    def __init__(self, labels: int, *, allowed: Bool[Tensor, "states states"] | None = None, borders: bool = False) -> None:
        super().__init__()
        self.labels = labels
        self.transitions = nn.Parameter(torch.empty(labels, labels))
        nn.init.xavier_normal_(self.transitions)
        self.begin = nn.Parameter(torch.zeros(labels), requires_grad=borders)
        self.end = nn.Parameter(torch.zeros(labels), requires_grad=borders)
        penalty = torch.zeros(labels + 2, labels + 2)
        if allowed is not None:
            penalty = penalty.masked_fill(~allowed, _FORBIDDEN)
        self.register_buffer("penalty", penalty, persistent=False)

    def log_partition(self, emissions: Float[Tensor, "rows time labels"], lengths: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Log of the sum over all label sequences; a row without tokens has one sequence, of score 0."""
        alpha = self.begin + emissions[:, 0]
        for time in range(1, emissions.shape[1]):
            scores = torch.logsumexp(alpha[:, :, None] + self.transitions, dim=1) + emissions[:, time]
            alpha = torch.where((time < lengths)[:, None], scores, alpha)
        total = torch.logsumexp(alpha + self.end, dim=1)
        return torch.where(lengths > 0, total, 0)

    def score(
        self,
        emissions: Float[Tensor, "rows time labels"],
        labels: Int[Tensor, "rows time"],
        lengths: Int[Tensor, "rows"],
    ) -> Float[Tensor, "rows"]:
        """The score of the given sequences; what stands past a row's length is not read."""
        positions = torch.arange(labels.shape[1], device=labels.device)
        mask = positions < lengths[:, None]
        labels = torch.where(mask, labels, 0)
        emitted = emissions.gather(2, labels[:, :, None]).squeeze(2)
        moved = self.transitions[labels[:, :-1], labels[:, 1:]]
        last = labels.gather(1, (lengths - 1).clamp(min=0)[:, None]).squeeze(1)
        borders = torch.where(lengths > 0, self.begin[labels[:, 0]] + self.end[last], 0)
        return torch.where(mask, emitted, 0).sum(1) + torch.where(mask[:, 1:], moved, 0).sum(1) + borders

    def log_likelihood(
        self,
        emissions: Float[Tensor, "rows time labels"],
        labels: Int[Tensor, "rows time"],
        lengths: Int[Tensor, "rows"],
    ) -> Float[Tensor, "rows"]:
        """The log-probability of the given sequences."""
        return self.score(emissions, labels, lengths) - self.log_partition(emissions, lengths)

    @torch.no_grad()
    def decode(self, emissions: Float[Tensor, "rows time labels"], lengths: Int[Tensor, "rows"]) -> list[list[int]]:
        """The best permitted sequence of each row."""
        count = self.labels
        transitions = self.transitions + self.penalty[:count, :count]
        end = self.end + self.penalty[:count, count + 1]
        best = self.begin + self.penalty[count, :count] + emissions[:, 0]
        pointers = []
        for time in range(1, emissions.shape[1]):
            scores, pointer = (best[:, :, None] + transitions).max(dim=1)
            best = torch.where((time < lengths)[:, None], scores + emissions[:, time], best)
            pointers.append(pointer)
        last = (best + end).argmax(dim=1).tolist()
        back = torch.stack(pointers, dim=1).tolist() if pointers else [[] for _ in last]
        sequences = []
        for row, length in enumerate(lengths.tolist()):
            sequence = [last[row]] if length else []
            for time in range(length - 2, -1, -1):
                sequence.append(back[row][time][sequence[-1]])
            sequences.append(sequence[::-1])
        return sequences
