"""Distinct words → token vectors: character CNN, highway layers and projection; word embedding; or both."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.characters import Words
from polyseme.config import CharacterConfig, WordConfig


class Highway(nn.Module):
    """y = g * relu(transform(x)) + (1 - g) * x with g = sigmoid(gate(x)); the gate is what bilm-tf names "carry"."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "words width"]) -> Float[Tensor, "words width"]:
        """One highway layer."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """Character ids → the maxima of convolutions over all positions, padding included, then highway layers."""

    def __init__(self, config: CharacterConfig) -> None:
        super().__init__()
        self.activation = torch.relu if config.activation == "relu" else torch.tanh
        self.embedding = nn.Parameter(torch.zeros(config.size, config.dim))
        self.convolutions = nn.ModuleList(nn.Conv1d(config.dim, n, width) for width, n in config.filters)
        self.highways = nn.ModuleList(Highway(config.width) for _ in range(config.highways))

    def forward(self, ids: Int[Tensor, "words characters"]) -> Float[Tensor, "words width"]:
        """The words' character vectors."""
        embedded = F.embedding(ids, self.embedding).transpose(1, 2)
        x = torch.cat([self.activation(convolution(embedded).amax(dim=2)) for convolution in self.convolutions], dim=1)
        for highway in self.highways:
            x = highway(x)
        return x


class TokenEncoder(nn.Module):
    """Word vector and character vector, whichever the model has, concatenated in this order and perhaps projected."""

    def __init__(self, characters: CharacterConfig | None, words: WordConfig | None, projection: int | None) -> None:
        super().__init__()
        self.words = None if words is None else nn.Parameter(torch.zeros(words.size, words.dim))
        self.characters = None if characters is None else CharacterCNN(characters)
        width = (0 if words is None else words.dim) + (0 if characters is None else characters.width)
        self.projection = None if projection is None else nn.Linear(width, projection)

    def forward(self, words: Words) -> Float[Tensor, "words width"]:
        """One vector per distinct word."""
        parts = []
        if self.words is not None:
            assert words.ids is not None
            parts.append(F.embedding(words.ids, self.words))
        if self.characters is not None:
            parts.append(self.characters(words.characters))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return x if self.projection is None else self.projection(x)
