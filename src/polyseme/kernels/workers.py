"""Pieces of work side by side on the cores of a CPU: each in a thread of its own, which uses one core.

Two directions on two cores are faster than one after the other on both: their products are too narrow to be worth dividing.
"""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch


def side_by_side(*pieces: Callable[[], None], here: bool = False) -> None:
    """Runs all pieces; on one thread, or with one piece, one after the other here. The first error is raised.

    With `here` the caller's thread takes the last piece instead of waiting, which saves a little time: for pieces in which
    nothing is so large that torch would divide it among the caller's threads.
    """
    threads = torch.get_num_threads()
    if threads < 2 or len(pieces) < 2:
        for piece in pieces:
            piece()
        return
    pool = _pool(min(threads, len(pieces)), threads)
    futures = [pool.submit(piece) for piece in (pieces[:-1] if here else pieces)]
    try:
        if here:
            pieces[-1]()
    finally:
        wait(futures)
    for future in futures:
        future.result()


def one_core_pool(workers: int) -> ThreadPoolExecutor:
    """Threads that compute on one core each; the caller's computation, and threads that start later, keep their number."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "polyseme", initializer=torch.set_num_threads, initargs=(1,))
    meeting = threading.Barrier(workers)  # a pool starts a thread only when all it has are busy
    wait([pool.submit(meeting.wait) for _ in range(workers)])
    torch.set_num_threads(threads)  # torch remembers the last number for threads it has not met yet
    return pool


@functools.cache
def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """The pool of callers who use so many threads."""
    return one_core_pool(workers)


# A forked process has this module's pools, but none of their threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
