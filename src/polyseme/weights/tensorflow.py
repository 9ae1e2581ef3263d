"""How biLMs trained with TensorFlow lay out their tensors, and their options: shared by HDF5 dumps, checkpoints and hub modules.

Every rearrangement here moves values without changing them, so both directions together are bit-identical. Kernels are
stored (input, output) and hold the gates in the order input, candidate, forget, output; natively it is (output, input) and
input, forget, candidate, output.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.errors import InputError, WeightsError
from polyseme.weights.checkpoint import compare_keys

# Position k of either order holds gate _GATES[k] of the other: the exchange is its own inverse.
_GATES = (0, 2, 1, 3)

_LSTM = re.compile(
    r"(?:(?:RNN_(?P<direction>[01])/)(?:RNN|rnn)|rnn)/"
    r"(?:(?:MultiRNNCell|multi_rnn_cell)/(?:Cell|cell_)(?P<layer>\d+)/)?(?:rnn/)?(?:LSTMCell|lstm_cell)/"
    r"(?P<part>W_0|kernel|B|bias|W_P_0|projection/kernel)"
)
_OTHER = re.compile(
    r"char_embed|embedding|CNN/[Wb]_cnn_\d+|CNN_high_\d+/[Wb]_(?:carry|transform)|CNN_proj/[Wb]_proj|softmax/[Wb]"
)
_PARTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}

_TRAINING_OPTIONS = (
    "bidirectional", "dropout", "all_clip_norm_val", "n_epochs", "n_train_tokens", "batch_size", "n_tokens_vocab", "unroll_steps",
    "n_negative_samples_batch", "learning_rate", "sample_softmax", "share_embedding_softmax", "reverse",
)  # fmt: skip
_KNOWN_OPTIONS = {
    "options": ("lstm", "char_cnn", *_TRAINING_OPTIONS),
    "options.lstm": ("cell_clip", "dim", "n_layers", "proj_clip", "projection_dim", "use_skip_connections"),
    "options.char_cnn": (
        "activation", "embedding", "filters", "max_characters_per_token", "n_characters", "n_highway", "projection_after_highway",
    ),
    "options.char_cnn.embedding": ("dim",),
}  # fmt: skip


class Stored(Protocol):
    """An array that lies in a file and is read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, known without reading it."""
        ...

    def read(self) -> np.ndarray:
        """Its values."""
        ...


def canonical_name(name: str) -> str | None:
    """The name in a usual HDF5 dump of a biLM variable, whichever of its spellings is met; None for anything else.

    One-layer dumps name no layer and unidirectional ones no direction.
    """
    if _OTHER.fullmatch(name):
        return name
    match = _LSTM.fullmatch(name)
    if match is None:
        return None
    part = match["part"]
    return lstm_name(match["direction"] or 0, match["layer"] or 0, _PARTS.get(part, part))


def lstm_name(direction: int | str, layer: int | str, part: str) -> str:
    """The canonical name of an LSTM variable: W_0 is the kernel, B the bias, W_P_0 the projection."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{part}"


@dataclass(frozen=True)
class _Rule:
    """One stored array and the native tensors its values go to."""

    source: str
    shape: tuple[int, ...]
    targets: tuple[str, ...]
    kind: Literal["same", "linear", "convolution", "kernel", "bias"] = "same"
    inner: int = 0  # rows of a kernel that belong to the layer's input; the rest belong to its own output


def _rules(config: BiLMConfig) -> Iterator[_Rule]:
    words, characters, lstm = config.words, config.characters, config.lstm
    if words is not None:
        yield _Rule("embedding", (words.size, words.dim), ("token_encoder.words",))
    if characters is not None:
        yield from _character_rules(characters)
    if config.projection is not None:
        width = config.projection
        inner = (0 if words is None else words.dim) + (0 if characters is None else characters.width)
        yield _Rule("CNN_proj/W_proj", (inner, width), ("token_encoder.projection.weight",), "linear")
        yield _Rule("CNN_proj/b_proj", (width,), ("token_encoder.projection.bias",))
    for number, direction in enumerate(lstm.directions):
        for layer in range(lstm.layers):
            inner = config.token_width if layer == 0 else lstm.width
            target = f"lstm.{direction}_layers.{layer}"
            weights = (f"{target}.input_weight", f"{target}.recurrent_weight")
            yield _Rule(lstm_name(number, layer, "W_0"), (inner + lstm.width, 4 * lstm.dim), weights, "kernel", inner)
            yield _Rule(lstm_name(number, layer, "B"), (4 * lstm.dim,), (f"{target}.bias",), "bias")
            if lstm.projection is not None:
                yield _Rule(
                    lstm_name(number, layer, "W_P_0"), (lstm.dim, lstm.projection), (f"{target}.projection_weight",), "linear"
                )
    if config.vocabulary_size is not None:
        if not config.tied_softmax:
            yield _Rule("softmax/W", (config.vocabulary_size, lstm.width), ("softmax.weight",))
        yield _Rule("softmax/b", (config.vocabulary_size,), ("softmax.bias",))


def _character_rules(characters: CharacterConfig) -> Iterator[_Rule]:
    native, width = "token_encoder.characters", characters.width
    yield _Rule("char_embed", (characters.size, characters.dim), (f"{native}.embedding",))
    for i, (span, n) in enumerate(characters.filters):
        yield _Rule(f"CNN/W_cnn_{i}", (1, span, characters.dim, n), (f"{native}.convolutions.{i}.weight",), "convolution")
        yield _Rule(f"CNN/b_cnn_{i}", (n,), (f"{native}.convolutions.{i}.bias",))
    for i in range(characters.highways):
        for stored, part in (("carry", "gate"), ("transform", "transform")):
            yield _Rule(f"CNN_high_{i}/W_{stored}", (width, width), (f"{native}.highways.{i}.{part}.weight",), "linear")
            yield _Rule(f"CNN_high_{i}/b_{stored}", (width,), (f"{native}.highways.{i}.{part}.bias",))


def to_native(config: BiLMConfig, stored: Mapping[str, Stored], *, name: str) -> dict[str, Tensor]:
    """Native tensors from arrays under canonical names; every name and shape is compared before an array is read.

    A character table of 262 rows is brought to 261: where its first row is zero, that row is what loaders put in front to
    stand for "no character"; else the last one was never used.
    """
    rules = list(_rules(config))
    offered = {key: tuple(array.shape) for key, array in stored.items()}
    wanted = {rule.source: rule.shape for rule in rules}
    surplus = config.characters is not None and offered.get("char_embed") == (config.characters.size + 1, config.characters.dim)
    if surplus:
        offered["char_embed"] = wanted["char_embed"]
    compare_keys(wanted, offered, name=name)
    tensors = {}
    for rule in rules:
        array = stored[rule.source].read()
        if not np.issubdtype(array.dtype, np.floating):
            raise WeightsError(f"{name}: {rule.source} holds {array.dtype}; wanted floating-point numbers.")
        array = np.ascontiguousarray(array, dtype=np.float32)
        if surplus and rule.source == "char_embed":
            array = array[:-1].copy() if array[0].any() else array[1:].copy()
        tensors.update(zip(rule.targets, _load(rule, array), strict=True))
    return tensors


def _load(rule: _Rule, array: np.ndarray) -> tuple[Tensor, ...]:
    values = torch.from_numpy(array)
    if rule.kind == "linear":
        return (values.T.contiguous(),)
    if rule.kind == "convolution":
        return (values[0].permute(2, 1, 0).contiguous(),)
    if rule.kind == "bias":
        return (values.view(4, -1)[list(_GATES)].reshape(-1),)
    if rule.kind == "kernel":
        # Block by block into place, so that never more than one copy of the kernel exists beside it.
        width = values.shape[1] // 4
        parts = []
        for rows in (values[: rule.inner], values[rule.inner :]):
            part = torch.empty(values.shape[1], rows.shape[0])
            for new, old in enumerate(_GATES):
                part[new * width : (new + 1) * width] = rows[:, old * width : (old + 1) * width].T
            parts.append(part)
        return tuple(parts)
    return (values,)


def from_native(config: BiLMConfig, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """(canonical name, array) pairs: the inverse of `to_native`.

    TensorFlow adds 1 to the forget gate when the model runs. Where the native bias already holds it (forget_bias 0), 1 is
    subtracted, which rounds the last bit; models with forget_bias 1 come back bit-identical.
    """
    for rule in _rules(config):
        sources = [tensors[target].detach().to("cpu", torch.float32) for target in rule.targets]
        yield rule.source, _store(rule, sources, config.lstm.forget_bias).contiguous().numpy()


def _store(rule: _Rule, sources: list[Tensor], forget_bias: float) -> Tensor:
    values = sources[0]
    if rule.kind == "linear":
        return values.T
    if rule.kind == "convolution":
        return values.permute(2, 1, 0)[None]
    if rule.kind == "bias":
        blocks = values.view(4, -1)
        if forget_bias != 1.0:
            blocks = torch.stack([blocks[0], blocks[1] + (forget_bias - 1.0), blocks[2], blocks[3]])
        return blocks[list(_GATES)].reshape(-1)
    if rule.kind == "kernel":
        joint = torch.cat(sources, dim=1).T
        return torch.cat([joint.chunk(4, dim=1)[old] for old in _GATES], dim=1)
    return values


def check_options(options: Mapping[str, Any], *, name: str) -> None:
    """Raises WeightsError at a key bilm-tf and AllenNLP do not know, which is most likely misspelt."""
    levels: list[tuple[str, Any]] = [("options", options)]
    for path, values in levels:
        if not isinstance(values, Mapping):
            raise WeightsError(f"{name}: {path} is {values!r}; wanted a JSON object.")
        unknown = [key for key in values if key not in _KNOWN_OPTIONS[path]]
        if unknown:
            known = ", ".join(_KNOWN_OPTIONS[path])
            raise WeightsError(f"{name}: {path} has {', '.join(unknown)}, which is not known; known are {known}.")
        levels += [(f"{path}.{key}", value) for key, value in values.items() if f"{path}.{key}" in _KNOWN_OPTIONS]


def config_from_options(options: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, name: str) -> BiLMConfig:
    """The configuration that options and the shapes of the arrays, by canonical names, describe together.

    Whether there are characters, a token projection, an LSTM projection and a second direction is seen from the arrays; the
    size of the word list too. Everything else is the options'.
    """
    check_options(options, name=name)
    try:
        lstm = _lstm_config(options["lstm"], shapes)
        characters = None if "char_cnn" not in options else _character_config(options["char_cnn"])
        words = None
        if characters is None:
            if "embedding" not in shapes:
                raise WeightsError(
                    f"{name} has no char_cnn, so tokens are looked up in an embedding, but none is there; "
                    'give it: token_embeddings="token_embeddings.hdf5".'
                )
            words = WordConfig(size=shapes["embedding"][0], dim=shapes["embedding"][-1])
        softmax = shapes.get("softmax/b")
        return BiLMConfig(
            characters=characters,
            words=words,
            projection=_token_projection(options, characters, shapes),
            lstm=lstm,
            vocabulary_size=None if softmax is None else softmax[0],
            tied_softmax=softmax is not None and bool(options.get("share_embedding_softmax")),
        )
    except KeyError as error:
        raise WeightsError(f"{name} lacks {error.args[0]}, which every model's options hold.") from error
    except (InputError, TypeError, ValueError, IndexError) as error:
        raise WeightsError(f"{name} cannot be used: {error}") from error


def _lstm_config(options: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> LSTMConfig:
    dim, width = options["dim"], options["projection_dim"]
    # dim equal to projection_dim: bilm-tf builds no projection, AllenNLP does. The file shows which of them made it.
    projected = lstm_name(0, 0, "W_P_0") in shapes or dim != width
    return LSTMConfig(
        dim=dim,
        projection=width if projected else None,
        layers=options.get("n_layers", 1),
        residual=bool(options.get("use_skip_connections")),
        cell_clip=options.get("cell_clip") or None,
        projection_clip=options.get("proj_clip") or None,
        bidirectional=any(key.startswith("RNN_1/") for key in shapes),
    )


def _character_config(options: Mapping[str, Any]) -> CharacterConfig:
    return CharacterConfig(
        dim=options["embedding"]["dim"],
        filters=tuple((width, n) for width, n in options["filters"]),
        activation=options["activation"],
        highways=options.get("n_highway") or 0,
        max_characters=options["max_characters_per_token"],
    )


def _token_projection(
    options: Mapping[str, Any], characters: CharacterConfig | None, shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    if characters is None:
        return None
    width = options["lstm"]["projection_dim"]
    return width if "CNN_proj/W_proj" in shapes or characters.width != width else None


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """The options file of a model, for inference, as bilm-tf and AllenNLP read it; WeightsError where they have no such model."""
    lstm, characters = config.lstm, config.characters
    reasons = (
        (characters is not None and characters.scheme != "bytes", "spells words by a character list"),
        (characters is not None and config.words is not None, "joins word and character vectors"),
        (config.words is not None and config.projection is not None, "projects word vectors"),
        (config.token_width != lstm.width, f"feeds vectors of width {config.token_width} to layers of width {lstm.width}"),
    )
    for applies, reason in reasons:
        if applies:
            raise WeightsError(f"the model {reason}, which AllenNLP and bilm-tf have no HDF5 layout for; write a folder instead.")
    options: dict[str, Any] = {
        "lstm": {
            "dim": lstm.dim,
            "n_layers": lstm.layers,
            "projection_dim": lstm.width,
            "use_skip_connections": lstm.residual,
        }
    }
    for key, clip in (("cell_clip", lstm.cell_clip), ("proj_clip", lstm.projection_clip)):
        if clip is not None:
            options["lstm"][key] = clip
    if characters is not None:
        options["char_cnn"] = {
            "activation": characters.activation,
            "embedding": {"dim": characters.dim},
            "filters": [list(pair) for pair in characters.filters],
            "max_characters_per_token": characters.max_characters,
            "n_characters": characters.size + 1,
        }
        if characters.highways:
            options["char_cnn"]["n_highway"] = characters.highways
    return options
