"""Small random biLMs, and the models of the reference data, for tests."""

import json
from pathlib import Path

import torch

import polyseme
from polyseme.characters import ByteScheme, WordReader
from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.elmo import Elmo
from polyseme.model import BiLM, initialise
from polyseme.vocabulary import BILM_MARKERS, Vocabulary

WORDS = (*BILM_MARKERS, "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "away", ".", "he", "she", "saw", "it", "home")


def tiny_config(
    *, layers: int = 2, projection: int | None = 8, softmax: bool = False, bidirectional: bool = True, residual: bool = True
) -> BiLMConfig:
    """A character model of a few thousand parameters."""
    return BiLMConfig(
        characters=CharacterConfig(dim=4, filters=((1, 6), (2, 6), (3, 8)), highways=1),
        projection=8,
        lstm=LSTMConfig(dim=12, projection=projection, layers=layers, bidirectional=bidirectional, residual=residual),
        vocabulary_size=len(WORDS) if softmax else None,
    )


def random_model(config: BiLMConfig, *, seed: int = 0) -> BiLM:
    """Random values, large enough for carried states to matter, small enough for them to settle."""
    model = BiLM(config)
    generator = torch.Generator().manual_seed(seed)
    initialise(model, generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lstm" in name:
                parameter.mul_(1.2)
            if "convolutions" in name:
                parameter.mul_(10.0)
            if name.endswith("bias") and "lstm" in name:
                parameter.uniform_(-0.5, 0.5, generator=generator)
    return model


def tiny_elmo(config: BiLMConfig | None = None, *, seed: int = 0) -> Elmo:
    """An Elmo over a random model."""
    config = config or tiny_config()
    vocabulary = Vocabulary(WORDS) if config.vocabulary_size else None
    return Elmo(
        random_model(config, seed=seed), WordReader(scheme=ByteScheme(), lexicon=None), vocabulary=vocabulary, name="tiny"
    )


def seed_shaped() -> Elmo:
    """Word 200 + character 100 → 300, two layers of 64 without projection: token vectors wider than the LSTM's."""
    config = BiLMConfig(
        characters=CharacterConfig(dim=8, filters=((2, 40), (3, 60))),
        words=WordConfig(size=len(WORDS), dim=200),
        projection=300,
        lstm=LSTMConfig(dim=64, projection=None, layers=2, residual=False),
    )
    lexicon = Vocabulary(WORDS)
    return Elmo(random_model(config), WordReader(scheme=ByteScheme(), lexicon=lexicon), name="seed")


def golden_elmo(folder: Path) -> Elmo:
    """A model of the reference data that is an options file beside an HDF5 file."""
    vocabulary = folder.parent / "vocab.txt"
    token_embeddings = folder / "token_embeddings.hdf5"
    token_mode = folder.name.startswith("token")
    return polyseme.load(
        folder / "weights.hdf5",
        options=folder / "options.json",
        vocabulary=vocabulary if token_mode else None,
        token_embeddings=token_embeddings if token_embeddings.exists() else None,
    )


def read_json(path: Path) -> list:
    """JSON as UTF-8."""
    return json.loads(path.read_text(encoding="utf-8"))
