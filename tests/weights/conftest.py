"""Checkpoints of small random models."""

import pytest

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.vocabulary import MANY_LANGS_MARKERS, Vocabulary
from polyseme.weights import Checkpoint, Mix
from tiny import WORDS, random_model, tiny_config


def checkpoint_of(config: BiLMConfig, *, seed: int = 0, **lists: object) -> Checkpoint:
    """A checkpoint with random values."""
    tensors = {name: parameter.detach() for name, parameter in random_model(config, seed=seed).named_parameters()}
    return Checkpoint(config=config, tensors=tensors, **lists)  # type: ignore[arg-type]


@pytest.fixture
def small() -> Checkpoint:
    """Characters, two layers, no softmax."""
    return checkpoint_of(tiny_config())


@pytest.fixture
def with_softmax() -> Checkpoint:
    """Characters, two layers, a softmax and two mixes."""
    mixes = (Mix(weights=(0.1, -0.2, 0.3), gamma=1.5), Mix(weights=(0.0, 0.0, 1.0), gamma=0.5))
    return checkpoint_of(tiny_config(softmax=True), vocabulary=Vocabulary(WORDS), mixes=mixes, metadata={"source": "a test"})


@pytest.fixture
def words_only() -> Checkpoint:
    """Words, one layer, the softmax tied to the embedding."""
    config = BiLMConfig(
        characters=None,
        words=WordConfig(size=len(WORDS), dim=8),
        projection=None,
        lstm=LSTMConfig(dim=12, projection=8, layers=1),
        vocabulary_size=len(WORDS),
        tied_softmax=True,
    )
    return checkpoint_of(config, vocabulary=Vocabulary(WORDS), lexicon=Vocabulary(WORDS))


@pytest.fixture
def lexicon() -> Checkpoint:
    """Words and characters of the lexicon scheme, with white space among the characters."""
    characters = Vocabulary(
        ("<bos>", "<eos>", "<bow>", "<eow>", "<oov>", "<pad>", "\u3000", " ", "\u2028", "\r", "a", "b", "é"),
        markers=MANY_LANGS_MARKERS,
    )
    words = Vocabulary((*MANY_LANGS_MARKERS, "ab", "\u3000", ""), markers=MANY_LANGS_MARKERS)
    config = BiLMConfig(
        characters=CharacterConfig(scheme="lexicon", size=len(characters), dim=3, filters=((1, 4), (2, 5))),
        words=WordConfig(size=len(words), dim=5, limit=48, markers=MANY_LANGS_MARKERS),
        projection=8,
        lstm=LSTMConfig(dim=10, projection=8, forget_bias=0.0),
    )
    return checkpoint_of(config, lexicon=words, characters=characters)


@pytest.fixture
def seed_shaped() -> Checkpoint:
    """Word 200 + character 100 → 300, two layers of 64 without projection: (128, 128)."""
    config = BiLMConfig(
        characters=CharacterConfig(dim=8, filters=((2, 40), (3, 60))),
        words=WordConfig(size=len(WORDS), dim=200),
        projection=300,
        lstm=LSTMConfig(dim=64, projection=None, layers=2),
    )
    return checkpoint_of(config, lexicon=Vocabulary(WORDS))
