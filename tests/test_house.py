"""The rules of the house: what docs/contributing.md says about the source is held here."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyseme

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
TREES = {path: ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in sorted(SOURCE.rglob("*.py"))}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# From the ground up: a module may import those named before it, and the modules of its own package.
ORDER = (
    "polyseme.errors",
    "polyseme.progress",
    "polyseme.sources",
    "polyseme.config",
    "polyseme.text",
    "polyseme.sentences",
    "polyseme.vocabulary",
    "polyseme.characters",
    "polyseme.token_encoder",
    "polyseme.lstm",
    "polyseme.mix",
    "polyseme.softmax",
    "polyseme.model",
    "polyseme.selection",
    "polyseme.batching",
    "polyseme.scoring",
    "polyseme.kernels",
    "polyseme.engine",
    "polyseme.elmo",
    "polyseme.vectors",  # what bulk writes, read
    "polyseme.stored_embedding",
    "polyseme.embedding",
    "polyseme.weights",
    "polyseme.models",
    "polyseme.bulk",
    "polyseme.pretraining",
    "polyseme.tasks",
    "polyseme.search",
    "polyseme.serve",
    "polyseme",  # the table of public names
    "polyseme.integrations",
    "polyseme.cli",
)


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): tree for path, tree in TREES.items()}


def _unit(module: str) -> str:
    """The entry of ORDER a module belongs to: itself or the package right under polyseme."""
    return ".".join(module.split(".")[:2])


def _place(module: str) -> int:
    return ORDER.index(_unit(module)) if _unit(module) in ORDER else len(ORDER)


def _imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every module of ours that a tree imports, however deep inside, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [name if name in MODULES else node.module for name in inner]
        else:
            continue
        for name in named:
            if name.split(".")[0] == "polyseme":
                yield node, name


def _where(path: Path, node: ast.AST, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}: {text}"  # type: ignore[attr-defined]


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, classes and methods whose names have no leading underscore."""
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (part for part in node.body if isinstance(part, FUNCTIONS) and not part.name.startswith("_"))


def test_every_module_has_its_place_in_the_order():
    units = {_unit(module) for module in MODULES}
    assert units <= set(ORDER), f"give {sorted(units - set(ORDER))} a place in ORDER"


def test_imports_point_downwards():
    wrong = []
    for path, tree in TREES.items():
        own = _unit(_name(path))
        for node, target in _imports(tree):
            if _unit(target) != own and _place(target) > _place(own):
                wrong.append(_where(path, node, f"imports {target}, which stands above it"))
    assert not wrong, "\n".join(wrong)


def test_no_circle_of_imports_at_import_time():
    """Inside a package too: what is imported on the way in never leads back."""
    edges = {
        _name(path): {target for statement in tree.body for _, target in _imports_on_load(statement)}
        for path, tree in TREES.items()
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join((*way, module))
        if module not in done:
            for target in edges.get(module, ()):
                visit(target, (*way, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def _imports_on_load(statement: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
        return
    yield from _imports(statement)


def test_sizes():
    wrong = [
        f"{path.relative_to(ROOT)}: {lines} lines; at most 500"
        for path in TREES
        if (lines := path.read_text(encoding="utf-8").count("\n")) > 500
    ]
    wrong += [
        _where(path, node, f"{node.name} has {lines} lines; at most 80")
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and (lines := (node.end_lineno or 0) - node.lineno + 1) > 80
    ]
    assert not wrong, "\n".join(wrong)


def _faults(node: ast.AST) -> Iterator[str]:
    """What the house does not want anywhere in its source."""
    if isinstance(node, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in caught):
            yield "catches everything; name the errors"
    elif isinstance(node, FUNCTIONS) and node.args.kwarg is not None:
        yield f"{node.name} takes **{node.args.kwarg.arg}; name the options"
    elif isinstance(node, ast.Global):
        yield f"global {', '.join(node.names)}; pass it as an argument"
    elif isinstance(node, ast.ClassDef) and any(word.arg == "metaclass" for word in node.keywords):
        yield f"{node.name} has a metaclass"


def test_no_catch_all_no_hidden_options_no_globals():
    wrong = [_where(path, node, fault) for path, tree in TREES.items() for node in ast.walk(tree) for fault in _faults(node)]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_prints_and_exits():
    loud = {"print", "sys.exit", "exit", "quit", "os._exit", "logging.basicConfig", "sys.stdout.write", "sys.stderr.write"}
    wrong = []
    for path, tree in TREES.items():
        if _unit(_name(path)) == "polyseme.cli" or path.stem == "__main__":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in loud:
                wrong.append(_where(path, node, f"{ast.unparse(node.func)}; return a value or raise an error of polyseme.errors"))
            if isinstance(node, ast.Name) and node.id == "SystemExit":
                wrong.append(_where(path, node, "SystemExit; raise an error of polyseme.errors"))
    assert not wrong, "\n".join(wrong)


def test_names_of_modules_say_what_is_inside():
    vague = re.compile(r"^_?(utils?|helpers?|commons?|bases?|managers?|misc)$")
    assert [str(path) for path in TREES if vague.match(path.stem) or vague.match(path.parent.name)] == []


def test_nothing_is_left_to_do():
    """Nor is the registry, the machine or the folder it was written on named."""
    marks = re.compile(
        r"\b(" + "TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b"
        r"|/wor" + r"k/|(?:files\.pythonhosted|test\.pypi|download\.pytorch)\." + r"\w+"
    )
    wrong = []
    read = {".py", ".c", ".h", ".md", ".toml", ".yml", ".txt"}
    files = [path for folder in ("src", "docs", "recipes", "benchmarks") for path in (ROOT / folder).rglob("*")]
    for path in sorted([*ROOT.glob("*"), *files]):
        if path.name != "vocab.txt" and (path.suffix in read or path.name == "Makefile"):  # a vocabulary lists what was written
            wrong += [f"{path.relative_to(ROOT)}: {match.group()}" for match in marks.finditer(path.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)


def test_every_public_function_is_documented_and_typed():
    wrong = []
    for path, tree in TREES.items():
        if not ast.get_docstring(tree) and path.read_text(encoding="utf-8"):
            wrong.append(f"{path.relative_to(ROOT)}: no docstring")
        for node in _public(tree):
            if not ast.get_docstring(node) and not _overloaded(node):
                wrong.append(_where(path, node, f"{node.name} has no docstring"))
            if not isinstance(node, ast.ClassDef):
                wrong += [_where(path, node, f"{node.name}: {gap} has no annotation") for gap in _untyped(node)]
    assert not wrong, "\n".join(wrong)


def _overloaded(node: ast.AST) -> bool:
    return isinstance(node, FUNCTIONS) and any(
        ast.unparse(mark).endswith(("overload", ".setter")) for mark in node.decorator_list
    )


def _untyped(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = node.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *filter(None, [arguments.vararg])]
    for argument in listed:
        if argument.annotation is None and argument.arg not in ("self", "cls"):
            yield argument.arg
    if node.returns is None:
        yield "the result"


def test_annotations_stay_values_where_arrays_are_named():
    wrong = [
        str(path.relative_to(ROOT))
        for path, tree in TREES.items()
        if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        and any(isinstance(node, ast.ImportFrom) and node.module == "jaxtyping" for node in ast.walk(tree))
    ]
    assert wrong == [], "jaxtyping needs annotations as values: leave `from __future__ import annotations` out"


def test_no_two_test_files_share_a_name():
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    assert sorted(names) == sorted(set(names))


def test_public_names():
    assert polyseme.__all__ == sorted(polyseme.__all__)
    assert [name for name in dir(polyseme) if not name.startswith("_")] == [
        name for name in polyseme.__all__ if not name.startswith("_")
    ]


@pytest.mark.parametrize("name", [name for name in getattr(polyseme, "__all__", []) if not name.startswith("_")])
def test_a_public_name_is_there_and_documented(name: str):
    value = getattr(polyseme, name)
    assert inspect.getdoc(value)
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        parameters = inspect.signature(value).parameters.values()
        by_place = [p.name for p in parameters if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY]
        assert by_place == [], "what has a default is given by name: make it keyword-only"


def test_public_names_are_typed_where_they_live():
    """What type checkers read in the table is what users get."""
    (typed,) = (node for node in MODULES["polyseme"].body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*homes, "__version__"} == set(polyseme.__all__)
    for name, home in homes.items():
        assert getattr(importlib.import_module(str(home)), name) is getattr(polyseme, name)


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        polyseme.no_such_name  # noqa: B018


def _fresh(code: str, *arguments: str) -> str:
    """What a new interpreter prints for the code."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def test_import_alone_brings_nothing_heavy():
    assert _fresh("import sys, polyseme; print(*{'torch', 'numpy', 'click'} & set(sys.modules))").split() == []


def test_import_costs_little_beyond_torch():
    """Processor time, in one of three tries: the clock on the wall also counts what other programs do."""
    code = (
        "import time, torch; start = time.process_time(); import polyseme; "
        "[getattr(polyseme, name) for name in polyseme.__all__]; print(time.process_time() - start)"
    )
    assert any(float(_fresh(code)) < 0.3 for _ in range(3))


HELP = """
import sys
import polyseme.cli
sys.argv = ["polyseme", *sys.argv[1:], "--help"]
try:
    polyseme.cli.main()
except SystemExit as end:
    assert not end.code, end.code
import time
print(time.process_time(), *(name for name in ("torch", "numpy", "h5py", "pyarrow") if name in sys.modules))
"""


def test_help_comes_at_once():
    """The whole process from its start, in processor time: under half a second, and nothing heavy is imported."""

    def seconds() -> float:
        taken, *heavy = _fresh(HELP).splitlines()[-1].split()
        assert heavy == []
        return float(taken)

    assert any(seconds() < 0.5 for _ in range(3))


@pytest.mark.parametrize("command", sorted(path.stem for path in (SOURCE / "polyseme/cli").glob("[a-z]*.py")))
def test_a_module_of_the_command_line_imports_nothing_heavy(command: str):
    heavy = _fresh(
        "import importlib, sys; importlib.import_module(sys.argv[1]); print(*{'torch', 'numpy'} & set(sys.modules))",
        f"polyseme.cli.{command}",
    )
    assert heavy.split() == []


def test_these_rules_notice_what_they_forbid():
    """A rule that cannot fail is no rule: each is shown a fault."""
    tree = ast.parse(
        "try:\n  f()\nexcept (ValueError, Exception):\n  pass\ndef g(**options): global x\nclass C(metaclass=M): ..."
    )
    assert len([fault for node in ast.walk(tree) for fault in _faults(node)]) == 4
    assert list(_untyped(ast.parse("def f(a: int, b, *c) -> None: ...").body[0])) == ["b", "c"]  # type: ignore[arg-type]
    assert [name for _, name in _imports(ast.parse("def f():\n  from polyseme import errors, Elmo\n  import polyseme.mix"))] == [
        "polyseme.errors",
        "polyseme",
        "polyseme.mix",
    ]
    assert importlib.import_module("polyseme.errors").__name__ in MODULES
