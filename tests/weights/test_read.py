"""One way in: layouts are told apart by content, and what fits none gets one error that names them all."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyseme.errors import InputError, WeightsError
from polyseme.weights import LAYOUTS, Checkpoint, build, checkpoint_hash, convert, read, verify, write, write_native
from polyseme.weights.bilm_tf import read_accumulators


@pytest.mark.parametrize(
    "name", ["", "model.ckpt-50", "model.ckpt-50.index", "model.ckpt-50.data-00000-of-00001", "checkpoint-less"]
)
def test_every_name_of_a_checkpoint(golden: Path, tmp_path: Path, name: str):
    folder = tmp_path / "full"
    shutil.copytree(golden / "tf_checkpoint" / "full", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    expected = read(golden / "tf_checkpoint" / "full")
    assert expected.layout == "bilm_tf"
    if name == "checkpoint-less":
        (folder / "checkpoint").unlink()
        for suffix in ("index", "data-00000-of-00001"):
            shutil.copy(folder / f"model.ckpt-50.{suffix}", folder / f"model.ckpt-9.{suffix}")
        name = ""
    assert checkpoint_hash(read(folder / name)) == checkpoint_hash(expected)
    assert read(folder / name).metadata == {"source": "model.ckpt-50"}


def test_the_checkpoint_file_may_hold_another_machine_s_path(golden: Path, tmp_path: Path):
    folder = tmp_path / "full"
    shutil.copytree(golden / "tf_checkpoint" / "full", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"model.ckpt-50.{suffix}", folder / f"model.ckpt-7.{suffix}")
    (folder / "checkpoint").write_text('model_checkpoint_path: "/home/someone/models/model.ckpt-7"\n')
    assert read(folder).metadata == {"source": "model.ckpt-7"}


def test_a_checkpoint_needs_options(golden: Path, tmp_path: Path):
    for name in ("model.ckpt-50.index", "model.ckpt-50.data-00000-of-00001"):
        shutil.copyfile(golden / "tf_checkpoint" / "full" / name, tmp_path / name)
    with pytest.raises(WeightsError, match="needs its options"):
        read(tmp_path)
    assert read(tmp_path, options=golden / "tf_checkpoint" / "full" / "options.json").config.vocabulary_size == 528


def test_accumulators_are_laid_out_as_their_parameters(golden: Path):
    checkpoint = read(golden / "tf_checkpoint" / "full")
    slots = read_accumulators(golden / "tf_checkpoint" / "full" / "model.ckpt-50", checkpoint.config)
    assert {name: slot.shape for name, slot in slots.items()} == {name: t.shape for name, t in checkpoint.tensors.items()}
    assert all((slot >= 1).all() for slot in slots.values())  # they start at 1 and only grow


def test_native_goes_before_checkpoint_before_hdf5(small: Checkpoint, golden: Path, tmp_path: Path):
    folder = tmp_path / "many"
    shutil.copytree(golden / "tf_checkpoint" / "full", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    assert read(folder).layout == "bilm_tf"
    assert read(folder, layout="allennlp").layout == "allennlp"
    write_native(small, tmp_path / "native")
    for path in (tmp_path / "native").iterdir():
        shutil.copy(path, folder)
    assert read(folder).layout == "native"
    for path in folder.glob("model.ckpt*"):
        path.unlink()
    (folder / "config.json").unlink()
    assert read(folder).layout == "allennlp"


@pytest.mark.parametrize("kind", ["an empty folder", "a text", "nothing", "a foreign config"])
def test_nothing_fits(tmp_path: Path, kind: str):
    path = tmp_path / "x"
    if kind == "an empty folder":
        path.mkdir()
    elif kind == "a foreign config":
        path.mkdir()
        (path / "config.json").write_text('{"model_type": "bert"}')
        (path / "model.safetensors").write_bytes(b"")
    elif kind == "a text":
        path.write_text("no model")
    with pytest.raises(WeightsError) as caught:
        read(path)
    for name in LAYOUTS:
        assert f"({name})" in str(caught.value)


def test_arguments(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "model")
    with pytest.raises(InputError, match="layout is 'onnx'; wanted one of native, bilm_tf"):
        read(tmp_path / "model", layout="onnx")
    for name in ("options", "vocabulary", "token_embeddings"):
        with pytest.raises(WeightsError, match=f"{name} is 'none.x', which is no file"):
            read(tmp_path / "model", **{name: "none.x"})
    for name in ("options", "vocabulary", "token_embeddings"):
        with pytest.raises(InputError, match=f"is a folder with .* which takes no {name}"):
            read(tmp_path / "model", **{name: tmp_path / "model" / "config.json"})
    with pytest.raises(InputError, match=r"revision is 'v1', but .* is a local path"):
        read(tmp_path / "model", revision="v1")
    for name in ("x.th", "x.zip", "x.safetensors"):
        with pytest.raises(InputError, match=f"{re.escape(name)} cannot be written"):
            write(small, tmp_path / name)
    with pytest.raises(WeightsError, match="is no TensorFlow checkpoint"):
        read(tmp_path / "model", layout="bilm_tf")
    with pytest.raises(WeightsError, match=r"holds no file whose name ends in \.hdf5 or \.h5\.$"):
        read(tmp_path / "model", layout="allennlp")
    for nothing in (None, 3, ""):
        with pytest.raises(InputError, match=f"path is {nothing!r}; wanted a folder"):
            read(nothing)


def test_convert_takes_what_read_takes(golden: Path, tmp_path: Path):
    folder = golden / "bilm_tf" / "token_cached"
    arguments = {"vocabulary": golden / "bilm_tf" / "vocab.txt", "token_embeddings": folder / "token_embeddings.hdf5"}
    returned = convert(folder / "weights.hdf5", tmp_path / "native", **arguments)
    assert checkpoint_hash(read(tmp_path / "native")) == checkpoint_hash(returned)
    convert(tmp_path / "native", tmp_path / "back_weights.hdf5")
    assert checkpoint_hash(read(tmp_path / "back_weights.hdf5")) == checkpoint_hash(returned)


def test_a_failed_convert_leaves_nothing(golden: Path, tmp_path: Path):
    with pytest.raises(WeightsError):
        convert(golden / "many_langs" / "full", tmp_path / "x.hdf5")
    assert list(tmp_path.iterdir()) == []


def test_build_shares_memory_and_checks(small: Checkpoint, words_only: Checkpoint):
    model = build(small)
    parameters = dict(model.named_parameters())
    assert list(parameters) == list(small.tensors)
    assert all(parameters[name].data_ptr() == tensor.data_ptr() for name, tensor in small.tensors.items())
    tied = build(words_only)
    assert tied.softmax is not None
    assert tied.softmax.weight is tied.token_encoder.words
    name = "lstm.forward_layers.0.bias"
    bad = torch.full_like(small.tensors[name], float("nan"))
    cases = [
        ({**small.tensors, name: bad}, "infinite or no numbers"),
        ({**small.tensors, name: bad.double()}, "is torch.float64; wanted torch"),
        ({**small.tensors, name: bad[:1]}, "has shape"),
        ({**small.tensors, "x": bad}, "also holds x"),
        ({key: value for key, value in small.tensors.items() if key != name}, f"lacks {name}"),
    ]
    for tensors, message in cases:
        with pytest.raises(WeightsError, match=message):
            build(replace(small, tensors=tensors))


def test_the_hash_follows_configuration_and_values(small: Checkpoint):
    verify(small)
    name = "lstm.forward_layers.0.bias"
    assert checkpoint_hash(small) == checkpoint_hash(
        replace(small, layout="x", metadata={"a": "b"}, tensors=dict(reversed(small.tensors.items())))
    )
    changed = replace(small, tensors={**small.tensors, name: small.tensors[name] + 1e-6})
    other = replace(small, config=replace(small.config, tokenization="whitespace"))
    assert len({checkpoint_hash(each) for each in (small, changed, other)}) == 3
