"""The text classifier: a biattentive classification network, for sentiment trees and for label<TAB>text files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from polyseme.config import Checked
from polyseme.errors import FormatError, InputError
from polyseme.tasks.attention import Maxout, SelfPooling, attend, pool_extremes
from polyseme.tasks.encoders import BidirectionalLSTM
from polyseme.tasks.inputs import Inputs, TextBatch
from polyseme.tasks.metrics import accuracy
from polyseme.tasks.readers import LabelledText, read_labelled, read_lines, read_trees
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(Checked):
    """A classifier and the files it reads.

    file       "labelled": label<TAB>text; "trees": sentiment trees, in `classes` 5 or 2
    subtrees   train on the phrases of the trees too; they are never evaluated on
    shortest   tokens a phrase must have
    phrases    draw only so many phrases an epoch, others each time; whole texts are always there
    head       "maxout" as the released configuration, "feedforward" as the paper
    """

    kind: Literal["classifier"] = "classifier"
    file: Literal["labelled", "trees"] = "labelled"
    classes: Literal[2, 5] = 5
    subtrees: bool = True
    shortest: int = 1
    phrases: int | None = None
    dense: int = 300
    hidden: int = 300
    head: Literal["maxout", "feedforward"] = "maxout"
    input_dropout: float = 0.5
    dense_dropout: float = 0.25
    head_dropout: tuple[float, float, float] = (0.1, 0.2, 0.3)

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("dense", "hidden", "shortest", "phrases")


@dataclass(frozen=True)
class Classification:
    """The most probable label, and the probability of each."""

    label: str
    probabilities: dict[str, float]


class Classifier(TaskModel[LabelledText, Classification]):
    """Dense layer and biLSTM; each token compared with what it attends to; a second biLSTM; four poolings; a head."""

    def __init__(self, config: ClassifierConfig, inputs: Inputs, inventory: Inventory) -> None:
        super().__init__()
        self.config = config
        self.inputs = inputs
        self.labels = tuple(inventory["labels"])
        self.ids = {label: number for number, label in enumerate(self.labels)}
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.dense = nn.Linear(inputs.width, config.dense)
        self.dense_dropout = nn.Dropout(config.dense_dropout)
        self.encoder = BidirectionalLSTM(config.dense, config.hidden)
        self.integrator = BidirectionalLSTM(3 * self.encoder.width, config.hidden)
        width = self.integrator.width + inputs.output_width
        self.pooling = SelfPooling(width)
        first, second, third = config.head_dropout
        if config.head == "maxout":
            upper, lower = max(1, width), max(1, width // 2)
            self.head = nn.Sequential(
                nn.Dropout(first),
                Maxout(4 * width, upper),
                nn.Dropout(second),
                Maxout(upper, lower),
                nn.Dropout(third),
                nn.Linear(lower, len(self.labels)),
            )
        else:
            self.head = nn.Sequential(
                nn.Dropout(first), nn.Linear(4 * width, width), nn.ReLU(), nn.Dropout(third), nn.Linear(width, len(self.labels))
            )

    def logits(self, batch: TextBatch) -> Float[Tensor, "rows labels"]:
        """The scores of all labels."""
        mask = batch.mask
        vectors = self.inputs(batch)
        x = self.dense_dropout(torch.relu(self.dense(self.input_dropout(vectors.input))))
        encoded = self.encoder(x * mask[:, :, None], batch.lengths)
        context = attend(encoded, encoded, mask)
        compared = torch.cat([encoded, encoded - context, encoded * context], dim=2) * mask[:, :, None]
        integrated = vectors.beside(self.integrator(compared, batch.lengths))
        return self.head(torch.cat([*pool_extremes(integrated, mask), self.pooling(integrated, mask)], dim=1))

    def loss(self, batch: Batch[LabelledText]) -> Float[Tensor, ""]:
        """Cross-entropy."""
        ids = []
        for record in batch.records:
            if record.label is None:
                raise InputError(f"the text {' '.join(record.tokens)[:60]!r} has no label; training needs labelled texts.")
            ids.append(self.ids[record.label])
        logits = self.logits(batch.inputs())
        return F.cross_entropy(logits, torch.tensor(ids, device=logits.device))

    @torch.no_grad()
    def answer(self, batch: Batch[LabelledText]) -> list[Classification]:
        """The most probable labels."""
        probabilities = torch.softmax(self.logits(batch.inputs()), dim=1).tolist()
        return [
            Classification(self.labels[int(np.argmax(row))], dict(zip(self.labels, row, strict=True))) for row in probabilities
        ]


class ClassifierTask(Task[LabelledText, Classification]):
    """Labelled texts from trees or label<TAB>text files."""

    metric: ClassVar[str] = "accuracy"

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[LabelledText]:
        """Labelled texts; in training with the phrases of the trees."""
        if self.config.file == "labelled":
            return read_labelled(path)
        texts = read_trees(path, subtrees=training and self.config.subtrees, classes=self.config.classes)
        return [text for text in texts if not text.part or len(text.tokens) >= self.config.shortest]

    def read_unlabelled(self, path: str | Path) -> list[LabelledText]:
        """Texts without labels: what follows the tab of each line, or the whole line where there is none; or trees."""
        if self.config.file == "trees":
            return [LabelledText(text.tokens, None, line=text.line) for text in read_trees(path)]
        lines = [(number, line.partition("\t")[2] or line) for number, line in read_lines(path)]
        return [LabelledText(tuple(line.split()), None, line=number) for number, line in lines if line.strip()]

    def from_tokens(self, tokens: Sequence[str]) -> LabelledText:
        """A text to be classified."""
        return LabelledText(tuple(tokens), None)

    def texts(self, record: LabelledText) -> Sequence[tuple[str, ...]]:
        """The text."""
        return (record.tokens,)

    def inventory(self, records: Sequence[LabelledText]) -> dict[str, list[str]]:
        """The labels, sorted."""
        return {"labels": sorted({record.label for record in records if record.label is not None})}

    def check(self, records: Sequence[LabelledText], inventory: Inventory, path: str | Path) -> None:
        """Every label must have been seen in training."""
        for record in records:
            if record.label not in inventory["labels"]:
                raise FormatError(
                    f"{path}, line {record.line}: the label {record.label!r} does not occur in the training data; wanted one of "
                    f"{', '.join(inventory['labels'])}."
                )

    def model(self, inputs: Inputs, inventory: Inventory) -> Classifier:
        """A new classifier."""
        return Classifier(self.config, inputs, inventory)

    def score(self, records: Sequence[LabelledText], answers: Sequence[Classification]) -> dict[str, float]:
        """Accuracy."""
        return {"accuracy": accuracy([record.label for record in records], [answer.label for answer in answers])}

    def to_json(self, record: LabelledText, answer: Classification) -> dict[str, Any]:
        """Tokens, label and probabilities."""
        shares = {label: round(share, 6) for label, share in answer.probabilities.items()}
        return {"tokens": list(record.tokens), "label": answer.label, "probabilities": shares}

    def to_lines(self, record: LabelledText, answer: Classification) -> str:
        """label<TAB>text."""
        return f"{answer.label}\t{' '.join(record.tokens)}\n"

    def unit(self, record: LabelledText) -> object:
        """The line: a tree with all its phrases."""
        return record.line

    def draw(self, records: Sequence[LabelledText], generator: np.random.Generator) -> Sequence[int]:
        """All whole texts and as many phrases as configured."""
        if self.config.phrases is None:
            return range(len(records))
        whole = [number for number, record in enumerate(records) if not record.part]
        parts = [number for number, record in enumerate(records) if record.part]
        chosen = generator.permutation(len(parts))[: self.config.phrases]
        return [*whole, *(parts[number] for number in chosen)]
