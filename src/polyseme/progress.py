"""Progress of long work: the library reports counts to a callback, and a display, where somebody asked for one, shows them.

Library functions take `report: Report | None` and call `report(done, total)`, or wrap their loop in `tracked`. Nothing is
written unless the caller passes a `ProgressDisplay`: a bar on a terminal, plain lines with rate and time left elsewhere.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_T = TypeVar("_T")


class Report(Protocol):
    """What library code calls: how much is done of how much (None: unknown), and a short note such as the loss."""

    def __call__(self, done: int, total: int | None = None, *, note: str = "") -> None:
        """Takes absolute counts, not increments."""
        ...


def tracked(
    items: Iterable[_T],
    report: Report | None,
    *,
    total: int | None = None,
    start: int = 0,
    size: Callable[[_T], int] | None = None,
) -> Iterator[_T]:
    """The same items; after each has been worked on, the sum of their sizes (1 each by default) is reported."""
    done = start
    for item in items:
        yield item
        done += 1 if size is None else size(item)
        if report is not None:
            report(done, total)


class ProgressDisplay:
    """A context manager that is a `Report`: writes to `stream` (the standard error stream by default).

    On a terminal a bar with rate and time left; elsewhere a line at most every `interval` seconds, none where the work is
    done sooner. `start` is what earlier runs have done: it counts as done, but not into the rate.
    """

    def __init__(
        self,
        title: str,
        *,
        unit: str,
        total: int | None = None,
        start: int = 0,
        interval: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.unit, self.total, self.start, self.interval = title, unit, total, start, interval
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._begun = self._last = clock()
        self._done, self._note, self._lines = start, "", 0
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        self._begun = self._last = self._clock()
        if self._stream.isatty():
            self._bar = _bar(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar[0].stop()
        elif self._lines:
            self._write_line(finished=kind is None)

    def __call__(self, done: int, total: int | None = None, *, note: str = "") -> None:
        """Shows the state of the work; cheap enough to be called for every batch."""
        self._done, self._note = done, note
        if total is not None:
            self.total = total
        now = self._clock()
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=done, total=self.total, note=note, rate=self._rate_text(now))
        elif now - self._last >= self.interval:
            self._last = now
            self._write_line()

    def _write_line(self, *, finished: bool = False) -> None:
        self._lines += 1
        self._stream.write(self._line(self._clock(), finished=finished) + "\n")
        self._stream.flush()

    def _rate(self, now: float) -> float:
        return (self._done - self.start) / max(now - self._begun, 1e-9)

    def _rate_text(self, now: float) -> str:
        rate = self._rate(now)
        return f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"

    def _line(self, now: float, *, finished: bool) -> str:
        parts = [f"{self.title}: {self._done:,} {self.unit}"]
        if self.total is not None:
            parts[0] = f"{self.title}: {self._done:,} of {self.total:,} {self.unit} ({self._done / max(self.total, 1):.0%})"
        parts.append(self._rate_text(now))
        rate = self._rate(now)
        if finished:
            parts.append(f"finished in {duration(now - self._begun)}")
        elif self.total is not None and rate > 0:
            parts.append(f"{duration(max(self.total - self._done, 0) / rate)} left")
        if self._note:
            parts.append(self._note)
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """`45 s`, `3:05 min`, `2:03:05 h`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes == 0:
        return f"{whole} s"
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"


def _bar(display: ProgressDisplay) -> "tuple[Progress, TaskID]":
    """A started rich bar with one task."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(display.unit + " {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(file=display._stream),
    )
    progress.start()
    return progress, progress.add_task(display.title, total=display.total, completed=display.start, note="", rate="")
