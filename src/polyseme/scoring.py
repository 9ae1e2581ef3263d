"""What the softmax says: log-probabilities of sentences, expected words, substitutes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.errors import InputError
from polyseme.model import BiLM
from polyseme.softmax import Softmax
from polyseme.vocabulary import Vocabulary

Direction = Literal["both", "forward", "backward"]

#: Numbers in the table of positions × words that is held at once: a quarter of a gigabyte.
_TABLE = 1 << 26


@dataclass(frozen=True)
class Score:
    """Natural log-probabilities of one sentence of n tokens.

    `forward` has n + 1 values: of w1, ..., wn and the end, each given what stands to its left. `backward` has n + 1 too, in
    reading order: of the begin and w1, ..., wn, each given what stands to its right; None where the model has no backward
    direction.
    """

    tokens: list[str]
    forward: Float[np.ndarray, "positions"]
    backward: Float[np.ndarray, "positions"] | None

    @property
    def total(self) -> float:
        """The log-probability of the whole sentence, the mean of the directions."""
        totals = [float(part.sum()) for part in (self.forward, self.backward) if part is not None]
        return sum(totals) / len(totals)


@dataclass(frozen=True)
class Expected:
    """A word the model expects at a position, and its natural log-probability there."""

    word: str
    log_probability: float


@dataclass(frozen=True)
class Substitute:
    """A word put in another's place: `gain` is by how much the sentence's log-probability changes (see Score.total)."""

    word: str
    gain: float


def softmax_of(model: BiLM, vocabulary: Vocabulary | None) -> tuple[Softmax, Vocabulary]:
    """The model's softmax and its words, or the error that says what is missing."""
    if model.softmax is None:
        raise InputError(
            "this model has no softmax, so it cannot tell how probable a word is; released HDF5 weights leave it out. "
            "Use the training checkpoint, or train one: `polyseme pretrain --from`."
        )
    if vocabulary is None:
        raise InputError(
            "the words of this model's softmax are not known; load it with vocabulary=, the list it was trained with."
        )
    return model.softmax, vocabulary


def score(
    model: BiLM, vocabulary: Vocabulary | None, markers: tuple[str, str], tokens: list[str], top: Float[Tensor, "tokens dim"]
) -> Score:
    """Scores one sentence from its top layer, markers included."""
    softmax, vocabulary = softmax_of(model, vocabulary)
    targets = torch.from_numpy(vocabulary.ids([markers[0], *tokens, markers[1]])).to(softmax.bias.device)
    width = model.config.lstm.width
    hidden = top.to(softmax.weight)
    chunk = max(1, _TABLE // len(vocabulary))
    with torch.inference_mode(), torch.autocast(hidden.device.type, enabled=False):
        forward = softmax(hidden[:-1, :width], targets[1:], chunk=chunk).cpu().numpy()
        backward = None
        if model.config.lstm.bidirectional:
            backward = softmax(hidden[1:, width:], targets[:-1], chunk=chunk).cpu().numpy()
    return Score(tokens=list(tokens), forward=forward, backward=backward)


def expected(
    model: BiLM,
    vocabulary: Vocabulary | None,
    top: Float[Tensor, "tokens dim"],
    position: int,
    *,
    count: int,
    direction: Direction,
    without: Sequence[str] = (),
) -> list[Expected]:
    """The most probable words at a token's position, from the sentence's top layer, markers included."""
    softmax, vocabulary = softmax_of(model, vocabulary)
    width, bidirectional = model.config.lstm.width, model.config.lstm.bidirectional
    if direction not in ("both", "forward", "backward"):
        raise InputError(f"direction is {direction!r}; wanted 'both', 'forward' or 'backward'.")
    if direction == "backward" and not bidirectional:
        raise InputError("this model reads forward only; wanted direction='forward' or 'both'.")
    hidden = top.to(softmax.weight)
    with torch.inference_mode(), torch.autocast(hidden.device.type, enabled=False):
        parts = []
        if direction != "backward":
            parts.append(softmax.log_probabilities(hidden[position : position + 1, :width])[0])
        if direction != "forward" and bidirectional:
            parts.append(softmax.log_probabilities(hidden[position + 2 : position + 3, width:])[0])
        # The geometric mean of the directions, made a distribution again.
        found = torch.log_softmax(torch.stack(parts).mean(dim=0), dim=0).float()
        for word in without:
            number = vocabulary.get(word)
            if number is not None:
                found[number] = -torch.inf
        values, numbers = found.topk(min(count, len(vocabulary)))
    pairs = zip(values.tolist(), numbers.tolist(), strict=True)
    return [Expected(word=vocabulary.words[number], log_probability=value) for value, number in pairs if value > -torch.inf]
