"""The network of end-to-end coreference: every span is scored as a mention, the best are kept, and each picks its antecedent."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.tasks.attention import masked_softmax

if TYPE_CHECKING:
    from polyseme.tasks.coreference import CoreferenceConfig

#: Below this a score counts as minus infinity.
NOTHING = -1e4
#: Distances 0, 1, 2, 3, 4, 5 to 7, 8 to 15, 16 to 31, 32 to 63, 64 and more.
DISTANCES = 10
_DISTANCE_BORDERS = (1, 2, 3, 4, 5, 8, 16, 32, 64)


@dataclass(frozen=True)
class Ranking:
    """The kept spans in the order of the text, the antecedents each chose from, and how they scored.

    candidates    starts, ends and mention scores of all spans there are, kept or not
    antecedents   numbers of earlier kept spans, best first; meaningless where `possible` is False
    scores        column 0 is 0, for no antecedent; the others belong to `antecedents`
    """

    candidates: tuple[Int[Tensor, "all"], Int[Tensor, "all"], Float[Tensor, "all"]]
    starts: Int[Tensor, "spans"]
    ends: Int[Tensor, "spans"]
    antecedents: Int[Tensor, "spans antecedents"]
    possible: Bool[Tensor, "spans antecedents"]
    scores: Float[Tensor, "spans antecedents+1"]


class Scorer(nn.Module):
    """Two hidden layers of relu and one score. Its first layer is given in parts, one for each part of its input."""

    def __init__(self, parts: tuple[int, ...], hidden: int, dropout: float) -> None:
        super().__init__()
        self.parts = parts
        self.first = nn.Linear(sum(parts), hidden)
        self.second = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def split(self) -> tuple[Float[Tensor, "hidden _"], ...]:
        """The first layer's weights for each part."""
        return self.first.weight.split(self.parts, dim=1)

    def forward(self, entered: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch"]:
        """The scores, from what the first layer's products sum up to, its bias apart."""
        x = self.dropout(torch.relu(entered + self.first.bias))
        return self.score(self.dropout(torch.relu(self.second(x)))).squeeze(-1)


class SpanRanker(nn.Module):
    """Tokens of one document → its ranking.

    Spans are represented by their first and last token, an embedding of their width, and the mean of their tokens weighted
    by attention. That vector is made only for the spans that are kept: the mention scores of all spans come from the same
    sums, taken after the first layer of the scorer, where they are narrow.
    """

    def __init__(self, config: "CoreferenceConfig", token: int, head: int, genres: int) -> None:
        super().__init__()
        self.config = config
        features = config.features
        self.attention = nn.Linear(token, 1)
        self.widths = nn.Embedding(config.max_width, features)
        self.mention = Scorer((token, token, features, head), config.dense, config.dense_dropout)
        self.width = 2 * token + features + head
        self.coarse = nn.Linear(self.width, self.width)
        self.distances = nn.Embedding(DISTANCES, features)
        # Row 0 stands for what is not known and adds nothing.
        self.genres = nn.Embedding(genres + 1, features, padding_idx=0) if config.metadata else None
        self.speakers = nn.Embedding(3, features, padding_idx=0) if config.metadata else None
        known = 3 if config.metadata else 1
        self.antecedent = Scorer((self.width, self.width, self.width, known * features), config.dense, config.dense_dropout)
        self.gate = nn.Linear(2 * self.width, self.width) if config.depth > 1 else None
        self.dropout = nn.Dropout(config.dense_dropout)

    def forward(
        self,
        tokens: Float[Tensor, "tokens width"],
        heads: Float[Tensor, "tokens head"],
        sentences: Int[Tensor, "tokens"],
        genre: int,
        speakers: Int[Tensor, "tokens"],
    ) -> Ranking:
        """The ranking of a document that is not empty.

        Args:
            tokens: what the encoder says of each token.
            heads: the token vectors that spans' heads are mixed from.
            sentences: the number of each token's sentence; a span lies in one.
            genre: its number, 0 where it is not known.
            speakers: of each token, 0 where not known.
        """
        starts, ends, scores, shares = self.score_spans(tokens, heads, sentences)
        candidates = starts, ends, scores
        kept = torch.tensor(self.prune(starts, ends, scores, len(tokens)), device=tokens.device)
        starts, ends, scores = starts[kept], ends[kept], scores[kept]
        spans = self.represent(tokens, heads, starts, ends, shares[kept])
        fast, antecedents, possible = self.coarse_scores(spans, scores)
        features = self.pair_features(antecedents, genre, speakers[starts])
        none = fast.new_zeros(len(fast), 1)
        ranked = none
        for step in range(self.config.depth):
            ranked = torch.cat([none, (fast + self.fine_scores(spans, antecedents, features)).masked_fill(~possible, NOTHING)], 1)
            if self.gate is not None and step + 1 < self.config.depth:
                around = torch.cat([spans[:, None], spans[antecedents]], dim=1)
                expected = (ranked.softmax(dim=1)[:, None] @ around).squeeze(1)
                share = torch.sigmoid(self.gate(torch.cat([spans, expected], dim=1)))
                spans = share * expected + (1 - share) * spans
        return Ranking(candidates, starts, ends, antecedents, possible, ranked)

    def score_spans(
        self, tokens: Float[Tensor, "tokens width"], heads: Float[Tensor, "tokens head"], sentences: Int[Tensor, "tokens"]
    ) -> tuple[Int[Tensor, "spans"], Int[Tensor, "spans"], Float[Tensor, "spans"], Float[Tensor, "spans widest"]]:
        """Start, end (not included), mention score, and the shares of the tokens from start on, for every span there is."""
        count, widest = len(tokens), self.config.max_width
        places = torch.arange(count, device=tokens.device)
        last = places[:, None] + torch.arange(widest, device=tokens.device)
        inside = (last < count) & (F.pad(sentences, (0, widest - 1), value=-1)[last] == sentences[:, None])
        # Row t, column w: the span that begins at t and has w + 1 tokens.
        weights = _windows(self.attention(tokens), widest).squeeze(2)
        upto = torch.ones(widest, widest, dtype=torch.bool, device=tokens.device).tril()
        shares = masked_softmax(weights[:, None].expand(-1, widest, -1), upto.expand(count, -1, -1))
        begin, end, width, head = self.mention.split()
        entered = (tokens @ begin.T)[:, None] + _windows(tokens @ end.T, widest)
        entered = entered + self.widths.weight @ width.T + shares @ _windows(heads @ head.T, widest)
        starts, columns = inside.nonzero(as_tuple=True)
        return starts, starts + columns + 1, self.mention(entered[inside]), shares[inside]

    def prune(
        self, starts: Int[Tensor, "spans"], ends: Int[Tensor, "spans"], scores: Float[Tensor, "spans"], tokens: int
    ) -> list[int]:
        """The best spans that do not cross a better one, as many as the configuration says; in the order of the text."""
        wanted = max(1, int(self.config.spans_per_token * tokens))
        order = torch.argsort(scores.detach(), descending=True, stable=True).tolist()
        begins, stops = starts.tolist(), ends.tolist()
        reach = [0] * (tokens + 1)  # the furthest end of a kept span that begins here
        origin = list(range(tokens + 1))  # the first start of a kept span that ends here
        kept = []
        for number in order:
            start, end = begins[number], stops[number]
            if any(reach[place] > end or origin[place] < start for place in range(start + 1, end)):
                continue
            reach[start] = max(reach[start], end)
            origin[end] = min(origin[end], start)
            kept.append(number)
            if len(kept) == wanted:
                break
        return sorted(kept)  # spans are numbered in the order of the text

    def represent(
        self,
        tokens: Float[Tensor, "tokens width"],
        heads: Float[Tensor, "tokens head"],
        starts: Int[Tensor, "spans"],
        ends: Int[Tensor, "spans"],
        shares: Float[Tensor, "spans widest"],
    ) -> Float[Tensor, "spans all"]:
        """The vectors of spans."""
        within = (starts[:, None] + torch.arange(shares.shape[1], device=starts.device)).clamp(max=len(tokens) - 1)
        mixed = (shares[:, None] @ heads[within]).squeeze(1)
        return torch.cat([tokens[starts], tokens[ends - 1], self.widths(ends - starts - 1), mixed], dim=1)

    def coarse_scores(
        self, spans: Float[Tensor, "spans all"], scores: Float[Tensor, "spans"]
    ) -> tuple[Float[Tensor, "spans antecedents"], Int[Tensor, "spans antecedents"], Bool[Tensor, "spans antecedents"]]:
        """For each span the best of those before it by a cheap bilinear score."""
        numbers = torch.arange(len(spans), device=spans.device)
        before = numbers < numbers[:, None]
        # Divided by the root of the width, a step of Adam moves the scores by less, and the loss does not jump.
        pairs = self.dropout(self.coarse(spans)) @ self.dropout(spans).T / self.width**0.5 + scores[:, None] + scores
        count = min(self.config.antecedents, len(spans))
        antecedents = pairs.detach().masked_fill(~before, -torch.inf).topk(count, dim=1).indices
        return pairs.gather(1, antecedents), antecedents, before.gather(1, antecedents)

    def pair_features(
        self, antecedents: Int[Tensor, "spans antecedents"], genre: int, speakers: Int[Tensor, "spans"]
    ) -> Float[Tensor, "spans antecedents features"]:
        """Embeddings of the distance in spans, and of genre and same speaker where these are used."""
        distance = torch.arange(len(antecedents), device=antecedents.device)[:, None] - antecedents
        parts = [self.distances(distance_bucket(distance))]
        if self.genres is not None and self.speakers is not None:
            parts.append(self.genres(torch.full_like(antecedents, genre)))
            known = (speakers[:, None] > 0) & (speakers[antecedents] > 0)
            parts.append(self.speakers(known * torch.where(speakers[:, None] == speakers[antecedents], 1, 2)))
        return self.dropout(torch.cat(parts, dim=2))

    def fine_scores(
        self,
        spans: Float[Tensor, "spans all"],
        antecedents: Int[Tensor, "spans antecedents"],
        features: Float[Tensor, "spans antecedents features"],
    ) -> Float[Tensor, "spans antecedents"]:
        """The scores of pairs from both spans' vectors, their product, and the features."""
        own, other, product, known = self.antecedent.split()
        entered = (spans @ own.T)[:, None] + (spans @ other.T)[antecedents] + features @ known.T
        return self.antecedent(entered + (spans[:, None] * spans[antecedents]) @ product.T)


def distance_bucket(distance: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """The number of the distance's range in DISTANCES."""
    return torch.bucketize(distance, torch.tensor(_DISTANCE_BORDERS, device=distance.device), right=True)


def marginal_loss(ranking: Ranking, clusters: Int[Tensor, "spans"]) -> Float[Tensor, ""]:
    """Minus the log-probability that each span picks any antecedent of its cluster, or none where it has none; summed.

    `clusters` numbers the cluster of each kept span from 1, 0 where it is no mention.
    """
    same = (clusters[:, None] == clusters[ranking.antecedents]) & (clusters[:, None] > 0) & ranking.possible
    right = torch.cat([~same.any(dim=1, keepdim=True), same], dim=1)
    scores = ranking.scores
    return (scores.logsumexp(dim=1) - scores.masked_fill(~right, NOTHING).logsumexp(dim=1)).sum()


def mention_loss(scores: Float[Tensor, "spans"], right: Bool[Tensor, "spans"]) -> Float[Tensor, ""]:
    """Minus the log-probability that the mentions are told from all other spans by the signs of their scores; summed."""
    return F.binary_cross_entropy_with_logits(scores, right.to(scores.dtype), reduction="sum")


def _windows(x: Float[Tensor, "tokens width"], size: int) -> Float[Tensor, "tokens size width"]:
    """Each row with the following ones, `size` in all; zero past the end."""
    return F.pad(x, (0, 0, 0, size - 1)).unfold(0, size, 1).transpose(1, 2)
