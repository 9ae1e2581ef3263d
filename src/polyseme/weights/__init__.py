"""Reading and writing the weights of a biLM: one file per layout; see `read` for how they are told apart."""

from dataclasses import dataclass, field

from torch import Tensor

from polyseme.config import BiLMConfig
from polyseme.vocabulary import Vocabulary


@dataclass(frozen=True)
class Mix:
    """One learned weighting of layers, as an AllenNLP `Elmo` module stores it; weights are before the softmax."""

    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class Checkpoint:
    """What every reader returns: a configuration, tensors under their native names, and the word lists that belong to them.

    Native names are those of `BiLM.state_dict()`; a tied softmax weight is listed once, as `token_encoder.words`.
    """

    config: BiLMConfig
    tensors: dict[str, Tensor]
    vocabulary: Vocabulary | None = None  # words of the softmax
    lexicon: Vocabulary | None = None  # words of the word embedding
    characters: Vocabulary | None = None  # characters of the lexicon scheme
    mixes: tuple[Mix, ...] = ()
    layout: str = "native"
    metadata: dict[str, str] = field(default_factory=dict)
