"""JSON lines: one object a line, every error with its file and line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyseme.errors import FormatError
from polyseme.tasks.readers import read_lines


def read_objects(path: str | Path, *, wanted: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file and the numbers of their lines; blank lines are passed over, and a file of none is an error.

    `wanted` shows what an object should look like, for the errors.
    """
    empty = True
    for number, line in read_lines(path):
        if line.strip():
            try:
                values = json.loads(line)
            except ValueError as error:
                raise FormatError(
                    f"{path}, line {number}: no valid JSON ({error}); wanted one object a line: {wanted}."
                ) from error
            if not isinstance(values, dict):
                raise FormatError(f"{path}, line {number}: {line[:40]!r} is no JSON object; wanted one a line: {wanted}.")
            empty = False
            yield number, values
    if empty:
        raise FormatError(f"{path}: the file is empty; wanted JSON lines: {wanted}.")


def is_tokens(value: object) -> bool:
    """Whether a value is a list of tokens: strings, none of them empty, and at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(token, str) and token for token in value)
