"""A run's model as a native folder, and a model as the start of a run.

Beside the files of any native model the folder holds training.json: the recipe, what was read, where in the text the run was.
That is enough to go on from the folder alone: generators are seeded anew, and the optimizer's accumulators are re-warmed.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from polyseme.errors import InputError, WeightsError
from polyseme.model import BiLM
from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.run import Lists, Run, start_from_frequencies
from polyseme.vocabulary import Vocabulary
from polyseme.weights.checkpoint import Checkpoint, build
from polyseme.weights.files import replacing_folder
from polyseme.weights.native import FILES, Dtype, write_native

TRAINING = "training.json"
TRAINING_FORMAT = {"format": "polyseme training", "version": 1}


@dataclass(frozen=True)
class Start:
    """A model to go on with. `training` is its training.json, where it has one; `fresh` says that its softmax is new."""

    model: BiLM
    lists: Lists
    training: dict[str, Any] | None
    fresh: bool = False

    @property
    def recipe(self) -> PretrainConfig | None:
        """The configuration it was trained with."""
        return None if self.training is None else PretrainConfig.from_dict(self.training["recipe"])


def training_facts(run: Run, *, seconds: float, heldout: dict[str, float]) -> dict[str, Any]:
    """The contents of training.json."""
    return {
        **TRAINING_FORMAT,
        "recipe": run.config.to_dict(),
        "step": run.step,
        "tokens": run.tokens,
        "updates": run.optimizer.updates,
        "gathered": run.optimizer.gathered(),
        "passes": run.streams.passes,
        "position": run.streams.state_dict(),
        "seconds": seconds,
        "heldout": heldout,
    }


def export(run: Run, folder: str | Path, facts: dict[str, Any]) -> None:
    """Writes the run's model as a native folder, training.json included."""
    tensors = {name: parameter.detach().cpu() for name, parameter in run.parameters.items()}
    checkpoint = Checkpoint(
        config=run.config.model,
        tensors=tensors,
        vocabulary=run.lists.vocabulary,
        lexicon=run.reader.lexicon,
        characters=run.lists.characters,
    )
    write_trained(checkpoint, folder, facts)


def write_trained(checkpoint: Checkpoint, folder: str | Path, facts: dict[str, Any], *, dtype: Dtype = "float32") -> None:
    """Writes a model and what training.json is to hold."""
    checkpoint = replace(checkpoint, metadata={**checkpoint.metadata, "tokens": f"{facts['tokens']:,}"})
    _write(checkpoint, Path(folder), json.dumps(facts, indent=1) + "\n", dtype=dtype, card=None)


def copy_model(model: Path, target: str | Path, *, dtype: Dtype) -> None:
    """Writes an exported folder again, in another precision; the card of a model that stands there stays."""
    from polyseme.weights.read import read

    card = Path(target) / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else None
    _write(read(model), Path(target), (model / TRAINING).read_text(encoding="utf-8"), dtype=dtype, card=text)


def _write(checkpoint: Checkpoint, folder: Path, training: str, *, dtype: Dtype, card: str | None) -> None:
    with replacing_folder(folder, known=FILES | {TRAINING}) as work:
        write_native(checkpoint, work / "model", dtype=dtype, card=card)
        for file in (work / "model").iterdir():
            file.rename(work / file.name)
        (work / "model").rmdir()
        (work / TRAINING).write_text(training, encoding="utf-8")


def start_from(path: str | Path, *, vocabulary: Vocabulary | None = None) -> Start:
    """A model of any format as the start of a run.

    Args:
        path: What `polyseme.load` takes: a bundled name, a folder, a file.
        vocabulary: The words to predict from now on; None keeps the model's. Words the model's softmax knows keep their rows,
            others begin as its rarest. A model without a softmax gets one that predicts each word as often as `vocabulary`
            counts it, and all alike where it has no counts (`Corpus.counted`).
    """
    from polyseme.weights.read import read

    checkpoint = read(path)
    if vocabulary is None and (checkpoint.vocabulary is None or checkpoint.config.vocabulary_size is None):
        raise InputError(f"{path} has no softmax; give the vocabulary to be predicted (--new-vocabulary), which gets a new one.")
    fresh = checkpoint.config.vocabulary_size is None
    if vocabulary is not None and (fresh or vocabulary != checkpoint.vocabulary):
        checkpoint = _with_vocabulary(checkpoint, vocabulary)
    assert checkpoint.vocabulary is not None
    lists = Lists(checkpoint.vocabulary, checkpoint.lexicon, checkpoint.characters)
    model = build(checkpoint)
    if fresh and lists.vocabulary.counts is not None:
        start_from_frequencies(model, lists.vocabulary)
    return Start(model, lists, _training(path), fresh)


def _training(path: str | Path) -> dict[str, Any] | None:
    """The training.json of a folder or a bundled model."""
    folder = Path(path) if Path(path).exists() else Path(__file__).parent.parent / "models" / str(path)
    if not (folder / TRAINING).is_file():
        return None
    try:
        values = json.loads((folder / TRAINING).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder / TRAINING} is damaged ({error}); delete it to start without its record.") from error
    if any(values.get(key) != wanted for key, wanted in TRAINING_FORMAT.items()):
        raise WeightsError(
            f"{folder / TRAINING}: wanted format {TRAINING_FORMAT['format']!r}, version {TRAINING_FORMAT['version']}."
        )
    return values


def _with_vocabulary(checkpoint: Checkpoint, vocabulary: Vocabulary) -> Checkpoint:
    """The checkpoint with a softmax over these words; a new one is all zeros."""
    width, size = checkpoint.config.lstm.width, len(vocabulary)
    weight, bias = torch.zeros(size, width), torch.zeros(size)
    old = checkpoint.vocabulary
    if old is not None and checkpoint.config.vocabulary_size is not None:
        old_weight = checkpoint.tensors.get("softmax.weight", checkpoint.tensors.get("token_encoder.words"))
        assert old_weight is not None
        known = [(row, old.get(word)) for row, word in enumerate(vocabulary.words) if word in old]
        rows, old_rows = (torch.tensor([pair[side] for pair in known]) for side in (0, 1))
        # New words begin as rare ones: as the mean of the last words of the old list.
        weight[:] = old_weight[-1000:].mean(dim=0)
        bias.fill_(float(checkpoint.tensors["softmax.bias"][-1000:].mean()))
        weight[rows], bias[rows] = old_weight[old_rows], checkpoint.tensors["softmax.bias"][old_rows]
    tensors = {**checkpoint.tensors, "softmax.weight": weight, "softmax.bias": bias}
    config = replace(checkpoint.config, vocabulary_size=size, tied_softmax=False)
    return replace(checkpoint, config=config, tensors=tensors, vocabulary=vocabulary)


def take_up(run: Run, start: Start, *, freeze_steps: int = 0, updates: int = 5_000) -> str:
    """Makes a new run go on where a model's training left; says what it found.

    `freeze_steps` is for how many steps only the softmax moves; `updates` is how many updates the accumulators of a model
    without a record are made to stand for.
    """
    facts = start.training
    if facts is None:
        run.frozen_until = freeze_steps
        # What a new softmax sends back says nothing about the rest: that is warmed when it has learned.
        run.thaw_updates = updates if start.fresh and freeze_steps else 0
        if not run.thaw_updates:
            run.rewarm(updates, {}, fresh_softmax=start.fresh)
        return "the model has no record of its training: the text is read from its beginning"
    run.step = int(facts["tokens"]) // (run.config.rows * run.config.unroll)
    run.reseed()
    position = facts["position"]
    identity = run.streams.identity
    if position["identity"] == identity:
        run.streams.load_state_dict(position)
        found = f"going on at {facts['tokens']:,} tokens, where the model's training left the text"
    elif position["identity"]["corpus"] == identity["corpus"]:
        run.streams.skip([dealer["pulled"] for dealer in position["dealers"]])
        found = f"going on at {facts['tokens']:,} tokens, at the sentence where the model's training left the text"
    else:
        found = f"the model has seen {facts['tokens']:,} tokens of other text: this one is read from its beginning"
    run.rewarm(int(facts["updates"]), facts["gathered"], fresh_softmax=start.fresh)
    run.frozen_until = run.step + freeze_steps if freeze_steps else 0
    return found
