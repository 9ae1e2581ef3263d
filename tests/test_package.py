"""What users install: the built archives, each in an environment of its own, and what they may rely on being there."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import polyseme

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _package(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].replace("-", "_").lower()


def _third_parties(tree: ast.AST) -> set[str]:
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - {"polyseme"}


def test_everything_imported_is_declared():
    extras = PROJECT["optional-dependencies"]
    declared = {_package(line) for line in PROJECT["dependencies"]}
    # TensorBoard and plots are for those who have them; each says so where it is used.
    declared |= {_package(line) for name, lines in extras.items() if name != "dev" for line in lines} | {
        "tensorboard",
        "matplotlib",
    }
    used = {name: path for path in (ROOT / "src").rglob("*.py") for name in _third_parties(ast.parse(path.read_text("utf-8")))}
    assert {name: str(path) for name, path in used.items() if name not in declared} == {}


def test_pinned_versions_lie_in_the_declared_ranges():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {name.replace("-", "_").lower(): version for name, version in pins.items()}
    assert pins["torch"] == "2.13.0"
    for requirement in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        if not requirement.startswith("polyseme"):
            lowest = requirement.split(">=")[1]
            assert [int(n) for n in pins[_package(requirement)].split(".")] >= [int(n) for n in lowest.split(".")], requirement


def test_the_version_is_said_once():
    assert importlib.metadata.version("polyseme") == polyseme.__version__ == PROJECT["version"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source archive, and the wheel built from it, of a copy of the tree as it stands."""
    source, built = tmp_path_factory.mktemp("source") / "polyseme", tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "*.so", "*.egg-info", "__pycache__", "build", "dist", "site", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(built), str(source)], check=True, stdin=subprocess.DEVNULL)
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.mark.slow
def test_contents_of_the_archives(archives: dict[str, Path]):
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/polyseme").rglob("*.py")}
    package.add("polyseme/py.typed")
    for folder, pattern in (("kernels", "*.[ch]"), ("models", "*.*")):
        package |= {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/polyseme" / folder).rglob(pattern)}
    package = {name for name in package if not name.endswith(".pyc")}
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licences = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    compiled = {"polyseme/kernels/_cell.so"}
    assert inside - compiled == package
    assert len(licences) == 1
    with tarfile.open(archives["sdist"]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    wanted = {f"src/{name}" for name in package} | {
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "recipes/demo.py",
    }
    assert wanted <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_an_installed_archive_runs_the_demo(kind: str, archives: dict[str, Path], tmp_path: Path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    # Dependencies are shared, to save their gigabytes; the package is not: a .pth file inside a folder named by one is not read.
    packages = Path(
        subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip()
    )
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    run(python, "-m", "pip", "install", "--no-deps", archives[kind])
    assert run(python, "-c", "import polyseme; print(polyseme.__file__)").startswith(str(environment))
    assert run(environment / "bin/polyseme", "--version").strip() == f"polyseme {PROJECT['version']}"
    if shutil.which("cc"):
        assert run(python, "-c", "from polyseme.kernels import library; print(library() is not None)").strip() == "True"
    assert "[play]" in run(python, ROOT / "recipes/demo.py")
