"""Model files as data: folders and zips read alike, sizes checked before memory is taken, writes that are whole or not there."""

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from polyseme.errors import WeightsError
from polyseme.vocabulary import Vocabulary

#: Weights and word lists shrink by a small factor; what claims to shrink by more, and is large, is no model.
_LARGEST_RATIO = 50
_SMALL = 32 << 20


class Files(Protocol):
    """The files of one model, in a folder or in a zip."""

    name: str

    def names(self) -> list[str]:
        """The names of the files, without folders."""
        ...

    def read(self, name: str) -> bytes:
        """The whole content of one file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """One file, seekable."""
        ...


class Folder:
    """The files directly in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def names(self) -> list[str]:
        """The names of the files in the folder."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_file())

    def read(self, name: str) -> bytes:
        """The whole content of one file."""
        return (self.path / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """One file, seekable."""
        return (self.path / name).open("rb")


class Zip:
    """The files of a zip, in its top or in its only folder; nothing is unpacked to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with self._zip() as archive:
            self._members = self._checked(archive)

    @contextlib.contextmanager
    def _zip(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise WeightsError(f"{self.path} is not a readable zip ({error}); it is damaged or incomplete.") from error

    def _checked(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        members = {}
        for member in archive.infolist():
            if member.is_dir():
                continue
            path = PurePosixPath(member.filename.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise WeightsError(f"{self.path} holds {member.filename!r}, a name that points outside of it; it is not opened.")
            if "__MACOSX" not in path.parts:
                check_ratio(member.file_size, member.compress_size, name=f"{member.filename} in {self.path}")
                members[path] = member
        folders = {path.parent for path in members}
        top = min(folders, key=lambda folder: len(folder.parts), default=PurePosixPath("."))
        return {path.name: member for path, member in members.items() if path.parent == top}

    def names(self) -> list[str]:
        """The names of the files in the model's folder of the zip."""
        return sorted(self._members)

    def read(self, name: str) -> bytes:
        """The whole content of one file."""
        with self._zip() as archive:
            return archive.read(self._members[name])

    def open(self, name: str) -> BinaryIO:
        """One file, seekable, in memory."""
        return BytesIO(self.read(name))


def check_ratio(size: int, stored: int, *, name: str) -> None:
    """Refuses what would grow enormously on reading: no weights compress like that."""
    if size > _SMALL and size > _LARGEST_RATIO * max(stored, 1):
        raise WeightsError(
            f"{name} would grow from {stored:,} to {size:,} bytes, which no model's weights or word list does; it is not read."
        )


def gunzip(data: bytes, *, name: str) -> bytes:
    """The content of gzip-compressed bytes, up to a size a word list can have."""
    limit = max(_SMALL, _LARGEST_RATIO * len(data))
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as file:
            content = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise WeightsError(f"{name} is not a readable gzip file ({error}); it is damaged or incomplete.") from error
    if len(content) > limit:
        raise WeightsError(f"{name} would grow from {len(data):,} to over {limit:,} bytes; no word list does, it is not read.")
    return content


def read_vocabulary(path: Path, *, files: Files | None = None) -> Vocabulary:
    """One word per line, gzip-compressed where the name ends in .gz: from a path, or by its name from a model's files."""
    data = path.read_bytes() if files is None else files.read(path.name)
    name = str(path) if files is None else f"{path.name} in {files.name}"
    return Vocabulary.parse(gunzip(data, name=name) if path.suffix == ".gz" else data, name=name)


def read_json(data: bytes, *, name: str) -> dict[str, Any]:
    """A JSON object from bytes."""
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{name} is not valid JSON ({error}).") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{name} holds {type(values).__name__}; wanted a JSON object.")
    return values


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns the system's refusals into one clear error."""
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{target} could not be written ({error.strerror or error}); nothing was left there.") from error


@contextlib.contextmanager
def replacing_file(target: Path) -> Iterator[Path]:
    """A path beside the target to write to; it takes the target's place when the block ends without an error."""
    with writing(target):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
        beside = Path(name)
        try:
            yield beside
            _sync(beside)
            beside.chmod(0o666 & ~_umask())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(target: Path, *, known: frozenset[str]) -> Iterator[Path]:
    """An empty folder beside the target; it takes the target's place when the block ends without an error.

    A folder that stands there already is replaced only if it holds no files but `known` ones.
    """
    with writing(target):
        if target.exists() and not target.is_dir():
            raise WeightsError(f"{target} is a file; wanted the name of a folder to write.")
        others = sorted(entry.name for entry in target.iterdir() if entry.name not in known) if target.exists() else []
        if others:
            raise WeightsError(f"{target} already holds {', '.join(others[:3])}, which is no part of a model; name a new folder.")
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            new = work / "new"
            new.mkdir()
            yield new
            for entry in new.rglob("*"):
                if entry.is_file():
                    entry.chmod(0o666 & ~_umask())
                    _sync(entry)
            if target.exists():
                # A folder that is not empty cannot be replaced in one step: the old one steps aside and comes back if need be.
                target.rename(work / "old")
                try:
                    new.rename(target)
                except OSError:
                    (work / "old").rename(target)
                    raise
            else:
                new.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
