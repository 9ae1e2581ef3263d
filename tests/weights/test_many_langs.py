"""ELMoForManyLangs: both pickle formats, the architecture's file, the word lists' quirks, the softmax."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from polyseme.characters import distinct
from polyseme.errors import WeightsError
from polyseme.lstm import LSTMState
from polyseme.weights import build, checkpoint_hash, read, reader, write
from polyseme.weights.many_langs import _PUBLISHED


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    shutil.copytree(golden / "many_langs" / "full", tmp_path / "full", copy_function=shutil.copyfile)
    (tmp_path / "full").chmod(0o755)
    return tmp_path / "full"


def test_zip_folder_and_pickle_format_do_not_matter(folder: Path, tmp_path: Path):
    found = read(folder)
    for name in ("encoder.pkl", "token_embedder.pkl"):
        torch.save(torch.load(folder / name, weights_only=True), folder / name)
    assert checkpoint_hash(read(folder)) == checkpoint_hash(found)
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, f"144/{path.name}")
    assert checkpoint_hash(read(tmp_path / "model.zip")) == checkpoint_hash(found)
    assert found.characters == read(tmp_path / "model.zip").characters


def test_native_round_trip(folder: Path, tmp_path: Path):
    checkpoint = read(folder)
    write(checkpoint, tmp_path / "native")
    found = read(tmp_path / "native")
    assert checkpoint_hash(found) == checkpoint_hash(checkpoint)
    assert (found.lexicon, found.characters) == (checkpoint.lexicon, checkpoint.characters)


def test_the_architecture_in_a_subfolder_or_by_a_windows_path(folder: Path):
    expected = checkpoint_hash(read(folder))
    (folder / "configs").mkdir()
    (folder / "tiny_arch.json").rename(folder / "configs" / "tiny_arch.json")
    assert checkpoint_hash(read(folder)) == expected
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "config_path": "C:\\models\\tiny_arch.json"}))
    assert checkpoint_hash(read(folder)) == expected


def test_without_an_architecture_the_published_one(folder: Path):
    for name in ("tiny_arch.json", "config.json"):
        (folder / name).unlink()
        with pytest.raises(WeightsError, match=r"with the published architecture lacks convolutions\.4"):
            read(folder)
    assert sum(n for _, n in _PUBLISHED["token_embedder"]["filters"]) == 2048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["encoder"].pop("dim"), "'dim'"),
        (lambda a: a["encoder"].update(name="lstm"), "'lstm' over 'cnn'"),
        (lambda a: a["encoder"].update(dim=20), "has shape"),
        (lambda a: a["token_embedder"].update(activation="swish"), "'swish'"),
        (lambda a: a["token_embedder"].update(char_dim=0), "asks for"),
    ],
)
def test_architectures_that_do_not_fit(folder: Path, change, message: str):
    architecture = json.loads((folder / "tiny_arch.json").read_text())
    change(architecture)
    (folder / "tiny_arch.json").write_text(json.dumps(architecture))
    with pytest.raises(WeightsError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"<oov>\t0\n<bos>\t1\n<eos>\t3\n", "lines are missing"),
        (b"<oov>\t0\n<bos>\t0\n", "the id 0 was given to '<oov>' before"),
        (b"<oov>\tzero\n", "line 1: wanted a token, a tab and a number"),
        (b"\xff\t0\n", "line 1: wanted a token"),
        (b"<oov>\t0\n", "asks for"),
    ],
)
def test_word_lists_that_do_not_fit(folder: Path, lines: bytes, message: str):
    (folder / "word.dic").write_bytes(lines)
    with pytest.raises(WeightsError, match=message):
        read(folder)


@pytest.mark.parametrize("name", ["word.dic", "char.dic"])
def test_missing_word_lists(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(WeightsError, match=rf"{name} is not there"):
        read(folder)


def test_the_ideographic_space(folder: Path):
    checkpoint = read(folder)
    assert checkpoint.lexicon is not None
    assert checkpoint.characters is not None
    assert checkpoint.lexicon.get("\u3000") == 32
    assert checkpoint.characters.get("\u3000") == 43


@pytest.mark.parametrize("kind", ["sampled_softmax", "softmax"])
def test_the_softmax(folder: Path, kind: str):
    """Scores as the original computes them: column_emb and column_bias by word, or one linear layer; oov_column is not read."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(34, 6, generator=generator), torch.randn(34, generator=generator)
    if kind == "softmax":
        tensors = {"hidden2tag.weight": weight, "hidden2tag.bias": bias}
    else:
        tensors = {"column_emb.weight": weight, "column_bias.weight": bias[:, None], "oov_column": torch.ones(6, 1)}
    torch.save(tensors, folder / "classifier.pkl")
    architecture = json.loads((folder / "tiny_arch.json").read_text())
    architecture["classifier"]["name"] = kind
    (folder / "tiny_arch.json").write_text(json.dumps(architecture))
    checkpoint = read(folder)
    assert checkpoint.config.vocabulary_size == 34
    assert checkpoint.vocabulary == checkpoint.lexicon
    model, words = build(checkpoint), reader(checkpoint)
    sentence = [words.begin, "今", "天", words.end]
    found, index = distinct([sentence])
    with torch.no_grad():
        layers, _ = model(words.read(found), torch.tensor(index), torch.tensor([4]), LSTMState.zeros(checkpoint.config.lstm, 1))
        hidden = layers[-1][0, :, :6]
        assert model.softmax is not None
        expected = torch.log_softmax(hidden @ weight.T + bias, dim=1)
        assert torch.allclose(model.softmax.log_probabilities(hidden), expected, atol=1e-6)
    tensors.popitem()
    tensors.pop(next(iter(tensors)))
    torch.save(tensors, folder / "classifier.pkl")
    with pytest.raises(WeightsError, match=r"classifier\.pkl in .* lacks"):
        read(folder)


def test_a_softmax_over_spelled_words_is_left_out(folder: Path):
    torch.save({"M": torch.zeros(6, 2), "corr.weight": torch.zeros(34, 2)}, folder / "classifier.pkl")
    architecture = json.loads((folder / "tiny_arch.json").read_text())
    architecture["classifier"]["name"] = "cnn_softmax"
    (folder / "tiny_arch.json").write_text(json.dumps(architecture))
    assert read(folder).config.vocabulary_size is None


def test_foreign_and_truncated_pickles(folder: Path):
    tensors = torch.load(folder / "token_embedder.pkl", weights_only=True)
    content = (folder / "encoder.pkl").read_bytes()
    (folder / "encoder.pkl").write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsError, match=r"encoder\.pkl in .* damaged"):
        read(folder)
    torch.save({**tensors, "colour": torch.zeros(1)}, folder / "token_embedder.pkl")
    with pytest.raises(WeightsError, match=r"token_embedder\.pkl in .* holds colour"):
        read(folder)
