"""Checkpoint bundles: what TensorFlow wrote, other legal forms, and every kind of damage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundles import entry, table, varint, write_bundle
from polyseme.errors import WeightsError
from polyseme.weights.bundle import read_bundle

VARIABLES = {
    "scalar": np.array(3, dtype=np.int64),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "double": np.linspace(0, 1, 5),
    **{f"block/{number:03d}/weights": np.full((number, 2), number, dtype=np.float32) for number in range(40)},
}


def test_tensorflow_s_own(golden: Path):
    folder = golden / "tf_checkpoint" / "sampled"
    bundle = read_bundle(folder / "model.ckpt-50")
    listed = json.loads((folder / "variables.json").read_text())
    assert {name: list(array.shape) for name, array in bundle.items()} == dict(listed)
    assert len(bundle) == 68
    with np.load(folder / "variables.npz") as recorded:
        assert set(recorded) == set(bundle)
        for name in recorded:
            np.testing.assert_array_equal(bundle[name].read(), recorded[name])


@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("block_entries", [1, 7, 1000])
def test_every_form(tmp_path: Path, snappy: bool, shards: int, block_entries: int):
    write_bundle(tmp_path / "model.ckpt-7", VARIABLES, shards=shards, snappy=snappy, block_entries=block_entries)
    bundle = read_bundle(tmp_path / "model.ckpt-7")
    assert set(bundle) == set(VARIABLES)
    for name, array in VARIABLES.items():
        values = bundle[name].read()
        assert values.dtype == array.dtype
        np.testing.assert_array_equal(values, array)


def test_bfloat16_is_widened(tmp_path: Path):
    values = np.array([1.0, -2.5, 0.15625], dtype=np.float32)
    write_bundle(tmp_path / "x", {"a": values})
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    (tmp_path / "x.data-00000-of-00001").write_bytes(upper.tobytes())
    from polyseme.weights.checksum import crc32c, mask

    value = entry(upper, shard=0, offset=0, checksum=mask(crc32c(upper.view(np.uint8))), code=14)
    pairs = [(b"", varint(8) + varint(1)), (b"a", value)]
    (tmp_path / "x.index").write_bytes(table(pairs, snappy=False, block_entries=4))
    np.testing.assert_array_equal(read_bundle(tmp_path / "x")["a"].read(), values)


def test_strings_are_passed_over(tmp_path: Path):
    values = np.zeros(3, np.int32)
    pairs = [(b"", varint(8) + varint(1)), (b"graph", entry(values, shard=0, offset=0, checksum=0, code=7))]
    (tmp_path / "x.index").write_bytes(table(pairs, snappy=False, block_entries=4))
    assert read_bundle(tmp_path / "x") == {}


def test_a_shape_that_does_not_fit_its_size(tmp_path: Path):
    values = np.zeros(3, np.float32)
    pairs = [(b"", varint(8) + varint(1)), (b"a", entry(values, shard=0, offset=0, checksum=0, code=2))]
    (tmp_path / "x.index").write_bytes(table(pairs, snappy=False, block_entries=4))
    with pytest.raises(WeightsError, match=r"variable a of shape \(3,\) is said to have 12 bytes"):
        read_bundle(tmp_path / "x")


def test_a_changed_value_is_noticed(tmp_path: Path):
    write_bundle(tmp_path / "x", {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    data = bytearray((tmp_path / "x.data-00000-of-00001").read_bytes())
    data[1] ^= 1
    (tmp_path / "x.data-00000-of-00001").write_bytes(data)
    bundle = read_bundle(tmp_path / "x")
    bundle["b"].read()
    with pytest.raises(WeightsError, match="checksum of a does not fit"):
        bundle["a"].read()


def test_missing_and_short_parts(tmp_path: Path, golden: Path):
    for name in ("model.ckpt-50.index", "model.ckpt-50.data-00000-of-00001"):
        shutil.copyfile(golden / "tf_checkpoint" / "full" / name, tmp_path / name)
    data = tmp_path / "model.ckpt-50.data-00000-of-00001"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(WeightsError, match="the checkpoint is incomplete"):
        read_bundle(tmp_path / "model.ckpt-50")
    data.unlink()
    with pytest.raises(WeightsError, match="is missing"):
        read_bundle(tmp_path / "model.ckpt-50")
    with pytest.raises(WeightsError, match="cannot be read"):
        read_bundle(tmp_path / "none")


def test_every_truncation_of_the_index(tmp_path: Path, golden: Path):
    content = (golden / "tf_checkpoint" / "full" / "model.ckpt-50.index").read_bytes()
    for size in range(0, len(content), 37):
        (tmp_path / "x.index").write_bytes(content[:size])
        with pytest.raises(WeightsError, match="damaged or incomplete"):
            read_bundle(tmp_path / "x")


@given(data=st.data())
def test_damage_is_an_error_of_ours_or_harmless(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    write_bundle(folder / "damaged", {"a": np.ones(3, np.float32), "ab": np.ones(5, np.float32)}, snappy=data.draw(st.booleans()))
    content = bytearray((folder / "damaged.index").read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    (folder / "damaged.index").write_bytes(content)
    try:
        bundle = read_bundle(folder / "damaged")
    except WeightsError:
        return
    assert {name: array.read().tolist() for name, array in bundle.items()} == {"a": [1] * 3, "ab": [1] * 5}
