"""Zips: told apart by content, read where they lie; unsafe, enormous and damaged ones are refused."""

import gzip
import shutil
import zipfile
from pathlib import Path

import pytest

from polyseme.errors import InputError, WeightsError
from polyseme.weights import checkpoint_hash, read


def _rewritten(source: Path, target: Path, **changes: bytes | None) -> Path:
    """A copy of a zip with members replaced, added or (None) left out; __ stands for the dot of a name."""
    members = {name.replace("__", "."): content for name, content in changes.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for name in old.namelist():
            if name not in members:
                new.writestr(name, old.read(name))
        for name, content in members.items():
            if content is not None:
                new.writestr(name, content)
    return target


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "..\\evil.txt", "C:/evil.txt", "a/../../evil.txt"])
def test_names_that_point_outside(golden: Path, tmp_path: Path, name: str):
    path = tmp_path / "x.zip"
    shutil.copyfile(golden / "nlpl" / "bilm.zip", path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"evil")
    with pytest.raises(WeightsError, match="points outside"):
        read(path)


@pytest.mark.parametrize("member", ["vocab__txt", "model__hdf5", "unrelated"])
def test_zeros_without_end(golden: Path, tmp_path: Path, member: str):
    path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", **{member: bytes(64 << 20)})
    with pytest.raises(WeightsError, match=r"would grow from .* to 67,108,864 bytes"):
        read(path)


@pytest.mark.slow
def test_a_gigabyte_of_zeros(golden: Path, tmp_path: Path):
    path = tmp_path / "x.zip"
    shutil.copyfile(golden / "nlpl" / "bilm.zip", path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("vocab.txt", "w", force_zip64=True) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
    with pytest.raises(WeightsError, match="to 1,073,741,824 bytes"):
        read(path)


def test_a_compressed_vocabulary_of_zeros(golden: Path, tmp_path: Path):
    content = gzip.compress(bytes(64 << 20), compresslevel=1)
    path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", vocab__txt__gz=content)
    with pytest.raises(WeightsError, match=r"vocab\.txt\.gz in .* would grow"):
        read(path)


def test_a_damaged_compressed_vocabulary(golden: Path, tmp_path: Path):
    for content in (b"no gzip", gzip.compress(b"<S>\n" * 100)[:-9]):
        path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", vocab__txt__gz=content)
        with pytest.raises(WeightsError, match=r"vocab\.txt\.gz in .* is not a readable gzip file"):
            read(path)


def test_every_truncation(golden: Path, tmp_path: Path):
    content = (golden / "nlpl" / "bilm.zip").read_bytes()
    for size in range(0, len(content), len(content) // 30):
        (tmp_path / "x.zip").write_bytes(content[:size])
        with pytest.raises(WeightsError, match="not a readable zip"):
            read(tmp_path / "x.zip")


def test_changed_bytes(golden: Path, tmp_path: Path):
    content = bytearray((golden / "nlpl" / "bilm.zip").read_bytes())
    with zipfile.ZipFile(golden / "nlpl" / "bilm.zip") as archive:
        start = archive.getinfo("model.hdf5").header_offset
    content[start + 2000] ^= 0xFF
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(WeightsError, match="not a readable zip"):
        read(tmp_path / "x.zip")


def test_a_truncated_model_inside(golden: Path, tmp_path: Path):
    with zipfile.ZipFile(golden / "nlpl" / "bilm.zip") as archive:
        content = archive.read("model.hdf5")
    path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", model__hdf5=content[:3000])
    with pytest.raises(WeightsError, match=r"model\.hdf5 in .* is not a readable HDF5 file"):
        read(path)


def test_zips_of_something_else(golden: Path, tmp_path: Path):
    path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", model__hdf5=None)
    with pytest.raises(WeightsError, match=r"wanted model\.hdf5 and options\.json"):
        read(path)
    path = _rewritten(golden / "nlpl" / "bilm.zip", tmp_path / "x.zip", options__json=None)
    with pytest.raises(WeightsError, match=r"wanted model\.hdf5 and options\.json"):
        read(path)
    with zipfile.ZipFile(tmp_path / "x.zip", "w"):
        pass
    with pytest.raises(WeightsError, match="holds no files"):
        read(tmp_path / "x.zip")


def test_options_and_vocabulary_from_outside(golden: Path, tmp_path: Path):
    source = golden / "nlpl" / "bilm.zip"
    with zipfile.ZipFile(source) as archive:
        (tmp_path / "options.json").write_bytes(archive.read("options.json"))
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\n")
    path = _rewritten(source, tmp_path / "x.zip", options__json=None)
    found = read(path, options=tmp_path / "options.json", vocabulary=tmp_path / "words.txt")
    assert checkpoint_hash(found) == checkpoint_hash(read(source))
    assert found.vocabulary is not None
    assert len(found.vocabulary) == 3


def test_options_for_a_model_that_has_none(golden: Path):
    with pytest.raises(InputError, match="is an ELMoForManyLangs model, which takes no options"):
        read(golden / "nlpl" / "many_langs.zip", options=golden / "allennlp_th" / "options.json")


def test_the_system_s_own_entries_are_passed_over(golden: Path, tmp_path: Path):
    path = tmp_path / "x.zip"
    shutil.copyfile(golden / "nlpl" / "bilm_no_vocab_in_folder.zip", path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._options.json", b"x")
        archive.mkdir("1")
    assert checkpoint_hash(read(path)) == checkpoint_hash(read(golden / "nlpl" / "bilm.zip"))
