import io
import subprocess
import sys

import pytest

from polyseme.progress import ProgressDisplay, duration, tracked


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_tracked_reports_after_each_item_and_passes_all_through():
    calls = []
    items = tracked(["a", "bcd"], lambda done, total=None, *, note="": calls.append((done, total)), total=4, size=len)
    assert next(items) == "a"
    assert calls == []  # the item is still being worked on
    assert list(items) == ["bcd"]
    assert calls == [(1, 4), (4, 4)]


def test_tracked_without_a_report():
    assert list(tracked([1, 2], None)) == [1, 2]


def test_lines_where_there_is_no_terminal():
    stream, clock = io.StringIO(), Clock()
    with ProgressDisplay("embed", unit="sentences", total=1000, start=100, interval=10, stream=stream, clock=clock) as report:
        clock.now += 5
        report(150)
        clock.now += 5
        report(200, note="loss 3.1")
        clock.now += 1
        report(210)
        clock.now += 9
        report(1000)
    assert stream.getvalue().splitlines() == [
        "embed: 200 of 1,000 sentences (20%), 10 sentences/s, 1:20 min left, loss 3.1",
        "embed: 1,000 of 1,000 sentences (100%), 45 sentences/s, 0 s left",
        "embed: 1,000 of 1,000 sentences (100%), 45 sentences/s, finished in 20 s",
    ]


def test_short_work_writes_nothing():
    stream = io.StringIO()
    with ProgressDisplay("embed", unit="tokens", stream=stream) as report:
        report(10)
    assert stream.getvalue() == ""


def test_an_interrupted_run_is_not_called_finished():
    stream, clock = io.StringIO(), Clock()

    def interrupted():
        with ProgressDisplay("embed", unit="tokens", stream=stream, clock=clock) as report:
            clock.now += 20
            report(10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue() == "embed: 10 tokens, 0.5 tokens/s\n" * 2


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    with ProgressDisplay("embed", unit="tokens", total=10, stream=stream) as report:
        report(10, note="done soon")
    assert "embed" in stream.getvalue()
    assert "10/10" in stream.getvalue()
    assert "done soon" in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00 min"), (185, "3:05 min"), (7385, "2:03:05 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_import_is_light():
    code = "import sys, polyseme.progress; print([m for m in ('rich', 'torch', 'numpy', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
