"""TensorFlow checkpoint bundles (.index + .data-*), read without TensorFlow.

The index is a LevelDB table: blocks of prefix-compressed keys, each followed by its compression and its checksum, found
through an index block, found through the footer. Its values are protocol buffers that say where in the data files each
variable lies. Arrays are read, and their checksums compared, when they are asked for.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyseme.errors import WeightsError
from polyseme.weights.checksum import crc32c, unmask

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_LARGEST_INDEX = 256 << 20
#: DataType of tensorflow/core/framework/types.proto → numpy; bfloat16 is widened by hand.
_DTYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 14: "bfloat16", 17: "<u2", 19: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip


@dataclass(frozen=True)
class BundleArray:
    """One variable of a bundle, read when asked for."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    checksum: int

    def read(self) -> np.ndarray:
        """The values. WeightsError where their checksum differs from the recorded one."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            raw = np.fromfile(file, dtype=np.uint8, count=self.size)
        if len(raw) != self.size:
            raise WeightsError(f"{self.path} ends within the variable {self.name}; the checkpoint is incomplete, copy it again.")
        if crc32c(raw) != unmask(self.checksum):
            raise WeightsError(f"{self.path}: the checksum of {self.name} does not fit its values; copy the file again.")
        if self.dtype == "bfloat16":
            # bfloat16 is the upper half of a float32.
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return raw.view(self.dtype).reshape(self.shape)


def read_bundle(prefix: str | Path) -> dict[str, BundleArray]:
    """Every numeric variable of a checkpoint by its TensorFlow name, optimizer slots (NAME/Adagrad) included.

    Args:
        prefix: the checkpoint's name without .index, as in model.ckpt-1000.
    """
    prefix = Path(prefix)
    index = prefix.with_name(prefix.name + ".index")
    try:
        if index.stat().st_size > _LARGEST_INDEX:
            raise WeightsError(f"{index} has {index.stat().st_size:,} bytes; the index of a checkpoint is far smaller.")
        entries = list(_table(index.read_bytes()))
        if not entries or entries[0][0] != b"":
            raise WeightsError(f"{index} has no header; it is not the index of a TensorFlow checkpoint.")
        header = _message(entries[0][1])
        shards, endianness = _int(header, 1), _int(header, 2)
        if endianness:
            raise WeightsError(f"{index} was written on a big-endian machine, which is not supported.")
        arrays = [_array(key.decode("utf-8"), value, prefix, shards) for key, value in entries[1:]]
    except OSError as error:
        raise WeightsError(f"{index} cannot be read ({error.strerror}).") from error
    except (ValueError, IndexError, struct.error) as error:
        raise WeightsError(f"{index} is not a readable checkpoint index ({error}); it is damaged or incomplete.") from error
    found = {array.name: array for array in arrays if array is not None}
    for path in {array.path for array in found.values()}:
        _check_shard(path, [array for array in found.values() if array.path == path])
    return found


def _check_shard(path: Path, arrays: list[BundleArray]) -> None:
    if not path.is_file():
        raise WeightsError(f"{path} is missing; a checkpoint is its .index and every .data file, copy them all.")
    last = max(arrays, key=lambda array: array.offset + array.size)
    if path.stat().st_size < last.offset + last.size:
        raise WeightsError(
            f"{path} has {path.stat().st_size:,} bytes, but the variable {last.name} ends at {last.offset + last.size:,}; "
            "the checkpoint is incomplete, copy it again."
        )


def _array(name: str, value: bytes, prefix: Path, shards: int) -> BundleArray | None:
    """One BundleEntryProto; None for variables that are no numbers, which no biLM has."""
    entry = _message(value)
    kind = _int(entry, 1)
    if kind not in _DTYPES:
        return None
    if 7 in entry:
        raise ValueError(f"the variable {name} is stored in slices, which biLMs never are")
    shape = tuple(_int(_message(dim), 1) for dim in _message(_bytes(entry, 2)).get(2, []) if isinstance(dim, bytes))
    dtype = _DTYPES[kind]
    offset, size, shard, checksum = _int(entry, 4), _int(entry, 5), _int(entry, 3), _int(entry, 6)
    count = 1
    for extent in shape:
        count *= extent
    if size != count * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize) or not 0 <= shard < shards:
        raise ValueError(f"the variable {name} of shape {shape} is said to have {size} bytes in part {shard} of {shards}")
    path = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")
    return BundleArray(name=name, path=path, dtype=dtype, shape=shape, offset=offset, size=size, checksum=checksum)


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a LevelDB table."""
    if len(data) < _FOOTER or struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
        raise ValueError("the mark at its end is missing")
    footer = len(data) - _FOOTER
    position = footer
    for _ in range(2):  # the handle of the metaindex block, which is not needed
        _, position = _varint(data, position)
    offset, position = _varint(data, position)
    size, _ = _varint(data, position)
    for _, handle in _entries(_block(data, offset, size)):
        offset, position = _varint(handle, 0)
        size, _ = _varint(handle, position)
        yield from _entries(_block(data, offset, size))


def _block(data: bytes, offset: int, size: int) -> bytes:
    """The content of one block, its checksum compared and its compression undone."""
    end = offset + size
    if end + 5 > len(data):
        raise ValueError("a block lies past its end")
    if crc32c(np.frombuffer(data, np.uint8, size + 1, offset)) != unmask(struct.unpack_from("<I", data, end + 1)[0]):
        raise ValueError("the checksum of a block does not fit")
    if data[end] == 0:
        return data[offset:end]
    if data[end] == 1:
        return _snappy(data[offset:end])
    raise ValueError(f"a block has the unknown compression {data[end]}")


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of one block; each key shares its first bytes with the one before."""
    restarts = struct.unpack_from("<I", block, len(block) - 4)[0]
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError("a block is shorter than its list of restarts")
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        own, position = _varint(block, position)
        length, position = _varint(block, position)
        if shared > len(key) or position + own + length > end:
            raise ValueError("an entry lies past its block")
        key = key[:shared] + block[position : position + own]
        position += own + length
        yield key, block[position - length : position]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A variable-length integer and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _message(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a protocol buffer by number."""
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: int | bytes
        if tag & 7 == 0:
            value, position = _varint(data, position)
        elif tag & 7 == 2:
            length, position = _varint(data, position)
            value, position = data[position : position + length], position + length
        elif tag & 7 in (1, 5):
            length = 8 if tag & 7 == 1 else 4
            value, position = int.from_bytes(data[position : position + length], "little"), position + length
        else:
            raise ValueError(f"a field has the unknown wire type {tag & 7}")
        if position > len(data):
            raise ValueError("a field lies past its message")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _int(fields: dict[int, list[int | bytes]], number: int) -> int:
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value


def _bytes(fields: dict[int, list[int | bytes]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is a number")
    return value


def _snappy(data: bytes) -> bytes:
    """Undoes snappy's compression: literals, and copies of what was already written."""
    size, position = _varint(data, 0)
    if size > _LARGEST_INDEX:
        raise ValueError("a compressed block claims an impossible size")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                more = length - 60
                length = int.from_bytes(data[position : position + more], "little") + 1
                position += more
            out += data[position : position + length]
            position += length
            continue
        if tag & 3 == 1:
            length, back = 4 + (tag >> 2 & 7), (tag >> 5) << 8 | data[position]
            position += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, back = (tag >> 2) + 1, int.from_bytes(data[position : position + width], "little")
            position += width
        if not 0 < back <= len(out):
            raise ValueError("a compressed block refers to what was never written")
        for _ in range(length):  # the copy may overlap its own end
            out.append(out[-back])
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError("a compressed block has not the size it claims")
    return bytes(out)
