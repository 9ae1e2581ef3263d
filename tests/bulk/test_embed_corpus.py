"""A corpus stored and read back: every option, resumed, refused, by several processes."""

import gzip
import json
import pickle
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from corpora import corpus, files_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import polyseme
from polyseme.bulk.parts import _Table
from polyseme.bulk.place import Place
from polyseme.bulk.portions import InputCounts, portions
from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import bulk_settings
from polyseme.elmo import Elmo
from polyseme.errors import FormatError, InputError
from polyseme.sources import Reader
from tiny import tiny_elmo


@pytest.fixture(scope="module")
def elmo():
    return tiny_elmo()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(corpus())
    return path


def stored(elmo, text, folder, *, workers=1, overwrite=False, tokenized=True, **options):
    embed_corpus(
        Reader([text]),
        folder,
        elmo,
        bulk_settings(elmo, tokenized=tokenized, **options),
        workers=workers,
        overwrite=overwrite,
    )
    return polyseme.read_vectors(folder)


@pytest.mark.parametrize("container", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "float16", "layers": "top", "part_tokens": 500},
        {"dtype": "float32", "layers": "mean", "state": "zero", "part_tokens": 300},
        {"dtype": "float32", "layers": [0.5, 0.0, 0.25], "part_tokens": 100},
        {"dtype": "float32", "pool": "max", "part_tokens": 500},
        {"dtype": "float32", "boundaries": True, "part_tokens": 500},
        {"dtype": "float32", "precision": "bfloat16", "batch_tokens": 100, "layers": 1},
        {"dtype": "int8", "part_tokens": 500},
    ],
)
def test_what_is_stored_is_what_embed_gives(elmo, text, tmp_path, container, options):
    vectors = stored(elmo, text, tmp_path / "out", container=container, **options)
    sentences = [line.split() for line in text.read_text().splitlines()]
    chosen = {name: value for name, value in options.items() if name not in ("dtype", "part_tokens")}
    wanted = elmo.embed(sentences, **chosen)
    assert len(vectors) == len(sentences) == 200
    for number, (tokens, array) in enumerate(zip(sentences, wanted, strict=True)):
        found = vectors[number]
        assert found.vectors.shape == array.shape
        assert found.vectors.dtype == np.float32
        assert found.tokens == ([] if "pool" in options else tokens)
        if options["dtype"] == "float32" and options.get("precision") != "bfloat16":
            # The same but for the last bits: a part's batches are others than those of one call.
            np.testing.assert_allclose(found.vectors, array, rtol=1e-5, atol=1e-6)
        elif options["dtype"] == "int8" and array.size:
            assert (np.abs(found.vectors - array) <= np.abs(array).max(axis=-1, keepdims=True) / 127 * 0.51 + 1e-6).all()
        else:
            np.testing.assert_allclose(found.vectors, array, atol=0.03)
    if "part_tokens" in options:
        assert len(vectors.manifest["parts"]) > 3
    vectors.verify()


def test_by_token_and_from_the_end(elmo, text, tmp_path):
    vectors = stored(elmo, text, tmp_path / "out", part_tokens=500)
    sentences = [line.split() for line in text.read_text().splitlines()]
    flat = [(word, number, position) for number, tokens in enumerate(sentences) for position, word in enumerate(tokens)]
    assert len(vectors.tokens) == len(flat)
    for index in (0, 7, len(flat) // 2, -1):
        token = vectors.tokens[index]
        assert token[:3] == flat[index]
        np.testing.assert_array_equal(token.vectors, vectors[token.sentence].vectors[:, token.position])
    assert vectors[-1].tokens == sentences[-1]
    with pytest.raises(IndexError, match="200 sentences"):
        vectors[200]
    assert "200 sentences" in repr(vectors)


def test_a_data_set_for_loaders_and_their_workers(elmo, text, tmp_path):
    vectors = stored(elmo, text, tmp_path / "out", container="arrow", part_tokens=500)
    loader = torch.utils.data.DataLoader(vectors, batch_size=50, collate_fn=list)
    for number, sentence in enumerate(sentence for batch in loader for sentence in batch):
        assert sentence.tokens == vectors[number].tokens
    again = pickle.loads(pickle.dumps(vectors))
    np.testing.assert_array_equal(again[1].vectors, vectors[1].vectors)


def test_texts_keep_their_places(tmp_path, elmo):
    first, second = tmp_path / "a.txt", tmp_path / "b.jsonl"
    first.write_text("Mr. Smith left.  It isn't so. \n\nHe said: “No”.\n")
    second.write_text(json.dumps({"text": "One more. And &amp; another."}) + "\n" + json.dumps({"text": ["as", "is"]}) + "\n")
    settings = bulk_settings(elmo, split=True, layers="top", part_tokens=3)
    manifest = embed_corpus(Reader([first, second]), tmp_path / "out", elmo, settings)
    assert [entry["texts"] for entry in manifest["inputs"]] == [3, 2]
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    texts = [*first.read_text().splitlines(), "One more. And &amp; another."]
    assert {row["sentence"] for row in rows} == set(range(6))
    for row in rows:
        if row["text"] == 4:
            assert (row["start"], row["end"]) == (-1, -1)
        else:
            piece = texts[row["text"]][row["start"] : row["end"]]
            assert row["token"] == {"“": '"', "”": '"', "&amp;": "&"}.get(piece, piece)
    assert [row["token"] for row in rows if row["text"] == 4] == ["as", "is"]


def test_pooled_texts_keep_their_places(tmp_path, elmo):
    (tmp_path / "a.txt").write_text("A b. C d.\n\n")
    embed_corpus(Reader([tmp_path / "a.txt"]), tmp_path / "out", elmo, bulk_settings(elmo, split=True, layers="top", pool="mean"))
    rows = pyarrow.parquet.read_table(tmp_path / "out", columns=["sentence", "tokens", "text", "start", "end"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, 3, 0, 0, 4), (1, 3, 0, 5, 9)]
    with pytest.raises(InputError, match="one vector for each sentence"):
        _ = polyseme.read_vectors(tmp_path / "out").tokens


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 60))
@hypothesis_settings(max_examples=50)
def test_portions_hold_every_sentence_once_and_keep_to_the_budget(tmp_path_factory, lengths, budget):
    path = tmp_path_factory.mktemp("portions") / "a.txt"
    path.write_text("".join(" ".join(["w"] * length) + "\n" for length in lengths))
    settings = bulk_settings(tiny_elmo(), tokenized=True, part_tokens=budget)
    counts = InputCounts()
    found = list(portions(Reader([path]), settings, counts))
    assert [len(tokens) for portion in found for tokens in portion.sentences] == lengths
    assert [portion.number for portion in found] == list(range(len(found)))
    assert [portion.first for portion in found] == list(np.cumsum([0, *(len(portion.sentences) for portion in found)])[:-1])
    for portion in found:
        sizes = [2 * len(tokens) + 1 for tokens in portion.sentences]
        assert sum(sizes) <= settings.portion or len(sizes) == 1
    assert counts.total == len(lengths)


def test_the_same_again_changes_nothing_and_a_part_that_is_gone_comes_back(elmo, text, tmp_path):
    out = tmp_path / "out"
    stored(elmo, text, out, part_tokens=500)
    whole = files_of(out)
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    stored(elmo, text, out, part_tokens=500)
    assert times == {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "part-00002.parquet").unlink()
    (out / "_manifest.json").unlink()
    with pytest.raises(FormatError, match="not finished"):
        polyseme.read_vectors(out)
    stored(elmo, text, out, part_tokens=500)
    assert files_of(out) == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float32"}, r'dtype \("float16" there, "float32" here\)'),
        ({"layers": "top"}, r'layers \("all" there, "lstm2" here\)'),
        ({"part_tokens": 501}, r"portion"),
        ({"state": "zero"}, r"state"),
        ({"seed": 1}, r"the model \(hash"),
        ({"line": "one more line\n"}, r"begun with another input: part-.* was not made from what are sentences"),
        ({"cut": True}, r"begun with another"),
    ],
)
def test_another_run_is_refused(elmo, text, tmp_path, change, message):
    out = tmp_path / "out"
    stored(elmo, text, out, part_tokens=500)
    whole = files_of(out)
    other = tiny_elmo(seed=change.pop("seed", 0))
    if line := change.pop("line", None):
        text.write_text(text.read_text() + line)
    if change.pop("cut", False):
        text.write_text("".join(text.read_text().splitlines(keepends=True)[:20]))
    options = {"part_tokens": 500} | change
    with pytest.raises(InputError, match=message):
        stored(other, text, out, **options)
    assert files_of(out) == whole
    stored(other, text, out, overwrite=True, **options).verify()


def test_a_folder_of_something_else_is_left_alone(elmo, text, tmp_path):
    (tmp_path / "notes.md").write_text("precious")
    with pytest.raises(InputError, match=r"holds corpus\.txt, notes\.md, which is no part"):
        stored(elmo, text, tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "notes.md"]


def test_one_process_at_a_time(elmo, text, tmp_path):
    with Place(tmp_path / "out").held(), pytest.raises(InputError, match="being written by another process"):
        stored(elmo, text, tmp_path / "out")


def test_several_workers_give_the_same_bytes(elmo, text, tmp_path):
    stored(elmo, text, tmp_path / "one", part_tokens=500)
    stored(elmo, text, tmp_path / "two", part_tokens=500, workers=2)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    with pytest.raises(InputError, match="workers is 0"):
        stored(elmo, text, tmp_path / "none", workers=0)


def test_an_empty_input(elmo, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    vectors = stored(elmo, tmp_path / "empty.txt", tmp_path / "out")
    assert (len(vectors), len(vectors.tokens), list(vectors.manifest["parts"])) == (0, 0, [])
    with pytest.raises(InputError, match="from an empty input"):
        stored(elmo, tmp_path / "empty.txt", tmp_path / "out", dtype="int8")
    (tmp_path / "blank.txt").write_text("\n\n")
    assert stored(elmo, tmp_path / "blank.txt", tmp_path / "blank")[1].vectors.shape == (3, 0, elmo.dim)


def test_numbers_too_large_for_half_precision(text, tmp_path):
    elmo = tiny_elmo()
    with torch.no_grad():
        for parameter in elmo.model.token_encoder.parameters():
            parameter.mul_(1e3)
    with pytest.raises(InputError, match="too large for float16"):
        stored(elmo, text, tmp_path / "out", layers="token")


def test_damaged_output_is_noticed(elmo, text, tmp_path):
    out = tmp_path / "out"
    vectors = stored(elmo, text, out, part_tokens=500)
    part = out / "part-00001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(FormatError, match=r"part-00001.parquet is damaged"):
        vectors.verify()
    part.write_bytes(content[:-1])
    with pytest.raises(FormatError, match="bytes instead of"):
        polyseme.read_vectors(out)
    part.unlink()
    with pytest.raises(FormatError, match="is missing"):
        polyseme.read_vectors(out)
    (out / "part-00000.parquet").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="no part of stored vectors"):
        stored(elmo, text, out, part_tokens=500)
    (out / "_manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="of another kind"):
        polyseme.read_vectors(out)
    (out / "_manifest.json").write_text("{")
    with pytest.raises(FormatError, match="not valid JSON"):
        polyseme.read_vectors(out)
    with pytest.raises(FormatError, match="wanted a folder written by"):
        polyseme.read_vectors(tmp_path)


@pytest.mark.parametrize("container", ["parquet", "arrow"])
def test_a_full_disk_leaves_whole_parts_to_go_on_from(elmo, text, tmp_path, container, monkeypatch):
    """The disk has no room in the middle of the third part."""
    out = tmp_path / "out"
    stored(elmo, text, tmp_path / "undisturbed", part_tokens=500, container=container)
    from polyseme.bulk import place

    original, written = place.HashedFile.write, 0
    room = sum(len(content) for content in files_of(tmp_path / "undisturbed").values()) // 2

    def write(self, data):
        nonlocal written
        written += memoryview(data).nbytes
        if written > room:
            raise OSError(28, "No space left on device")
        return original(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(place.HashedFile, "write", write)
        with pytest.raises(InputError, match=r"out cannot be written \(No space left on device\)\. What is whole stays"):
            stored(elmo, text, out, part_tokens=500, container=container)
    whole = [path.name for path in out.iterdir()]
    assert 0 < len(whole) < len(files_of(tmp_path / "undisturbed")) - 1
    assert all(name.startswith("part-") for name in whole)
    stored(elmo, text, out, part_tokens=500, container=container)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good line\nbad \xff line\n", r"a\.txt, line 2: not valid UTF-8"),
        ("a.txt", b"good line\ntwo  blanks\n", r"a\.txt, line 2: an empty token"),
        ("a.txt", b"good\n" + b"x" * 10_000_000 + b"\n", r"a\.txt, line 2: longer than 8,388,608 bytes"),
        ("a.txt.gz", "cut", r"a\.txt\.gz, line \d+: the compressed stream is damaged or cut off"),
        ("a.parquet", "column", r"a\.parquet, row 1: no column 'text'; it has words"),
    ],
)
def test_bad_input_names_file_and_line(elmo, tmp_path, name, content, message):
    path = tmp_path / name
    if content == "cut":
        path.write_bytes(gzip.compress(corpus(2000).encode())[:-2000])
    elif content == "column":
        pyarrow.parquet.write_table(pyarrow.table({"words": ["a b"]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        stored(elmo, path, tmp_path / "out")


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"dtype": "float32", "pool": "mean"}])
def test_few_buffers_go_round(elmo, text, tmp_path, monkeypatch, options):
    """Groups of eight rows, and two groups' buffers: the computation waits for the writer many times in each part."""
    monkeypatch.setattr("polyseme.bulk.parts.PART_BYTES", 1)
    settings = replace(bulk_settings(elmo, tokenized=True, part_tokens=1000, **options), rows=8)
    embed_corpus(Reader([text]), tmp_path / "out", elmo, settings)
    assert pyarrow.parquet.ParquetFile(tmp_path / "out/part-00000.parquet").metadata.num_row_groups > 5
    vectors = polyseme.read_vectors(tmp_path / "out")
    sentences = [line.split() for line in text.read_text().splitlines()]
    for found, wanted in zip(vectors, elmo.embed(sentences, pool=options.get("pool")), strict=True):
        np.testing.assert_allclose(found.vectors, wanted, rtol=1e-5, atol=1e-6)


def test_an_error_ends_both_computing_and_writing(elmo, text, tmp_path, monkeypatch):
    """With two groups' buffers, of which none may be lost; what is whole stays."""
    monkeypatch.setattr("polyseme.bulk.parts.PART_BYTES", 1)
    settings = replace(bulk_settings(elmo, tokenized=True, part_tokens=500), rows=8)
    embed_corpus(Reader([text]), tmp_path / "undisturbed", elmo, settings)
    wanted = files_of(tmp_path / "undisturbed")
    embed, write, calls = Elmo.embed, _Table.write, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("computing")
        return embed(*arguments, **options)

    def refusing(table, group, first):
        if first:
            raise RuntimeError("writing")
        return write(table, group, first)

    for patched, name, message in ((Elmo, "embed", "computing"), (_Table, "write", "writing")):
        with monkeypatch.context() as patch:
            patch.setattr(patched, name, failing if name == "embed" else refusing)
            with pytest.raises(RuntimeError, match=message):
                embed_corpus(Reader([text]), tmp_path / message, elmo, settings)
        there = files_of(tmp_path / message)
        assert there.items() <= wanted.items()
        assert "_manifest.json" not in there
        embed_corpus(Reader([text]), tmp_path / message, elmo, settings)
        assert files_of(tmp_path / message) == wanted
    assert len(calls) == 3
