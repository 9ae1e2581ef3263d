"""Distinct words → token vectors, the arithmetic of token_encoder.py as products over blocks of words of like length.

All convolutions are one product: every kernel is padded with zeros to the widest, which costs little because the widest have most
of the filters. Positions past a word's end and one window of its padding repeat the last and are left out.

A block's last rows repeat its first, so that blocks have few sizes; a row's bits do not depend on the other rows.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.characters import Words, used_characters
from polyseme.config import BiLMConfig
from polyseme.kernels.products import PackedWeight
from polyseme.kernels.sweep import Precision, few_sizes
from polyseme.kernels.training import maxima
from polyseme.kernels.workers import side_by_side
from polyseme.token_encoder import CharacterCNN, Highway, TokenEncoder

#: Words of one block, and those of them whose convolutions are computed together: their results should stay in the cache.
_BLOCK, _PIECE = 128, 32


class Speller:
    """A token encoder's weights laid out for products, in one precision; float32 but for the products."""

    def __init__(self, encoder: TokenEncoder, config: BiLMConfig, *, precision: Precision) -> None:
        self.width = config.token_width
        self._words = encoder.words
        self._maxima = None if encoder.characters is None else _Maxima(encoder.characters, precision)
        self._highways = [] if encoder.characters is None else [
            _Highway(layer, precision) for layer in encoder.characters.highways if isinstance(layer, Highway)
        ]  # fmt: skip
        self._projection = None if encoder.projection is None else _Affine(encoder.projection, precision)

    def __call__(self, words: Words) -> Float[Tensor, "words width"]:
        """One float32 vector for each word, on the words' device."""
        part = words.characters if words.characters is not None else words.ids
        assert part is not None
        out = torch.empty(len(words), self.width, dtype=torch.float32, device=part.device)
        used = torch.zeros(len(words), dtype=torch.int64, device=part.device)
        if self._maxima is not None and words.characters is not None:
            used = used_characters(words.characters)
        used, order = used.sort(stable=True)
        blocks = list(zip(order.split(_BLOCK), used.split(_BLOCK), strict=True)) if len(words) else []
        threads = torch.get_num_threads() if part.device.type == "cpu" else 1
        if threads > 1 and len(blocks) < threads and len(words) >= 2 * threads:
            each = -(-len(words) // threads)
            blocks = list(zip(order.split(each), used.split(each), strict=True))

        def work(share: Sequence[tuple[Tensor, Tensor]]) -> None:
            with torch.no_grad():
                for rows, lengths in share:
                    out[rows] = self._block(words, rows, int(lengths[-1]))

        # Long and short words mixed: every thread gets as much.
        shares = [blocks[number::threads] for number in range(min(threads, len(blocks)))]
        if part.device.type == "cpu":
            side_by_side(*(lambda share=share: work(share) for share in shares))
        else:
            work(blocks)
        return out

    def _block(self, words: Words, rows: Int[Tensor, "rows"], longest: int) -> Float[Tensor, "rows width"]:
        count = len(rows)
        padded = torch.cat([rows, rows[:1].expand(few_sizes(count) - count)])
        parts = []
        if self._words is not None:
            assert words.ids is not None
            parts.append(F.embedding(words.ids[padded], self._words).float())
        if self._maxima is not None:
            assert words.characters is not None
            x = self._maxima(words.characters[padded], longest)
            for highway in self._highways:
                x = highway(x)
            parts.append(x)
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return (x if self._projection is None else self._projection(x))[:count]


class _Affine:
    """x → x @ weight.T + bias."""

    def __init__(self, layer: nn.Linear, precision: Precision) -> None:
        self._weight = PackedWeight(layer.weight, precision=precision)
        self._bias = layer.bias.detach().float()

    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return self._weight.product(x.to(self._weight.dtype)).float() + self._bias


class _Highway:
    def __init__(self, layer: Highway, precision: Precision) -> None:
        self._gate = PackedWeight(layer.gate.weight, precision=precision)
        self._transform = PackedWeight(layer.transform.weight, precision=precision)
        self._biases = layer.gate.bias.detach().float(), layer.transform.bias.detach().float()

    def __call__(self, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        low = x.to(self._gate.dtype)
        gate, transform = self._biases
        share = torch.sigmoid(self._gate.product(low) + gate)
        other = torch.relu(self._transform.product(low) + transform)
        return torch.lerp(x, other, share)


class _Maxima:
    """The activated maxima of all convolutions."""

    def __init__(self, encoder: CharacterCNN, precision: Precision) -> None:
        convolutions = [layer for layer in encoder.convolutions if isinstance(layer, nn.Conv1d)]
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._table = encoder.embedding.detach().to(dtype)
        self._activation = encoder.activation
        self._widths = [int(layer.kernel_size[0]) for layer in convolutions]
        self._counts = [layer.out_channels for layer in convolutions]
        reach = max(self._widths)
        # Laid out as the windows are: characters outermost.
        kernels = [F.pad(layer.weight.detach(), (0, reach - layer.weight.shape[2])).transpose(1, 2) for layer in convolutions]
        self._kernel = PackedWeight(torch.cat(kernels).flatten(1), precision=precision)
        self._bias = torch.cat([layer.bias.detach() for layer in convolutions if layer.bias is not None]).float()

    def __call__(self, ids: Int[Tensor, "words characters"], longest: int) -> Float[Tensor, "words filters"]:
        """`longest`: how many characters come before the padding."""
        reach = max(self._widths)
        positions = min(_few_positions(longest + 1), ids.shape[1] - min(self._widths) + 1)
        length = positions + reach - 1
        ids = ids[:, :length]
        characters = ids.shape[1]
        ids = F.pad(ids, (0, length - characters))  # where the axis ends before the widest filter does; see _forget
        best = torch.empty(len(ids), len(self._bias), dtype=torch.float32, device=ids.device)
        for piece, part in zip(ids.split(_PIECE), best.split(_PIECE), strict=True):
            embedded = F.embedding(piece, self._table)
            words, _, dim = embedded.shape
            windows = embedded.as_strided((words, positions, reach * dim), (length * dim, dim, 1))
            results = self._kernel.product(windows.reshape(words * positions, reach * dim)).view(words, positions, -1)
            self._forget(results, characters)
            maxima(results, best=part)
        return self._activation(best.add_(self._bias))

    def _forget(self, results: Float[Tensor, "words positions filters"], characters: int) -> None:
        """Takes out the windows of each filter that reach past the last character."""
        for width, part in zip(self._widths, results.split(self._counts, dim=2), strict=True):
            if results.shape[1] - 1 + width > characters:
                part[:, characters - width + 1 :] = -torch.inf


def _few_positions(positions: int) -> int:
    """A few more, so that products have few sizes."""
    step = 2 if positions <= 16 else 4
    return -(-positions // step) * step
