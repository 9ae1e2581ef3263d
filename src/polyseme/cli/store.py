"""`polyseme embed INPUT... -o DIR`: the vectors of a corpus, stored in parts; and HDF5 files made from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from polyseme.cli.vector_files import Format
from polyseme.progress import ProgressDisplay, duration

if TYPE_CHECKING:
    from polyseme.bulk.settings import BulkSettings
    from polyseme.elmo import Elmo
    from polyseme.sources import Reader

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options that go with stored vectors only."""

    dtype: Literal["float32", "float16", "int8"] | None = None
    field: str = "text"
    column: int | None = None
    workers: int = 1
    overwrite: bool = False
    part_tokens: int | None = None
    ray: bool = False

    @classmethod
    def given(cls) -> "StoreOptions":
        """Those of the running command."""
        return cls(**click.get_current_context().meta.get(__name__, {}))


def store_options(function: _F) -> _F:
    """Adds the options of StoreOptions, which the command does not receive: `StoreOptions.given` has them."""

    def keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
        context.meta.setdefault(__name__, {})[parameter.name] = value

    numbers = click.Choice(["float32", "float16", "int8"])
    positive = click.IntRange(min=1)
    for option in (
        click.option("--ray", is_flag=True, expose_value=False, callback=keep, help="DIR: compute on Ray, --workers actors."),
        click.option(
            "--part-tokens", type=positive, expose_value=False, callback=keep, help="DIR: about how many tokens a part holds."
        ),
        click.option("--overwrite", is_flag=True, expose_value=False, callback=keep, help="DIR: start anew instead of going on."),
        click.option(
            "--workers",
            type=positive,
            default=1,
            show_default=True,
            expose_value=False,
            callback=keep,
            help="DIR: processes that compute side by side.",
        ),
        click.option(
            "--column",
            type=click.IntRange(min=0),
            expose_value=False,
            callback=keep,
            help="DIR: the words' column in CoNLL files, from 0.",
        ),
        click.option(
            "--field",
            default="text",
            show_default=True,
            expose_value=False,
            callback=keep,
            help="DIR: where JSON lines and Parquet hold the text.",
        ),
        click.option(
            "--dtype", type=numbers, expose_value=False, callback=keep, help="Stored numbers. DIR: float16, HDF5: float32."
        ),
    ):
        function = option(function)
    return function


def refuse_store_options(kind: Format) -> None:
    """An error where such an option was given and nothing is stored."""
    given, plain = StoreOptions.given(), StoreOptions()
    for field in fields(given):
        if getattr(given, field.name) != getattr(plain, field.name):
            name = field.name.replace("_", "-")
            raise click.UsageError(f"--{name} goes with files stored in a folder (-o DIR) or in HDF5, not with {kind} here.")


def store(
    elmo: "Elmo",
    inputs: Sequence[str],
    output: str,
    kind: Format,
    *,
    tokenized: bool,
    split: bool,
    settings: dict[str, Any],
) -> None:
    """Says what it will take, computes with a display of how far things are, and says what was made."""
    from polyseme.bulk.settings import bulk_settings

    given = StoreOptions.given()
    to_file = kind in ("hdf5", "e2e-coref")
    if tokenized and split:
        raise click.UsageError("--tokenized and --split exclude each other: a tokenized line is one sentence.")
    if to_file and (given.ray or "://" in output):
        raise click.UsageError("HDF5 is one local file, written by one process: name a path, and leave out --ray.")
    chosen = bulk_settings(
        elmo,
        dtype=given.dtype or ("float32" if to_file else "float16"),
        container="parquet" if kind == "parquet" else "arrow",
        tokenized=tokenized or kind == "e2e-coref",
        split=split,
        part_tokens=given.part_tokens,
        **settings,
    )
    reader = _reader(inputs, kind, given)
    total = _announce(elmo, chosen, reader, _reader(inputs, kind, given), output, given.workers, copies=1 + to_file)
    with ProgressDisplay("embed", unit="tokens", total=total) as progress:
        manifest = _run(elmo, reader, output, kind, chosen, given, progress)
    summary = f"{manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens"
    click.echo(f"{output}: {summary}, {_size(sum(part['bytes'] for part in manifest['parts']))}.", err=True)


def _reader(inputs: Sequence[str], kind: Format, given: StoreOptions) -> "Reader":
    from polyseme.bulk.hdf5 import DocumentReader
    from polyseme.sources import Reader

    if kind == "e2e-coref":
        return DocumentReader(inputs or ("-",))
    return Reader(inputs or ("-",), field=given.field, column=given.column)


def _announce(
    elmo: "Elmo", settings: "BulkSettings", reader: "Reader", preview: "Reader", output: str, workers: int, *, copies: int
) -> int | None:
    """Says how much will be written, where it fits, and how long it may take; returns about how many tokens there are."""
    from polyseme.bulk.estimate import estimate, free_bytes

    row = f"{_size(settings.row_bytes * 1_000_000)} for a million {'tokens' if settings.pool is None else 'sentences'}"
    if reader.bytes_total is None:
        click.echo(f"The size of the input is not known; {row}.", err=True)
        return None
    found = estimate(elmo, preview, settings)
    if found.tokens is None or found.bytes is None or found.seconds is None:
        click.echo(f"About {found.rate:,.0f} tokens/s; {row}.", err=True)
        return None
    time = f"{duration(found.seconds / workers)} at {found.rate:,.0f} tokens/s{' a worker' if workers > 1 else ''}"
    click.echo(f"About {found.tokens:,} tokens, {_size(found.bytes)}, {time}.", err=True)
    if "://" not in output and found.bytes * copies > (free := free_bytes(Path(output))):
        click.echo(f"Warning: the disk has room for {_size(free)} of {_size(found.bytes * copies)}.", err=True)
    return found.tokens


def _run(
    elmo: "Elmo",
    reader: "Reader",
    output: str,
    kind: Format,
    settings: "BulkSettings",
    given: StoreOptions,
    progress: ProgressDisplay,
) -> dict[str, Any]:
    if given.ray:
        from polyseme.integrations.ray import embed_on_ray

        return embed_on_ray(reader, output, elmo, settings, workers=given.workers, overwrite=given.overwrite, report=progress)
    if kind in ("hdf5", "e2e-coref"):
        from polyseme.bulk.hdf5 import embed_to_hdf5

        return embed_to_hdf5(
            reader, Path(output), elmo, settings, workers=given.workers, overwrite=given.overwrite, report=progress
        )
    from polyseme.bulk.run import embed_corpus

    return embed_corpus(reader, output, elmo, settings, workers=given.workers, overwrite=given.overwrite, report=progress)


def _size(count: float) -> str:
    """In decimal units, three digits."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
