"""TF-Hub's elmo module, from a folder synthesised with the variable names its own log lists: no original was at hand."""

from pathlib import Path

import numpy as np
import pytest

from bundles import write_bundle
from polyseme.errors import WeightsError
from polyseme.weights import Checkpoint, Mix, checkpoint_hash, read
from polyseme.weights.tensorflow import from_native


def _module(checkpoint: Checkpoint, folder: Path, *, prefix: str = "", rows: int = 261) -> Path:
    variables = {}
    for name, array in from_native(checkpoint.config, checkpoint.tensors):
        name = name.replace("LSTMCell/W_P_0", "rnn/lstm_cell/projection/kernel")
        name = name.replace("LSTMCell/W_0", "rnn/lstm_cell/kernel").replace("LSTMCell/B", "rnn/lstm_cell/bias")
        if name == "char_embed" and rows == 262:
            array = np.concatenate([np.zeros_like(array[:1]), array])
        variables[f"{prefix}bilm/{name}"] = array
    variables[f"{prefix}bilm/Variable"] = np.zeros((2, 12), np.float32)  # a carried state
    variables[f"{prefix}aggregation/weights"] = np.array([0.25, -0.5, 1.0], np.float32)
    variables[f"{prefix}aggregation/scaling"] = np.array(2.0, np.float32)
    write_bundle(folder / "variables" / "variables", variables, snappy=True)
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


@pytest.mark.parametrize("prefix", ["", "module/"])
@pytest.mark.parametrize("rows", [261, 262])
def test_a_module(small: Checkpoint, tmp_path: Path, prefix: str, rows: int):
    checkpoint = read(_module(small, tmp_path / "elmo", prefix=prefix, rows=rows))
    assert checkpoint.layout == "hub"
    assert checkpoint.mixes == (Mix(weights=(0.25, -0.5, 1.0), gamma=2.0),)
    assert checkpoint.config.tokenization == "penn"
    for name, tensor in small.tensors.items():
        assert tensor.equal(checkpoint.tensors[name])
    assert checkpoint.config.lstm == small.config.lstm
    assert checkpoint.config.characters == small.config.characters
    assert checkpoint_hash(checkpoint) == checkpoint_hash(read(tmp_path / "elmo", layout="hub"))


def test_another_module(tmp_path: Path):
    write_bundle(tmp_path / "variables" / "variables", {"embeddings": np.zeros((3, 2), np.float32)})
    with pytest.raises(WeightsError, match="is not the elmo module"):
        read(tmp_path)
