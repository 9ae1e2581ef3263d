import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from polyseme.cli import main

TEXT = "the cat sees the dog .\nthe dog hears a cat .\na bird sees the bird .\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT * 40)
    result = CliRunner().invoke(main, ["prepare", "--output", str(tmp_path / "corpus"), str(tmp_path / "*.txt"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tokens"] == 18 * 40
    return tmp_path / "corpus"


def test_prepare_reports(tmp_path: Path):
    arguments = ["prepare", "-o", str(tmp_path / "c"), "-", "--raw", "--vocabulary-size", "6", "--damaged", "skip"]
    result = CliRunner().invoke(main, arguments, input=b"He didn't go. No!\nbad \xff line\n")
    assert result.exit_code == 0, result.output
    assert "7 tokens in 2 sentences" in result.stdout
    assert "outside a vocabulary of 6" in result.stdout
    assert "1 damaged lines were skipped" in result.stdout
    again = CliRunner().invoke(main, arguments, input=b"x\n")
    assert again.exit_code == 1
    assert "overwrite" in again.output


TINY = [
    "--set", "rows=4", "--set", "unroll=5", "--set", "negatives=null", "--set", "model.lstm.dim=8",
    "--set", "model.lstm.projection=4", "--set", "model.projection=4", "--set", "model.characters.filters=[[1,4],[2,4]]",
    "--set", "tokens=200",
]  # fmt: skip


def test_pretrain_plans_runs_goes_on_and_exports(corpus: Path, tmp_path: Path):
    def call(*arguments: str):
        return CliRunner().invoke(main, ["pretrain", str(corpus), *arguments], catch_exceptions=False)

    run = ["--output", str(tmp_path / "run"), *TINY, "--tokens", "200", "--heldout", str(tmp_path / "text.txt")]
    planned = call(*run, "--dry-run")
    assert planned.exit_code == 0
    assert "10 of 4 rows × 5 tokens" in planned.stderr
    assert not (tmp_path / "run").exists()
    first = call(*run, "--max-tokens", "100", "--json")
    assert json.loads(first.stdout)["reason"] == "max_tokens"
    second = call(*run, "--json", "--export", str(tmp_path / "weights.hdf5"))
    values = json.loads(second.stdout)
    assert (values["reason"], values["tokens"], values["steps"]) == ("finished", 200, 10)
    assert values["heldout"]["average"] > 1
    assert (tmp_path / "weights.hdf5").is_file()
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["loss_scale"] == config["unroll"] == 5
    more = call("--output", str(tmp_path / "more"), "--from", str(tmp_path / "run/model"), "--more", "40",
                "--export", str(tmp_path / "exported"), "--dtype", "float16")  # fmt: skip
    assert more.exit_code == 0
    assert "going on at 200 tokens" in more.stderr
    assert "240 tokens in 12 steps" in more.stdout
    assert json.loads((tmp_path / "exported/training.json").read_text())["tokens"] == 240
    assert (tmp_path / "exported/model.safetensors").stat().st_size < (tmp_path / "more/model/model.safetensors").stat().st_size


def test_pretrain_refuses_what_it_does_not_know(corpus: Path, tmp_path: Path):
    def message(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["pretrain", str(corpus), "--output", str(tmp_path / "run"), *arguments])
        assert result.exit_code == 2
        return result.output

    assert "small, medium, original, en-small" in message("--preset", "huge")
    assert "rows" in message("--set", "row=3")
    assert "learning_rate" in message("--set", "optimizer.rate=3")
    assert "one of them" in message("--tokens", "5", "--more", "5")
