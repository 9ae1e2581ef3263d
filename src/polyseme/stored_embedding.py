"""Learned mixes over stored layers: what `ElmoEmbedding` learns over a frozen biLM, without computing the biLM again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.errors import InputError, WeightsError
from polyseme.mix import LayerNorm, Mix, ScalarMix
from polyseme.vectors import read_vectors


def mixed(
    mixes: Sequence[ScalarMix],
    layers: Sequence[Float[Tensor, "sentences tokens width"]],
    lengths: Int[Tensor, "sentences"],
    dropout: nn.Module,
    *,
    boundaries: bool,
) -> tuple[list[Float[Tensor, "sentences kept width"]], Bool[Tensor, "sentences kept"]]:
    """One output for each mix from layers and lengths, both with the sentence markers; and the mask of what is kept."""
    positions = torch.arange(layers[0].shape[1], device=lengths.device)
    with_markers = positions < lengths[:, None]
    without = (positions > 0) & (positions < lengths[:, None] - 1)
    mask = with_markers if boundaries else without
    outputs = []
    for mix in mixes:
        vectors = mix(layers, with_markers if mix.layer_norm == "allennlp" else without)
        outputs.append(dropout(torch.where(mask[:, :, None], vectors, 0)))
    if boundaries:
        return outputs, mask
    return [output[:, 1:-1] for output in outputs], mask[:, 1:-1]


class StoredEmbedding(nn.Module):
    """One or more learned mixes of the layers that `polyseme embed -o DIR` stored; made by `ElmoEmbedding.from_vectors`.

    Its `state_dict` is that of an `ElmoEmbedding` over the same biLM: what was learned here is loaded there for new text.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        outputs: int = 1,
        dropout: float = 0.5,
        layer_norm: LayerNorm | None = None,
        trainable: Literal["mix", False] = "mix",
        boundaries: bool = False,
        token_layer: Literal["keep", "drop"] = "keep",
        mixes: Sequence[Mix] | None = None,
    ) -> None:
        super().__init__()
        self.vectors = read_vectors(path)
        settings = self.vectors.manifest["settings"]
        if settings["layers"] != "all" or settings["pool"] is not None:
            raise InputError(f"{path} does not hold all layers of every token; store them with --layers all, without --pool.")
        if not self.vectors.boundaries and (boundaries or layer_norm == "allennlp"):
            wanted = "boundaries=True" if boundaries else "layer_norm='allennlp'"
            raise InputError(f"{path} holds no vectors of sentence markers, which {wanted} needs; store them with --boundaries.")
        if trainable not in ("mix", False):
            raise InputError(f"trainable is {trainable!r}; wanted 'mix' or False: stored layers cannot be trained.")
        if token_layer not in ("keep", "drop"):
            raise InputError(f"token_layer is {token_layer!r}; wanted 'keep' or 'drop' over stored layers.")
        if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
            raise InputError(f"outputs is {outputs!r}; wanted at least 1.")
        if mixes is not None and len(mixes) != outputs:
            raise InputError(f"{len(mixes)} mixes were given for {outputs} outputs; give one for each.")
        self.boundaries, self.token_layer = boundaries, token_layer
        self.mixes = nn.ModuleList(
            ScalarMix(
                len(self.vectors.layers) - (token_layer == "drop"),
                layer_norm=layer_norm,
                weights=None if start is None else start.weights,
                gamma=1.0 if start is None else start.gamma,
                trainable=trainable is not False,
            )
            for start in ([None] * outputs if mixes is None else mixes)
        )
        self.dropout = nn.Dropout(dropout)

    @property
    def dim(self) -> int:
        """The width of an output."""
        return self.vectors.dims[-1]

    def forward(
        self, sentences: Sequence[int] | Int[Tensor, "sentences"]
    ) -> tuple[list[Float[Tensor, "sentences tokens width"]], Bool[Tensor, "sentences tokens"]]:
        """The mixed vectors of every output, zero at padding, and the mask of the tokens.

        Args:
            sentences: their numbers in the stored corpus, from 0.
        """
        device = self._scalar_mixes()[0].gamma.device
        numbers = sentences.tolist() if isinstance(sentences, Tensor) else sentences
        found = [torch.from_numpy(self.vectors[number].vectors) for number in numbers]
        added = 0 if self.vectors.boundaries else 1  # rows of zeros where markers were not stored
        lengths = torch.tensor([array.shape[1] + 2 * added for array in found], dtype=torch.int64)
        longest = int(lengths.max()) if found else 0
        layers = torch.zeros(len(self.vectors.layers), len(found), longest, self.dim)
        for row, array in enumerate(found):
            layers[:, row, added : added + array.shape[1]] = array
        chosen = layers.to(device).unbind(0)[self.token_layer == "drop" :]
        if not found:
            empty = layers.new_zeros(0, 0, self.dim, device=device)
            return [empty for _ in self.mixes], empty.new_zeros(0, 0, dtype=torch.bool)
        return mixed(self._scalar_mixes(), chosen, lengths.to(device), self.dropout, boundaries=self.boundaries)

    def penalty(self, coefficient: float) -> Float[Tensor, ""]:
        """The L2 term to add to a task's loss: coefficient * the sum of squares of all mix weights before the softmax."""
        return torch.stack([mix.l2(coefficient) for mix in self._scalar_mixes()]).sum()

    def get_extra_state(self) -> Tensor:
        """The reference to the biLM, as an ElmoEmbedding over it writes it."""
        model = self.vectors.manifest["model"]
        return torch.tensor(list(json.dumps({"name": model["name"], "hash": model["hash"]}).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Makes sure that a state dict belongs to the biLM whose layers were stored."""
        reference, model = json.loads(bytes(state.tolist())), self.vectors.manifest["model"]
        if reference["hash"] != model["hash"]:
            raise WeightsError(
                f"these weights were trained over the biLM {reference['name']!r} (hash {reference['hash'][:12]}), but the stored "
                f"layers are of {model['name']!r} (hash {model['hash'][:12]}); store those of the former."
            )

    def _scalar_mixes(self) -> list[ScalarMix]:
        return [mix for mix in self.mixes if isinstance(mix, ScalarMix)]
