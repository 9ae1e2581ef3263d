"""A process that makes parts for another one."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from typing import NamedTuple

import torch

from polyseme.bulk.parts import Receipt, make_part
from polyseme.bulk.place import Place
from polyseme.bulk.portions import Portion
from polyseme.bulk.settings import BulkSettings
from polyseme.bulk.shared_model import SharedModel
from polyseme.elmo import Elmo


class _Work(NamedTuple):
    elmo: Elmo
    model: str
    settings: BulkSettings
    place: Place


_HELD: list[_Work] = []  # what `begin` opens for the calls of `work` in the same process


def begin(shared: SharedModel, settings: BulkSettings, place: Place, threads: int) -> None:
    """Opens the model; the process ends when its parent has ended, however that came to pass."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption reaches the parent, which ends this process in good order
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _HELD.append(_Work(shared.open(), shared.hash, settings, place))


def work(portion: Portion) -> Receipt:
    """Makes one part."""
    held = _HELD[-1]
    return make_part(held.elmo, held.model, portion, held.settings, held.place)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
