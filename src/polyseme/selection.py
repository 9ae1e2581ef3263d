"""Which layers are handed out, how they are mixed into one, and how tokens are pooled into one vector a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.config import BiLMConfig
from polyseme.errors import InputError
from polyseme.mix import Mix

#: "all", "mean", "top", the name or the number of a layer, one weight for each layer, or a learned mix.
Layers = str | int | Sequence[float] | np.ndarray | Mix
Pool = Literal["mean", "max", "first_last"]


@dataclass(frozen=True)
class Selection:
    """The numbers of the layers that are needed and their weights; no weights mean that the layers are kept apart."""

    numbers: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    stacked: bool = False

    def combine(self, layers: Sequence[Float[Tensor, "tokens width"]]) -> Float[Tensor, "..."]:
        """(layers, tokens, width) where all layers are kept, otherwise (tokens, width); always memory of its own."""
        if self.stacked:
            return torch.stack(list(layers))
        if self.weights is None:
            return layers[0].clone()
        return torch.stack([layer * weight for layer, weight in zip(layers, self.weights, strict=True)]).sum(dim=0)


def select(layers: Layers, config: BiLMConfig) -> Selection:
    """The selection that a user's `layers=` means for this model."""
    names = config.layer_names
    if isinstance(layers, str):
        if layers == "all":
            return _even(Selection(tuple(range(len(names))), stacked=True), config)
        if layers == "mean":
            return _even(Selection(tuple(range(len(names))), (1 / len(names),) * len(names)), config)
        if layers == "top":
            return Selection((len(names) - 1,))
        if layers in names:
            return Selection((names.index(layers),))
    elif isinstance(layers, (int, np.integer)) and not isinstance(layers, bool):
        if -len(names) <= layers < len(names):
            return Selection((int(layers) % len(names),))
    elif isinstance(layers, Mix):
        shares = torch.softmax(torch.tensor(layers.weights, dtype=torch.float64), dim=0) * layers.gamma
        return _weighted(shares.tolist(), config)
    elif isinstance(layers, (Sequence, np.ndarray)) and all(_number(weight) for weight in layers):
        return _weighted([float(weight) for weight in layers], config)
    raise InputError(
        f"layers is {layers!r}; wanted 'all', 'mean', 'top', {', '.join(map(repr, names))}, a number from 0 to {len(names) - 1}, "
        "a list of one weight for each layer, or one of elmo.mixes."
    )


def pooled(x: Float[Tensor, "... tokens width"], how: Pool, directions: int) -> Float[Tensor, "... width"]:
    """One vector for all tokens; zero where there are none.

    "first_last" joins the forward half of the last token and the backward half of the first: each has read all tokens.
    """
    if x.shape[-2] == 0:
        return x.sum(dim=-2)
    if how == "mean":
        return x.mean(dim=-2)
    if how == "max":
        return x.amax(dim=-2)
    if how == "first_last":
        half = x.shape[-1] // directions
        return torch.cat([x[..., -1, :half], x[..., 0, half:]], dim=-1)
    raise InputError(f"pool is {how!r}; wanted None, 'mean', 'max' or 'first_last'.")


def _weighted(weights: list[float], config: BiLMConfig) -> Selection:
    if not np.isfinite(weights).all():
        raise InputError(f"the layer weights are {weights}; wanted finite numbers.")
    if len(weights) != len(config.layer_names):
        raise InputError(
            f"{len(weights)} layer weights were given for the layers {', '.join(config.layer_names)}; give one weight for each."
        )
    used = [number for number, weight in enumerate(weights) if weight] or [len(weights) - 1]
    return _even(Selection(tuple(used), tuple(weights[number] for number in used)), config)


def _even(selection: Selection, config: BiLMConfig) -> Selection:
    widths = [config.layer_dims[number] for number in selection.numbers]
    if len(set(widths)) > 1:
        listed = ", ".join(f"{name} {width}" for name, width in zip(config.layer_names, config.layer_dims, strict=True))
        raise InputError(
            f"the layers of this model are not of one width ({listed}), so they cannot be stacked or mixed. Ask for one layer by "
            "name or number, for 'top', or give weights with 0 for the token layer; ElmoEmbedding can also project it."
        )
    return selection


def _number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
