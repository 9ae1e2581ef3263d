"""Model folders: what goes in comes out to the bit; damage, full disks and foreign files are one clear error each."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from parity import Reference, largest_difference
from polyseme.errors import InputError, WeightsError
from polyseme.lstm import LSTMState
from polyseme.vocabulary import Vocabulary
from polyseme.weights import Checkpoint, build, checkpoint_hash, read, reader, write_native
from polyseme.weights.native import FILES
from tiny import read_json

KINDS = ("small", "with_softmax", "words_only", "lexicon", "seed_shaped")
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "native"


def _same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.config == b.config
    assert list(a.tensors) == list(b.tensors)
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    assert (a.vocabulary, a.lexicon, a.characters) == (b.vocabulary, b.lexicon, b.characters)
    assert (a.mixes, a.metadata) == (b.mixes, b.metadata)
    assert checkpoint_hash(a) == checkpoint_hash(b)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    checkpoint = request.getfixturevalue(kind)
    write_native(checkpoint, tmp_path / "model")
    _same(read(tmp_path / "model"), checkpoint)
    assert {entry.name for entry in (tmp_path / "model").iterdir()} <= FILES
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    modes = {oct(entry.stat().st_mode & 0o777) for entry in (tmp_path / "model").iterdir()}
    assert len(modes) == 1
    for part in ("config.json", "model.safetensors"):
        assert checkpoint_hash(read(tmp_path / "model" / part)) == checkpoint_hash(checkpoint)


def test_seed_shaped_layers(seed_shaped: Checkpoint, tmp_path: Path):
    write_native(seed_shaped, tmp_path / "seed")
    layers = []
    for checkpoint in (seed_shaped, read(tmp_path / "seed")):
        words = reader(checkpoint).read(["<S>", "the", "</S>"])
        state = LSTMState.zeros(checkpoint.config.lstm, 1)
        layers.append(build(checkpoint)(words, torch.tensor([[0, 1, 2]]), torch.tensor([3]), state)[0])
    assert [layer.shape[2] for layer in layers[0]] == [600, 128, 128]
    assert all(torch.equal(before, after) for before, after in zip(*layers, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_half_the_size(with_softmax: Checkpoint, tmp_path: Path, dtype, tolerance: float):
    write_native(with_softmax, tmp_path / "model", dtype=dtype)
    found = read(tmp_path / "model")
    for name, tensor in with_softmax.tensors.items():
        assert found.tensors[name].dtype == torch.float32
        assert torch.equal(found.tensors[name], tensor.to(getattr(torch, dtype)).float())
        assert torch.allclose(found.tensors[name], tensor, rtol=tolerance, atol=1e-6)
    with pytest.raises(InputError, match="dtype is 'int8'"):
        write_native(with_softmax, tmp_path / "model", dtype="int8")  # type: ignore[arg-type]


def test_values_too_large_for_half(small: Checkpoint, tmp_path: Path):
    name = next(iter(small.tensors))
    large = replace(small, tensors={**small.tensors, name: small.tensors[name] + 1e6})
    with pytest.raises(WeightsError, match="too large for float16"):
        write_native(large, tmp_path / "model", dtype="float16")
    assert list(tmp_path.iterdir()) == []
    write_native(large, tmp_path / "model", dtype="bfloat16")


def test_without_the_softmax_file(with_softmax: Checkpoint, words_only: Checkpoint, tmp_path: Path):
    for checkpoint in (with_softmax, words_only):
        write_native(checkpoint, tmp_path / "model")
        (tmp_path / "model" / "softmax.safetensors").unlink()
        found = read(tmp_path / "model")
        assert found.config == replace(checkpoint.config, vocabulary_size=None, tied_softmax=False)
        assert not any(name.startswith("softmax") for name in found.tensors)


def test_the_card(with_softmax: Checkpoint, tmp_path: Path):
    write_native(with_softmax, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "2 LSTM layers of 12 cells" in card
    assert f"softmax over {with_softmax.config.vocabulary_size} words" in card
    write_native(with_softmax, tmp_path / "model", card="# Mine\n")
    assert (tmp_path / "model" / "README.md").read_text() == "# Mine\n"


def test_a_folder_with_other_files_is_left_alone(small: Checkpoint, with_softmax: Checkpoint, tmp_path: Path):
    write_native(with_softmax, tmp_path / "model")
    write_native(small, tmp_path / "model")  # a model is replaced as a whole, its softmax too
    assert not (tmp_path / "model" / "softmax.safetensors").exists()
    (tmp_path / "model" / "thesis.tex").write_text("years of work")
    with pytest.raises(WeightsError, match=r"already holds thesis\.tex"):
        write_native(with_softmax, tmp_path / "model")
    assert (tmp_path / "model" / "thesis.tex").read_text() == "years of work"
    _same(replace(read(tmp_path / "model"), metadata={}), small)
    with pytest.raises(WeightsError, match="is a file"):
        write_native(small, tmp_path / "model" / "thesis.tex")


def test_not_a_number(small: Checkpoint, tmp_path: Path):
    for value in (float("nan"), float("inf"), -float("inf")):
        name = list(small.tensors)[3]
        tensor = small.tensors[name].clone()
        tensor.view(-1)[-1] = value
        broken = replace(small, tensors={**small.tensors, name: tensor})
        with pytest.raises(WeightsError, match=f"{name} holds values that are infinite or no numbers"):
            write_native(broken, tmp_path / "model")
        write_native(small, tmp_path / "model")
        safetensors.torch.save_file(broken.tensors, tmp_path / "model" / "model.safetensors")
        with pytest.raises(WeightsError, match=f"{name} holds values that are infinite or no numbers"):
            read(tmp_path / "model")


def test_every_truncation(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    content = path.read_bytes()
    for size in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:size])
        with pytest.raises(WeightsError, match="damaged or incomplete"):
            read(tmp_path / "model")
    path.unlink()
    with pytest.raises(WeightsError, match="is missing"):
        read(tmp_path / "model")


def test_missing_misshapen_and_foreign_tensors(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    name = "lstm.forward_layers.0.bias"
    cases = [
        ({key: tensor for key, tensor in small.tensors.items() if key != name}, f"lacks {name}"),
        ({**small.tensors, name: torch.zeros(7)}, rf"{name} has shape \(7,\)"),
        ({**small.tensors, "lstm.bias": torch.zeros(7)}, "also holds lstm.bias"),
        ({**small.tensors, name: small.tensors[name].to(torch.int32)}, f"{name} is stored as I32"),
    ]
    for tensors, message in cases:
        safetensors.torch.save_file(tensors, path)
        with pytest.raises(WeightsError, match=message):
            read(tmp_path / "model")


def test_bad_configurations(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    good = json.loads(path.read_text())
    cases = [
        ({**good, "version": 2}, "version 1"),
        ({**good, "colour": "red"}, "colour"),
        ({**good, "model": {**good["model"], "colour": "red"}}, "has no colour"),
        ({**good, "model": {**good["model"], "projection": "wide"}}, "projection is 'wide'"),
        ({**good, "model": []}, "wanted a JSON object"),
        ({**good, "mixes": [{"weights": [1, 2]}]}, "gamma"),
        ({**good, "mixes": [{"weights": [1, 2], "gamma": 1}]}, "2 weights for 3 layers"),
        ({**good, "vocabulary_markers": ["a"]}, "vocabulary_markers"),
    ]
    (tmp_path / "model" / "vocab.txt").write_text("a\n")
    for values, message in cases:
        path.write_text(json.dumps(values))
        with pytest.raises(WeightsError, match=message):
            read(tmp_path / "model")
    path.write_text("{")
    with pytest.raises(WeightsError, match="not valid JSON"):
        read(tmp_path / "model")


def test_huge_shapes_take_no_memory(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    values = json.loads(path.read_text())
    values["model"]["lstm"]["dim"] = 10**18
    path.write_text(json.dumps(values))
    with pytest.raises(WeightsError, match="no machine can hold"):
        read(tmp_path / "model")
    values["model"]["lstm"]["dim"] = 10**9
    path.write_text(json.dumps(values))
    with pytest.raises(WeightsError, match="has shape"):
        read(tmp_path / "model")


def test_words_that_cannot_stand_on_a_line(small: Checkpoint, tmp_path: Path):
    for word, message in (("a\nb", "line break"), ("\ud800", "not valid Unicode")):
        with pytest.raises(WeightsError, match=message):
            write_native(replace(small, vocabulary=Vocabulary((word,))), tmp_path / "model")
        assert list(tmp_path.iterdir()) == []


def test_lists_of_another_length(with_softmax: Checkpoint, words_only: Checkpoint, lexicon: Checkpoint, tmp_path: Path):
    cases = (
        (with_softmax, {"vocabulary": Vocabulary(("a",))}, "vocabulary has 1 lines but the softmax has"),
        (words_only, {"lexicon": Vocabulary(("a",))}, "word list has 1 lines but the word embedding has"),
        (lexicon, {"characters": Vocabulary(("a",))}, "character list has 1 lines but the character embedding has"),
        (lexicon, {"characters": None}, "character list, which is not there"),
        (lexicon, {"lexicon": None}, "list of these words is not there"),
    )
    for checkpoint, change, message in cases:
        with pytest.raises(WeightsError, match=message):
            write_native(replace(checkpoint, **change), tmp_path / "model")
        assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written(small: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="could not be written"):
        write_native(small, tmp_path / "file" / "model")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(WeightsError, match="Read-only file system"):
        write_native(small, tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_old_model_comes_back_when_the_new_one_cannot_take_its_place(
    small: Checkpoint, with_softmax: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_native(small, tmp_path / "model")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(WeightsError, match="could not be written"):
        write_native(with_softmax, tmp_path / "model")
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    _same(read(tmp_path / "model"), small)


FULL_DISK = """
import resource, sys
from pathlib import Path
from polyseme.lstm import LSTMState
from polyseme.errors import WeightsError
from polyseme.weights import read, write
checkpoint = read(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    write(checkpoint, sys.argv[2])
except WeightsError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("target", ["new", "new.hdf5"])
def test_a_full_disk(small: Checkpoint, tmp_path: Path, target: str):
    write_native(small, tmp_path / "model")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "model"), str(tmp_path / target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "could not be written" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_the_folder_of_the_first_release_is_read():
    """A folder written when the format was made, with the vectors it gave then."""
    reference = Reference(read(GOLDEN))
    recorded = np.load(GOLDEN.parent / "native.npz")
    sentences = read_json(GOLDEN.parent / "native_sentences.json")
    ours = [reference.zero(sentence) for sentence in sentences]
    assert largest_difference(ours, [recorded[f"s{number:03d}"] for number in range(len(sentences))]) < 1e-6
