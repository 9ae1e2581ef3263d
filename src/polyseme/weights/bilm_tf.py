"""bilm-tf's TensorFlow checkpoints, softmax included, and the training state that lies in them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from polyseme.config import BiLMConfig, WordConfig
from polyseme.errors import WeightsError
from polyseme.vocabulary import Vocabulary
from polyseme.weights.allennlp import vocabulary_beside
from polyseme.weights.bundle import read_bundle
from polyseme.weights.checkpoint import Checkpoint
from polyseme.weights.files import read_json, read_vocabulary
from polyseme.weights.tensorflow import Stored, canonical_name, config_from_options, to_native

_STEP = re.compile(r"(\d+)$")
_BOOKKEEPING = ("global_step", "train_perplexity")


@dataclass(frozen=True)
class _Array:
    """An array already in memory."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def read(self) -> np.ndarray:
        return self.values


def find_prefix(path: Path) -> Path | None:
    """The checkpoint a path stands for: its prefix, one of its files, or a folder that holds it; None where it is none.

    In a folder the file `checkpoint` decides; without it the highest step.
    """
    if path.is_dir():
        record = path / "checkpoint"
        if record.is_file():
            text = record.read_text(encoding="utf-8", errors="replace")
            match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
            # The path may be that of another machine: only its last part is looked for, here.
            named = None if match is None else path / re.split(r"[/\\]", match[1])[-1]
            if named is not None and _index(named).is_file():
                return named
        found = sorted(path.glob("*.index"), key=lambda index: (_step(index.stem), index.stem))
        return found[-1].with_suffix("") if found else None
    if path.suffix == ".index":
        return path.with_suffix("") if path.is_file() else None
    prefix = path.with_name(re.sub(r"\.data-\d{5}-of-\d{5}$", "", path.name))
    return prefix if _index(prefix).is_file() else None


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def _step(stem: str) -> int:
    match = _STEP.search(stem)
    return -1 if match is None else int(match[1])


def read_checkpoint(prefix: Path, *, options: Path | None = None, vocabulary: Path | None = None) -> Checkpoint:
    """A checkpoint from TensorFlow's files; options.json lies beside them unless it is given."""
    options = prefix.with_name("options.json") if options is None else options
    if not options.is_file():
        raise WeightsError(f'{prefix} needs its options, and {options} is not there; give it: options="options.json".')
    vocabulary = vocabulary_beside(prefix) if vocabulary is None else vocabulary
    checkpoint = from_variables(
        read_bundle(prefix),
        read_json(options.read_bytes(), name=str(options)),
        name=str(prefix),
        options_name=str(options),
        vocabulary=None if vocabulary is None else read_vocabulary(vocabulary),
    )
    return replace(checkpoint, metadata={"source": prefix.name})


def from_variables(
    variables: Mapping[str, Stored | np.ndarray],
    options: Mapping[str, Any],
    *,
    name: str,
    options_name: str,
    vocabulary: Vocabulary | None = None,
) -> Checkpoint:
    """A checkpoint from variables under bilm-tf's names (lm/...); optimizer slots and step counters are passed over."""
    stored: dict[str, Stored] = {}
    for key, array in variables.items():
        if key in _BOOKKEEPING or key.endswith("/Adagrad"):
            continue
        canonical = canonical_name(key.removeprefix("lm/"))
        if canonical is None or canonical in stored:
            raise WeightsError(f"{name} holds the variable {key}, which is none of bilm-tf's; wanted lm/char_embed, lm/CNN/... .")
        stored[canonical] = _Array(array) if isinstance(array, np.ndarray) else array
    config = config_from_options(options, {key: array.shape for key, array in stored.items()}, name=options_name)
    tensors = to_native(config, stored, name=name)
    if config.words is not None and vocabulary is not None:
        config = replace(config, words=WordConfig(size=config.words.size, dim=config.words.dim, markers=vocabulary.markers))
    lexicon = vocabulary if config.words is not None else None
    return Checkpoint(config=config, tensors=tensors, vocabulary=vocabulary, lexicon=lexicon, layout="bilm_tf")


def read_accumulators(prefix: str | Path, config: BiLMConfig) -> dict[str, Tensor]:
    """The Adagrad accumulators of a checkpoint, each under the native name and in the layout of its parameter."""
    slots = {}
    for key, array in read_bundle(prefix).items():
        canonical = canonical_name(key.removeprefix("lm/").removesuffix("/Adagrad"))
        if key.endswith("/Adagrad") and canonical is not None:
            slots[canonical] = array
    return to_native(config, slots, name=f"{prefix} (Adagrad)")
