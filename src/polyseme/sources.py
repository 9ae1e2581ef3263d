"""Text from files, as a stream: plain, gz, xz or zst; lines, JSON lines, Parquet, CoNLL columns; or standard input.

Every error names the file and the line. Memory is bounded by one block, whatever the size of the input. What a block
holds is text (or tokens, where the file stores lists or columns); cutting text into sentences and tokens is up to the
caller, see `Reader.sentences`.
"""

import fnmatch
import glob
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from polyseme.errors import FormatError, InputError

if TYPE_CHECKING:
    import pyarrow.fs

Form = Literal["text", "jsonl", "parquet", "conll"]

_FORMS: dict[str, Form] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".conllu": "conll",
}
_COMPRESSED = (".gz", ".xz", ".zst")
_BLOCK, _READ = 1 << 20, 1 << 16
_EMPTY_FIELD = re.compile(r"\S[ \t]{2,}\S")


@dataclass(frozen=True)
class Source:
    """One input: a file, or with a `uri` one of an object store; with neither, standard input."""

    path: Path | None
    form: Form
    uri: str | None = None

    @property
    def name(self) -> str:
        """What error messages call it."""
        return self.uri or ("standard input" if self.path is None else str(self.path))

    @property
    def standard_input(self) -> bool:
        """Whether it can be read once only."""
        return self.path is None and self.uri is None


@dataclass(frozen=True)
class Block:
    """Consecutive records of one source: for each its line (Parquet: row), counted from 1, and its text or tokens."""

    source: Source
    lines: Sequence[int]
    values: Sequence[str | list[str]]


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences of one source, and the line each began on. An empty sentence is a blank line."""

    source: Source
    lines: Sequence[int]
    sentences: list[list[str]]


def find(inputs: Sequence[str | Path], *, form: Form | None = None) -> list[Source]:
    """The files that paths and patterns name, in the order given, a pattern's matches sorted; "-" is standard input.

    The form follows from the name (.jsonl, .ndjson, .json, .parquet, .conll, .conllu, before a .gz, .xz or .zst), else it
    is "text"; `form` overrides it.
    """
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    sources = []
    for item in inputs:
        if str(item) == "-":
            sources.append(Source(None, form or "text"))
            continue
        if "://" in str(item):
            sources += [Source(None, form or _form_of(PurePosixPath(uri)), uri) for uri in _remote_files(str(item))]
            continue
        paths = [Path(item)] if Path(item).exists() else [Path(path) for path in sorted(glob.glob(str(item), recursive=True))]
        paths = [path for path in paths if not path.is_dir() or not glob.has_magic(str(item))]
        if not paths:
            way_out = "give files, patterns such as 'text/*.txt.xz', or - for standard input"
            raise InputError(f"no file matches {str(item)!r}; {way_out}.")
        for path in paths:
            if path.is_dir():
                raise InputError(f"{path} is a folder; name its files with a pattern such as '{path}/*'.")
            sources.append(Source(path, form or _form_of(path)))
    if not sources:
        raise InputError("no input was given; name files, patterns such as 'text/*.txt.xz', or - for standard input.")
    if sum(source.standard_input for source in sources) > 1:
        raise InputError("standard input (-) was named twice; it can be read once.")
    return sources


def _form_of(path: PurePath) -> Form:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    return _FORMS.get(suffixes[-1] if suffixes else "", "text")


def remote(uri: str) -> "tuple[pyarrow.fs.FileSystem, str]":
    """The file system that a URI names (s3://, gs://, hdfs://, file://), and the path in it."""
    import pyarrow
    import pyarrow.fs

    try:
        system, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{uri} cannot be opened ({error}); give a path, or a URI such as s3://bucket/folder.") from error
    return system, path.rstrip("/")


def _remote_files(uri: str) -> list[str]:
    """The URI itself, or those of the files in its folder that match the pattern in its last part, sorted."""
    folder, _, name = uri.rpartition("/")
    if not glob.has_magic(name):
        return [uri]
    import pyarrow.fs

    system, path = remote(folder)
    found = system.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    names = sorted(entry.base_name for entry in found if entry.is_file and fnmatch.fnmatchcase(entry.base_name, name))
    if not names:
        raise InputError(f"no file matches {uri!r}.")
    return [f"{folder}/{name}" for name in names]


def _size(source: Source) -> int:
    """Stored bytes, 0 for standard input."""
    if source.uri is not None:
        system, path = remote(source.uri)
        found = system.get_file_info(path)
        if not found.is_file:
            raise InputError(f"{source.uri}: no such file.")
        return found.size
    return 0 if source.path is None else source.path.stat().st_size


class Reader:
    """Reads sources as a stream of blocks.

    inputs    paths, patterns, "-"
    form      None: by the name of each file
    field     of a JSON line or Parquet row: the text (a string, or a list of tokens)
    column    of a CoNLL line: where the word stands, from 0 (1 in CoNLL-U files)
    damaged   what cannot be read is an "error" (FormatError with file and line), or skipped and counted: "skip"
    longest   bytes a line may have

    `skipped` counts, `first_skipped` says what was wrong with the first few, `bytes_read` of `bytes_total` (None where
    standard input takes part) is how far the files as stored have been read.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        *,
        form: Form | None = None,
        field: str = "text",
        column: int | None = None,
        damaged: Literal["error", "skip"] = "error",
        longest: int = 8 << 20,
    ) -> None:
        if damaged not in ("error", "skip"):
            raise InputError(f"damaged is {damaged!r}; wanted 'error' or 'skip'.")
        self.sources = find(inputs, form=form)
        self.field = field
        self.column = column
        self.damaged = damaged
        self.longest = longest
        self.skipped = 0
        self.first_skipped: list[str] = []
        sizes = [_size(source) for source in self.sources]
        self.bytes_total = None if any(source.standard_input for source in self.sources) else sum(sizes)
        self._sizes = sizes
        self._before = 0
        self._line = 1  # where a damaged compressed stream breaks off
        self._raw: BinaryIO | None = None

    @property
    def bytes_read(self) -> int:
        """Stored bytes read so far."""
        return self._before + (0 if self._raw is None or self._raw.closed or not self._raw.seekable() else self._raw.tell())

    def blocks(self) -> Iterator[Block]:
        """All records of all sources, in order; blank lines of text are kept as empty strings."""
        for source, size in zip(self.sources, self._sizes, strict=True):
            if source.form == "parquet":
                yield from self._parquet(source)
            elif source.form == "jsonl":
                yield from self._json(source)
            elif source.form == "conll":
                yield from self._conll(source)
            else:
                for first, lines in self._lines(source):
                    yield Block(source, range(first, first + len(lines)), lines)
            self._before += size

    def sentences(self, split: Callable[[str], list[list[str]]] | None = None) -> Iterator[Sentences]:
        """All sentences, tokenized.

        Without `split` a text is one sentence whose tokens stand between single blanks; two in a row mean an empty token
        and so a damaged line. `split` turns a text into sentences of tokens. Stored lists of tokens are taken as they are.
        """
        for block in self.blocks():
            if split is None:
                yield self._tokenized(block)
                continue
            lines, sentences = [], []
            for line, value in zip(block.lines, block.values, strict=True):
                parts = split(value) if isinstance(value, str) else [value]
                lines += [line] * len(parts)
                sentences += parts
            yield Sentences(block.source, lines, sentences)

    def _tokenized(self, block: Block) -> Sentences:
        odd = {
            position
            for position, value in enumerate(block.values)
            if ("  " in value or "\t" in value if isinstance(value, str) else not all(value)) and self._has_empty(value)
        }
        for position in sorted(odd):
            way_out = "separate tokens by one blank, or skip such lines (damaged='skip')"
            self._report(block.source, block.lines[position], f"an empty token (two blanks in a row); {way_out}")
        if odd:
            kept = [position for position in range(len(block.values)) if position not in odd]
            block = Block(block.source, [block.lines[i] for i in kept], [block.values[i] for i in kept])
        values = [value.split() if isinstance(value, str) else value for value in block.values]
        return Sentences(block.source, block.lines, values)

    @staticmethod
    def _has_empty(value: str | list[str]) -> bool:
        return _EMPTY_FIELD.search(value) is not None if isinstance(value, str) else True

    def _report(self, source: Source, line: int, what: str) -> None:
        message = f"{source.name}, {'row' if source.form == 'parquet' else 'line'} {line}: {what}."
        if self.damaged == "error":
            raise FormatError(message)
        self.skipped += 1
        if len(self.first_skipped) < 10:
            self.first_skipped.append(message)

    def _open(self, source: Source) -> BinaryIO:
        """The decompressed bytes; the compression is told by the first bytes, not by the name."""
        import io

        try:
            if source.uri is not None:
                system, path = remote(source.uri)
                raw = cast(BinaryIO, system.open_input_file(path))
            else:
                raw = sys.stdin.buffer if source.path is None else open(source.path, "rb")
        except OSError as error:
            raise InputError(f"{source.name} cannot be opened: {error.strerror or error}.") from error
        self._raw = raw
        buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)  # pyrefly: ignore
        start = buffered.peek(6)[:6]
        if start.startswith(b"\x1f\x8b"):
            import gzip

            return gzip.GzipFile(fileobj=buffered)  # pyrefly: ignore
        if start == b"\xfd7zXZ\x00":
            import lzma

            return lzma.LZMAFile(buffered)  # pyrefly: ignore
        if start.startswith(b"\x28\xb5\x2f\xfd"):
            import pyarrow

            return pyarrow.CompressedInputStream(pyarrow.PythonFile(buffered, mode="r"), "zstd")
        return buffered

    def _pieces(self, source: Source) -> Iterator[bytes]:
        """The decompressed bytes in pieces; damage in the compressed stream ends it."""
        import lzma
        import zlib

        stream = self._open(source)
        try:
            while True:
                gathered, size, damage = [], 0, None
                # In small reads, so that what precedes the damage is not lost with it.
                while size < _BLOCK:
                    try:
                        piece = stream.read(_READ)
                    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
                        damage = str(error)
                        break
                    if not piece:
                        break
                    gathered.append(piece)
                    size += len(piece)
                if gathered:
                    yield b"".join(gathered)
                if damage is not None:
                    self._report(
                        source, self._line, f"the compressed stream is damaged or cut off ({damage}); get the file again"
                    )
                if damage is not None or not gathered:
                    return
        finally:
            if not source.standard_input:
                stream.close()
                if self._raw is not None:
                    self._raw.close()
            self._raw = None

    def _lines(self, source: Source) -> Iterator[tuple[int, list[str]]]:
        """Runs of whole, decoded lines, each with the number of its first line."""
        number, tail, overlong = 1, b"", False
        self._line = number
        for piece in self._pieces(source):
            cut = piece.rfind(b"\n") + 1
            if not cut:
                if overlong or len(tail) + len(piece) > self.longest:
                    tail, overlong = b"", True
                else:
                    tail += piece
                continue
            chunk, tail = (tail + piece[:cut] if tail else piece[:cut]), piece[cut:]
            if overlong:
                # The line whose beginning was dropped ends at the first newline here.
                self._too_long(source, number)
                number, overlong = number + 1, False
                chunk = chunk[chunk.index(b"\n") + 1 :]
            yield from self._decode(source, number, chunk)
            number += chunk.count(b"\n")
            self._line = number
        if overlong:
            self._too_long(source, number)
        elif tail:
            yield from self._decode(source, number, tail + b"\n")

    def _too_long(self, source: Source, line: int) -> None:
        self._report(source, line, f"longer than {self.longest:,} bytes; break the line up, one sentence or paragraph a line")

    def _decode(self, source: Source, number: int, chunk: bytes) -> Iterator[tuple[int, list[str]]]:
        if number == 1 and chunk.startswith(b"\xef\xbb\xbf"):
            chunk = chunk[3:]
        try:
            text = chunk.decode("utf-8")
        except UnicodeDecodeError:
            text = None
        if text is not None and len(chunk) <= self.longest:
            lines = text.split("\n")
            lines.pop()
            if lines:
                yield number, [line.rstrip("\r") for line in lines] if "\r" in text else lines
            return
        for line in chunk.split(b"\n")[:-1]:
            if len(line) > self.longest:
                self._too_long(source, number)
            else:
                try:
                    yield number, [line.decode("utf-8").rstrip("\r")]
                except UnicodeDecodeError as error:
                    where = f"byte 0x{line[error.start]:02x} at position {error.start}"
                    self._report(source, number, f"not valid UTF-8 ({where}); convert the file to UTF-8")
            number += 1

    def _json(self, source: Source) -> Iterator[Block]:
        for first, lines in self._lines(source):
            numbers, values = [], []
            for number, line in enumerate(lines, first):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    self._report(source, number, f"not valid JSON ({error}); wanted one object a line")
                    continue
                value = record.get(self.field) if isinstance(record, dict) else None
                if self._checked(source, number, value, record):
                    numbers.append(number)
                    values.append(value)
            yield Block(source, numbers, values)

    def _checked(self, source: Source, number: int, value: object, record: object) -> bool:
        """Whether a stored value is usable text or tokens; reports what is not."""
        if isinstance(value, list) and all(isinstance(token, str) for token in value):
            text = "".join(value)
        elif isinstance(value, str):
            text = value
        else:
            found = f"it has {', '.join(map(repr, record))}" if isinstance(record, dict) else f"it holds {type(record).__name__}"
            what = f"no string or list of strings under {self.field!r} ({found}); name the field that holds the text"
            self._report(source, number, what)
            return False
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                self._report(source, number, "an unpaired surrogate, which is not text; repair the escape sequences")
                return False
        if len(text) > self.longest:
            self._too_long(source, number)
            return False
        return True

    def _conll(self, source: Source) -> Iterator[Block]:
        column = self.column if self.column is not None else int(".conllu" in source.name.rpartition("/")[2])
        tokens: list[str] = []
        begun, good = 1, True
        for first, lines in self._lines(source):
            numbers, values = [], []
            for number, line in enumerate(lines, first):
                if not line.strip():
                    if tokens and good:
                        numbers.append(begun)
                        values.append(tokens)
                    tokens, good = [], True
                    continue
                fields = line.split("\t") if "\t" in line else line.split()
                if line.startswith("#") and "\t" not in line and not tokens:
                    continue  # a comment before a sentence
                if column > 0 and re.fullmatch(r"\d+[-.]\d+", fields[0]):
                    continue  # CoNLL-U's joined and empty words
                if len(fields) <= column or not fields[column].strip():
                    what = f"no word in column {column} of {len(fields)} (counted from 0); name the column of the words"
                    self._report(source, number, what)
                    good = False
                    continue
                begun = begun if tokens else number
                tokens.append(fields[column].strip())
            yield Block(source, numbers, values)
        if tokens and good:
            yield Block(source, [begun], [tokens])

    def _parquet(self, source: Source) -> Iterator[Block]:
        import pyarrow
        import pyarrow.parquet

        if source.standard_input:
            raise InputError("Parquet cannot be read from standard input; name the file.")
        system, path = (None, source.path) if source.uri is None else remote(source.uri)
        try:
            with pyarrow.parquet.ParquetFile(path, filesystem=system) as file:
                if self.field not in file.schema_arrow.names:
                    names = ", ".join(file.schema_arrow.names)
                    raise FormatError(f"{source.name}, row 1: no column {self.field!r}; it has {names}.")
                number = 1
                for batch in file.iter_batches(batch_size=1024, columns=[self.field]):
                    numbers, values = [], []
                    for row, value in enumerate(batch.column(0).to_pylist(), number):
                        if self._checked(source, row, value, {self.field: value}):
                            numbers.append(row)
                            values.append(value)
                    number += len(batch)
                    yield Block(source, numbers, values)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise FormatError(f"{source.name}: not a readable Parquet file ({error}).") from error
