"""Reading and writing the weights of a biLM: one file per layout; `read` tells them apart by content."""

from polyseme.weights.checkpoint import Checkpoint, Mix, build, checkpoint_hash, reader, verify
from polyseme.weights.native import write_native
from polyseme.weights.read import LAYOUTS, convert, read, write

__all__ = [
    "LAYOUTS",
    "Checkpoint",
    "Mix",
    "build",
    "checkpoint_hash",
    "convert",
    "read",
    "reader",
    "verify",
    "write",
    "write_native",
]
