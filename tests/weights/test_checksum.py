"""CRC-32C against the values published with it, and against a bit-by-bit computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.weights import checksum
from polyseme.weights.checksum import crc32c, mask, unmask


def _slow(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_published_values(data: bytes, value: int):
    assert crc32c(np.frombuffer(data, np.uint8)) == value


@given(st.binary(max_size=300))
def test_few_lanes_agree_with_bits(data: bytes):
    lanes = checksum._LANES
    try:
        checksum._LANES = 4
        assert crc32c(np.frombuffer(data, np.uint8)) == _slow(data)
    finally:
        checksum._LANES = lanes


def test_many_lanes_agree_with_bits():
    data = np.random.default_rng(0).integers(0, 256, (1 << 17) * 2 + 77, dtype=np.uint8)
    assert crc32c(data) == _slow(data.tobytes())


@given(st.integers(0, 2**32 - 1))
def test_masking_is_undone(value: int):
    assert unmask(mask(value)) == value
