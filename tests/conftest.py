"""What all tests share: the reference data, one thread per process, and hypothesis without a clock."""

import os

# Before torch is imported, here or in a process a test starts: results and times then do not depend on the number of cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# On a busy machine an example may take long; under CI=true the same examples are drawn every time.
hypothesis.settings.register_profile(
    "polyseme",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None if os.environ.get("CI") else hypothesis.settings().database,
)
hypothesis.settings.load_profile("polyseme")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference vectors and data beside the project: POLYSEME_SHARED, by default ../shared."""
    folder = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve()
    if not folder.is_dir():
        missing = f"no reference data in {folder}; set POLYSEME_SHARED to their folder"
        if os.environ.get("POLYSEME_REQUIRE_SHARED") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return folder


@pytest.fixture(scope="session")
def golden(shared: Path) -> Path:
    """The vectors recorded from the original programs."""
    return shared / "golden"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A folder with what the documentation's examples speak of.

    model/                   a model folder: tiny, random weights, with a softmax
    text.txt                 a few sentences, one a line
    """
    import demo

    demo.write_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(demo.SENTENCES) + "\n", encoding="utf-8")
    return tmp_path
