import json
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

import polyseme
from polyseme.cli import main

SENTENCES = ["He broke the stick.", "It's \"naïve\" — isn't it?"]
TOKENS = [["He", "broke", "the", "stick", "."], ["It", "'s", '"', "naïve", '"', "--", "is", "n't", "it", "?"]]


def run(workshop, *arguments, stdin=None):
    command = ["embed", "--model", str(workshop / "model"), *map(str, arguments)]
    return CliRunner().invoke(main, command, input=stdin, catch_exceptions=False)


def records(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("way", ["arguments", "stdin", "file", "tokenized", "split", "context"])
def test_every_way_in_gives_the_same_vectors(workshop, way):
    text = "".join(sentence + "\n" for sentence in SENTENCES)
    file = workshop / "in.txt"
    if way == "arguments":
        result = run(workshop, *SENTENCES)
    elif way == "stdin":
        result = run(workshop, stdin=text)
    elif way == "file":
        file.write_text(text)
        result = run(workshop, "-i", file)
    elif way == "tokenized":
        file.write_text("".join(" ".join(tokens) + "\n" for tokens in TOKENS))
        result = run(workshop, "--tokenized", "-i", file)
    elif way == "split":
        result = run(workshop, "--split", " ".join(SENTENCES))
    else:
        result = run(workshop, "--context", "0", *SENTENCES)
    found = records(result)
    assert [record["sentence"] for record in found] == [0, 1]
    assert [record["tokens"] for record in found] == TOKENS
    for record, array in zip(found, polyseme.load(workshop / "model").embed(TOKENS), strict=True):
        np.testing.assert_array_equal(np.array(record["vectors"], dtype=np.float32), array)


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (["--layers", "top"], {"layers": "top"}),
        (["--layers", "mean", "--pool", "max"], {"layers": "mean", "pool": "max"}),
        (["--layers", "1"], {"layers": 1}),
        (["--layers", "-1"], {"layers": -1}),
        (["--layers", "0.5,0,0.5"], {"layers": [0.5, 0, 0.5]}),
        (["--state", "zero", "--boundaries"], {"state": "zero", "boundaries": True}),
        (["--context", "document"], {"context": "document"}),
        (["--context", "2"], {"context": 2}),
        (["--precision", "bfloat16", "--batch-tokens", "8"], {"precision": "bfloat16", "batch_tokens": 8}),
    ],
)
def test_options_reach_the_model(workshop, options, keywords):
    found = records(run(workshop, *SENTENCES, *options))
    for record, array in zip(found, polyseme.load(workshop / "model").embed(TOKENS, **keywords), strict=True):
        np.testing.assert_array_equal(np.array(record["vectors"], dtype=np.float32), array)


def test_learned_mixes(golden):
    arguments = ["embed", "-m", str(golden / "allennlp_th/elmo.th"), "a b", "--layers"]
    (record,) = records(CliRunner().invoke(main, [*arguments, "mix1"]))
    elmo = polyseme.load(golden / "allennlp_th/elmo.th")
    (array,) = elmo.embed(["a b"], layers=elmo.mixes[1])
    np.testing.assert_array_equal(np.array(record["vectors"], dtype=np.float32), array)
    result = CliRunner().invoke(main, [*arguments, "mix2"])
    assert result.exit_code == 1
    assert "2 mixes" in result.stderr


def test_npz(workshop):
    result = run(workshop, "-o", workshop / "v.npz", stdin="He broke it.\n\nIt did.\n")
    assert (result.exit_code, result.stdout) == (0, "")
    expected = polyseme.load(workshop / "model").embed([["He", "broke", "it", "."], [], ["It", "did", "."]])
    with np.load(workshop / "v.npz") as file:
        assert sorted(file) == ["0", "1", "2", "text/0", "text/1", "text/2"]
        for number, array in enumerate(expected):
            np.testing.assert_array_equal(file[str(number)], array)
        assert file["1"].shape == (3, 0, 32)
        assert file["text/0"].item() == "He broke it ."


def test_hdf5_as_allennlp_wrote_it(workshop):
    lines = ["He broke it .", "a/b \0 c", "He broke it .", ""]
    result = run(workshop, "--tokenized", "-o", workshop / "v.hdf5", stdin="".join(line + "\n" for line in lines))
    assert result.exit_code == 0, result.output
    expected = polyseme.load(workshop / "model").embed([line.split() for line in lines])
    with h5py.File(workshop / "v.hdf5") as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        assert json.loads(file["sentence_to_index"][0]) == {lines[0]: "2", lines[1]: "1", "": "3"}
        for number, array in enumerate(expected):
            assert file[str(number)].dtype == np.float32
            np.testing.assert_array_equal(file[str(number)][...], array)


def test_json_lines_file_and_format(workshop):
    assert run(workshop, "a b", "-o", workshop / "v.jsonl").exit_code == 0
    assert run(workshop, "a b", "-o", workshop / "v.data", "--format", "jsonl").exit_code == 0
    assert (workshop / "v.jsonl").read_text() == (workshop / "v.data").read_text() == run(workshop, "a b").stdout


def test_a_failed_run_leaves_the_old_file(workshop):
    target = workshop / "v.npz"
    target.write_text("old")
    before = sorted(path.name for path in workshop.iterdir())
    result = run(workshop, "-o", target, stdin=b"good line\nbad \xff line\n")
    assert result.exit_code == 1
    assert "standard input, line 2: not valid UTF-8" in result.stderr
    assert target.read_text() == "old"
    assert sorted(path.name for path in workshop.iterdir()) == before


def test_word_side_by_side(workshop):
    sentences = ["He broke the stick.", "No such thing.", "The stick is a stick."]
    found = json.loads(run(workshop, "--word", "stick", *sentences, "--json").stdout)
    places = [(place["sentence"], place["position"]) for place in found["occurrences"]]
    assert places == [(0, 3), (2, 1), (2, 4)]
    arrays = polyseme.load(workshop / "model").embed(sentences)
    vectors = [arrays[sentence][:, position].astype(np.float64) for sentence, position in places]
    for layer, name in enumerate(("token", "lstm1", "lstm2")):
        for row, first in enumerate(vectors):
            stored = np.array(found["occurrences"][row]["vectors"][name], dtype=np.float32)
            np.testing.assert_array_equal(stored, first[layer].astype(np.float32))
            for column, second in enumerate(vectors):
                cosine = first[layer] @ second[layer] / np.linalg.norm(first[layer]) / np.linalg.norm(second[layer])
                assert found["cosines"][name][row][column] == pytest.approx(cosine, abs=2e-6)
    shown = run(workshop, "--word", "stick", *sentences).stdout
    assert "1  He broke the [stick] ." in shown
    assert "3  The stick is a [stick] ." in shown
    assert shown.count("vector (32 numbers)") == 3
    one = run(workshop, "--word", "stick", *sentences, "--layers", "top").stdout
    assert one.count("vector (32 numbers)") == 1


def test_word_that_is_not_there(workshop):
    result = run(workshop, "--word", "sticks", "He broke it.")
    assert result.exit_code == 1
    assert "'sticks' is no token of these sentences; their tokens are ., He, broke, it" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["He", "broke", "it"], "3 sentences of one word each"),
        (["a b", "-o", "x.txt"], "give a name that ends in .jsonl, .npz, .hdf5, .h5"),
        (["a b", "--format", "npz"], "give -o FILE"),
        (["a b", "--tokenized", "--split"], "exclude each other"),
        (["a b", "--json"], "--json goes with --word"),
        (["a b", "--word", "a", "--pool", "mean"], "--word goes with none of"),
        (["a b", "--context", "far"], "wanted sentence, document, or a number of words"),
        (["a b", "--batch-tokens", "0"], "--batch-tokens"),
    ],
)
def test_wrong_usage(workshop, arguments, message):
    result = run(workshop, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b", "--layers", "bottom"], "layers is 'bottom'"),
        (["a b", "--layers", "1,x,2"], "one number for each layer"),
        (["a b", "--device", "nonsense"], "device 'nonsense' cannot be used"),
        (["-i", "no/such/file"], "no file matches 'no/such/file'"),
        (["a b", "-o", "no/such/folder/x.npz"], "could not be written"),
        (["a b", "--vocabulary", "no/such/file"], "is no file"),
    ],
)
def test_our_errors(workshop, arguments, message):
    result = run(workshop, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_reader_that_goes_away(workshop):
    command = [sys.executable, "-m", "polyseme.cli", "embed", "-m", "model"]
    many = "He broke it .\n" * 1000
    with subprocess.Popen(
        command, cwd=workshop, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        feeder = subprocess.Popen([sys.executable, "-c", f"print({many!r})"], stdout=process.stdin)
        process.stdin.close()
        assert json.loads(process.stdout.readline())["tokens"] == ["He", "broke", "it", "."]
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        feeder.wait()


@pytest.mark.parametrize("request_to_end", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_ended_run_leaves_nothing(workshop, request_to_end):
    before = sorted(path.name for path in workshop.iterdir())
    command = [sys.executable, "-m", "polyseme.cli", "embed", "-m", "model", "-o", "v.npz"]
    with subprocess.Popen(command, cwd=workshop, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(600):  # until it has begun to write
            if sorted(path.name for path in workshop.iterdir()) != before:
                break
            time.sleep(0.1)
        process.send_signal(request_to_end)
        errors = process.stderr.read()
    assert process.returncode == (143 if request_to_end == signal.SIGTERM else 1)
    assert "Traceback" not in errors
    assert sorted(path.name for path in workshop.iterdir()) == before
