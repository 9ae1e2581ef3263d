"""PyTorch state dicts: the .th files of AllenNLP's `Elmo` module, and the tensor layout ELMoForManyLangs shares with them.

The forget gate's 1 is already in the stored bias (forget_bias 0), gates stand in the native order, and one matrix of a
highway layer holds the transform and, negated, the gate.
"""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import Tensor

from polyseme.config import BiLMConfig
from polyseme.errors import WeightsError
from polyseme.weights.allennlp import options_beside
from polyseme.weights.checkpoint import Checkpoint, Mix, compare_keys
from polyseme.weights.files import check_ratio, read_json
from polyseme.weights.tensorflow import config_from_options, lstm_name

_EMBEDDING = "_elmo_lstm._token_embedder._char_embedding_weights"
_MIX = re.compile(r"scalar_mix_(\d+)\.(?:(gamma)|scalar_parameters\.(\d+))")
#: Prefixes of AllenNLP's names → those used here.
_NAMES = (
    (re.compile(r"_elmo_lstm\._token_embedder\._char_embedding_weights"), "characters"),
    (re.compile(r"_elmo_lstm\._token_embedder\.char_conv_(\d+)\.(weight|bias)"), r"convolutions.\1.\2"),
    (re.compile(r"_elmo_lstm\._token_embedder\._highways\._layers\.(\d+)\.(weight|bias)"), r"highways.\1.\2"),
    (re.compile(r"_elmo_lstm\._token_embedder\._projection\.(weight|bias)"), r"projection.\1"),
    (re.compile(r"_elmo_lstm\._elmo_lstm\.((?:forward|backward)_layer_.*)"), r"\1"),
)
# Vectors AllenNLP caches for chosen words (vocab_to_cache): they follow from the other weights.
_CACHED = ("_elmo_lstm._word_embedding.weight",)
# What torch.load raises at a file that ends early or is none of its own.
_DAMAGE = (
    OSError, EOFError, RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error,
    AssertionError, zipfile.BadZipFile,
)  # fmt: skip


@dataclass(frozen=True)
class _Rule:
    """One stored tensor and the native tensors its values go to."""

    source: str
    shape: tuple[int, ...]
    targets: tuple[str, ...]
    kind: Literal["same", "highway"] = "same"


def _rules(config: BiLMConfig) -> Iterator[_Rule]:
    words, characters, lstm = config.words, config.characters, config.lstm
    if words is not None:
        yield _Rule("words", (words.size, words.dim), ("token_encoder.words",))
    if characters is not None:
        native, width = "token_encoder.characters", characters.width
        yield _Rule("characters", (characters.size, characters.dim), (f"{native}.embedding",))
        for i, (span, n) in enumerate(characters.filters):
            yield _Rule(f"convolutions.{i}.weight", (n, characters.dim, span), (f"{native}.convolutions.{i}.weight",))
            yield _Rule(f"convolutions.{i}.bias", (n,), (f"{native}.convolutions.{i}.bias",))
        for i in range(characters.highways):
            for part, shape in (("weight", (2 * width, width)), ("bias", (2 * width,))):
                targets = (f"{native}.highways.{i}.transform.{part}", f"{native}.highways.{i}.gate.{part}")
                yield _Rule(f"highways.{i}.{part}", shape, targets, "highway")
    if config.projection is not None:
        inner = (0 if words is None else words.dim) + (0 if characters is None else characters.width)
        yield _Rule("projection.weight", (config.projection, inner), ("token_encoder.projection.weight",))
        yield _Rule("projection.bias", (config.projection,), ("token_encoder.projection.bias",))
    for direction in lstm.directions:
        for layer in range(lstm.layers):
            inner = config.token_width if layer == 0 else lstm.width
            source, native = f"{direction}_layer_{layer}", f"lstm.{direction}_layers.{layer}"
            yield _Rule(f"{source}.input_linearity.weight", (4 * lstm.dim, inner), (f"{native}.input_weight",))
            yield _Rule(f"{source}.state_linearity.weight", (4 * lstm.dim, lstm.width), (f"{native}.recurrent_weight",))
            yield _Rule(f"{source}.state_linearity.bias", (4 * lstm.dim,), (f"{native}.bias",))
            if lstm.projection is not None:
                yield _Rule(f"{source}.state_projection.weight", (lstm.projection, lstm.dim), (f"{native}.projection_weight",))
    if config.vocabulary_size is not None:
        yield _Rule("softmax.weight", (config.vocabulary_size, lstm.width), ("softmax.weight",))
        yield _Rule("softmax.bias", (config.vocabulary_size,), ("softmax.bias",))


def to_native(config: BiLMConfig, stored: Mapping[str, Tensor], *, name: str) -> dict[str, Tensor]:
    """Native tensors from tensors under the names of this file; every name and shape is compared first."""
    rules = list(_rules(config))
    compare_keys({rule.source: rule.shape for rule in rules}, {key: tuple(t.shape) for key, t in stored.items()}, name=name)
    tensors = {}
    for rule in rules:
        values = stored[rule.source].detach().to(torch.float32)
        if rule.kind == "highway":
            transform, gate = values.chunk(2)
            tensors.update(zip(rule.targets, (transform.clone(), -gate), strict=True))
        else:
            tensors[rule.targets[0]] = values.contiguous()
    return tensors


def load_tensors(source: Path | BinaryIO, *, name: str) -> dict[str, Tensor]:
    """A dictionary of tensors from a torch file of either format. Files are data: code in them is refused, not run."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                for member in archive.infolist():
                    check_ratio(member.file_size, member.compress_size, name=f"{member.filename} in {name}")
        if not isinstance(source, Path):
            source.seek(0)
        with warnings.catch_warnings():
            # torch warns of pickle protocols it may not know; where it does not, it raises too.
            warnings.simplefilter("ignore", UserWarning)
            values = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{name} holds more than tensors, or is damaged; a pickle with code in it is never run. Save the state dict alone: "
            "torch.save(module.state_dict(), path)."
        ) from error
    except _DAMAGE as error:
        reason = str(error).split("\n")[0]
        raise WeightsError(f"{name} is not a readable torch file ({reason}); it is damaged or incomplete.") from error
    if not isinstance(values, dict) or not all(isinstance(tensor, Tensor) for tensor in values.values()):
        raise WeightsError(f"{name} holds no state dict; wanted a dictionary of tensors.")
    return {str(key): tensor for key, tensor in values.items()}


def read_state_dict(path: Path, *, options: Path | None = None) -> Checkpoint:
    """A checkpoint from the state dict of an `Elmo` module, alone or within a task model."""
    tensors = load_tensors(path, name=str(path))
    prefixes = [key.removesuffix(_EMBEDDING) for key in tensors if key.endswith(_EMBEDDING)]
    if len(prefixes) != 1:
        found = ", ".join(prefixes) or f"no key ends in {_EMBEDDING}"
        raise WeightsError(f"{path} holds {len(prefixes)} ELMo modules ({found}); wanted exactly one.")
    stored: dict[str, Tensor] = {}
    mixes: dict[int, dict[str | int, float]] = {}
    for key, tensor in tensors.items():
        if not key.startswith(prefixes[0]):
            continue  # another part of the task model
        inner = key[len(prefixes[0]) :]
        renamed = next((pattern.sub(new, inner) for pattern, new in _NAMES if pattern.fullmatch(inner)), None)
        if match := _MIX.fullmatch(inner):
            mixes.setdefault(int(match[1]), {})["gamma" if match[2] else int(match[3])] = float(tensor)
        elif renamed is not None:
            stored[renamed] = tensor
        elif prefixes[0] == "" and not inner.startswith("_elmo_lstm."):
            continue  # a part of the task model that uses the module without a prefix
        elif inner not in _CACHED:
            raise WeightsError(f"{path} holds {key}, which is no tensor of an Elmo module.")
    options = options_beside(path) if options is None else options
    config = _config(options, stored)
    rows = stored["characters"].shape[0]
    # AllenNLP's first row stands for "no character" and is always zero; ids start one higher there.
    stored["characters"] = stored["characters"][1:] if rows == 262 else stored["characters"]
    return Checkpoint(
        config=config,
        tensors=to_native(config, stored, name=str(path)),
        mixes=tuple(_mix(mixes[number], path, number) for number in sorted(mixes)),
        layout="torch_state",
        metadata={"source": path.name},
    )


def _mix(parts: dict[str | int, float], path: Path, number: int) -> Mix:
    weights = sorted(key for key in parts if isinstance(key, int))
    if "gamma" not in parts or weights != list(range(len(weights))):
        raise WeightsError(f"{path}: scalar_mix_{number} is incomplete; it holds {', '.join(map(str, parts))}.")
    return Mix(weights=tuple(parts[key] for key in weights), gamma=parts["gamma"])


def _config(options: Path, stored: Mapping[str, Tensor]) -> BiLMConfig:
    """What the options say, with the parts that are seen from the tensors; the stored bias holds the forget gate's 1."""
    seen = {
        lstm_name(0, 0, "W_P_0"): "forward_layer_0.state_projection.weight",
        lstm_name(1, 0, "W_0"): "backward_layer_0.input_linearity.weight",
        "CNN_proj/W_proj": "projection.weight",
    }
    shapes = {name: tuple(stored[key].shape) for name, key in seen.items() if key in stored}
    config = config_from_options(read_json(options.read_bytes(), name=str(options)), shapes, name=str(options))
    return replace(config, lstm=replace(config.lstm, forget_bias=0.0))
