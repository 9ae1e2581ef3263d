"""Writes api.md, the reference, from the docstrings of the public names: `python docs/api.py` (`make docs` does it)."""

import dataclasses
import inspect
import re
from pathlib import Path

import polyseme

HEAD = """# Reference

Everything that `import polyseme` offers. Names not listed here may change at any time.
"""


def signature(name: str, value: object) -> str:
    """The call as a user writes it, one argument per line where it is long."""
    text = f"{name}{inspect.signature(value)}".replace("self, ", "").replace("(self)", "()")  # type: ignore[arg-type]
    text = re.sub(r"\b(?:polyseme|collections|pathlib|numpy|torch|typing)\.(?:[a-z_]+\.)*(?=[A-Za-z])", "", text)
    if len(text) <= 100:
        return text
    opened, _, result = text.rpartition(")")
    start, _, arguments = opened.partition("(")
    parts = re.split(r", (?=\*?\w+(?:[:,]|$))(?![^\[]*\])", arguments)
    return f"{start}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


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
    if inspect.isclass(value) and not dataclasses.is_dataclass(value):
        for inner, member in members(value):
            lines += [f"### {name}.{inner}", ""]
            if isinstance(member, property):
                lines += [prose(member), ""]
            else:
                call = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                lines += ["```text", signature(f"{name}.{inner}", call), "```", "", prose(call), ""]
    return lines


def page() -> str:
    """The whole page."""
    names = [name for name in polyseme.__all__ if not name.startswith("_")]
    return "\n".join([HEAD, *(line for name in names for line in entry(name, getattr(polyseme, name)))])


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(page(), encoding="utf-8")
