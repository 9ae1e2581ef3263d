import gzip
import io

import pytest

import polyseme
from polyseme.cli.reading import SentenceSource


class Display:
    def __init__(self):
        self.calls = []

    def __call__(self, done, total=None, *, note=""):
        self.calls.append((done, note))


@pytest.mark.parametrize("compressed", [False, True])
def test_progress_moves_with_the_sentences(workshop, compressed):
    """Even where a whole file is read in one block."""
    paths = [workshop / "a.txt", workshop / "b.txt"]
    for path in paths:
        data = b"one two three\n" * 2000
        path.write_bytes(gzip.compress(data) if compressed else data)
    size = sum(path.stat().st_size for path in paths)
    elmo = polyseme.load(workshop / "model")
    source = SentenceSource((), [str(path) for path in paths], elmo, tokenized=True, split=False)
    display = Display()
    for tokens in source:
        assert tokens == ["one", "two", "three"]
        source.report(display)
    done = [done for done, _ in display.calls]
    assert done == sorted(done)
    assert done[-1] == source.progress("read").total == -(-size // 1024)
    assert display.calls[-1][1] == "12,000 tokens"
    if not compressed:
        assert len(set(done)) == done[-1]


def test_without_a_size_tokens_are_counted(workshop, monkeypatch):
    elmo = polyseme.load(workshop / "model")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a b\nc\n")))
    source = SentenceSource(("d e f",), ["-"], elmo, tokenized=False, split=False)
    display = Display()
    assert list(source) == [["d", "e", "f"], ["a", "b"], ["c"]]
    source.report(display)
    assert display.calls == [(6, "")]
    assert not source.only_arguments
