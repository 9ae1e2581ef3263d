"""Slow checks: other programs read what we write, and loading takes no more memory than promised.

The other programs are run in environments of their own, whose interpreters POLYSEME_ALLENNLP and POLYSEME_BILM_TF name; by
default in this one, if they are installed in it. docs/contributing.md says how to make them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity import Reference, largest_difference
from polyseme.characters import ByteScheme
from polyseme.weights import read, write

pytestmark = pytest.mark.slow

SENTENCES = (["The", "cat", "sat", "."], ["naïve", "日本語", "x" * 60], ["a"])
#: What each of them can hold: AllenNLP wants a token projection, highways and residual connections.
READABLE = {
    "allennlp": [
        "allennlp/relu2",
        "allennlp/tanh3",
        "bilm_tf/skip",
        "nlpl/bilm.zip",
        "allennlp_th/elmo.th",
        "tf_checkpoint/full",
    ],
    "bilm_tf": ["allennlp/clip2", "allennlp/tanh3", "bilm_tf/noskip", "bilm_tf/no_highway", "bilm_tf/no_token_projection"],
}


@pytest.mark.parametrize("peer", READABLE)
def test_peers_read_what_we_write(golden: Path, tmp_path: Path, peer: str):
    scheme = ByteScheme()
    ids = {str(number): scheme.encode([scheme.begin, *words, scheme.end]) for number, words in enumerate(SENTENCES)}
    np.savez(tmp_path / "ids.npz", **ids)
    for number, source in enumerate(READABLE[peer]):
        write(read(golden / source), tmp_path / f"{number}_weights.hdf5")
    interpreter = os.environ.get(f"POLYSEME_{peer.upper()}", sys.executable)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [interpreter, str(Path(__file__).with_name(f"peer_{peer}.py")), str(tmp_path)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(
            f"{done.stderr.splitlines()[-1]}; name an interpreter that has it: POLYSEME_{peer.upper()}=/folder/bin/python"
        )
    assert done.returncode == 0, done.stderr
    for number, source in enumerate(READABLE[peer]):
        ours = Reference(read(golden / source))
        with np.load(tmp_path / f"{number}.npz") as theirs:
            for key, words in enumerate(SENTENCES):
                layers, recorded = ours.zero(words), theirs[str(key)]
                if peer == "bilm_tf":
                    layers = layers[:, 1:-1]
                assert largest_difference([layers], [recorded]) < (5e-5 if "clip2" in source else 1e-5), source


def test_loading_a_large_model_takes_little_memory(root: Path):
    command = [sys.executable, str(root / "benchmarks" / "load_memory.py"), "hdf5", "native"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ratios = dict(re.findall(r"^(\w+) +\d+ +\d+ +([\d.]+)", done.stdout, re.MULTILINE))
    assert set(ratios) == {"hdf5", "native"}, done.stdout
    assert all(float(ratio) <= 2.2 for ratio in ratios.values()), done.stdout
