"""Hub ids, with a local cache laid out as the library lays it out: no hub is reached in tests."""

import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from polyseme.errors import WeightsError
from polyseme.weights import Checkpoint, checkpoint_hash, read, write_native

OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture
def cache(small: Checkpoint, with_softmax: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """someone/elmo at two commits; main is the newer."""
    repository = tmp_path / "hub" / "models--someone--elmo"
    for commit, checkpoint in ((OLD, small), (NEW, with_softmax)):
        write_native(checkpoint, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return repository


@pytest.mark.usefixtures("cache")
def test_revisions(small: Checkpoint, with_softmax: Checkpoint):
    assert checkpoint_hash(read("someone/elmo")) == checkpoint_hash(with_softmax)
    for revision in ("v1", OLD):
        assert checkpoint_hash(read("someone/elmo", revision=revision)) == checkpoint_hash(small)


@pytest.mark.usefixtures("cache")
def test_a_local_path_goes_first(small: Checkpoint, tmp_path: Path):
    write_native(small, tmp_path / "someone" / "elmo")
    assert checkpoint_hash(read("someone/elmo")) == checkpoint_hash(small)


@pytest.mark.usefixtures("cache")
def test_offline_and_not_in_the_cache():
    with pytest.raises(WeightsError, match="someone/other is no local path, is not in the local cache, and the Hugging Face hub"):
        read("someone/other")
    with pytest.raises(WeightsError, match="not in the local cache at revision v9"):
        read("someone/elmo", revision="v9")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"pip install 'polyseme\[hub\]'"):
        read("someone/elmo")


@pytest.mark.parametrize("name", ["someone", "a/b/c", "someone/elmo.hdf5", "someone/elmo.zip", "../elmo x"])
def test_names_that_are_no_hub_id(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="is not there"):
        read(name)
