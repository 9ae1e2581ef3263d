"""read, write, convert: one way in and one way out for every layout, told apart by content."""

from dataclasses import replace
from pathlib import Path

from polyseme.errors import InputError, WeightsError
from polyseme.weights import allennlp, native
from polyseme.weights.checkpoint import Checkpoint, verify

LAYOUTS = ("native", "allennlp")


def read(
    path: str | Path,
    *,
    options: str | Path | None = None,
    vocabulary: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    layout: str | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """The checkpoint at a path, whatever its layout."""
    path = Path(path)
    if path.is_dir() and native.is_native(path):
        checkpoint = native.read_native(path)
    elif path.is_file():
        checkpoint = allennlp.read_file(
            path,
            options=None if options is None else Path(options),
            vocabulary=None if vocabulary is None else Path(vocabulary),
            token_embeddings=None if token_embeddings is None else Path(token_embeddings),
        )
    else:
        raise WeightsError(f"{path}: no layout fits; tried {', '.join(LAYOUTS)}.")
    verify(checkpoint, name=str(path))
    return checkpoint


def write(checkpoint: Checkpoint, path: str | Path) -> None:
    """Writes a checkpoint in the layout the target's name asks for."""
    path = Path(path)
    if path.suffix in (".hdf5", ".h5"):
        allennlp.write_hdf5(checkpoint, path)
    elif path.suffix == "":
        native.write_native(checkpoint, path)
    else:
        raise InputError(f"{path}: wanted NAME.hdf5 or the name of a folder.")


def convert(source: str | Path, target: str | Path) -> None:
    """Reads any layout and writes the one the target's name asks for."""
    write(replace(read(source)), target)
