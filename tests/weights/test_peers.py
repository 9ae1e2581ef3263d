"""Slow checks: other programs read what we write, and loading takes no more memory than promised."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parity import Reference, largest_difference
from polyseme.characters import ByteScheme
from polyseme.weights import read, write

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "source", ["allennlp/relu2", "allennlp/tanh3", "bilm_tf/skip", "nlpl/bilm.zip", "allennlp_th/elmo.th", "tf_checkpoint/full"]
)
def test_allennlp_reads_what_we_write(golden: Path, tmp_path: Path, source: str):
    elmo = pytest.importorskip("allennlp.modules.elmo", reason="AllenNLP is not installed", exc_type=ImportError)
    checkpoint = read(golden / source)
    write(checkpoint, tmp_path / "x_weights.hdf5")
    ours = Reference(checkpoint)
    for sentence in (["The", "cat", "sat", "."], ["naïve", "日本語", "x" * 60], ["a"]):
        # A new module for every sentence: it carries its state from call to call.
        theirs = elmo._ElmoBiLm(str(tmp_path / "x_options.json"), str(tmp_path / "x_weights.hdf5")).eval()
        with torch.no_grad():
            layers = theirs(torch.from_numpy(ByteScheme().encode(sentence) + 1)[None])["activations"]
        assert largest_difference([ours.zero(sentence)], [torch.stack(layers)[:, 0].numpy()]) < 1e-5


def test_loading_a_large_model_takes_little_memory(root: Path):
    command = [sys.executable, str(root / "benchmarks" / "load_memory.py"), "hdf5", "native"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ratios = dict(re.findall(r"^(\w+) +\d+ +\d+ +([\d.]+)", done.stdout, re.MULTILINE))
    assert set(ratios) == {"hdf5", "native"}, done.stdout
    assert all(float(ratio) <= 2.2 for ratio in ratios.values()), done.stdout
