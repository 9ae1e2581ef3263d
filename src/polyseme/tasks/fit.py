"""One loop that fits every task: early stopping on dev, the test file read once at the end, checkpoints, resuming."""

import hashlib
import json
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from polyseme.errors import FormatError, InputError
from polyseme.progress import Report
from polyseme.tasks.config import FitConfig, Task, TaskConfig, make_task
from polyseme.tasks.inputs import Texts, Words, WordVectors
from polyseme.tasks.layers import cached_layers, embed_texts
from polyseme.tasks.readers import VocabularyReport, report_vocabulary
from polyseme.tasks.task import Batch, TaskModel
from polyseme.tasks.trained import (
    ElmoReference,
    TrainedTask,
    answer_all,
    build_model,
    number_texts,
    text_documents,
    write_beside,
)

if TYPE_CHECKING:
    from polyseme.elmo import Elmo


@dataclass(frozen=True)
class Epoch:
    """What one epoch brought: mean loss of a step, scores on dev, seconds."""

    number: int
    loss: float
    scores: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """A fitted model and how it came about; `layer_weights` are each mix's shares and, last, its gamma."""

    trained: TrainedTask
    history: list[Epoch]
    best_epoch: int
    dev: dict[str, float]
    test: dict[str, float] | None
    test_answers: list[Any] = field(default_factory=list)
    layer_weights: dict[str, list[float]] = field(default_factory=dict)
    vocabulary: VocabularyReport | None = None


@dataclass(frozen=True)
class _Data:
    """The records of train and dev, and all their texts as ids."""

    train: list[Any]
    dev: list[Any]
    train_places: list[range]
    dev_places: list[range]
    texts: Texts


def fit(
    config: TaskConfig, *, elmo: "Elmo | None" = None, vectors: WordVectors | None = None, report: Report | None = None
) -> FitResult:
    """Fits a task model and writes it into `config.folder`; an interrupted run goes on where its last epoch ended.

    Args:
        config: the complete description. `elmo` and `vectors` may be given loaded, so that several runs share them.
        elmo: the biLM that `config.elmo` names; None loads it.
        vectors: the word vectors that `config.vectors` names; None reads them.
        report: called with the steps done and to do.

    Raises:
        InputError: the configuration lacks files or a folder, or the folder holds a run of another configuration.
        FormatError: a data file cannot be used; names file and line.
    """
    if not config.train or not config.dev or not config.folder:
        raise InputError("TaskConfig needs train, dev and folder: two data files, and the place where the model is written.")
    if config.elmo is not None and elmo is None:
        from polyseme.weights.loading import load

        elmo = load(config.elmo)
    if config.vectors is not None and vectors is None:
        vectors = WordVectors.read(config.vectors)
    task = make_task(config.model)
    train, dev = _share(task, task.read(config.train, training=True), config.fit.share), task.read(config.dev)
    inventory = task.inventory(train)  # pyrefly: ignore
    task.check(dev, inventory, config.dev)  # pyrefly: ignore
    reference = None
    if elmo is not None and config.elmo is not None:
        reference = ElmoReference(config.elmo, elmo.hash, len(elmo.layers), elmo.dim)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.fit.seed)
        known = [text for record in train for text in task.texts(record)]  # pyrefly: ignore
        words = None if config.inputs.words is None else Words.build(config.inputs.words, vectors, known)
        model = build_model(config, words, inventory, elmo if config.elmo else None)
        trained = TrainedTask(config, model, inventory, reference=reference, elmo=elmo)
        data, vocabulary = _read(trained, train, dev, report)
        history, best = _run(trained, data, report)
    model.load_state_dict(best)
    trained.save(config.folder)
    chosen = max(history, key=lambda epoch: epoch.scores[task.metric])
    test, answers = None, []
    if config.test is not None:
        test, _, answers = trained.evaluate(config.test)
    weights = model.inputs.layer_weights()
    values = {
        "best_epoch": chosen.number,
        "dev": chosen.scores,
        "test": test,
        "layer_weights": weights,
        "vocabulary": None if vocabulary is None else asdict(vocabulary),
        "history": [asdict(epoch) for epoch in history],
    }
    text = json.dumps(values, indent=2) + "\n"
    write_beside(Path(config.folder) / "result.json", lambda path: path.write_text(text, encoding="utf-8"))
    return FitResult(trained, history, chosen.number, chosen.scores, test, answers, weights, vocabulary)


def fit_seeds(
    config: TaskConfig,
    seeds: Sequence[int],
    *,
    elmo: "Elmo | None" = None,
    vectors: WordVectors | None = None,
    report: Report | None = None,
) -> list[FitResult]:
    """The same model fitted from several seeds, each in its own folder seed-N."""
    results = []
    for seed in seeds:
        run = replace(config, folder=str(Path(config.folder) / f"seed-{seed}"), fit=replace(config.fit, seed=seed))
        results.append(fit(run, elmo=elmo, vectors=vectors, report=report))
    return results


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


def _share(task: Task, records: list[Any], share: float) -> list[Any]:
    """The first so many of the units in a random order that is always the same; at least one."""
    units = list(dict.fromkeys(task.unit(record) for record in records))
    order = np.random.default_rng(0).permutation(len(units))[: max(1, round(share * len(units)))]
    kept = {units[number] for number in order}
    return [record for record in records if task.unit(record) in kept]


def _read(trained: TrainedTask, train: list[Any], dev: list[Any], report: Report | None) -> tuple[_Data, VocabularyReport | None]:
    """All texts of train and dev as ids, with the biLM's layers where the model wants them."""
    config, task, elmo = trained.config, trained.task, trained.elmo
    lists, places = number_texts(task, [*train, *dev])
    layers = vocabulary = None
    if elmo is not None and config.inputs.elmo is not None:
        if config.inputs.elmo.trainable == "mix":
            # Documents of train and dev are numbered apart.
            documents = [2 * number for number in text_documents(task, train)]
            documents += [2 * number + 1 for number in text_documents(task, dev)]
            context = config.inputs.elmo.context
            if config.cache is None:
                layers = embed_texts(elmo, lists, context=context, documents=documents, report=report)
            else:
                layers = cached_layers(config.cache, elmo, lists, context=context, documents=documents, report=report)
        if elmo.vocabulary is not None:
            vocabulary = report_vocabulary(lists, elmo.vocabulary)
    texts = trained.model.inputs.read(lists, layers)
    return _Data(train, dev, places[: len(train)], places[len(train) :], texts), vocabulary


def _run(trained: TrainedTask, data: _Data, report: Report | None) -> tuple[list[Epoch], dict[str, torch.Tensor]]:
    """Epochs until dev has not risen for `patience` of them; the history and the best epoch's tensors."""
    config, model, task = trained.config, trained.model, trained.task
    optimizer = _optimizer(model, config.fit)
    folder = Path(config.folder)
    history, best = _resume(folder, config, model, optimizer)
    for number in range(len(history) + 1, config.fit.epochs + 1):
        scores = [epoch.scores[task.metric] for epoch in history]
        since = len(scores) - 1 - scores.index(max(scores)) if scores else 0
        if since >= config.fit.patience:
            break
        _decay(optimizer, config.fit, since)
        started = time.monotonic()
        torch.manual_seed(1_000_003 * config.fit.seed + number)  # an epoch draws the same, resumed or not
        loss = _epoch(trained, data, optimizer, number, scores, report)
        answers = answer_all(model, data.dev, data.texts, data.dev_places, batch=config.fit.batch)
        found = task.score(data.dev, answers)  # pyrefly: ignore
        history.append(Epoch(number, loss, found, time.monotonic() - started))
        if not scores or found[task.metric] > max(scores):
            best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        _checkpoint(folder, config, model, optimizer, history, best)
    return history, best


def _epoch(
    trained: TrainedTask,
    data: _Data,
    optimizer: torch.optim.Optimizer,
    number: int,
    scores: Sequence[float],
    report: Report | None,
) -> float:
    """One pass over the records the task draws; the mean loss."""
    config, model, task = trained.config, trained.model, trained.task
    generator = np.random.default_rng([config.fit.seed, number])
    chosen = task.draw(data.train, generator)  # pyrefly: ignore
    lengths = [sum(int(data.texts.lengths[text]) for text in data.train_places[record]) for record in chosen]
    steps = list(batches(chosen, lengths, config.fit.batch, generator))
    model.train()
    total = 0.0
    best = f", best dev {max(scores):.2f}" if scores else ""
    for step, records in enumerate(steps, 1):
        batch = Batch([data.train[n] for n in records], [data.train_places[n] for n in records], data.texts)
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(batch) + model.inputs.penalty()
        loss.backward()
        if config.fit.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.fit.clip_norm)
        if config.fit.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), config.fit.clip_value)
        optimizer.step()
        total += loss.item()
        if report is not None:
            done = (number - 1) * len(steps) + step
            report(done, config.fit.epochs * len(steps), note=f"epoch {number}, loss {total / step:.3f}{best}")
    return total / max(1, len(steps))


def batches(chosen: Sequence[int], lengths: Sequence[int], size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Records of like length together, in random order: sorted by length with some noise, cut, shuffled."""
    noisy = np.asarray(lengths, np.float64) * generator.uniform(0.9, 1.1, len(lengths))
    order = np.argsort(noisy + generator.uniform(0, 0.5, len(lengths)))
    cuts = [order[first : first + size] for first in range(0, len(order), size)]
    for cut in generator.permutation(len(cuts)):
        yield [chosen[int(number)] for number in cuts[cut]]


def _optimizer(model: TaskModel, config: FitConfig) -> torch.optim.Optimizer:
    """The task's own parameters, and at a smaller rate those of a biLM that is fine-tuned."""
    embedding = model.inputs.embedding
    bilm = set() if embedding is None else {id(parameter) for parameter in embedding.bilm.parameters()}
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": [parameter for parameter in learned if id(parameter) not in bilm]}]
    if bilm:
        rate = config.learning_rate * config.bilm_rate
        groups.append({"params": [parameter for parameter in learned if id(parameter) in bilm], "lr": rate})
    if config.optimizer == "adadelta":
        return torch.optim.Adadelta(groups, lr=config.learning_rate, rho=0.95, weight_decay=config.weight_decay)
    return torch.optim.Adam(groups, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True)


def _decay(optimizer: torch.optim.Optimizer, config: FitConfig, since: int) -> None:
    if config.decay is not None and since and since % config.decay_after == 0:
        for group in optimizer.param_groups:
            group["lr"] *= config.decay


def _identity(config: TaskConfig) -> str:
    """What must be the same for a run to go on: everything but where things are stored."""
    values = replace(config, cache=None, folder="").to_dict()
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _checkpoint(
    folder: Path,
    config: TaskConfig,
    model: TaskModel,
    optimizer: torch.optim.Optimizer,
    history: list[Epoch],
    best: dict[str, torch.Tensor],
) -> None:
    state = {
        "identity": _identity(config),
        "model": _learned(model.state_dict()),
        "best": _learned(best),
        "optimizer": optimizer.state_dict(),
        "history": json.dumps([asdict(epoch) for epoch in history]),
    }
    write_beside(folder / "checkpoint.pt", lambda path: torch.save(state, path))


def _learned(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the pretrained word vectors, which are large and never change."""
    return {name: tensor for name, tensor in state.items() if name != "inputs.words.vectors"}


def _resume(
    folder: Path, config: TaskConfig, model: TaskModel, optimizer: torch.optim.Optimizer
) -> tuple[list[Epoch], dict[str, torch.Tensor]]:
    """The history and best tensors of an interrupted run, its state loaded; empty where there is none."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return [], {}
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise FormatError(f"{path}: the checkpoint is damaged; delete it to begin anew.") from error
    if state["identity"] != _identity(config):
        raise InputError(f"{folder} holds a run of another configuration; give an empty folder, or delete {path.name} in it.")
    words = {name: tensor for name, tensor in model.state_dict().items() if name == "inputs.words.vectors"}
    model.load_state_dict(state["model"] | words)
    optimizer.load_state_dict(state["optimizer"])
    return [Epoch(**epoch) for epoch in json.loads(state["history"])], state["best"] | words
