"""Multiple choice: one question, several answers, pick one. ESIM reads the question with each answer and gives one score."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyseme.config import Checked
from polyseme.errors import InputError
from polyseme.tasks.entailment import PairEncoder
from polyseme.tasks.inputs import Inputs
from polyseme.tasks.metrics import accuracy
from polyseme.tasks.pair_readers import Choice, read_choices, split_item
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class ChoicesConfig(Checked):
    """A chooser; `hidden` is the size of each LSTM direction and of the dense layers."""

    kind: Literal["choices"] = "choices"
    hidden: int = 300
    dropout: float = 0.5

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden")


@dataclass(frozen=True)
class Chosen:
    """The number of the most probable answer, and the probability of each."""

    answer: int
    probabilities: tuple[float, ...] = ()


class Chooser(TaskModel[Choice, Chosen]):
    """A pair encoder with one score; the answers of a question compete. Questions may have different numbers of them."""

    def __init__(self, config: ChoicesConfig, inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.pairs = PairEncoder(inputs, config.hidden, config.dropout, 1)

    def logits(self, batch: Batch[Choice]) -> Float[Tensor, "questions answers"]:
        """The score of each answer; minus infinity where a question has no more of them."""
        questions = [place[0] for place in batch.places for _ in place[1:]]
        answers = [text for place in batch.places for text in place[1:]]
        scores = self.pairs(self.inputs, batch.texts.batch(questions), batch.texts.batch(answers)).squeeze(1)
        rows = scores.split([len(place) - 1 for place in batch.places])
        return pad_sequence(list(rows), batch_first=True, padding_value=float("-inf"))

    def loss(self, batch: Batch[Choice]) -> Float[Tensor, ""]:
        """Cross-entropy over the answers of each question."""
        labels = [record.label for record in batch.records if record.label is not None]
        if len(labels) < len(batch.records):
            raise InputError("a question has no label; training needs the right answer of each.")
        logits = self.logits(batch)
        return F.cross_entropy(logits, torch.tensor(labels, device=logits.device))

    @torch.no_grad()
    def answer(self, batch: Batch[Choice]) -> list[Chosen]:
        """The most probable answers."""
        probabilities = torch.softmax(self.logits(batch), dim=1)
        best = probabilities.argmax(dim=1).tolist()
        return [
            Chosen(number, tuple(row[: len(record.answers)]))
            for record, number, row in zip(batch.records, best, probabilities.tolist(), strict=True)
        ]


class ChoicesTask(Task[Choice, Chosen]):
    """Questions with several answers in JSON lines."""

    metric: ClassVar[str] = "accuracy"

    def __init__(self, config: ChoicesConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[Choice]:
        """Questions with the right answer."""
        return read_choices(path)

    def read_unlabelled(self, path: str | Path) -> list[Choice]:
        """Questions and answers, the right one not looked at."""
        return read_choices(path, labelled=False)

    def from_tokens(self, tokens: Sequence[str]) -> Choice:
        """A single text is no choice."""
        raise InputError("a choice wants a question and two or more answers; give a list, or a line with tabs between them.")

    def from_item(self, item: str | Sequence[Any], cut: Callable[[str], list[str]]) -> Choice:
        """A question and its answers, as a list of raw texts or of lists of tokens, or a line in which tabs part them."""
        wanted = "a question and two or more answers, in a line with tabs between them"
        question, *answers = split_item(item, cut, wanted=wanted, least=3, most=None)
        return Choice(question, tuple(answers), None)

    def texts(self, record: Choice) -> Sequence[tuple[str, ...]]:
        """The question, then its answers."""
        return (record.question, *record.answers)

    def inventory(self, records: Sequence[Choice]) -> dict[str, list[str]]:
        """Nothing: answers are told apart by what they say."""
        return {}

    def check(self, records: Sequence[Choice], inventory: Inventory, path: str | Path) -> None:
        """The reader has checked the labels."""

    def model(self, inputs: Inputs, inventory: Inventory) -> Chooser:
        """A new chooser."""
        return Chooser(self.config, inputs)

    def score(self, records: Sequence[Choice], answers: Sequence[Chosen]) -> dict[str, float]:
        """Accuracy."""
        return {"accuracy": accuracy([record.label for record in records], [answer.answer for answer in answers])}

    def to_json(self, record: Choice, answer: Chosen) -> dict[str, Any]:
        """The texts, the number of the answer chosen, and the probabilities."""
        shares = [round(share, 6) for share in answer.probabilities]
        texts = {"question": list(record.question), "answers": [list(text) for text in record.answers]}
        return texts | {"label": answer.answer, "probabilities": shares}

    def to_lines(self, record: Choice, answer: Chosen) -> str:
        """The first of the forms that are read, the right answer beside the chosen one where it is known."""
        values = {"question": record.question, "answers": record.answers, "label": answer.answer}
        gold = {} if record.label is None else {"gold": record.label}
        return json.dumps(values | gold, ensure_ascii=False) + "\n"
