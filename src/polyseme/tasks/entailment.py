"""Does one text follow from another? ESIM: each token of one compared with what it attends to in the other."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from polyseme.config import Checked
from polyseme.errors import FormatError, InputError
from polyseme.tasks.attention import attend, pool_extremes
from polyseme.tasks.classifier import Classification
from polyseme.tasks.encoders import BidirectionalLSTM, SharedDropout
from polyseme.tasks.inputs import Inputs, TextBatch
from polyseme.tasks.metrics import accuracy
from polyseme.tasks.pair_readers import Pair, read_pairs, split_item
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class EntailmentConfig(Checked):
    """A classifier of pairs; `hidden` is the size of each LSTM direction and of the dense layers."""

    kind: Literal["entailment"] = "entailment"
    hidden: int = 300
    dropout: float = 0.5

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden")


class PairEncoder(nn.Module):
    """Two texts to one vector: encoded, aligned by attention both ways, compared, composed and pooled; then scores."""

    def __init__(self, inputs: Inputs, hidden: int, dropout: float, scores: int) -> None:
        super().__init__()
        self.input_dropout = SharedDropout(dropout)
        self.encoder = BidirectionalLSTM(inputs.width, hidden)
        self.project = nn.Linear(4 * (self.encoder.width + inputs.output_width), hidden)
        self.composition = BidirectionalLSTM(hidden, hidden)
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * self.composition.width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, scores),
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Inputs, one: TextBatch, other: TextBatch) -> Float[Tensor, "pairs scores"]:
        """The scores of each pair: row i of one batch with row i of the other."""
        a, b = self._encode(inputs, one), self._encode(inputs, other)
        pooled = [*self._compose(a, attend(a, b, other.mask), one), *self._compose(b, attend(b, a, one.mask), other)]
        return self.head(torch.cat(pooled, dim=1))

    def _encode(self, inputs: Inputs, texts: TextBatch) -> Float[Tensor, "rows tokens _"]:
        vectors = inputs(texts)
        return vectors.beside(self.encoder(self.input_dropout(vectors.input), texts.lengths))

    def _compose(
        self, own: Float[Tensor, "rows tokens width"], attended: Float[Tensor, "rows tokens width"], texts: TextBatch
    ) -> tuple[Float[Tensor, "rows _"], Float[Tensor, "rows _"]]:
        """Mean and maximum over the tokens of a text, each compared with what it has attended to."""
        compared = torch.cat([own, attended, own - attended, own * attended], dim=2)
        mask: Bool[Tensor, "rows tokens"] = texts.mask
        x = self.input_dropout(torch.relu(self.project(compared)) * mask[:, :, None])
        largest, _, mean = pool_extremes(self.composition(x, texts.lengths), mask)
        return mean, largest


class Entailment(TaskModel[Pair, Classification]):
    """The inputs and a pair encoder with a score for each label."""

    def __init__(self, config: EntailmentConfig, inputs: Inputs, inventory: Inventory) -> None:
        super().__init__()
        self.inputs = inputs
        self.labels = tuple(inventory["labels"])
        self.ids = {label: number for number, label in enumerate(self.labels)}
        self.pairs = PairEncoder(inputs, config.hidden, config.dropout, len(self.labels))

    def logits(self, batch: Batch[Pair]) -> Float[Tensor, "rows labels"]:
        """The scores of all labels."""
        return self.pairs(self.inputs, batch.inputs(0), batch.inputs(1))

    def loss(self, batch: Batch[Pair]) -> Float[Tensor, ""]:
        """Cross-entropy."""
        ids = []
        for record in batch.records:
            if record.label is None:
                raise InputError(f"the pair {' '.join(record.premise)[:60]!r} has no label; training needs labelled pairs.")
            ids.append(self.ids[record.label])
        logits = self.logits(batch)
        return F.cross_entropy(logits, torch.tensor(ids, device=logits.device))

    @torch.no_grad()
    def answer(self, batch: Batch[Pair]) -> list[Classification]:
        """The most probable labels."""
        probabilities = torch.softmax(self.logits(batch), dim=1).tolist()
        return [
            Classification(self.labels[int(np.argmax(row))], dict(zip(self.labels, row, strict=True))) for row in probabilities
        ]


class EntailmentTask(Task[Pair, Classification]):
    """Pairs of texts in JSON lines."""

    metric: ClassVar[str] = "accuracy"

    def __init__(self, config: EntailmentConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[Pair]:
        """Labelled pairs."""
        pairs = read_pairs(path)
        if not pairs:
            raise FormatError(f"{path}: every label is '-'; wanted pairs on which the annotators agreed.")
        return pairs

    def read_unlabelled(self, path: str | Path) -> list[Pair]:
        """All pairs, without labels."""
        return read_pairs(path, labelled=False)

    def from_tokens(self, tokens: Sequence[str]) -> Pair:
        """A single text is no pair."""
        raise InputError("entailment wants two texts; give a pair of them, or a line with a tab between them.")

    def from_item(self, item: str | Sequence[Any], cut: Callable[[str], list[str]]) -> Pair:
        """A pair of raw texts or of lists of tokens, or a line in which a tab parts premise and hypothesis."""
        wanted = "premise and hypothesis, in a line with a tab between them"
        premise, hypothesis = split_item(item, cut, wanted=wanted, least=2, most=2)
        return Pair(premise, hypothesis, None)

    def texts(self, record: Pair) -> Sequence[tuple[str, ...]]:
        """Premise and hypothesis."""
        return (record.premise, record.hypothesis)

    def inventory(self, records: Sequence[Pair]) -> dict[str, list[str]]:
        """The labels, sorted."""
        return {"labels": sorted({record.label for record in records if record.label is not None})}

    def check(self, records: Sequence[Pair], inventory: Inventory, path: str | Path) -> None:
        """Every label must have been seen in training."""
        for record in records:
            if record.label not in inventory["labels"]:
                raise FormatError(
                    f"{path}, line {record.line}: the label {record.label!r} does not occur in the training data; wanted one of "
                    f"{', '.join(inventory['labels'])}."
                )

    def model(self, inputs: Inputs, inventory: Inventory) -> Entailment:
        """A new classifier of pairs."""
        return Entailment(self.config, inputs, inventory)

    def score(self, records: Sequence[Pair], answers: Sequence[Classification]) -> dict[str, float]:
        """Accuracy."""
        return {"accuracy": accuracy([record.label for record in records], [answer.label for answer in answers])}

    def to_json(self, record: Pair, answer: Classification) -> dict[str, Any]:
        """Both texts, label and probabilities."""
        shares = {label: round(share, 6) for label, share in answer.probabilities.items()}
        return {
            "premise": list(record.premise),
            "hypothesis": list(record.hypothesis),
            "label": answer.label,
            "probabilities": shares,
        }

    def to_lines(self, record: Pair, answer: Classification) -> str:
        """The tokenized form, the gold label beside the predicted one where it is known."""
        values = {"label": answer.label, "premise": record.premise, "hypothesis": record.hypothesis}
        gold = {} if record.label is None else {"gold": record.label}
        return json.dumps(values | gold, ensure_ascii=False) + "\n"
