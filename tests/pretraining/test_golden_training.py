"""Ten recorded steps of bilm-tf, reproduced from the text file on: data, losses, gradients, clipping, Adagrad, states."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.pretraining.config import OptimizerConfig, PretrainConfig
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.losses import Draw
from polyseme.pretraining.run import Lists, Run
from polyseme.vocabulary import Vocabulary

CASES = ["char_full", "char_clipping", "char_noskip", "word_shared_softmax", "char_sampled"]
LOSSES, WEIGHTS, ACCUMULATORS, STATES, GRADIENTS = 2e-6, 2e-6, 5e-6, 2e-6, 2e-6


def _config(options: dict, *, clip: float, sampled: bool) -> PretrainConfig:
    lstm, cnn = options["lstm"], options.get("char_cnn")
    characters = None
    if cnn is not None:
        characters = CharacterConfig(
            dim=cnn["embedding"]["dim"],
            filters=tuple((width, n) for width, n in cnn["filters"]),
            activation=cnn["activation"],
            highways=cnn.get("n_highway", 0),
            max_characters=cnn["max_characters_per_token"],
        )
    size = options["n_tokens_vocab"]
    tied = options.get("share_embedding_softmax", False)
    model = BiLMConfig(
        characters=characters,
        words=None if cnn is not None else WordConfig(size=size, dim=lstm["projection_dim"]),
        projection=None if cnn is None else lstm["projection_dim"],
        lstm=LSTMConfig(
            dim=lstm["dim"],
            projection=lstm["projection_dim"],
            layers=lstm.get("n_layers", 1),
            residual=lstm.get("use_skip_connections", False),
            cell_clip=lstm.get("cell_clip"),
            projection_clip=lstm.get("proj_clip"),
        ),
        vocabulary_size=size,
        tied_softmax=tied,
    )
    return PretrainConfig(
        model=model,
        optimizer=OptimizerConfig(clip_norm=clip),
        rows=options["batch_size"],
        unroll=options["unroll_steps"],
        streams="shared",
        shuffle=False,
        negatives=options["n_negative_samples_batch"] if sampled else None,
        loss_scale=float(options["unroll_steps"]),
        dropout=0.0,
    )


def _gates(kernel: np.ndarray) -> np.ndarray:
    """TensorFlow's gate order i, j, f, o → ours, i, f, j, o."""
    i, j, f, o = np.split(kernel, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1)


def _native(values: dict[str, np.ndarray], config: PretrainConfig) -> dict[str, np.ndarray]:
    """Arrays under TensorFlow's names (weights, gradients or accumulators) → ours."""
    found: dict[str, np.ndarray] = {}
    width = config.model.token_width
    for name, value in values.items():
        short = name.removeprefix("lm/")
        parts = short.split("/")
        if short == "char_embed":
            found["token_encoder.characters.embedding"] = value
        elif short == "embedding":
            found["token_encoder.words"] = value
        elif parts[0] == "CNN":
            kind, _, number = parts[1].split("_")
            convolution = f"token_encoder.characters.convolutions.{number}"
            found[f"{convolution}.{'weight' if kind == 'W' else 'bias'}"] = value[0].transpose(2, 1, 0) if kind == "W" else value
        elif parts[0].startswith("CNN_high"):
            kind, role = parts[1].split("_")
            highway = f"token_encoder.characters.highways.{parts[0].removeprefix('CNN_high_')}"
            layer = "gate" if role == "carry" else "transform"
            found[f"{highway}.{layer}.{'weight' if kind == 'W' else 'bias'}"] = value.T
        elif parts[0] == "CNN_proj":
            found[f"token_encoder.projection.{'weight' if parts[1] == 'W_proj' else 'bias'}"] = value.T
        elif parts[0].startswith("RNN_"):
            direction = ("forward", "backward")[int(parts[0].removeprefix("RNN_"))]
            number = next((part.removeprefix("cell_") for part in parts if part.startswith("cell_")), "0")
            layer = f"lstm.{direction}_layers.{number}"
            if parts[-2] == "projection":
                found[f"{layer}.projection_weight"] = value.T
            elif parts[-1] == "bias":
                found[f"{layer}.bias"] = _gates(value)
            else:
                inputs = width if number == "0" else config.model.lstm.width
                found[f"{layer}.input_weight"] = _gates(value[:inputs]).T
                found[f"{layer}.recurrent_weight"] = _gates(value[inputs:]).T
        elif parts[0] == "softmax":
            if parts[1] == "b" or not config.model.tied_softmax:
                found["softmax.bias" if parts[1] == "b" else "softmax.weight"] = value
        else:
            raise AssertionError(name)
    return found


def _close(found: dict[str, torch.Tensor], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].detach().numpy(), value, atol=tolerance, rtol=0, err_msg=name)


def _split(archive: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    slots = {name.removesuffix("/Adagrad"): value for name, value in archive.items() if name.endswith("/Adagrad")}
    return {name: value for name, value in archive.items() if not name.endswith("/Adagrad")}, slots


def _draws(trace: dict[str, np.ndarray], size: int) -> Iterator[tuple[Draw, Draw]]:
    """The recorded samples of each step, and the number of tries their expected counts imply."""
    for step in range(10):
        pair = []
        for direction in ("forward", "backward"):
            ids = torch.from_numpy(trace[f"{direction}_sampled_ids"][step].astype(np.int64))
            expected = trace[f"{direction}_sampled_expected_count"][step].astype(np.float64)
            probability = np.log1p(1 / (ids.numpy() + 1)) / np.log(size + 1)
            tries = round(float(np.median(np.log1p(-np.minimum(expected, 1 - 1e-9)) / np.log1p(-probability))))
            if np.allclose(expected, len(ids) * probability, rtol=1e-5):
                tries = len(ids)
            pair.append(Draw(ids=ids, expected=torch.from_numpy(expected).float(), tries=tries, size=size))
        yield pair[0], pair[1]


@pytest.mark.parametrize("case", CASES)
def test_the_recorded_steps(golden: Path, case: str, monkeypatch: pytest.MonkeyPatch):
    folder = golden / "training"
    read = {path.stem: dict(np.load(path)) for path in (folder / case).glob("*.npz")}
    options = json.loads((folder / case / "options.json").read_text())
    config = _config(options, clip=options["all_clip_norm_val"], sampled=case == "char_sampled")
    lines = (folder / "train.txt").read_text(encoding="utf-8").splitlines()
    corpus = Corpus.from_sentences([line.split() for line in lines])
    run = Run(config, corpus, Lists(Vocabulary.read(folder / "vocab.txt")))
    with torch.no_grad():
        for name, value in _native(read["initial"], config).items():
            run.parameters[name].copy_(torch.from_numpy(value))
    trace = read["trace"]
    if case == "char_sampled":
        draws = _draws(trace, len(run.lists.vocabulary))
        monkeypatch.setattr(run, "_draw", lambda: next(draws))
    for step in range(10):
        found = run.advance()
        for name in ("loss", "loss_forward", "loss_backward"):
            assert getattr(found, name.removeprefix("loss_")) == pytest.approx(trace[name][step], abs=LOSSES), name
        assert found.norm == pytest.approx(trace["gradient_norm_before_clipping"][step], rel=5e-6, abs=5e-6)
        if step == 0:
            _close(_dense_gradients(run), _native(read["gradients_step1"], config), GRADIENTS)
        for number, direction in enumerate(("forward", "backward")):
            for layer in range(config.model.lstm.layers):
                for kind, ours in (("c", run.carried.c), ("h", run.carried.h)):
                    expected = read["states"][f"step{step:02d}_{direction}_layer{layer}_{kind}"]
                    np.testing.assert_allclose(ours[layer, number].numpy(), expected, atol=STATES, rtol=0)
        if step in (0, 9):
            weights, slots = _split(read[f"after_step{step + 1}"])
            _close(dict(run.parameters), _native(weights, config), WEIGHTS)
            _close(run.optimizer.state["accumulator"], _native(slots, config), ACCUMULATORS)


def _dense_gradients(run: Run) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in run.parameters.items():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        rows = run.training.sparse.get(name)
        if rows is not None and parameter.grad is None:
            gradient.index_add_(0, rows.ids, rows.values)
        found[name] = gradient
    return found
