"""What `polyseme embed` writes of a few sentences: JSON lines, .npz, or HDF5 in AllenNLP's layout, one sentence at a time."""

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import click

if TYPE_CHECKING:
    import numpy as np

Format = Literal["jsonl", "npz", "hdf5", "parquet", "arrow", "e2e-coref"]

FORMATS: tuple[Format, ...] = ("jsonl", "npz", "hdf5", "parquet", "arrow", "e2e-coref")
#: Those made of stored parts, whatever the sentences come from.
FOLDERS: tuple[Format, ...] = ("parquet", "arrow", "e2e-coref")
_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}


class VectorWriter(Protocol):
    """Takes the sentences in order."""

    def __call__(self, number: int, tokens: list[str], vectors: "np.ndarray") -> None:
        """Writes the vectors of one sentence."""
        ...


def format_of(path: str | None, chosen: Format | None) -> Format:
    """The format asked for, or the one the name tells; a name without an ending is a folder; JSON lines on stdout."""
    if path is None:
        if chosen not in (None, "jsonl"):
            raise click.UsageError(f"--format {chosen} needs a place to write to: give -o FILE or -o DIR.")
        return "jsonl"
    suffix = Path(path).suffix
    found = chosen or _SUFFIXES.get(suffix)
    if found is None and (not suffix or suffix == ".parquet" or Path(path).is_dir()):
        return "parquet"
    if found is None:
        wanted = f"{', '.join(_SUFFIXES)}, or, for a folder, in nothing of the kind, or --format"
        raise click.BadParameter(f"{path}: give a name that ends in {wanted}.", param_hint="--output")
    return found


@contextlib.contextmanager
def vector_writer(path: str | None, kind: Format) -> Iterator[VectorWriter]:
    """A writer to a file, which appears when all has been written, or to the standard output."""
    if path is None:
        yield _json_lines(lambda line: click.echo(line.encode("utf-8")))
        return
    from polyseme.weights.files import replacing_file

    with replacing_file(Path(path)) as beside:
        if kind == "jsonl":
            with beside.open("w", encoding="utf-8", newline="\n") as stream:
                yield _json_lines(lambda line: click.echo(line, file=stream))
        elif kind == "npz":
            with zipfile.ZipFile(beside, "w") as archive:
                yield _npz(archive)
        else:
            from polyseme.bulk.hdf5 import allennlp_writer

            with allennlp_writer(beside) as writer:
                yield writer


def shortest(array: "np.ndarray") -> list[object]:
    """Nested lists whose numbers are the shortest that give the same float32 values."""
    import numpy as np

    return np.asarray(array, dtype=np.float32).astype("U16").astype(np.float64).tolist()


def printable(tokens: list[str]) -> list[str]:
    """Tokens that any encoding of Unicode can write: unpaired surrogates become question marks."""
    return [token.encode("utf-8", errors="replace").decode("utf-8") for token in tokens]


def _json_lines(put: Callable[[str], None]) -> VectorWriter:
    def write(number: int, tokens: list[str], vectors: "np.ndarray") -> None:
        record = {"sentence": number, "tokens": printable(tokens), "vectors": shortest(vectors)}
        put(json.dumps(record, ensure_ascii=False))

    return write


def _npz(archive: zipfile.ZipFile) -> VectorWriter:
    """Sentence n under the name "n", and its tokens, joined by blanks, under "text/n"."""
    import numpy as np

    def write(number: int, tokens: list[str], vectors: np.ndarray) -> None:
        for name, array in ((str(number), vectors), (f"text/{number}", np.array(" ".join(tokens)))):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)

    return write
