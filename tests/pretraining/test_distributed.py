"""Two processes with gloo against one with the same global batch; killed and resumed under torchrun too."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_loop import config, grammar, losses, records

from polyseme.errors import InputError
from polyseme.pretraining.checkpoint import saved
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.loop import pretrain
from polyseme.pretraining.prepare import prepare
from polyseme.pretraining.processes import Processes

CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from test_loop import *
from polyseme.pretraining.processes import join
corpus = Corpus.from_sentences(grammar(300, 1))
setting = config(corpus, **json.loads(sys.argv[4]))
def slow(done, total=None, *, note=""):
    time.sleep(float(sys.argv[3]))
with join("cpu") as place:
    open(f"{sys.argv[2]}.pid{place.rank}", "w").write(str(os.getpid()))
    pretrain(setting, corpus, sys.argv[2], device=place.device, log_every=1, checkpoint_minutes=1 / 60, report=slow)
"""


def _torchrun(folder: Path, script: Path, changes: dict, pause: float = 0.0) -> subprocess.Popen:
    script.write_text(CHILD)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    arguments = [str(Path(__file__).parent), str(folder), str(pause), json.dumps(changes)]
    return subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen) -> None:
    _, message = process.communicate(timeout=240)
    assert process.returncode == 0, message.decode()[-9000:]


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.0},
        pytest.param({"dropout": 0.0, "negatives": None, "accumulate": 2, "streams": "independent"}, marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_losses_of_one(tmp_path: Path, changes: dict):
    changes = {**changes, "tokens": 8 * 5 * 20}
    _finish(_torchrun(tmp_path / "two", tmp_path / "child.py", changes))
    corpus = Corpus.from_sentences(grammar(300, 1))
    pretrain(config(corpus, **changes), corpus, tmp_path / "one", log_every=1)
    one, two = (records(tmp_path / name) for name in ("one", "two"))
    assert len(one) == len(two) == 20
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            assert right[name] == pytest.approx(left[name], rel=2e-4), name


@pytest.mark.slow
def test_killed_and_resumed_under_torchrun(tmp_path: Path):
    changes = {"tokens": 8 * 5 * 40, "precision": "bfloat16", "draws": "own"}
    killed = _torchrun(tmp_path / "killed", tmp_path / "child.py", changes, pause=0.15)
    deadline = time.monotonic() + 120
    while len(saved(tmp_path / "killed" / "checkpoints")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.4)
    # torchrun starts its workers in sessions of their own: all three are killed at once.
    for pid in (killed.pid, *(int(Path(f"{tmp_path}/killed.pid{rank}").read_text()) for rank in (0, 1))):
        os.kill(pid, signal.SIGKILL)
    killed.communicate()
    reached = losses(tmp_path / "killed")
    assert 0 < len(reached) < 40
    _finish(_torchrun(tmp_path / "killed", tmp_path / "child.py", changes))
    _finish(_torchrun(tmp_path / "whole", tmp_path / "child.py", changes))
    assert len(losses(tmp_path / "whole")) == 40
    assert losses(tmp_path / "whole")[: len(reached)] == reached
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


@pytest.mark.slow
def test_the_command_under_torchrun(tmp_path: Path):
    """As docs/pretraining.md says it: one plan, one log, one model, one answer."""
    (tmp_path / "text.txt").write_text("\n".join(map(" ".join, grammar(200, 1))) + "\n", encoding="utf-8")
    prepare([tmp_path / "text.txt"], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    (tmp_path / "config.json").write_text(config(corpus, tokens=8 * 5 * 6).to_json(), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "polyseme.pretraining",
    ]
    arguments = ["corpus", "--output", "run", "--config", "config.json", "--heldout", "text.txt", "--log-every", "1", "--json"]
    done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, timeout=240, text=True)
    assert done.returncode == 0, done.stderr[-9000:]
    answer = json.loads(done.stdout)
    assert (answer["reason"], answer["steps"]) == ("finished", 6)
    assert len([line for line in records(tmp_path / "run") if "sampled_loss" in line]) == 6
    assert done.stderr.count("parameters") == 1
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_all_must_see_the_same_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = Corpus.from_sentences(grammar(50, 1))
    monkeypatch.setattr(Processes, "gather", lambda self, tensor: [tensor, tensor + 1])
    with pytest.raises(InputError, match=r"not all processes see the same checkpoints in .*; put it where all machines see it"):
        pretrain(config(corpus, tokens=40), corpus, tmp_path / "run")
