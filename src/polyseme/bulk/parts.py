"""One portion of sentences → one part: its vectors, group by group, into a Parquet or an Arrow file.

`make_part` is the only place where stored vectors are computed. Batches never cross a part, so what a part holds depends on
its portion, the settings and the model alone.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

import numpy as np
from jaxtyping import Float

from polyseme.bulk.place import HashedFile, Place
from polyseme.bulk.portions import Portion
from polyseme.bulk.settings import BulkSettings
from polyseme.errors import FormatError, InputError
from polyseme.text import tokenizer
from polyseme.vectors import METADATA_KEY, column_of

if TYPE_CHECKING:
    import pyarrow

    from polyseme.elmo import Elmo

Advance = Callable[[int], None]


class Receipt(TypedDict):
    """What the manifest says about a part."""

    file: str
    sentences: int
    tokens: int
    rows: int
    bytes: int
    sha256: str


class Description(TypedDict):
    """What a part says about itself, so that it can be told whether it belongs to a run."""

    settings: dict[str, Any]
    model: str
    input: str
    first: int
    sentences: int
    tokens: int
    rows: int


def part_name(number: int, settings: BulkSettings) -> str:
    """part-00000.parquet."""
    return f"part-{number:05}.{settings.container}"


def identity(settings: BulkSettings) -> dict[str, Any]:
    """The settings as JSON gives them back."""
    return json.loads(json.dumps(settings.to_dict()))


def make_part(
    elmo: "Elmo", model: str, portion: Portion, settings: BulkSettings, place: Place, advance: Advance | None = None
) -> Receipt:
    """Computes and writes the part of a portion; `model` is the model's hash, `advance` is told of tokens as they are done."""
    tokens, spans = _tokenized(portion, settings)
    count = sum(map(len, tokens))
    rows = len(tokens) if settings.pool is not None else count + 2 * len(tokens) * settings.boundaries
    description = Description(
        settings=identity(settings),
        model=model,
        input=portion.digest(),
        first=portion.first,
        sentences=len(tokens),
        tokens=count,
        rows=rows,
    )
    name = part_name(portion.number, settings)
    with place.writing(name) as file, _Table(file, settings, description) as table:
        arrays = elmo.embed_iter(
            tokens,
            layers=settings.embed_layers,
            state=settings.state,
            boundaries=settings.boundaries,
            precision=settings.precision,
            pool=settings.pool,
            batch_tokens=settings.batch_tokens,
        )
        for number, (words, array) in enumerate(zip(tokens, arrays, strict=True)):
            vectors = array if settings.layers == "all" else array[None]
            place_in_text = None if spans is None else (portion.texts[number], portion.starts[number], spans[number])
            if settings.pool is not None:
                table.add_pooled(portion.first + number, len(words), vectors[:, None], place_in_text)
            else:
                marked = [elmo.reader.begin, *words, elmo.reader.end] if settings.boundaries else words
                table.add(portion.first + number, marked, vectors, place_in_text)
            if advance is not None:
                advance(len(words))
    return Receipt(file=name, sentences=len(tokens), tokens=count, rows=rows, bytes=file.size, sha256=file.sha256)


def describe_part(place: Place, name: str) -> Description:
    """What a whole part says about itself."""
    import pyarrow
    import pyarrow.parquet

    try:
        with place.open(name) as file:
            if PurePath(name).suffix == ".arrow":
                metadata = pyarrow.ipc.open_file(file).schema.metadata
            else:
                metadata = pyarrow.parquet.read_schema(file).metadata
        return json.loads((metadata or {})[METADATA_KEY])
    except (pyarrow.ArrowInvalid, KeyError, ValueError) as error:
        raise FormatError(
            f"{place.name}/{name} is no part of stored vectors, or damaged; delete it, or give --overwrite."
        ) from error


def receipt_of(place: Place, name: str, description: Description) -> Receipt:
    """The receipt of a part that was there already: its bytes are read once for the checksum."""
    with place.open(name) as file:
        hashed = _drained(file)
    return Receipt(
        file=name,
        sentences=description["sentences"],
        tokens=description["tokens"],
        rows=description["rows"],
        bytes=hashed.size,
        sha256=hashed.sha256,
    )


class _Nowhere:
    def write(self, data: bytes, /) -> None:
        """Keeps nothing."""


def _drained(file: BinaryIO) -> HashedFile:
    hashed = HashedFile(_Nowhere())
    while piece := file.read(1 << 20):
        hashed.write(piece)
    return hashed


_Spans = list[tuple[int, int]]
_Where = tuple[int, int, _Spans]  # number of the text, first character of the sentence there, the tokens' characters in it


def _tokenized(portion: Portion, settings: BulkSettings) -> tuple[list[list[str]], list[_Spans] | None]:
    """The tokens of each sentence, and for texts their places. Stored lists of tokens are taken as they are, without places."""
    if settings.tokenization is None:
        return [value.split() if isinstance(value, str) else value for value in portion.sentences], None
    cut = tokenizer(settings.tokenization)
    tokens, spans = [], []
    for value in portion.sentences:
        found = cut.spans(value) if isinstance(value, str) else []
        tokens.append([token.text for token in found] if isinstance(value, str) else value)
        spans.append([(token.start, token.end) for token in found] if isinstance(value, str) else [(-1, -1)] * len(value))
    return tokens, spans


def part_schema(settings: BulkSettings, description: Description | None = None) -> "pyarrow.Schema":
    """The columns of a part; none of them has gaps."""
    import pyarrow as pa

    columns = [("sentence", pa.int64())]
    columns += [("tokens", pa.int32())] if settings.pool is not None else [("position", pa.int32()), ("token", pa.string())]
    if settings.tokenization is not None:
        columns += [("text", pa.int64()), ("start", pa.int32()), ("end", pa.int32())]
    item = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}[settings.dtype]
    for layer, width in zip(settings.columns, settings.widths, strict=True):
        columns.append((column_of(layer), pa.list_(pa.field("element", item, nullable=False), width)))
        if settings.dtype == "int8":
            columns.append((f"{column_of(layer)}_scale", pa.float32()))
    metadata = None if description is None else {METADATA_KEY: json.dumps(description, sort_keys=True).encode()}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns], metadata=metadata)


class _Table:
    """Rows gathered into groups of one size, each written as soon as it is full."""

    def __init__(self, file: HashedFile, settings: BulkSettings, description: Description) -> None:
        self._settings = settings
        self._schema = part_schema(settings, description)
        self._file = file
        kind = np.float16 if settings.dtype == "float16" else np.float32
        self._vectors = [np.empty((settings.rows, width), dtype=kind) for width in settings.widths]
        self._cells: dict[str, list[Any]] = {}
        self._held = 0

    def __enter__(self) -> "_Table":
        import pyarrow
        import pyarrow.parquet

        if self._settings.container == "arrow":
            self._writer = pyarrow.ipc.new_file(self._file, self._schema)
        else:
            small = [name for name in self._schema.names if not name.startswith("vector_")]
            # Vectors do not shrink; int8 has no smaller form in Parquet than numbers of a dictionary.
            coded = [f"{column_of(layer)}.list.element" for layer in self._settings.columns if self._settings.dtype == "int8"]
            self._writer = pyarrow.parquet.ParquetWriter(
                self._file,
                self._schema,
                compression=dict.fromkeys(small, "zstd"),
                use_dictionary=[*(name for name in small if name == "token"), *coded],
                write_statistics=[name for name in small if name != "token"],
            )
        self._writer.__enter__()
        self._clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self._flush()
                self._writer.close()
        finally:
            with contextlib.suppress(OSError):  # the end of a file that is given up
                self._writer.close()

    def add(self, sentence: int, tokens: list[str], vectors: Float[np.ndarray, "layers rows _"], where: _Where | None) -> None:
        """The rows of a sentence, its markers among them where they are kept."""
        count, first = len(tokens), -1 if self._settings.boundaries else 0
        cells: dict[str, list[Any]] = {
            "sentence": [sentence] * count,
            "position": list(range(first, first + count)),
            "token": tokens,
        }
        if where is not None:
            text, start, spans = where
            if self._settings.boundaries:
                last = spans[-1][1] if spans else 0
                spans = [(0, 0), *spans, (last, last)]
            cells["text"] = [text] * count
            cells["start"] = [start + begin if begin >= 0 else -1 for begin, _ in spans]
            cells["end"] = [start + end if end >= 0 else -1 for _, end in spans]
        self._put(cells, vectors)

    def add_pooled(self, sentence: int, count: int, vectors: Float[np.ndarray, "layers 1 _"], where: _Where | None) -> None:
        """The one row of a sentence."""
        cells: dict[str, list[Any]] = {"sentence": [sentence], "tokens": [count]}
        if where is not None:
            text, start, spans = where
            begin, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
            cells |= {"text": [text], "start": [start + begin if begin >= 0 else -1], "end": [start + end if end >= 0 else -1]}
        self._put(cells, vectors)

    def _put(self, cells: dict[str, list[Any]], vectors: Float[np.ndarray, "layers rows _"]) -> None:
        done, count = 0, vectors.shape[1]
        while done < count:
            step = min(count - done, self._settings.rows - self._held)
            for target, layer in zip(self._vectors, vectors, strict=True):
                target[self._held : self._held + step] = self._rounded(layer[done : done + step])
            for name, values in cells.items():
                self._cells[name] += values[done : done + step] if step < count else values
            self._held += step
            done += step
            if self._held == self._settings.rows:
                self._flush()

    def _rounded(self, values: Float[np.ndarray, "rows _"]) -> np.ndarray:
        if self._settings.dtype != "float16":
            return values
        with np.errstate(over="raise"):
            try:
                return values.astype(np.float16)
            except FloatingPointError as error:
                raise InputError("this model's vectors hold numbers too large for float16; store float32.") from error

    def _clear(self) -> None:
        self._cells = {name: [] for name in self._schema.names if not name.startswith("vector_")}
        self._held = 0

    def _flush(self) -> None:
        if self._held == 0:
            return
        import pyarrow as pa

        columns: dict[str, Any] = {
            name: pa.array(values, type=self._schema.field(name).type) for name, values in self._cells.items()
        }
        for layer, buffer in zip(self._settings.columns, self._vectors, strict=True):
            values = buffer[: self._held]
            if self._settings.dtype == "int8":
                values, columns[f"{column_of(layer)}_scale"] = _quantized(values)
            kind = self._schema.field(column_of(layer)).type
            columns[column_of(layer)] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        if self._settings.container == "arrow":
            self._writer.write_table(table)
        else:
            self._writer.write_table(table, row_group_size=self._settings.rows)
        self._clear()


def _quantized(values: Float[np.ndarray, "rows width"]) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers from -127 to 127, and for each row what one of them stands for."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    return np.rint(values / np.where(scale == 0, 1, scale)[:, None]).astype(np.int8), scale.astype(np.float32)


def batches(place: Place, name: str) -> "Iterator[pyarrow.RecordBatch]":
    """The groups of rows of a part, in order."""
    import pyarrow
    import pyarrow.parquet

    with place.open(name) as file:
        if PurePath(name).suffix == ".arrow":
            reader = pyarrow.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from pyarrow.parquet.ParquetFile(file).iter_batches()
