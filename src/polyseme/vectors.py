"""Stored vectors: what `polyseme embed -o DIR` wrote, opened again, memory-mapped, by sentence or by token.

A folder holds numbered parts, Parquet or Arrow, and `_manifest.json`, which is written last: a folder without it is not
finished. The parts are a table with one row for each token:

    sentence    int64   from 0, over all inputs
    position    int32   of the token in its sentence, from 0; -1 and the number of tokens for the sentence markers
    token       string
    text, start, end    where texts were tokenized: the number of the text, and the token's characters in it
    vector_X    one list of fixed size for each layer X; for int8 beside it vector_X_scale, float32

Where vectors were pooled there is one row for each sentence, `sentence`, `tokens` (how many) and the vectors.
"""

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int
from torch.utils.data import Dataset

from polyseme.errors import FormatError, InputError

if TYPE_CHECKING:
    import pyarrow

#: Named so that programs that read folders of Parquet files pass over it.
MANIFEST = "_manifest.json"
FORMAT, VERSION = "polyseme-vectors", 1
#: Of the parts' own description, in their schema's metadata.
METADATA_KEY = b"polyseme"
_OPEN_PARTS, _HELD_GROUPS = 64, 8


class StoredSentence(NamedTuple):
    """The tokens of a sentence (none where vectors were pooled) and its vectors, as `Elmo.embed` gives them."""

    tokens: list[str]
    vectors: Float[np.ndarray, "..."]


class StoredToken(NamedTuple):
    """A token, where it stands, and its vectors, (layers, dim) or (dim,)."""

    token: str
    sentence: int
    position: int
    vectors: Float[np.ndarray, "..."]


def column_of(layer: str) -> str:
    """The column that holds a layer's vectors."""
    return f"vector_{layer}"


def read_vectors(path: str | Path) -> "StoredVectors":
    """Opens a folder that `polyseme embed -o DIR` wrote.

    Nothing is read but the manifest; vectors are read, memory-mapped, when they are asked for.

    Raises:
        FormatError: the folder is not finished, damaged, or none of ours.
    """
    return StoredVectors(Path(path))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished folder."""
    file = path / MANIFEST
    if not file.is_file():
        parts = len(list(path.glob("part-*"))) if path.is_dir() else 0
        if parts:
            raise FormatError(f"{path} is not finished: {parts} parts, no {MANIFEST}; run its `polyseme embed` command again.")
        raise FormatError(f"{path} holds no {MANIFEST}; wanted a folder written by `polyseme embed -o DIR`.")
    try:
        manifest = json.loads(file.read_bytes())
    except ValueError as error:
        raise FormatError(f"{file} is not valid JSON ({error}); write the folder again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise FormatError(f"{file} is of another kind or version; wanted {FORMAT}, version {VERSION}.")
    return manifest


class StoredVectors(Dataset[StoredSentence]):
    """Stored vectors as a data set of sentences: `len(vectors)`, `vectors[7].tokens`, `vectors[7].vectors`.

    Vectors come as float32, with the shape `Elmo.embed` gives them: (layers, tokens, dim) where all layers were stored,
    otherwise (tokens, dim), or without the tokens where they were pooled. `vectors.tokens` is the data set of all tokens,
    `manifest` what is known about the whole. May be handed to the workers of a torch DataLoader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.layers: tuple[str, ...] = tuple(column["layer"] for column in self.manifest["columns"])
        self.dims: tuple[int, ...] = tuple(column["width"] for column in self.manifest["columns"])
        self.pooled = self.manifest["settings"]["pool"] is not None
        self.boundaries = bool(self.manifest["settings"]["boundaries"])
        self._stacked = self.manifest["settings"]["layers"] == "all"
        self._quantized = self.manifest["settings"]["dtype"] == "int8"
        parts = self.manifest["parts"]
        self._first_sentences = np.cumsum([0, *(part["sentences"] for part in parts)])
        self._first_rows = np.cumsum([0, *(part["rows"] for part in parts)])
        for part in parts:
            file = path / part["file"]
            size = file.stat().st_size if file.is_file() else None
            if size != part["bytes"]:
                found = "is missing" if size is None else f"has {size:,} bytes instead of {part['bytes']:,}"
                raise FormatError(f"{file} {found}; run the folder's `polyseme embed` command again with --overwrite.")
        self._forget()

    def _forget(self) -> None:
        self._files: OrderedDict[int, _Part] = OrderedDict()
        self._starts: dict[int, Int[np.ndarray, "sentences"]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_files", "_starts")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        widths = ", ".join(f"{name} {width}" for name, width in zip(self.layers, self.dims, strict=True))
        return f"StoredVectors({str(self.path)!r}: {len(self):,} sentences, {self.manifest['tokens']:,} tokens; {widths})"

    def __len__(self) -> int:
        return int(self._first_sentences[-1])

    def __getitem__(self, index: int) -> StoredSentence:
        number = _checked(index, len(self), "sentences")
        part = int(np.searchsorted(self._first_sentences, number, side="right")) - 1
        inside = number - int(self._first_sentences[part])
        if self.pooled:
            return StoredSentence([], self._vectors(part, inside, inside + 1)[..., 0, :])
        starts = self._sentence_starts(part)
        begin, end = int(starts[inside]), int(starts[inside + 1])
        words = (begin + 1, end - 1) if self.boundaries else (begin, end)
        return StoredSentence(self._part(part).strings("token", *words), self._vectors(part, begin, end))

    @property
    def tokens(self) -> "StoredTokens":
        """All tokens of all sentences as a data set, sentence markers included where they were stored."""
        if self.pooled:
            raise InputError(f"{self.path} holds one vector for each sentence (--pool); it has no tokens to go through.")
        return StoredTokens(self)

    @property
    def rows(self) -> int:
        """How many rows all parts together have."""
        return int(self._first_rows[-1])

    def token(self, index: int) -> StoredToken:
        """One row of the table."""
        number = _checked(index, self.rows, "tokens")
        part = int(np.searchsorted(self._first_rows, number, side="right")) - 1
        row = number - int(self._first_rows[part])
        table = self._part(part)
        (text,) = table.strings("token", row, row + 1)
        sentence, position = (int(table.numbers(name, row, row + 1)[0]) for name in ("sentence", "position"))
        return StoredToken(text, sentence, position, self._vectors(part, row, row + 1)[..., 0, :])

    def verify(self) -> None:
        """Reads every part once and compares its checksum with the manifest's; FormatError names the first that differs."""
        for part in self.manifest["parts"]:
            with (self.path / part["file"]).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != part["sha256"]:
                raise FormatError(f"{self.path / part['file']} is damaged: its checksum differs from the manifest's.")

    def _part(self, number: int) -> "_Part":
        if number not in self._files:
            self._files[number] = _Part(self.path / self.manifest["parts"][number]["file"])
            if len(self._files) > _OPEN_PARTS:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return self._files[number]

    def _sentence_starts(self, part: int) -> Int[np.ndarray, "sentences"]:
        """The first row of each sentence of a part, and the end of the last; sentences without rows begin where they end."""
        if part not in self._starts:
            rows = self.manifest["parts"][part]["rows"]
            first = int(self._first_sentences[part])
            numbers = np.arange(first, int(self._first_sentences[part + 1]) + 1)
            self._starts[part] = np.searchsorted(self._part(part).numbers("sentence", 0, rows), numbers)
        return self._starts[part]

    def _vectors(self, part: int, begin: int, end: int) -> Float[np.ndarray, "..."]:
        found = [self._layer(self._part(part), column_of(layer), width, begin, end) for layer, width in self._widths()]
        return np.stack(found) if self._stacked else found[0]

    def _widths(self) -> list[tuple[str, int]]:
        return list(zip(self.layers, self.dims, strict=True))

    def _layer(self, part: "_Part", column: str, width: int, begin: int, end: int) -> Float[np.ndarray, "rows width"]:
        values = part.lists(column, width, begin, end).astype(np.float32)
        if self._quantized:
            values *= part.numbers(f"{column}_scale", begin, end).astype(np.float32)[:, None]
        return values


class StoredTokens(Dataset[StoredToken]):
    """All stored tokens, in order: what `StoredVectors.tokens` gives."""

    def __init__(self, vectors: StoredVectors) -> None:
        self.vectors = vectors

    def __len__(self) -> int:
        return self.vectors.rows

    def __getitem__(self, index: int) -> StoredToken:
        return self.vectors.token(index)


def _checked(index: int, count: int, what: str) -> int:
    """A place from 0, negative ones from the end; IndexError as sequences raise it."""
    number = int(index) + count if index < 0 else int(index)
    if not 0 <= number < count:
        raise IndexError(f"{index} is out of range: there are {count:,} {what}.")
    return number


class _Part:
    """One file of rows, whose groups (of equal size but for the last) are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._held: OrderedDict[tuple[str, int], pyarrow.Array] = OrderedDict()
        try:
            if path.suffix == ".arrow":
                self._arrow = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
                self._parquet = None
                self._groups = self._arrow.num_record_batches
                self._size = self._arrow.get_batch(0).num_rows if self._groups else 1
            else:
                self._parquet = pyarrow.parquet.ParquetFile(path, memory_map=True)
                self._arrow = None
                self._groups = self._parquet.metadata.num_row_groups
                self._size = self._parquet.metadata.row_group(0).num_rows if self._groups else 1
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise FormatError(f"{path} cannot be read ({error}); run the folder's `polyseme embed` command again.") from error

    def _column(self, name: str, group: int) -> "pyarrow.Array":
        if self._arrow is not None:
            return self._arrow.get_batch(group).column(name)  # a view of the file
        key = (name, group)
        if key not in self._held and self._parquet is not None:
            self._held[key] = self._parquet.read_row_group(group, columns=[name]).column(name).combine_chunks()
            if len(self._held) > _HELD_GROUPS:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]

    def _slices(self, name: str, begin: int, end: int) -> "list[pyarrow.Array]":
        groups = range(begin // self._size, -(-end // self._size) if end > begin else begin // self._size)
        return [
            self._column(name, group)[max(begin - group * self._size, 0) : min(end - group * self._size, self._size)]
            for group in groups
        ]

    def numbers(self, name: str, begin: int, end: int) -> np.ndarray:
        """Rows of a column of numbers."""
        found = [piece.to_numpy(zero_copy_only=False) for piece in self._slices(name, begin, end)]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def strings(self, name: str, begin: int, end: int) -> list[str]:
        """Rows of a column of strings."""
        return [cast(str, text) for piece in self._slices(name, begin, end) for text in piece.to_pylist()]

    def lists(self, name: str, width: int, begin: int, end: int) -> np.ndarray:
        """Rows of a column of lists of that size."""
        found = [piece.flatten().to_numpy(zero_copy_only=False) for piece in self._slices(name, begin, end)]
        return np.concatenate(found).reshape(-1, width) if found else np.zeros((0, width), dtype=np.float32)


#: How parts are stored.
Container = Literal["parquet", "arrow"]
#: How vectors' numbers are stored.
Dtype = Literal["float32", "float16", "int8"]
