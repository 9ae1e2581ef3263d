"""One portion of sentences → one part: its vectors, group by group, into a Parquet or an Arrow file.

`computed` is the only place where stored vectors are computed. Batches never cross a part, so what a part holds depends on
its portion, the settings and the model alone. Computing and writing may be left to two threads: what goes from one to the
other are groups of rows in buffers that are used again and again.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypedDict

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.bulk.place import HashedFile, Place
from polyseme.bulk.portions import Portion
from polyseme.bulk.settings import PART_BYTES, BulkSettings
from polyseme.errors import FormatError, InputError
from polyseme.text import tokenizer
from polyseme.vectors import METADATA_KEY, column_of

if TYPE_CHECKING:
    import pyarrow

    from polyseme.elmo import Elmo


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


@dataclass(frozen=True)
class Part:
    """What a part is made of but for the vectors: a portion's tokens, and for texts their places."""

    portion: Portion
    settings: BulkSettings
    tokens: list[list[str]]
    spans: "list[_Spans] | None"
    markers: tuple[str, str]
    description: Description

    @classmethod
    def of(cls, portion: Portion, settings: BulkSettings, model: str, elmo: "Elmo") -> "Part":
        """The part of a portion; `model` is the model's hash."""
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
        return cls(portion, settings, tokens, spans, (elmo.reader.begin, elmo.reader.end), description)


class Group(NamedTuple):
    """The vectors of some rows, in a buffer for each stored layer."""

    buffers: list[Float[Tensor, "room _"]]
    rows: int


class Buffers:
    """So many groups' buffers, by default as large as a part together; who takes more waits until some come back."""

    def __init__(self, settings: BulkSettings, count: int | None = None) -> None:
        kind = torch.float16 if settings.dtype == "float16" else torch.float32
        group = settings.rows * sum(settings.widths) * kind.itemsize
        self._free: SimpleQueue[list[Tensor]] = SimpleQueue()
        for _ in range(count or max(2, PART_BYTES // group)):
            self._free.put([torch.empty(settings.rows, width, dtype=kind) for width in settings.widths])

    def take(self) -> list[Tensor]:
        """One group's buffers."""
        return self._free.get()

    def give(self, group: Group) -> None:
        """Takes them back."""
        self._free.put(group.buffers)


def make_part(elmo: "Elmo", model: str, portion: Portion, settings: BulkSettings, place: Place) -> Receipt:
    """Computes and writes the part of a portion; `model` is the model's hash."""
    part, buffers = Part.of(portion, settings, model, elmo), Buffers(settings, 1)
    return write_part(part, computed(elmo, part, buffers), buffers, place)


def computed(elmo: "Elmo", part: Part, buffers: Buffers, advance: Callable[[int], None] | None = None) -> Iterator[Group]:
    """The rows of a part, group by group; `advance` is told of tokens as they are done."""
    settings = part.settings
    packer = _Packer(settings, buffers)
    for window in elmo.windows(part.tokens, precision=settings.precision, batch_tokens=settings.batch_tokens):
        arrays = elmo.embed(
            window,
            layers=settings.embed_layers,
            state=settings.state,
            boundaries=settings.boundaries,
            precision=settings.precision,
            pool=settings.pool,
            batch_tokens=settings.batch_tokens,
        )
        yield from packer.full(arrays)
        if advance is not None:
            advance(sum(map(len, window)))
    yield from packer.rest()


class _Packer:
    """Puts sentences' vectors into groups of one size."""

    def __init__(self, settings: BulkSettings, buffers: Buffers) -> None:
        self._settings = settings
        self._buffers = buffers
        self._targets: list[Tensor] = []
        self._held = 0

    def full(self, arrays: list[Float[np.ndarray, "..."]]) -> Iterator[Group]:
        """The groups that these sentences fill. The list is emptied, so that nothing is held when the next is computed."""
        arrays.reverse()
        while arrays:
            found = torch.from_numpy(arrays.pop())
            vectors = found if self._settings.layers == "all" else found[None]
            if self._settings.pool is not None:
                vectors = vectors[:, None]
            done, count = 0, len(vectors[0])
            while done < count:
                self._targets = self._targets or self._buffers.take()
                step = min(count - done, self._settings.rows - self._held)
                for target, layer in zip(self._targets, vectors, strict=True):
                    target[self._held : self._held + step] = layer[done : done + step]  # rounded, where it holds float16
                self._held += step
                done += step
                if self._held == self._settings.rows:
                    yield from self.rest()

    def rest(self) -> Iterator[Group]:
        """What is there, if anything."""
        if self._held:
            group = Group(self._targets, self._held)
            self._targets, self._held = [], 0
            yield group


class Unfinished(Exception):
    """The computation ended before a part's last group."""


def write_part(part: Part, groups: Iterable[Group], buffers: Buffers, place: Place) -> Receipt:
    """Writes a part; where there are too few groups there will be no file."""
    description, written = part.description, 0
    name = part_name(part.portion.number, part.settings)
    with place.writing(name) as file, _Table(file, part) as table:
        for group in groups:
            try:
                table.write(group, written)
            finally:
                buffers.give(group)
            written += group.rows
        if written != description["rows"]:
            raise Unfinished
    return _receipt(name, description, file)


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
    return _receipt(name, description, hashed)


def _receipt(name: str, description: Description, file: HashedFile) -> Receipt:
    return Receipt(
        file=name,
        sentences=description["sentences"],
        tokens=description["tokens"],
        rows=description["rows"],
        bytes=file.size,
        sha256=file.sha256,
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


def _places(settings: BulkSettings, spans: _Spans) -> _Spans:
    """The characters of each of a sentence's rows."""
    if settings.pool is not None:
        return [(spans[0][0], spans[-1][1]) if spans else (0, 0)]
    if settings.boundaries:
        last = spans[-1][1] if spans else 0
        return [(0, 0), *spans, (last, last)]
    return spans


def _columns(part: Part) -> dict[str, Any]:
    """All columns of a part but for the vectors, a value for each row."""
    first, count, pooled = part.portion.first, len(part.tokens), part.settings.pool is not None
    lengths = np.fromiter(map(len, part.tokens), np.int32, count)
    marked = int(part.settings.boundaries)
    rows = np.ones_like(lengths) if pooled else lengths + 2 * marked
    columns: dict[str, Any] = {"sentence": np.repeat(np.arange(first, first + count), rows)}
    if pooled:
        columns["tokens"] = lengths
    else:
        ends = np.cumsum(rows, dtype=np.int64)
        columns["position"] = np.arange(rows.sum()) - np.repeat(ends - rows, rows) - marked
        begin, end = part.markers
        sentences = ([begin, *words, end] for words in part.tokens) if marked else part.tokens
        columns["token"] = list(chain.from_iterable(sentences))
    if part.spans is not None:
        columns["text"] = np.repeat(np.array(part.portion.texts, np.int64), rows)
        starts = np.repeat(np.array(part.portion.starts, np.int64), rows)
        places = [place for spans in part.spans for place in _places(part.settings, spans)]
        offsets_of = np.array(places, np.int64).reshape(-1, 2)
        for name, offsets in zip(("start", "end"), offsets_of.T, strict=True):
            columns[name] = np.where(offsets < 0, -1, starts + offsets)
    return columns


class _Table:
    """The file of a part."""

    def __init__(self, file: HashedFile, part: Part) -> None:
        self._settings = part.settings
        self._schema = part_schema(part.settings, part.description)
        self._file = file
        self._columns = _columns(part)

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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self._writer.close()
        finally:
            with contextlib.suppress(OSError):  # the end of a file that is given up
                self._writer.close()

    def write(self, group: Group, first: int) -> None:
        """Writes rows; `first` is the number of the first in the part."""
        import pyarrow as pa

        rows = slice(first, first + group.rows)
        columns: dict[str, Any] = {
            name: pa.array(values[rows], type=self._schema.field(name).type) for name, values in self._columns.items()
        }
        for layer, buffer in zip(self._settings.columns, group.buffers, strict=True):
            values = buffer[: group.rows].numpy()
            if self._settings.dtype == "float16":
                _check_float16(values)
            elif self._settings.dtype == "int8":
                values, columns[f"{column_of(layer)}_scale"] = _quantized(values)
            kind = self._schema.field(column_of(layer)).type
            columns[column_of(layer)] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        if self._settings.container == "arrow":
            self._writer.write_table(table)
        else:
            self._writer.write_table(table, row_group_size=self._settings.rows)


def _check_float16(values: Float[np.ndarray, "rows width"]) -> None:
    """What float16 does not reach has been rounded to infinity."""
    if ((values.view(np.uint16) & 0x7FFF) == 0x7C00).any():
        raise InputError("this model's vectors hold numbers too large for float16; store float32.")


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
