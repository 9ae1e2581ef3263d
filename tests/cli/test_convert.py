import json

import torch
from click.testing import CliRunner

import polyseme
from polyseme.cli import main
from polyseme.weights import read


def run(*arguments):
    return CliRunner().invoke(main, ["convert", *map(str, arguments)], catch_exceptions=False)


def test_there_and_back_bit_for_bit(workshop):
    hdf5, back = workshop / "elmo.hdf5", workshop / "back"
    result = run(workshop / "model", hdf5)
    assert result.exit_code == 0
    assert "The softmax was left out" in result.stdout
    result = run(hdf5, back, "--json")
    assert json.loads(result.stdout) == {
        "source": str(hdf5),
        "target": str(back),
        "layout": "allennlp",
        "source_hash": polyseme.load(hdf5).hash,
        "softmax_left_out": False,
    }
    before, after = read(workshop / "model").tensors, read(back).tensors
    assert set(before) - set(after) == {"softmax.weight", "softmax.bias"}
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_companion_files(golden, tmp_path):
    (tmp_path / "w.hdf5").write_bytes((golden / "allennlp/relu2/weights.hdf5").read_bytes())
    missing = run(tmp_path / "w.hdf5", tmp_path / "out")
    assert missing.exit_code == 1
    given = run(tmp_path / "w.hdf5", tmp_path / "out", "--options", golden / "allennlp/relu2/options.json")
    assert given.exit_code == 0
    assert (tmp_path / "out/config.json").is_file()


def test_a_target_that_cannot_be(workshop):
    result = run(workshop / "model", workshop / "model.zip")
    assert result.exit_code == 1
    assert "model.zip cannot be written" in result.stderr
    assert run(workshop / "model").exit_code == 2
