"""ELMo, deep contextualized word representations: load every published model, train your own, use them fast.

The names in `__all__` are the public surface; each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyseme.config import BiLMConfig as BiLMConfig
    from polyseme.elmo import Elmo as Elmo
    from polyseme.embedding import ElmoEmbedding as ElmoEmbedding
    from polyseme.errors import FormatError as FormatError
    from polyseme.errors import InputError as InputError
    from polyseme.errors import PolysemeError as PolysemeError
    from polyseme.errors import WeightsError as WeightsError
    from polyseme.lstm import LSTMState as LSTMState
    from polyseme.mix import ScalarMix as ScalarMix
    from polyseme.pretraining.loop import pretrain as pretrain
    from polyseme.tasks.fit import fit as fit
    from polyseme.vectors import read_vectors as read_vectors
    from polyseme.vocabulary import Vocabulary as Vocabulary
    from polyseme.weights import convert as convert
    from polyseme.weights.loading import load as load
    from polyseme.weights.loading import save as save

    __version__: str

_HOMES = {
    "BiLMConfig": "polyseme.config",
    "Elmo": "polyseme.elmo",
    "ElmoEmbedding": "polyseme.embedding",
    "FormatError": "polyseme.errors",
    "InputError": "polyseme.errors",
    "LSTMState": "polyseme.lstm",
    "PolysemeError": "polyseme.errors",
    "ScalarMix": "polyseme.mix",
    "Vocabulary": "polyseme.vocabulary",
    "WeightsError": "polyseme.errors",
    "convert": "polyseme.weights",
    "fit": "polyseme.tasks.fit",
    "load": "polyseme.weights.loading",
    "pretrain": "polyseme.pretraining.loop",
    "read_vectors": "polyseme.vectors",
    "save": "polyseme.weights.loading",
}

__all__ = [
    "BiLMConfig",
    "Elmo",
    "ElmoEmbedding",
    "FormatError",
    "InputError",
    "LSTMState",
    "PolysemeError",
    "ScalarMix",
    "Vocabulary",
    "WeightsError",
    "__version__",
    "convert",
    "fit",
    "load",
    "pretrain",
    "read_vectors",
    "save",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("polyseme")
    if name not in _HOMES:
        raise AttributeError(f"module 'polyseme' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
