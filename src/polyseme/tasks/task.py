"""The shape all tasks have: a task knows its files, labels and scores; its model turns batches into losses and answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from polyseme.tasks.inputs import Inputs, TextBatch, Texts

Record = TypeVar("Record")
Answer = TypeVar("Answer")

#: The lists a model's outputs are numbered by, such as {"labels": ["O", "B-person"]}; plain JSON.
Inventory = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Batch(Generic[Record]):
    """Records, and where each one's texts stand among the texts that were read."""

    records: Sequence[Record]
    places: Sequence[range]
    texts: Texts

    def inputs(self, slot: int = 0) -> TextBatch:
        """The text number `slot` of each record, one row a record."""
        return self.texts.batch([place[slot] for place in self.places])

    def all_inputs(self) -> TextBatch:
        """Every text of every record, in order."""
        return self.texts.batch([text for place in self.places for text in place])


class TaskModel(nn.Module, ABC, Generic[Record, Answer]):
    """A network for one task. It is built from its configuration, inputs and inventory, and knows no files."""

    inputs: Inputs

    @abstractmethod
    def loss(self, batch: Batch[Record]) -> Float[Tensor, ""]:
        """The mean loss of the records, penalties apart."""

    @abstractmethod
    def answer(self, batch: Batch[Record]) -> list[Answer]:
        """One answer for each record."""


class Task(ABC, Generic[Record, Answer]):
    """What the loop that fits, evaluates and predicts needs to know of a task."""

    #: The score on which the best epoch is chosen; higher is better.
    metric: ClassVar[str]

    @abstractmethod
    def read(self, path: str | Path, *, training: bool = False) -> list[Record]:
        """The labelled records of a file; in training with what is only trained on (such as parts of texts)."""

    @abstractmethod
    def read_unlabelled(self, path: str | Path) -> list[Record]:
        """The records of a file in the task's format whose labels, if there are any, are not looked at."""

    @abstractmethod
    def from_tokens(self, tokens: Sequence[str]) -> Record:
        """A record without labels."""

    def from_item(self, item: str | Sequence[Any], cut: Callable[[str], list[str]]) -> Record:
        """A record without labels from what a user gives: raw text, which `cut` makes tokens of, or tokens."""
        return self.from_tokens(cut(item) if isinstance(item, str) else item)

    @abstractmethod
    def texts(self, record: Record) -> Sequence[tuple[str, ...]]:
        """The token lists the record's inputs are made of."""

    @abstractmethod
    def inventory(self, records: Sequence[Record]) -> dict[str, list[str]]:
        """The labels of the training records."""

    @abstractmethod
    def check(self, records: Sequence[Record], inventory: Inventory, path: str | Path) -> None:
        """Raises FormatError, with file and line, where a record has a label that is not in the inventory."""

    @abstractmethod
    def model(self, inputs: Inputs, inventory: Inventory) -> TaskModel[Record, Answer]:
        """A new network."""

    @abstractmethod
    def score(self, records: Sequence[Record], answers: Sequence[Answer]) -> dict[str, float]:
        """All scores, as percentages; `metric` is among them."""

    @abstractmethod
    def to_json(self, record: Record, answer: Answer) -> dict[str, Any]:
        """An answer as plain JSON values."""

    @abstractmethod
    def to_lines(self, record: Record, answer: Answer) -> str:
        """An answer in the task's own file format, its line ends included."""

    def to_file(self, records: Sequence[Record], answers: Sequence[Answer]) -> str:
        """All answers as a file in the task's own format."""
        return "".join(self.to_lines(record, answer) for record, answer in zip(records, answers, strict=True))

    def items(self, lines: Iterable[str], *, tokenized: bool) -> Iterable[str | Sequence[Any]]:
        """What `from_item` takes, from the lines of a raw text, whose tokens are parted by blanks if `tokenized`."""
        return lines

    def document(self, record: Record) -> int:
        """The number of the document the record stands in, for vectors computed in document context."""
        return 0

    def documents(self, record: Record, place: int) -> Sequence[int]:
        """The document's number for each text of the record, which is number `place` of its list."""
        return [self.document(record)] * len(self.texts(record))

    def unit(self, record: Record) -> object:
        """What is taken or left as a whole when only a share of the training data is used; the record by default."""
        return id(record)

    def draw(self, records: Sequence[Record], generator: np.random.Generator) -> Sequence[int]:
        """The records of one epoch; all of them by default."""
        return range(len(records))
