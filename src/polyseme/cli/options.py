"""Options that several commands share, and opening a model with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from polyseme.elmo import Elmo
    from polyseme.weights import Checkpoint

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
    revision: str | None = None

    def read(self) -> "Checkpoint":
        """The model's configuration, tensors and words."""
        from polyseme.weights import read

        return read(
            self.path,
            options=self.options,
            vocabulary=self.vocabulary,
            token_embeddings=self.token_embeddings,
            layout=self.layout,
            revision=self.revision,
        )

    def open(self, *, device: str = "cpu") -> "Elmo":
        """The model, ready for use on that device."""
        from polyseme.weights.loading import elmo

        return on_device(elmo(self.read(), name=self.path), device)


def on_device(elmo: "Elmo", device: str) -> "Elmo":
    """The model on the device of that name; an unknown or absent one is an error."""
    return elmo if device == "cpu" else elmo.to(device)


def companion_options(function: _F) -> _F:
    """Adds --options, --vocabulary, --token-embeddings, --layout and --revision."""
    for option in (
        click.option("--revision", metavar="REF", help="Branch, tag or commit of a model on the hub."),
        click.option("--layout", metavar="NAME", help="Read the files as this layout instead of telling it from the content."),
        click.option("--token-embeddings", metavar="FILE", help="The words' vectors (HDF5), used instead of characters."),
        click.option("--vocabulary", metavar="FILE", help="The model's words, one a line, where not beside the weights."),
        click.option("--options", metavar="FILE", help="The model's options.json, where not beside the weights."),
    ):
        function = option(function)
    return function


def model_option(function: _F) -> _F:
    """Adds -m/--model, the options of its companion files, and --device."""
    function = click.option(
        "--device", metavar="NAME", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ..."
    )(companion_options(function))
    return click.option(
        "-m", "--model", metavar="MODEL", default=DEFAULT_MODEL, show_default=True, help="Bundled name, path or hub id."
    )(function)


def text_options(function: _F) -> _F:
    """Adds the argument TEXT... and --input, --tokenized and --split."""
    for option in (
        click.option("--split", is_flag=True, help="A text may hold several sentences: split it."),
        click.option("--tokenized", is_flag=True, help="Tokens stand between single blanks; else the model's tokenizer is used."),
        click.option("-i", "--input", "inputs", metavar="FILE", multiple=True, help="Read sentences from a file, one a line."),
        click.argument("texts", metavar="[SENTENCE]...", nargs=-1),
    ):
        function = option(function)
    return function


def json_option(help: str) -> Callable[[_F], _F]:
    """Adds --json, which commands receive as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def examples(*lines: str) -> str:
    """What stands at the end of a command's help: `@click.command(epilog=examples("polyseme info en-small"))`."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
