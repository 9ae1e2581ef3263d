"""load and save: an Elmo out of files and back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import polyseme
from polyseme.elmo import Elmo
from polyseme.mix import Mix
from polyseme.weights import checkpoint_hash, read
from polyseme.weights.loading import checkpoint_of
from polyseme.weights.loading import elmo as as_elmo
from tiny import seed_shaped, tiny_config, tiny_elmo

SENTENCE = ["the", "cat", "sat", "."]


@pytest.mark.parametrize(
    "elmo", [tiny_elmo(), tiny_elmo(tiny_config(softmax=True)), seed_shaped()], ids=["plain", "softmax", "words"]
)
def test_saved_and_loaded_bit_for_bit(elmo, tmp_path):
    polyseme.save(elmo, tmp_path / "model")
    back = polyseme.load(tmp_path / "model")
    assert back.config == elmo.config
    assert back.vocabulary == elmo.vocabulary
    assert back.reader.lexicon == elmo.reader.lexicon
    ours, theirs = (dict(one.model.named_parameters()) for one in (elmo, back))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    np.testing.assert_array_equal(elmo.embed([SENTENCE], layers="top")[0], back.embed([SENTENCE], layers="top")[0], strict=True)
    assert back.hash == elmo.hash == checkpoint_hash(read(tmp_path / "model"))
    assert back.name == "model"


@pytest.mark.parametrize("offset", [4, 8, 16, 40])
def test_vectors_do_not_depend_on_where_weights_lie(offset):
    """Files and numpy put arrays anywhere; a product may sum in another order there, and end in other bits."""
    kept = tiny_elmo()
    moved = replace(checkpoint_of(kept), tensors={name: _at(t, offset) for name, t in checkpoint_of(kept).tensors.items()})
    assert all(tensor.data_ptr() % 64 == offset for tensor in moved.tensors.values())
    back = as_elmo(moved)
    assert all(parameter.data_ptr() % 64 == 0 for parameter in back.model.parameters())
    np.testing.assert_array_equal(kept.embed([SENTENCE])[0], back.embed([SENTENCE])[0], strict=True)


def _at(tensor, offset):
    """A copy so many bytes after a round address."""
    memory = torch.empty(4 * tensor.numel() + 128, dtype=torch.uint8)
    start = -memory.data_ptr() % 64 + offset
    return memory[start : start + 4 * tensor.numel()].view(torch.float32).view(tensor.shape).copy_(tensor)


def test_a_loaded_model_does_not_depend_on_its_file(tmp_path):
    polyseme.save(tiny_elmo(), tmp_path / "model")
    elmo = polyseme.load(tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    with weights.open("r+b") as file:  # in place, as a copy onto it would do
        file.write(bytes(weights.stat().st_size))
    assert checkpoint_hash(checkpoint_of(elmo)) == tiny_elmo().hash


def test_mixes_are_kept(tmp_path):
    plain = tiny_elmo()
    mixes = (Mix(weights=(0.5, -1.0, 2.0), gamma=0.25),)
    polyseme.save(Elmo(plain.model, plain.reader, mixes=mixes), tmp_path / "model")
    assert polyseme.load(tmp_path / "model").mixes == mixes


def test_the_lexicon_of_characters_is_kept(golden, tmp_path):
    elmo = polyseme.load(golden / "many_langs/full")
    polyseme.save(elmo, tmp_path / "model")
    back = polyseme.load(tmp_path / "model")
    for one, two in zip(elmo.embed([SENTENCE, ["ß", "<bos>"]]), back.embed([SENTENCE, ["ß", "<bos>"]]), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_checkpoint_shares_memory():
    elmo = tiny_elmo()
    tensors = checkpoint_of(elmo).tensors
    assert all(tensors[name].data_ptr() == parameter.data_ptr() for name, parameter in elmo.model.named_parameters())


def test_the_state_is_warm_in_every_format(tmp_path):
    """A function of the weights alone: a converted file keeps it."""
    polyseme.save(tiny_elmo(), tmp_path / "model")
    polyseme.convert(tmp_path / "model", tmp_path / "weights.hdf5")
    one, two = polyseme.load(tmp_path / "model").warm(), polyseme.load(tmp_path / "weights.hdf5").warm()
    assert torch.equal(one.h, two.h)
    assert torch.equal(one.c, two.c)


def test_nothing_there(tmp_path):
    with pytest.raises(polyseme.WeightsError):
        polyseme.load(tmp_path / "nothing")
