"""A model at work, in a minute: `make demo`, or `python recipes/demo.py`.

No trained model comes with the package yet, so this one is tiny and its weights are random. What it prints means nothing; the
commands are those for any model.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig
from polyseme.model import BiLM, initialise
from polyseme.vocabulary import BILM_MARKERS, Vocabulary
from polyseme.weights import Checkpoint, write_native

SENTENCES = ("He broke the stick .", "The dog fetched a stick .", "Labels stick to glass .")
COMMANDS = (
    "polyseme info model",
    "polyseme embed --model model --word stick " + shlex.join(SENTENCES),
    "polyseme score --model model 'He drank strong tea .' 'He drank powerful tea .'",
    "polyseme convert model elmo_weights.hdf5",
    "polyseme info elmo_weights.hdf5",
)


def write_tiny_model(folder: Path) -> None:
    """A model folder of the usual architecture, some thousand times smaller, untrained."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()} | {"drank", "strong", "powerful", "tea"})
    config = BiLMConfig(
        characters=CharacterConfig(dim=4, filters=((1, 8), (2, 8), (3, 16))),
        projection=16,
        lstm=LSTMConfig(dim=32, projection=16),
        vocabulary_size=len(BILM_MARKERS) + len(words),
    )
    model = BiLM(config)
    initialise(model, torch.Generator().manual_seed(1))
    vocabulary = Vocabulary((*BILM_MARKERS, *words))
    write_native(Checkpoint(config, model.state_dict(), vocabulary=vocabulary, metadata={"note": "random weights"}), folder)


def main() -> None:
    """Makes the model in a temporary folder and runs the commands there."""
    print("No trained model comes with the package yet: this one is tiny and its weights are random.")
    print("The numbers mean nothing; the commands are those for any model.")
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder) / "model")
        for command in COMMANDS:
            print(f"\n$ {command}", flush=True)
            status = subprocess.run([sys.executable, "-m", "polyseme.cli", *shlex.split(command)[1:]], cwd=folder).returncode
            if status:
                sys.exit(status)


if __name__ == "__main__":
    main()
