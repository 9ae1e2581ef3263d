"""Writes small TensorFlow checkpoint bundles, for testing the reader with forms TensorFlow itself did not write here."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow

from polyseme.weights.checksum import crc32c, mask

_CODES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(array: np.ndarray, *, shard: int, offset: int, checksum: int, code: int | None = None) -> bytes:
    shape = b"".join(_field(2, _field(1, extent)) for extent in array.shape)
    parts = _field(1, code or _CODES[array.dtype.name]) + _field(2, shape) + _field(3, shard) + _field(4, offset)
    return parts + _field(5, array.nbytes) + varint(6 << 3 | 5) + struct.pack("<I", checksum)


def _block(pairs: list[tuple[bytes, bytes]], restart_every: int) -> bytes:
    out, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return bytes(out) + b"".join(struct.pack("<I", restart) for restart in restarts) + struct.pack("<I", len(restarts))


def table(pairs: list[tuple[bytes, bytes]], *, snappy: bool, block_entries: int) -> bytes:
    """A LevelDB table of several blocks."""
    out = bytearray()

    def append(block: bytes, compress: bool) -> bytes:
        stored = pyarrow.compress(block, codec="snappy", asbytes=True) if compress else block
        handle = varint(len(out)) + varint(len(stored))
        body = stored + bytes([compress])
        out.extend(body + struct.pack("<I", mask(crc32c(np.frombuffer(body, np.uint8)))))
        return handle

    index = []
    for start in range(0, len(pairs), block_entries):
        piece = pairs[start : start + block_entries]
        index.append((piece[-1][0], append(_block(piece, 4), snappy)))
    meta = append(_block([], 1), False)
    handle = append(_block(index, 1), snappy)
    return bytes(out) + (meta + handle).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(
    prefix: Path, variables: Mapping[str, np.ndarray], *, shards: int = 1, snappy: bool = False, block_entries: int = 16
) -> None:
    """Variables dealt to the shards in turn."""
    data = [bytearray() for _ in range(shards)]
    pairs = [(b"", _field(1, shards) + _field(3, _field(1, 1)))]
    for number, name in enumerate(sorted(variables)):
        array = np.ascontiguousarray(variables[name])
        shard = number % shards
        checksum = mask(crc32c(np.frombuffer(array.tobytes(), np.uint8)))
        pairs.append((name.encode(), entry(array, shard=shard, offset=len(data[shard]), checksum=checksum)))
        data[shard] += array.tobytes()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".index").write_bytes(table(pairs, snappy=snappy, block_entries=block_entries))
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
