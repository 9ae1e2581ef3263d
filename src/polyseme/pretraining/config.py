"""PretrainConfig: one complete, frozen description of a pretraining run, and the presets."""

from dataclasses import dataclass, replace
from typing import Literal

from polyseme.config import BiLMConfig, CharacterConfig, Checked, LSTMConfig
from polyseme.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked):
    """How gradients become steps.

    Adagrad is bilm-tf's (rate 0.2, accumulators start at 1, no epsilon, no decay). AdamW decays only matrices. The rate warms
    up linearly over `warmup_steps` and then stays ("constant") or falls along a cosine to `final_rate` of itself.
    """

    name: Literal["adagrad", "adamw"] = "adagrad"
    learning_rate: float = 0.2
    initial_accumulator: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    final_rate: float = 0.1
    clip_norm: float | None = 10.0


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Checked):
    """Everything that decides the numbers of a run, data and hardware apart.

    rows              parallel streams of text; one step reads rows × unroll positions in each direction
    unroll            positions per window; gradients stop at its borders, states are carried over them
    accumulate        the rows are worked off in this many parts, gradients added, one update
    streams           "shared": both directions read the same sentences; "independent": two shuffled streams, as bilm-tf
    negatives         words drawn per direction and step for the sampled softmax; None: full softmax
    draws             among several processes, negatives are "shared", the same for all, or each draws its "own", as bilm-tf's
                      towers do: more different words a step, and more rows of the softmax that travel
    loss_scale        the gradient is taken of loss × this (bilm-tf: unroll), so clip_norm acts on the scaled gradient
    start             of the softmax: "bilm_tf" as bilm-tf draws it, "unigram": its biases are the words' log-frequencies and
                      its weights a tenth as large, so that a word not yet drawn as a negative is not taken for a likely one
    dropout           on the input of every LSTM layer (residual path included) and on the top output
    tokens            positions per direction to train on in all, passes included
    precision         of the products; parameters, cell state, softmax logits and the optimizer stay float32
    """

    model: BiLMConfig
    optimizer: OptimizerConfig
    rows: int = 128
    unroll: int = 20
    accumulate: int = 1
    streams: Literal["shared", "independent"] = "shared"
    shuffle: bool = True
    negatives: int | None = 8192
    draws: Literal["shared", "own"] = "shared"
    loss_scale: float = 20.0
    start: Literal["bilm_tf", "unigram"] = "bilm_tf"
    dropout: float = 0.1
    tokens: int = 100_000_000
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 1

    def validate(self) -> None:
        """The parts must fit together."""
        self.positive("rows", "unroll", "accumulate", "negatives", "tokens")
        if self.model.vocabulary_size is None:
            raise InputError("PretrainConfig.model.vocabulary_size is null; give the number of words to predict.")
        if self.negatives is not None and self.negatives >= self.model.vocabulary_size:
            raise InputError(
                f"PretrainConfig.negatives is {self.negatives} but the vocabulary has {self.model.vocabulary_size} words; "
                "draw fewer, or give null for the full softmax."
            )
        if self.rows % self.accumulate:
            raise InputError(f"PretrainConfig.rows ({self.rows}) must be a multiple of accumulate ({self.accumulate}).")
        if not 0 <= self.dropout < 1:
            raise InputError(f"PretrainConfig.dropout is {self.dropout}; wanted 0 or more and below 1.")


_ORIGINAL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def _bilm(dim: int, projection: int, highways: int, vocabulary_size: int) -> PretrainConfig:
    model = BiLMConfig(
        characters=CharacterConfig(filters=_ORIGINAL_FILTERS, highways=highways),
        projection=projection,
        lstm=LSTMConfig(dim=dim, projection=projection),
        vocabulary_size=vocabulary_size,
    )
    return PretrainConfig(model=model, optimizer=OptimizerConfig(), streams="independent")


def small(vocabulary_size: int) -> PretrainConfig:
    """The published small model, trained exactly as bilm-tf trains."""
    return _bilm(1024, 128, 1, vocabulary_size)


def medium(vocabulary_size: int) -> PretrainConfig:
    """The published medium model, trained exactly as bilm-tf trains."""
    return _bilm(2048, 256, 1, vocabulary_size)


def original(vocabulary_size: int) -> PretrainConfig:
    """The published original model, trained exactly as bilm-tf trains."""
    return _bilm(4096, 512, 2, vocabulary_size)


def en_small(vocabulary_size: int = 50_000) -> PretrainConfig:
    """The bundled English model: the small LSTM, a quarter of its filters, and what trains it best in little time.

    One shared stream, 2,048 negatives, no dropout (no token is seen often), bfloat16 products, AdamW along a cosine, a softmax
    that starts from the words' frequencies. benchmarks/pretrain_recipes.py compares it with others after a million tokens: there
    a higher rate or a smaller batch is better still; for the many steps of a whole run these were taken as the safer ones.
    """
    config = small(vocabulary_size)
    return replace(
        config,
        model=replace(config.model, characters=CharacterConfig(filters=_ORIGINAL_FILTERS[:5], highways=1)),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=0.004, schedule="cosine", warmup_steps=200, final_rate=0.02, clip_norm=1.0
        ),
        streams="shared",
        start="unigram",
        negatives=2048,
        loss_scale=1.0,
        dropout=0.0,
        precision="bfloat16",
    )


PRESETS = {"small": small, "medium": medium, "original": original, "en-small": en_small}
