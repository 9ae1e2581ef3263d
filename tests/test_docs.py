"""The documentation tells the truth: its Python runs, its commands exist, its pages are all listed."""

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

import polyseme
import polyseme.cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name != "api.md"]  # generated from the source
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELL = {"bash", "sh", "shell", "console"}


def _blocks(page: Path, languages: set[str]) -> Iterator[tuple[int, str]]:
    """Number of the first line and text of every block in one of the languages."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[2].split(" ")[0] in languages:
            indent = len(match[1])
            yield (
                text[: match.start()].count("\n") + 2,
                "".join(line[indent:] or "\n" for line in match[3].splitlines(keepends=True)),
            )


def _commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Every command line of a page's shell blocks, split into words, without comments."""
    for first, block in _blocks(page, SHELL):
        line = first
        for whole in re.split(r"(?<!\\)\n", block):
            for part in re.split(r"&&|\|\||(?<!\\)[|;]", whole.replace("\\\n", " ").removeprefix("$ ")):
                words = shlex.split(part, comments=True)
                while words and (re.fullmatch(r"[A-Z_]+=.*", words[0])):
                    words = words[1:]
                if words:
                    yield line, words
            line += whole.count("\n") + 1


def _title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_blocks_have_a_language(page: Path):
    known = {"python", "bash", "text", "json", "toml", "yaml"}
    others = [match[2] for match in FENCE.finditer(page.read_text(encoding="utf-8")) if match[2].split(" ")[0] not in known]
    assert others == [], f"wanted one of {sorted(known)}: Python that cannot run here is `text`"


@pytest.mark.parametrize("page", [page for page in PAGES if any(_blocks(page, {"python"}))], ids=_title)
def test_python_runs(page: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workshop)
    names: dict[str, object] = {"__name__": "__main__"}
    for first, block in _blocks(page, {"python"}):
        code = compile("\n" * (first - 1) + block, str(page), "exec")  # a traceback names the page's own line
        exec(code, names)


@pytest.mark.parametrize("page", [page for page in PAGES if any(_blocks(page, SHELL))], ids=_title)
def test_commands_exist(page: Path):
    wrong = [f"{_title(page)}:{line}: {fault}" for line, words in _commands(page) for fault in _faults(words)]
    assert not wrong, "\n".join(wrong)


def _faults(words: list[str]) -> Iterator[str]:
    """What a reader who types these words would stumble over."""
    match words:
        case ["polyseme", name, *arguments] if not name.startswith("-"):
            with click.Context(polyseme.cli.main) as context:
                command = polyseme.cli.main.get_command(context, name)
            if command is None:
                yield f"polyseme has no command {name!r}"
            else:
                known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
                known |= {"--help", "-h"}
                given = [word.split("=")[0] for word in arguments if re.match(r"--?[a-zA-Z]", word)]
                yield from (f"polyseme {name} has no option {option}" for option in given if option not in known)
        case ["make", *targets]:
            rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            yield from (f"there is no `make {target}`" for target in targets if target not in rules)
        case ["python" | "python3" | "torchrun", script, *_] if script.endswith(".py"):
            if not (ROOT / script).is_file():
                yield f"there is no {script}"
        case ["pip", "install", *packages]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
            for package in packages:
                for extra in re.findall(r"polyseme\[([^\]]+)\]", package):
                    yield from (f"there is no extra {name!r}" for name in extra.split(",") if name not in extras)


def test_a_wrong_command_is_noticed():
    assert list(_faults(["polyseme", "embroider", "x"])) == ["polyseme has no command 'embroider'"]
    assert list(_faults(["make", "test", "coffee"])) == ["there is no `make coffee`"]
    assert list(_faults(["python", "benchmarks/bench_nothing.py"])) == ["there is no benchmarks/bench_nothing.py"]
    assert list(_faults(["pip", "install", "polyseme[hub,moon]"])) == ["there is no extra 'moon'"]
    first, *_ = polyseme.cli.COMMANDS
    assert list(_faults(["polyseme", first, "x", "--help", "--no-such-option=1"])) == [
        f"polyseme {first} has no option --no-such-option"
    ]


def test_navigation_lists_every_page():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entries: object) -> Iterator[str]:
        if isinstance(entries, str):
            yield entries
        for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
            yield from pages(entry)

    listed = list(pages(settings["nav"]))
    there = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")} | {"api.md"}
    assert sorted(listed) == sorted(there)


def test_the_reference_has_every_public_name():
    page = runpy.run_path(str(ROOT / "docs/api.py"))["page"]()
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    assert headings == {name for name in polyseme.__all__ if not name.startswith("_")}
    assert "## Score (polyseme.scoring)" in page


def test_the_first_screen_of_the_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:60]
    assert {"make demo", "make test", "```python"} <= {line.split(" #")[0].strip() for line in lines}


def test_the_changelog_speaks_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version
