"""ScalarMix: a task's own weighting of the biLM's layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from polyseme.errors import InputError

LayerNorm = Literal["token", "allennlp", "bilm_tf"]
_EPSILON = {"token": 1e-12, "allennlp": 1e-13, "bilm_tf": 1e-12}


@dataclass(frozen=True)
class Mix:
    """One learned weighting of layers as plain numbers; weights are before the softmax."""

    weights: tuple[float, ...]
    gamma: float


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(weights)_j * layer_j.

    `layer_norm`: None; "token" normalises each token's vector by itself; "allennlp" and "bilm_tf" take one mean and one
    variance per layer over every unmasked position and dimension of the batch, so a token's result depends on its
    batch. They differ in what the caller's mask must cover: sentence markers are counted in AllenNLP, not in bilm-tf.
    """

    def __init__(
        self,
        layers: int,
        *,
        layer_norm: LayerNorm | None = None,
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        if layer_norm is not None and layer_norm not in _EPSILON:
            raise InputError(f"layer_norm is {layer_norm!r}; wanted None, 'token', 'allennlp' or 'bilm_tf'.")
        if weights is not None and len(weights) != layers:
            raise InputError(f"{len(weights)} mix weights were given for {layers} layers; give one weight for each layer.")
        self.layer_norm = layer_norm
        # One parameter, not a list of scalars: DataParallel and optimizers' groups see it as a whole.
        self.weights = nn.Parameter(torch.zeros(layers) if weights is None else torch.tensor(weights, dtype=torch.float32))
        self.gamma = nn.Parameter(torch.tensor(float(gamma)))
        self.requires_grad_(trainable)

    def forward(
        self, layers: Sequence[Float[Tensor, "sentences tokens width"]], mask: Bool[Tensor, "sentences tokens"]
    ) -> Float[Tensor, "sentences tokens width"]:
        """The mixed vectors."""
        if len(layers) != len(self.weights):
            raise InputError(f"{len(layers)} layers were given to a mix of {len(self.weights)}.")
        shares = torch.softmax(self.weights, dim=0)
        mixed = sum(share * self._normalised(layer, mask) for share, layer in zip(shares, layers, strict=True))
        return self.gamma * mixed

    def l2(self, coefficient: float) -> Float[Tensor, ""]:
        """Coefficient * sum(weights²), on the weights before the softmax; gamma is never penalised."""
        return coefficient * (self.weights**2).sum()

    def _normalised(self, layer: Tensor, mask: Tensor) -> Tensor:
        if self.layer_norm is None:
            return layer
        epsilon = _EPSILON[self.layer_norm]
        if self.layer_norm == "token":
            mean = layer.mean(dim=-1, keepdim=True)
            variance = ((layer - mean) ** 2).mean(dim=-1, keepdim=True)
        else:
            wide = mask[..., None].to(layer.dtype)
            count = mask.sum() * layer.shape[-1]
            mean = (layer * wide).sum() / count
            variance = (((layer - mean) * wide) ** 2).sum() / count
        return (layer - mean) / torch.sqrt(variance + epsilon)
