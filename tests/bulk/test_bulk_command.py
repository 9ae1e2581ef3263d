"""`polyseme embed INPUT... -o DIR` and the HDF5 files made in the same way."""

import gzip
import json

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import polyseme
from polyseme.cli import main

LINES = ["the cat sat .", "a/b ran", "", "the cat sat .", "naïve dog"]


def run(workshop, *arguments, stdin=None):
    command = ["embed", "--model", str(workshop / "model"), *map(str, arguments)]
    return CliRunner().invoke(main, command, input=stdin, catch_exceptions=False)


@pytest.fixture
def corpus(workshop):
    """The same five sentences in every form."""
    text = "".join(line + "\n" for line in LINES)
    (workshop / "c.txt").write_text(text)
    (workshop / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    (workshop / "c.jsonl").write_text("".join(json.dumps({"body": line.split()}) + "\n" for line in LINES))
    pyarrow.parquet.write_table(pyarrow.table({"body": LINES}), workshop / "c.parquet")
    rows = "".join("".join(f"1\t{word}\n" for word in line.split()) + "\n" for line in LINES)
    (workshop / "c.conll").write_text(rows)
    return workshop


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("c.txt", []),
        ("c.txt.gz", []),
        ("c.jsonl", ["--field", "body"]),
        ("c.parquet", ["--field", "body"]),
        ("c.conll", ["--column", "1"]),
        ("-", []),
    ],
)
def test_every_input(corpus, name, options):
    source = name if name == "-" else corpus / name
    stdin = "".join(line + "\n" for line in LINES) if name == "-" else None
    result = run(corpus, source, "--tokenized", "-o", corpus / "out", *options, stdin=stdin)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    lines = [line for line in LINES if line or name != "c.conll"]  # blank lines part CoNLL's sentences
    assert f"out: {len(lines)} sentences, 12 tokens" in result.stderr
    if name == "-":
        assert "The size of the input is not known; 192 MB for a million tokens." in result.stderr
    else:
        assert "About 12 tokens, 2.3 kB" in result.stderr
    vectors = polyseme.read_vectors(corpus / "out")
    assert [vectors[number].tokens for number in range(len(vectors))] == [line.split() for line in lines]


def test_options_of_storing(corpus):
    result = run(corpus, "-i", corpus / "c.txt", "--mix", "1,0,1", "--dtype", "int8", "--format", "arrow", "-o", corpus / "v.1")
    assert result.exit_code == 0, result.output
    vectors = polyseme.read_vectors(corpus / "v.1")
    assert vectors.layers == ("mix",)
    assert [part["file"] for part in vectors.manifest["parts"]] == ["part-00000.arrow"]
    result = run(corpus, corpus / "c.txt", "--mix", "1,0,1", "--format", "arrow", "-o", corpus / "v.1")
    assert result.exit_code == 1
    assert 'dtype ("int8" there, "float16" here)' in result.stderr
    result = run(corpus, corpus / "c.txt", "--mix", "1,0,1", "--format", "arrow", "-o", corpus / "v.1", "--overwrite")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mix", "1,1,1", "--layers", "top", "-o", "out"], "--mix and --layers exclude each other"),
        (["--dtype", "int8", "-o", "out.npz"], "--dtype goes with files stored in a folder"),
        (["--workers", "2"], "--workers goes with files stored in a folder"),
        (["--context", "document", "-o", "out"], "--context goes with sentences"),
        (["--split", "--tokenized", "-o", "out"], "exclude each other"),
        (["--ray", "-o", "out.hdf5"], "leave out --ray"),
    ],
)
def test_wrong_usage(corpus, arguments, message):
    result = run(corpus, corpus / "c.txt", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_a_file_that_is_not_there(corpus):
    result = run(corpus, corpus / "none.txt", "-o", corpus / "out")
    assert result.exit_code == 1
    assert "no file matches" in result.stderr


def test_arguments_that_name_files_are_files(corpus):
    result = run(corpus, corpus / "c.txt", "--tokenized", "--layers", "top")
    assert [json.loads(line)["tokens"] for line in result.stdout.splitlines()] == [line.split() for line in LINES]


def as_allennlp_scripts_read(path):
    """What scripts written for `allennlp elmo` do: the sentences' numbers by their text, then the arrays."""
    with h5py.File(path, "r") as file:
        numbers = json.loads(file.get("sentence_to_index")[0])
        return {sentence: file[number][...] for sentence, number in numbers.items()}, sorted(file)


@pytest.mark.parametrize("extra", [[], ["--part-tokens", "4"], ["--dtype", "float16"]])
def test_hdf5_of_a_corpus(corpus, extra):
    result = run(corpus, corpus / "c.txt", "--tokenized", "-o", corpus / "v.hdf5", *extra)
    assert result.exit_code == 0, result.output
    found, keys = as_allennlp_scripts_read(corpus / "v.hdf5")
    assert keys == ["0", "1", "2", "3", "4", "sentence_to_index"]
    elmo = polyseme.load(corpus / "model")
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if "--dtype" not in extra else {"atol": 2e-3}
    for line, array in zip(LINES, elmo.embed([line.split() for line in LINES]), strict=True):
        assert found[line].shape == array.shape
        assert found[line].dtype == (np.float16 if "--dtype" in extra else np.float32)
        np.testing.assert_allclose(found[line], array, **tolerance)
    with h5py.File(corpus / "v.hdf5") as file:
        np.testing.assert_array_equal(file["0"][...], file["3"][...])
    assert not (corpus / "v.hdf5.parts").exists()


def test_hdf5_goes_on_from_whole_parts(corpus, monkeypatch):
    from polyseme.bulk import hdf5

    arguments = (corpus / "c.txt", "--tokenized", "-o", corpus / "v.hdf5", "--part-tokens", "4")
    assert run(corpus, *arguments).exit_code == 0
    whole = (corpus / "v.hdf5").read_bytes()
    (corpus / "v.hdf5").unlink()

    def ended(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hdf5, "allennlp_writer", ended)
        assert run(corpus, *arguments).exit_code == 1
    assert not (corpus / "v.hdf5").exists()
    before = {path.name: path.stat().st_mtime_ns for path in (corpus / "v.hdf5.parts").iterdir()}
    assert len(before) > 2
    assert run(corpus, *arguments).exit_code == 0
    assert (corpus / "v.hdf5").read_bytes() == whole
    result = run(corpus, *arguments, "--dtype", "int8")
    assert result.exit_code == 1
    assert "hold float32 or float16" in result.stderr


def test_e2e_coref(corpus):
    documents = [
        {"doc_key": "bc/cctv/00/cctv_0000_0", "sentences": [["the", "cat"], ["it", "ran", "away"]], "clusters": []},
        {"doc_key": "nw_1", "sentences": [["the", "cat"]]},
    ]
    (corpus / "d.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    result = run(corpus, corpus / "d.jsonl", "--format", "e2e-coref", "-o", corpus / "elmo_cache.hdf5")
    assert result.exit_code == 0, result.output
    elmo = polyseme.load(corpus / "model")
    with h5py.File(corpus / "elmo_cache.hdf5") as file:
        assert set(file) == {"bc:cctv:00:cctv_0000_0", "nw_1"}
        for document in documents:
            # As e2e-coref reads it: the sentences of a document by their numbers.
            group = file[document["doc_key"].replace("/", ":")]
            found = [group[str(number)][...] for number in range(len(list(group.keys())))]
            for array, wanted in zip(found, elmo.embed(document["sentences"]), strict=True):
                np.testing.assert_allclose(array, wanted.transpose(1, 2, 0), rtol=1e-5, atol=1e-6)
    result = run(corpus, corpus / "d.jsonl", "--format", "e2e-coref", "-o", corpus / "x.hdf5", "--layers", "top")
    assert "holds all layers of every token" in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "d.jsonl, line 2: not valid JSON"),
        ('{"doc_key": "b", "sentences": ["a b"]}', "d.jsonl, line 2: no document"),
        ('{"doc_key": "a", "sentences": [["a"]]}', "line 2: a second document of the key 'a'"),
    ],
)
def test_damaged_documents(corpus, line, message):
    (corpus / "d.jsonl").write_text('{"doc_key": "a", "sentences": [["a"]]}\n' + line + "\n")
    result = run(corpus, corpus / "d.jsonl", "--format", "e2e-coref", "-o", corpus / "x.hdf5")
    assert result.exit_code == 1
    assert message in result.stderr
