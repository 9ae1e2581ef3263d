"""The TF-Hub `elmo` modules, versions 1 to 3: a SavedModel folder whose variables are a TensorFlow checkpoint.

The variables stand under bilm/ (CNN/..., RNN_0/RNN/MultiRNNCell/Cell0/rnn/lstm_cell/kernel, ...), and the learned mix is
aggregation/weights and aggregation/scaling. There is no options file; what cannot be seen from the shapes is that of the
one model these modules hold.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig
from polyseme.errors import WeightsError
from polyseme.weights.bundle import BundleArray, read_bundle
from polyseme.weights.checkpoint import Checkpoint, Mix
from polyseme.weights.tensorflow import canonical_name, lstm_name, to_native

_PREFIX = re.compile(r"(?:module/)?bilm/")
_AGGREGATION = re.compile(r"(?:module/)?aggregation/(weights|scaling)")


def is_hub(folder: Path) -> bool:
    """Whether a folder is an unpacked TF-Hub module."""
    return (folder / "variables" / "variables.index").is_file()


def read_hub(folder: Path) -> Checkpoint:
    """A checkpoint from a module's folder. Variables of other names, such as carried states, are passed over."""
    stored: dict[str, BundleArray] = {}
    mix: dict[str, np.ndarray] = {}
    for key, array in read_bundle(folder / "variables" / "variables").items():
        canonical = canonical_name(_PREFIX.sub("", key, count=1))
        if match := _AGGREGATION.fullmatch(key):
            mix[match[1]] = array.read()
        elif canonical is not None and _PREFIX.match(key):
            stored[canonical] = array
    try:
        config = _config({key: array.shape for key, array in stored.items()})
    except (KeyError, IndexError, ValueError) as error:
        raise WeightsError(f"{folder} is not the elmo module: {error} is missing or misshapen among its variables.") from error
    mixes = ()
    if len(mix) == 2 and mix["weights"].size == config.lstm.layers + 1 and mix["scaling"].size == 1:
        mixes = (Mix(weights=tuple(map(float, mix["weights"].reshape(-1))), gamma=float(mix["scaling"].reshape(-1)[0])),)
    return Checkpoint(
        config=config,
        tensors=to_native(config, stored, name=str(folder)),
        mixes=mixes,
        layout="hub",
        metadata={"source": folder.name},
    )


def _config(shapes: Mapping[str, tuple[int, ...]]) -> BiLMConfig:

    def count(pattern: str) -> int:
        return sum(re.fullmatch(pattern, key) is not None for key in shapes)

    convolutions = [shapes[f"CNN/W_cnn_{i}"] for i in range(count(r"CNN/W_cnn_\d+"))]
    dim, width = shapes[lstm_name(0, 0, "W_P_0")]
    return BiLMConfig(
        characters=CharacterConfig(
            dim=shapes["char_embed"][1],
            filters=tuple((width, n) for _, width, _, n in convolutions),
            highways=count(r"CNN_high_\d+/W_carry"),
        ),
        projection=shapes["CNN_proj/W_proj"][1],
        lstm=LSTMConfig(dim=dim, projection=width, layers=count(lstm_name(0, r"\d+", "W_0"))),
    )
