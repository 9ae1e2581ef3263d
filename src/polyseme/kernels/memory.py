"""How this process holds memory between the steps of a long computation."""

import ctypes
import functools
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
_LARGEST = 1 << 27


@functools.cache
def keep_freed() -> bool:
    """Lets the C library keep what is freed for the next use, single tensors above 128 MB apart; false where it cannot be told.

    Otherwise glibc hands large tensors back to the system at once, and each step asks for the same pages again, to be emptied
    anew: a tenth of a training step's time. The price is some memory that lies between what is in use.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_TOP_PAD, _LARGEST // 8))
