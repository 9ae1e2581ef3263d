"""Options that several commands share, and opening a model with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_MODEL = "en-small"


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Which model to open, and the files that belong to it where they do not lie beside it."""

    path: str
    options: str | None = None
    vocabulary: str | None = None
    token_embeddings: str | None = None
    layout: str | None = None

    def open(self) -> "Elmo":
        """Loads the model."""
        import polyseme

        return polyseme.load(
            self.path,
            options=self.options,
            vocabulary=self.vocabulary,
            token_embeddings=self.token_embeddings,
            layout=self.layout,
        )


def companion_options(function: _F) -> _F:
    """Adds --options, --vocabulary, --token-embeddings and --layout."""
    for option in (
        click.option("--layout", metavar="NAME", help="Read the files as this layout instead of telling it from the content."),
        click.option("--token-embeddings", metavar="FILE", help="The words' vectors (HDF5), used instead of characters."),
        click.option("--vocabulary", metavar="FILE", help="The model's words, one a line, where not beside the weights."),
        click.option("--options", metavar="FILE", help="The model's options.json, where not beside the weights."),
    ):
        function = option(function)
    return function


def model_option(function: _F) -> _F:
    """Adds -m/--model, and the options of its companion files."""
    return click.option(
        "-m", "--model", metavar="MODEL", default=DEFAULT_MODEL, show_default=True, help="Bundled name, path or hub id."
    )(companion_options(function))


def json_option(help: str) -> Callable[[_F], _F]:
    """Adds --json, which commands receive as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)
