"""CRC-32C, as TensorFlow's files use it: many stretches of the data at once, so that gigabytes take seconds."""

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78
_LANES = 1 << 14


def unmask(value: int) -> int:
    """The checksum behind its stored form, which is rotated and offset so that checksums of checksums stay apart."""
    rotated = (value - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def mask(value: int) -> int:
    """The inverse of unmask."""
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: np.ndarray) -> int:
    """The CRC-32C of bytes (uint8)."""
    register = 0xFFFFFFFF
    length = len(data) // (_LANES * 8) * 8
    if length:
        # Every lane starts from zero; the register before is taken in by shifting it over the lane, and so are the lanes
        # into one another, because the checksum is linear.
        lanes = _lanes(data[: length * _LANES].view("<u4").reshape(_LANES, length // 4))
        for lane in _joined(lanes, length):
            register = _shift(register, length * _LANES) ^ int(lane)
        data = data[length * _LANES :]
    table = _tables()[0].tolist()
    for byte in data.tobytes():
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


@cache
def _tables() -> np.ndarray:
    """tables[k][b]: the effect of byte b, k bytes before the end of a step of eight."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        tables[k] = tables[k - 1] >> np.uint32(8) ^ tables[0][tables[k - 1] & np.uint32(0xFF)]
    return tables


def _lanes(words: np.ndarray) -> np.ndarray:
    """The registers after each row of little-endian words, all rows at once, eight bytes a step."""
    tables = _tables()
    register = np.zeros(len(words), dtype=np.uint32)
    byte = np.uint32(0xFF)
    for step in range(0, words.shape[1], 2):
        low, high = words[:, step] ^ register, words[:, step + 1]
        register = tables[7][low & byte]
        for k in range(1, 4):
            register ^= tables[7 - k][low >> np.uint32(8 * k) & byte]
        for k in range(4):
            register ^= tables[3 - k][high >> np.uint32(8 * k) & byte]
    return register


def _joined(lanes: np.ndarray, length: int) -> np.ndarray:
    """Neighbouring lanes joined in pairs until one is left."""
    while len(lanes) > 1:
        columns = _columns(length)
        shifted = np.zeros(len(lanes) // 2, dtype=np.uint32)
        for bit, column in enumerate(columns):
            shifted ^= (lanes[::2] >> np.uint32(bit) & np.uint32(1)) * np.uint32(column)
        lanes, length = shifted ^ lanes[1::2], length * 2
    return lanes


def _shift(register: int, length: int) -> int:
    """The register after `length` more bytes of zero."""
    result = 0
    for bit, column in enumerate(_columns(length)):
        result ^= column if register >> bit & 1 else 0
    return result


def _columns(length: int) -> list[int]:
    """What `length` zero bytes make of each single bit: a matrix's columns, squared and multiplied as the length's bits ask."""

    def apply(matrix: list[int], vector: int) -> int:
        result = 0
        for bit in range(32):
            if vector >> bit & 1:
                result ^= matrix[bit]
        return result

    power = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    result = [1 << bit for bit in range(32)]
    bits = 8 * length
    while bits:
        if bits & 1:
            result = [apply(power, column) for column in result]
        power = [apply(power, column) for column in power]
        bits >>= 1
    return result
