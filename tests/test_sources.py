"""Reading text from files: every form, every compression, and every way in which a file can be damaged."""

import gzip
import io
import json
import lzma
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import FormatError, InputError
from polyseme.sources import Reader, find

TEXT = "The cat sat .\n\nÉlan naïve – ok\nlast line"
SENTENCES = [["The", "cat", "sat", "."], [], ["Élan", "naïve", "–", "ok"], ["last", "line"]]


def _read(*inputs: object, **options: object) -> list[list[str]]:
    return [sentence for block in Reader(inputs, **options).sentences() for sentence in block.sentences]  # type: ignore[arg-type]


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", None)])
def test_text_in_every_compression(tmp_path: Path, suffix: str, compress):
    path = tmp_path / f"text.txt{suffix}"
    if compress is None:
        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(TEXT.encode())
    else:
        path.write_bytes(compress(TEXT.encode()))
    assert _read(path) == SENTENCES
    reader = Reader([path])
    assert [line for block in reader.sentences() for line in block.lines] == [1, 2, 3, 4]
    assert reader.bytes_total == path.stat().st_size


def test_the_name_does_not_decide_the_compression(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(lzma.compress(b"a b\n") + lzma.compress(b"c\n"))
    assert _read(tmp_path / "a.txt") == [["a", "b"], ["c"]]


def test_patterns_many_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"{name} x\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"from stdin\n"))))
    assert _read(tmp_path / "*.txt", "-", tmp_path / "b.txt") == [
        ["a.txt", "x"],
        ["b.txt", "x"],
        ["from", "stdin"],
        ["b.txt", "x"],
    ]
    with pytest.raises(InputError, match=r"no file matches '.*none\*'"):
        find([tmp_path / "none*"])
    with pytest.raises(InputError, match="is a folder"):
        find([tmp_path])
    with pytest.raises(InputError, match="no input"):
        find([])
    with pytest.raises(InputError, match="named twice"):
        find(["-", "-"])


def test_forms_follow_from_names():
    here = Path(__file__).parent
    assert [source.form for source in find([here / "test_sources.py"])] == ["text"]
    assert [source.form for source in find([here / "test_sources.py"], form="jsonl")] == ["jsonl"]


def test_windows_lines_and_byte_order_mark(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone two\r\nthree\r\n")
    assert _read(tmp_path / "a.txt") == [["one", "two"], ["three"]]


def test_json_lines(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a b"}\n\n{"text": ["c d", "e"], "id": 1}\n'))
    assert _read(path) == [["a", "b"], ["c d", "e"]]
    (tmp_path / "b.json").write_text('{"body": "x"}\n')
    assert _read(tmp_path / "b.json", field="body") == [["x"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "open', "not valid JSON"),
        ('{"body": "x", "id": 3}', "no string or list of strings under 'text' .it has 'body', 'id'."),
        ('{"text": ["a", 3]}', "no string or list"),
        ("[1]", "it holds list"),
        ('{"text": "\\ud800"}', "surrogate"),
        ('{"text": ["a", ""]}', "an empty token"),
        ('{"text": "a  b"}', "an empty token"),
    ],
)
def test_damaged_json_lines(tmp_path: Path, line: str, message: str):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line + '\n{"text": "too"}\n')
    with pytest.raises(FormatError, match=f"a.jsonl, line 2: .*{message}"):
        _read(path)
    reader = Reader([path], damaged="skip")
    assert [sentence for block in reader.sentences() for sentence in block.sentences] == [["good"], ["too"]]
    assert reader.skipped == len(reader.first_skipped) == 1


def test_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows = [f"row {number}" for number in range(2500)]
    pyarrow.parquet.write_table(pyarrow.table({"id": range(2500), "text": rows}), path)
    assert _read(path) == [row.split() for row in rows]
    with pytest.raises(FormatError, match=r"a\.parquet, row 1: no column 'body'; it has id, text"):
        _read(path, field="body")
    pyarrow.parquet.write_table(pyarrow.table({"text": [["a", "b"], None, ["c"]]}), path)
    with pytest.raises(FormatError, match="row 2: no string or list"):
        _read(path)
    assert _read(path, damaged="skip") == [["a", "b"], ["c"]]
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(FormatError, match="not a readable Parquet file"):
        _read(path)


def test_conll_columns(tmp_path: Path):
    (tmp_path / "a.conll").write_text("EU NNP B-ORG\nrejects VBZ O\n\n# 1\nLamb NNP O\n")
    assert _read(tmp_path / "a.conll") == [["EU", "rejects"], ["Lamb"]]
    (tmp_path / "b.conllu").write_text("# text = don't go\n1-2\tdon't\t_\n1\tdo\tdo\n2\tn't\tnot\n3\tgo\tgo\n3.1\tx\tx\n\n")
    assert _read(tmp_path / "b.conllu") == [["do", "n't", "go"]]
    with pytest.raises(FormatError, match="line 1: no word in column 4 of 3"):
        _read(tmp_path / "a.conll", column=4)


def test_invalid_utf8_names_file_and_line(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nth\xffree\nfour\n")
    with pytest.raises(FormatError, match=r"a\.txt, line 3: not valid UTF-8 \(byte 0xff at position 2\)"):
        _read(path)
    reader = Reader([path], damaged="skip")
    blocks = list(reader.sentences())
    assert [sentence for block in blocks for sentence in block.sentences] == [["one"], ["two"], ["four"]]
    assert [line for block in blocks for line in block.lines] == [1, 2, 4]
    assert reader.skipped == 1


def test_an_empty_token_names_file_and_line(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text(" one two \nthree  four\n")
    with pytest.raises(FormatError, match=r"a\.txt, line 2: an empty token"):
        _read(path)
    assert _read(path, damaged="skip") == [["one", "two"]]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", None)])
def test_a_stream_cut_off_names_file_and_line(tmp_path: Path, suffix: str, compress):
    lines = b"".join(b"line %d has a number %d\n" % (number, number * 7919 % 10007) for number in range(60_000))
    path = tmp_path / f"a.txt{suffix}"
    if compress is None:
        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(lines)
    else:
        path.write_bytes(compress(lines))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"line \d+: the compressed stream is damaged or cut off"):
        _read(path)
    reader = Reader([path], damaged="skip")
    count = sum(len(block.sentences) for block in reader.sentences())
    assert 5_000 < count < 60_000
    assert reader.skipped >= 1


def test_overlong_lines(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"x" * 10_000_000 + b"\nafter\n" + b"y" * 9_000_000)
    with pytest.raises(FormatError, match="line 2: longer than 8,388,608 bytes"):
        _read(path)
    reader = Reader([path], damaged="skip")
    blocks = list(reader.sentences())
    assert [sentence for block in blocks for sentence in block.sentences] == [["short"], ["after"]]
    assert [line for block in blocks for line in block.lines] == [1, 3]
    assert reader.skipped == 2


def test_unknown_options_are_errors(tmp_path: Path):
    with pytest.raises(InputError, match="'error' or 'skip'"):
        Reader([tmp_path], damaged="ignore")  # type: ignore[arg-type]


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1), max_size=4), max_size=8))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, sentences: list[list[str]]):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "a.txt").write_bytes("".join(" ".join(sentence) + "\n" for sentence in sentences).encode())
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences))
    assert _read(folder / "a.jsonl") == sentences
    if not any(word.startswith("\ufeff") for sentence in sentences for word in sentence):
        assert _read(folder / "a.txt") == sentences
