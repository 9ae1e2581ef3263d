"""A fitted task model: one folder that says which biLM it needs; loaded, it predicts and evaluates."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polyseme.errors import InputError, WeightsError
from polyseme.progress import Report
from polyseme.tasks.config import Task, TaskConfig, make_task
from polyseme.tasks.inputs import Inputs, Texts, Words
from polyseme.tasks.layers import Layers, embed_texts
from polyseme.tasks.task import Batch, TaskModel

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_BLOCK = 512  # records predicted at a time


@dataclass(frozen=True)
class ElmoReference:
    """Which biLM a task model was fitted with."""

    name: str
    hash: str
    layers: int
    dim: int


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place and renames it, so that the place holds the old or the new, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


class TrainedTask:
    """A task model with everything it needs to read records and answer them."""

    def __init__(
        self,
        config: TaskConfig,
        model: TaskModel,
        inventory: dict[str, list[str]],
        *,
        reference: ElmoReference | None,
        elmo: "Elmo | None" = None,
    ) -> None:
        if (reference is None) != (config.elmo is None):
            raise InputError("a task model names a biLM exactly when its configuration has one; give both or neither.")
        self.config, self.model, self.inventory, self.reference, self.elmo = config, model, inventory, reference, elmo
        self.task: Task = make_task(config.model)

    def save(self, folder: str | Path) -> None:
        """Writes config.json and model.safetensors, each whole or not at all."""
        from safetensors.torch import save_file

        folder = Path(folder)
        words = self.model.inputs.words
        values = {
            "task": self.config.to_dict(),
            "elmo": None if self.reference is None else vars(self.reference),
            "inventory": self.inventory,
            "words": None if words is None else {"learned": words.learned, "width": words.width, "words": list(words.words)},
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        write_beside(folder / "model.safetensors", lambda path: save_file(tensors, path))
        text = json.dumps(values, ensure_ascii=False, indent=None) + "\n"
        write_beside(folder / "config.json", lambda path: path.write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, folder: str | Path, *, elmo: "Elmo | None" = None) -> "TrainedTask":
        """Reads a folder that `save` wrote.

        Where the model was fitted with ELMo, `elmo` must be the very biLM (its hash is compared); None loads it by the name
        it had.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        if not (folder / "config.json").is_file() or not (folder / "model.safetensors").is_file():
            raise WeightsError(f"{folder} is no task model; wanted a folder with config.json and model.safetensors.")
        try:
            values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config = TaskConfig.from_dict(values["task"])
            reference = None if values["elmo"] is None else ElmoReference(**values["elmo"])
            listed = values["words"]
            words = None
            if listed is not None and config.inputs.words is not None:
                words = Words(config.inputs.words, listed["words"], listed["learned"], listed["width"])
            tensors = load_file(folder / "model.safetensors")
            inventory = values["inventory"]
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise WeightsError(f"{folder}: the task model is damaged ({error}); train it again or restore its files.") from error
        elmo = _matching(folder, reference, elmo)
        model = build_model(config, words, inventory, elmo)
        missing = sorted(set(model.state_dict()) ^ set(tensors))
        if missing:
            raise WeightsError(
                f"{folder}: model.safetensors and config.json differ in {', '.join(missing[:5])}; restore the files."
            )
        model.load_state_dict(tensors)
        return cls(config, model.eval(), inventory, reference=reference, elmo=elmo)

    def records(self, items: Iterable[str | Sequence[Any]], *, cut: Callable[[str], list[str]] | None = None) -> Iterator[Any]:
        """Records without labels from raw texts, cut by the biLM's tokenizer or by `cut`, or from lists of tokens."""
        from polyseme.text import tokenizer

        cut = cut or tokenizer("penn" if self.elmo is None else self.elmo.config.tokenization).tokenize
        for item in items:
            yield self.task.from_item(item, cut)

    def predict(self, items: Iterable[str | Sequence[Any]], *, report: Report | None = None) -> list[Any]:
        """The answers to raw sentences or lists of tokens, in order: `Tagging`, `Classification`, ..."""
        return [answer for _, answer in self.answer(self.records(items), report=report)]

    def answer(self, records: Iterable[Any], *, report: Report | None = None) -> Iterator[tuple[Any, Any]]:
        """(record, answer) as they come; memory is bounded by a block of records, or a document where vectors need it."""
        done = 0
        for block in self._blocks(records):
            texts, places = self._read(block)
            yield from zip(block, answer_all(self.model, block, texts, places, batch=self.config.fit.batch), strict=True)
            done += len(block)
            if report is not None:
                report(done)

    def _blocks(self, records: Iterable[Any]) -> Iterator[list[Any]]:
        """Some records at a time; where vectors are computed in document context, no document is cut."""
        whole = self.config.inputs.elmo is not None and self.config.inputs.elmo.context == "document"
        block: list[Any] = []
        last: int | None = None
        for place, record in enumerate(records):
            numbers = self.task.documents(record, place) if whole else ()  # pyrefly: ignore
            if len(block) >= _BLOCK and (not numbers or numbers[0] != last):
                yield block
                block = []
            block.append(record)
            last = numbers[-1] if numbers else last
        if block:
            yield block

    def evaluate(self, path: str | Path, *, report: Report | None = None) -> tuple[dict[str, float], list[Any], list[Any]]:
        """Scores on a labelled file, with its records and the answers to them."""
        records = self.task.read(path)
        self.task.check(records, self.inventory, path)  # pyrefly: ignore
        answers = [answer for _, answer in self.answer(records, report=report)]
        return self.task.score(records, answers), records, answers  # pyrefly: ignore

    def _read(self, records: Sequence[Any]) -> tuple[Texts, list[range]]:
        lists, places = number_texts(self.task, records)
        layers: Layers | None = None
        if self.config.inputs.elmo is not None and self.config.inputs.elmo.trainable == "mix":
            if self.elmo is None:
                raise InputError("the task model was fitted with ELMo but is used without; load it with its biLM.")
            documents = text_documents(self.task, records)
            layers = embed_texts(self.elmo, lists, context=self.config.inputs.elmo.context, documents=documents)
        return self.model.inputs.read(lists, layers), places


def build_model(config: TaskConfig, words: Words | None, inventory: dict[str, list[str]], elmo: "Elmo | None") -> TaskModel:
    """The network a configuration describes, with initial values."""
    return make_task(config.model).model(Inputs(config.inputs, words, elmo=elmo), inventory)


def number_texts(task: Task, records: Sequence[Any]) -> tuple[list[tuple[str, ...]], list[range]]:
    """All texts of all records in one list, and where each record's stand in it."""
    lists: list[tuple[str, ...]] = []
    places = []
    for record in records:
        found = task.texts(record)
        places.append(range(len(lists), len(lists) + len(found)))
        lists.extend(found)
    return lists, places


def text_documents(task: Task, records: Sequence[Any]) -> list[int]:
    """The document of each text."""
    return [number for place, record in enumerate(records) for number in task.documents(record, place)]


def answer_all(model: TaskModel, records: Sequence[Any], texts: Texts, places: Sequence[range], *, batch: int) -> list[Any]:
    """The answers to all records, in order; they are computed in order of length."""
    order = np.argsort([sum(int(texts.lengths[text]) for text in place) for place in places], kind="stable")
    answers: list[Any] = [None] * len(records)
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch].tolist()
            found = model.answer(Batch([records[n] for n in chosen], [places[n] for n in chosen], texts))
            for number, answer in zip(chosen, found, strict=True):
                answers[number] = answer
    return answers


def _matching(folder: Path, reference: ElmoReference | None, elmo: "Elmo | None") -> "Elmo | None":
    """The biLM the model was fitted with; another one is an error."""
    if reference is None:
        return None
    if elmo is None:
        from polyseme.weights.loading import load

        elmo = load(reference.name)
    if elmo.hash != reference.hash:
        raise WeightsError(
            f"{folder} was fitted with the biLM {reference.name!r} (hash {reference.hash[:12]}), but the one given has the hash "
            f"{elmo.hash[:12]}; give the biLM it was fitted with."
        )
    return elmo
