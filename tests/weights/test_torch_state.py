"""Pickles: tensors are read in both torch formats, code in them is never run, damage is one clear error."""

import os
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyseme.errors import WeightsError
from polyseme.weights import read

LAYER = "_elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias"


class Malicious:
    """Would create a file named `ran` if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path / "ran"),)


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    for name in ("elmo.th", "options.json"):
        shutil.copyfile(golden / "allennlp_th" / name, tmp_path / name)
    return tmp_path


def _tensors(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "elmo.th", weights_only=True)


@pytest.mark.parametrize("legacy", [True, False])
def test_code_is_not_run(folder: Path, legacy: bool):
    torch.save({**_tensors(folder), "x": Malicious(folder)}, folder / "elmo.th", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(WeightsError, match="a pickle with code in it is never run"):
        read(folder / "elmo.th")
    (folder / "elmo.th").write_bytes(pickle.dumps(Malicious(folder)))
    with pytest.raises(WeightsError, match=r"a pickle with code in it is never run"):
        read(folder / "elmo.th")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("legacy", [True, False])
def test_every_truncation(folder: Path, legacy: bool):
    torch.save(_tensors(folder), folder / "elmo.th", _use_new_zipfile_serialization=not legacy)
    content = (folder / "elmo.th").read_bytes()
    for size in range(0, len(content), len(content) // 30):
        (folder / "elmo.th").write_bytes(content[:size])
        with pytest.raises(WeightsError, match="damaged"):
            read(folder / "elmo.th")


@pytest.mark.parametrize("legacy", [True, False])
def test_changed_bytes(folder: Path, legacy: bool):
    """Each one line of ours, or harmless: a value may have changed."""
    torch.save(_tensors(folder), folder / "elmo.th", _use_new_zipfile_serialization=not legacy)
    content = (folder / "elmo.th").read_bytes()
    # In the old format storages are named by numbers, once where tensors want them and once in a list at the end.
    storage = re.findall(rb"\d{8,}", content)[-1] if legacy else b"storage"
    places = [content.rindex(storage), *random.Random(0).sample(range(len(content)), 100)]
    errors = []
    for place in places:
        changed = bytes([content[place] ^ 1])
        (folder / "elmo.th").write_bytes(content[:place] + changed + content[place + 1 :])
        try:
            read(folder / "elmo.th")
        except WeightsError as error:
            errors.append(str(error))
    assert len(errors) > 3
    assert [error for error in errors if "\n" in error] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(LAYER), "lacks forward_layer_0.state_linearity.bias"),
        (lambda t: t.update({LAYER: torch.zeros(7)}), r"state_linearity\.bias has shape \(7,\)"),
        (lambda t: t[LAYER].fill_(float("nan")), "holds values that are infinite or no numbers"),
        (lambda t: t.update({"_elmo_lstm.colour": torch.zeros(1)}), "_elmo_lstm.colour, which is no tensor of an Elmo module"),
        (lambda t: t.pop("scalar_mix_0.gamma"), "scalar_mix_0 is incomplete"),
        (lambda t: t.pop("scalar_mix_0.scalar_parameters.1"), "scalar_mix_0 is incomplete"),
        (lambda t: t.pop("_elmo_lstm._token_embedder._char_embedding_weights"), "holds 0 ELMo modules"),
        (lambda t: t.update({f"b.{key}": value for key, value in t.items()}), "holds 2 ELMo modules"),
        (lambda t: t.update(epoch=3), "holds no state dict"),
    ],
)
def test_tensors_that_do_not_fit(folder: Path, change: Callable, message: str):
    tensors = _tensors(folder)
    change(tensors)
    torch.save(tensors, folder / "elmo.th")
    with pytest.raises(WeightsError, match=message):
        read(folder / "elmo.th")


def test_what_is_passed_over(folder: Path):
    """Vectors cached for chosen words, and the task model's own tensors."""
    tensors = _tensors(folder)
    tensors |= {"_elmo_lstm._word_embedding.weight": torch.zeros(3, 9), "tag_projection.weight": torch.zeros(2, 2)}
    torch.save(tensors, folder / "elmo.th")
    assert read(folder).config.lstm.forget_bias == 0.0


def test_options_are_needed(folder: Path):
    (folder / "options.json").rename(folder / "aside")
    with pytest.raises(WeightsError, match=r'needs its options, elmo_options\.json, .* give it: options="options\.json"'):
        read(folder)
    assert read(folder, options=folder / "aside").mixes


def test_a_torch_zip_that_would_grow(folder: Path):
    with zipfile.ZipFile(folder / "elmo.th", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("elmo/data.pkl", b"x")
        archive.writestr("elmo/data/0", bytes(64 << 20))
    with pytest.raises(WeightsError, match=r"elmo/data/0 in .* would grow"):
        read(folder / "elmo.th")
