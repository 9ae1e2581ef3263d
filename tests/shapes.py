"""Shapes and element types of arrays, as the annotations name them, checked on every call while the tests run.

Only jaxtyping's annotations are checked: wrong arguments of other kinds must reach the package's own error messages.
"""

import inspect
import typing

from beartype import beartype
from jaxtyping import AbstractArray


def _names_an_array(annotation: object) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(_names_an_array(part) for part in typing.get_args(annotation))


def check(function: typing.Callable) -> typing.Callable:
    """The function with its array annotations enforced by beartype; the others are the type checker's business."""
    annotations = {name: hint for name, hint in function.__annotations__.items() if _names_an_array(hint)}
    if not annotations:
        return function
    function.__annotations__ = annotations
    return beartype(function)
