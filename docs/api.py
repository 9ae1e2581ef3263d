"""Writes api.md, the reference, from the docstrings of the public names: `python docs/api.py` (`make docs` does it)."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import polyseme

HEAD = """# Reference

Everything that `import polyseme` offers. Names not listed here may change at any time.
"""


def hint(annotation: object) -> str:
    """An annotation as one writes it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join("None" if part is types.NoneType else hint(part) for part in typing.get_args(annotation))
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?!torch\.|np\.)[a-z_]+\.(?:[a-z_]+\.)*(?=[A-Za-z])", "", text).replace("torch.Tensor", "Tensor")


def parameters(call: inspect.Signature) -> Iterator[str]:
    """Each parameter as in a definition, with the star before those that are given by name."""
    starred = False
    for name, parameter in call.parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{name}: {hint(parameter.annotation)}{default}"


def signature(name: str, value: typing.Any) -> str:
    """The call, on one line or, where it is long, one parameter a line."""
    call = inspect.signature(value)
    result = "" if inspect.isclass(value) else f" -> {hint(call.return_annotation)}"
    line = f"{name}({', '.join(parameters(call))}){result}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters(call)), f"){result}"])


def prose(value: object) -> str:
    """The docstring as Markdown: the sections of Google's style become lists."""
    lines = []
    inside = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if re.fullmatch(r"(Args|Arguments|Attributes|Returns|Raises|Yields):", line):
            inside = True
            lines += ["", f"**{line[:-1]}**", ""]
        elif inside and (item := re.match(r" {4}(\*{0,2}\w+)(?: \([^)]*\))?: (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif inside and line.startswith("    "):
            lines.append(line[2:] if line.startswith("      ") else line.strip())
        else:
            inside = inside and not line
            lines.append(line)
    text = "\n".join(lines)
    # Drawings, such as the tree of errors, keep their shape.
    return re.sub(r"((?:^.*[├└].*\n?)+)", r"```text\n\g<1>\n```\n", text, flags=re.MULTILINE) if "├" in text else text


def members(value: type) -> list[tuple[str, object]]:
    """The public methods and properties a class defines itself, in the order of its source."""
    return [
        (name, member)
        for name, member in vars(value).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod)))
    ]


def entry(name: str, value: object) -> list[str]:
    """One public name: heading, call, description, and the methods of a class."""
    lines = [f"## {name}", ""]
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        lines += ["```text", signature(name, value), "```", ""]
    lines += [prose(value), ""]
    if inspect.isclass(value):
        for inner, member in members(value):
            if is_value(value) and not isinstance(member, property):
                continue
            lines += [f"### {name}.{inner}", ""]
            if isinstance(member, property):
                lines += [prose(member), ""]
            else:
                call = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                lines += ["```text", signature(f"{name}.{inner}", call), "```", "", prose(call), ""]
    return lines


def is_value(kind: object) -> bool:
    """Whether it is a dataclass or a named tuple of ours."""
    return (
        inspect.isclass(kind)
        and kind.__module__.startswith("polyseme.")
        and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
    )


def named(value: object) -> Iterator[type]:
    """The dataclasses and named tuples that a public name and its methods take or return."""
    calls = (
        [value, *(member for _, member in members(value) if inspect.isfunction(member))] if inspect.isclass(value) else [value]
    )
    for call in calls:
        target = call.__init__ if inspect.isclass(call) else call
        # Public names may be imported for the type checker alone where they are mentioned.
        known = {name: getattr(polyseme, name) for name in polyseme.__all__}
        hints = typing.get_type_hints(target, localns=known) if hasattr(target, "__annotations__") else {}
        waiting = list(hints.values())
        while waiting:
            annotation = waiting.pop()
            waiting += typing.get_args(annotation)
            if is_value(annotation):
                yield annotation


def page() -> str:
    """The whole page."""
    public = [getattr(polyseme, name) for name in polyseme.__all__ if not name.startswith("_")]
    values = {kind.__name__: kind for value in public for kind in named(value) if kind not in public}
    lines = [HEAD]
    for value in public:
        lines += entry(value.__name__, value)
    lines += ["# Values", "", "What the names above take and return, imported from the modules in brackets.", ""]
    for name, kind in sorted(values.items()):
        title, call, *rest = entry(name, kind)
        lines += [f"{title} ({kind.__module__})", call, *rest]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(page(), encoding="utf-8")
