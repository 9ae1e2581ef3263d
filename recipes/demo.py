"""A model at work, in a minute: `make demo`, or `python recipes/demo.py`.

Takes the English model that comes with the package. Where there is none, it makes a tiny one of random weights and says so: what
that one prints means nothing; the commands are those for any model.
"""

import contextlib
import shlex
import tempfile
import time
from pathlib import Path

import torch

import polyseme
from polyseme.cli import main as polyseme_command
from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig
from polyseme.model import BiLM, initialise
from polyseme.vocabulary import BILM_MARKERS, Vocabulary
from polyseme.weights import Checkpoint, write_native

SENTENCES = ("He broke the stick .", "The dog fetched a stick .", "Labels stick to glass .")
PLAYS = (
    "She wrote a play for the theatre .",
    "The play was staged in London .",
    "The children play in the garden .",
    "They play football on Sundays .",
)
TEAS = ("He drank strong tea .", "He drank powerful tea .")
COMMANDS = (
    ("What the model is", "info MODEL"),
    (
        "One word, four sentences: its vectors and their cosines, layer by layer",
        "embed --model MODEL --word play " + shlex.join(PLAYS),
    ),
    ("Which is the better English?", "score --model MODEL " + shlex.join(TEAS)),
    ("The same model for AllenNLP and bilm-tf", "convert MODEL elmo_weights.hdf5"),
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


def bundled() -> str | None:
    """The name of the English model that comes with the package, if it does."""
    folder = Path(polyseme.__file__).parent / "models" / "en-small"
    return folder.name if (folder / "config.json").is_file() else None


def show(model: str) -> None:
    """Runs the commands, and times the vectors of two hundred sentences."""
    for title, command in COMMANDS:
        line = command.replace("MODEL", model)
        print(f"\n{title}\n$ polyseme {line}", flush=True)
        polyseme_command(shlex.split(line), standalone_mode=False)
    elmo = polyseme.load(model)
    elmo.embed(PLAYS)  # the first call also computes the state that all sentences start from
    sentences = [sentence.split() for sentence in PLAYS] * 50
    start = time.perf_counter()
    elmo.embed(sentences)
    seconds = time.perf_counter() - start
    tokens = sum(map(len, sentences))
    print(f"\nelmo.embed of {len(sentences):,} sentences, {tokens:,} tokens: {seconds:.2f} s, {tokens / seconds:,.0f} tokens/s")


def main() -> None:
    """Shows the bundled model, or a tiny one made in a temporary folder."""
    model = bundled()
    if model is None:
        print("No trained model comes with the package yet: this one is tiny and its weights are random.")
        print("The numbers mean nothing; the commands are those for any model.")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if model is None:
            model = "model"
            write_tiny_model(Path(model))
        show(model)


if __name__ == "__main__":
    main()
