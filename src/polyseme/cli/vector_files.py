"""What `polyseme embed` writes: JSON lines, .npz, or HDF5 in AllenNLP's layout. One sentence is held at a time."""

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import click

if TYPE_CHECKING:
    import numpy as np

Format = Literal["jsonl", "npz", "hdf5"]

_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}


class VectorWriter(Protocol):
    """Takes the sentences in order."""

    def __call__(self, number: int, tokens: list[str], vectors: "np.ndarray") -> None:
        """Writes the vectors of one sentence."""
        ...


def format_of(path: str | None, chosen: Format | None) -> Format:
    """The format asked for, or the one the file's name tells; JSON lines on the standard output."""
    if path is None:
        if chosen in ("npz", "hdf5"):
            raise click.UsageError(f"--format {chosen} needs a file to write to: give -o FILE.")
        return "jsonl"
    found = chosen or _SUFFIXES.get(Path(path).suffix)
    if found is None:
        raise click.BadParameter(f"{path}: give a name that ends in {', '.join(_SUFFIXES)}, or --format.", param_hint="--output")
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
            with _hdf5(beside) as writer:
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


@contextlib.contextmanager
def _hdf5(path: Path) -> Iterator[VectorWriter]:
    """Dataset "n" for sentence n, and `sentence_to_index`: one string, the JSON of tokens joined by blanks → "n"."""
    import h5py
    import numpy as np

    index: dict[str, str] = {}
    with h5py.File(path, "w") as file:

        def write(number: int, tokens: list[str], vectors: np.ndarray) -> None:
            file.create_dataset(str(number), data=vectors, dtype="float32")
            index[" ".join(printable(tokens))] = str(number)

        yield write
        texts = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype(encoding="utf-8"))
        texts[0] = json.dumps(index)
