"""Where parts are written: a local folder or, as a URI, a folder of an object store. A file there is whole or absent."""

import contextlib
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from polyseme.errors import InputError
from polyseme.sources import remote

if TYPE_CHECKING:
    import pyarrow.fs

#: Open parts, and what workers share, lie here; programs that read folders of Parquet files pass over it.
WORK = ".work"


class Sink(Protocol):
    """What bytes can be written to."""

    def write(self, data: bytes, /) -> object:
        """Takes all of them."""
        ...


class HashedFile(io.RawIOBase):
    """Counts and hashes what is written through it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: bytes, /) -> int:  # pyrefly: ignore
        """Passes the bytes on."""
        self._sink.write(data)
        self._sha256.update(data)
        count = memoryview(data).nbytes
        self.size += count
        return count

    def tell(self) -> int:
        """How much was written."""
        return self.size

    @property
    def sha256(self) -> str:
        """The checksum of all that was written."""
        return self._sha256.hexdigest()


class Place:
    """A folder for parts, by path or by URI (s3://bucket/folder, gs://..., file:///...)."""

    def __init__(self, location: str | Path) -> None:
        self.name = str(location)
        self.local: Path | None = None
        self._system: pyarrow.fs.FileSystem | None = None
        self._folder = ""
        if "://" in self.name:
            self._system, self._folder = remote(self.name)
        else:
            self.local = Path(location)

    def __getstate__(self) -> dict[str, object]:
        return {"name": self.name}

    def __setstate__(self, state: dict[str, str]) -> None:
        Place.__init__(self, state["name"])  # file systems are opened anew in each process

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The folder for this process alone, where the system can promise that: empty of what a killed run left open."""
        if self._system is not None:
            with self._writing():
                self._remove_work()
                self._system.create_dir(f"{self._folder}/{WORK}", recursive=True)
            try:
                yield
            finally:
                self._remove_work()
            return
        import fcntl

        folder = self._local()
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"{self.name} is being written by another process; wait for it, or name a new folder."
                ) from error
            with self._writing():
                self._remove_work()
                self.work.mkdir()
            try:
                yield
            finally:
                self._remove_work()
        finally:
            os.close(handle)

    @property
    def work(self) -> Path:
        """The folder of open files, where the place is local."""
        return self._local() / WORK

    def names(self) -> list[str]:
        """The files there, without those that are open."""
        if self._system is None:
            return sorted(entry.name for entry in self._local().iterdir() if entry.name != WORK)
        import pyarrow.fs

        found = self._system.get_file_info(pyarrow.fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.base_name != WORK)

    def open(self, name: str) -> BinaryIO:
        """A file to read, seekable."""
        if self._system is None:
            return (self._local() / name).open("rb")
        return self._system.open_input_file(f"{self._folder}/{name}")  # pyrefly: ignore

    def remove(self, name: str) -> None:
        """Deletes a file."""
        with self._writing():
            if self._system is None:
                (self._local() / name).unlink()
            else:
                self._system.delete_file(f"{self._folder}/{name}")

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[HashedFile]:
        """A new file, which takes its name when the block ends without an error."""
        open_name = f"{WORK}/{name}.{os.getpid()}"
        with self._writing():
            if self._system is not None:
                with self._system.open_output_stream(f"{self._folder}/{open_name}") as stream:
                    yield HashedFile(stream)
                self._system.move(f"{self._folder}/{open_name}", f"{self._folder}/{name}")
                return
            beside = self._local() / open_name
            try:
                with beside.open("wb") as stream:
                    yield HashedFile(stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                beside.replace(self._local() / name)
            finally:
                beside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno in errno.errorcode else error
            raise InputError(
                f"{self.name} cannot be written ({reason}). What is whole stays: run the same command again to go on."
            ) from error

    def _remove_work(self) -> None:
        if self._system is None:
            shutil.rmtree(self.work, ignore_errors=True)
            return
        import pyarrow.fs

        folder = f"{self._folder}/{WORK}"
        if self._system.get_file_info(folder).type == pyarrow.fs.FileType.Directory:
            self._system.delete_dir(folder)

    def _local(self) -> Path:
        assert self.local is not None
        return self.local
