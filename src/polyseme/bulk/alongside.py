"""Parts made in this process: a thread writes one while the vectors of the next are computed."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from polyseme.bulk.parts import Buffers, Group, Part, Receipt, computed, write_part
from polyseme.bulk.place import Place
from polyseme.bulk.portions import Portion
from polyseme.bulk.settings import BulkSettings
from polyseme.kernels.workers import one_core_pool

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_Groups = SimpleQueue[Group | None]


def made_here(
    wanted: Iterable[Portion], elmo: "Elmo", settings: BulkSettings, place: Place, advance: Callable[[int], None]
) -> Iterator[Receipt]:
    """The parts of the portions; `advance` is told of tokens as they are computed."""
    buffers = Buffers(settings)
    waiting: deque[Future[Receipt]] = deque()
    with one_core_pool(1) as writer:
        for portion in wanted:
            part = Part.of(portion, settings, elmo.hash, elmo)
            groups, ended = _Groups(), threading.Event()
            waiting.append(writer.submit(_write, part, groups, ended, buffers, place))
            try:
                for group in computed(elmo, part, buffers, advance):
                    groups.put(group)
                    if ended.is_set():
                        break  # by an error, which the result below is
            finally:
                groups.put(None)  # too soon after an error or an interruption here, and the part is given up
            while waiting and (len(waiting) > 1 or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _write(part: Part, groups: _Groups, ended: threading.Event, buffers: Buffers, place: Place) -> Receipt:
    given = iter(groups.get, None)
    try:
        return write_part(part, given, buffers, place)
    finally:
        ended.set()
        for group in given:  # after an error nobody shall wait for buffers
            buffers.give(group)
