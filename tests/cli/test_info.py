import json

import pytest
from click.testing import CliRunner

import polyseme
from polyseme import kernels
from polyseme.cli import main


def run(*arguments):
    return CliRunner().invoke(main, ["info", *map(str, arguments)], catch_exceptions=False)


def test_facts_of_a_model(workshop):
    result = run(workshop / "model", "--json")
    facts = json.loads(result.stdout)
    elmo = polyseme.load(workshop / "model")
    assert result.exit_code == 0
    assert facts["parameters"] == sum(parameter.numel() for parameter in elmo.model.parameters())
    assert facts["softmax_parameters"] == 19 * 17
    assert facts["layers"] == [{"name": name, "dim": 32} for name in ("token", "lstm1", "lstm2")]
    assert facts["hash"] == elmo.hash
    assert (facts["softmax"], facts["vocabulary_size"], facts["layout"]) == (True, 19, "native")
    assert (facts["kernel"], facts["state"], facts["tokenization"]) == (kernels.in_use(), "fixed_point", "penn")
    assert polyseme.BiLMConfig.from_dict(facts["config"]) == elmo.config


def test_lines_for_people(workshop):
    lines = dict(line.split(maxsplit=1) for line in run(workshop / "model").stdout.splitlines())
    assert lines["layout"] == "native: a folder with config.json and model.safetensors"
    assert lines["layers"] == "token 32, lstm1 32, lstm2 32"
    assert lines["architecture"] == (
        "bytes of width 4, CNN 32 (relu), 1 highway layer, projected to 16; 2 LSTM layers of 32 projected to 16, "
        "both directions, residual, clipped (cell at 3, projection at 3)"
    )
    assert lines["parameters"].startswith("23,271 (93.1 kB")
    assert lines["softmax"] == "yes, over 19 words (323 parameters)"
    assert lines["metadata"] == "note: random weights"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("many_langs/full", "layout        many_langs"),
        ("bilm_tf/token_only", "vocabulary    none"),
        ("bilm_tf/no_clip", "not clipped"),
        ("allennlp_th/elmo.th", "mix 1         weights -0.4, 0.05, 0.9; gamma 0.62"),
        ("nlpl/bilm.zip", "vocabulary    40 words"),
        ("tf_checkpoint/full", "softmax       yes, over 528 words"),
    ],
)
def test_every_layout(golden, path, line):
    result = run(golden / path)
    assert result.exit_code == 0
    if path == "bilm_tf/token_only":
        assert "97 words of width 9; 2 LSTM" in result.stdout
    else:
        assert line in result.stdout


def test_what_is_no_model(tmp_path):
    result = run(tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "many_langs" in result.stderr
