"""One training step: window in, losses and gradients out. The same numbers as model.py, without its waste.

Every distinct word of the window is encoded once for both directions, on a character axis cut to its longest word; the
LSTM window has a hand-written backward pass; of a large softmax only the rows the step touches get a gradient.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.characters import Words
from polyseme.config import LSTMConfig
from polyseme.errors import InputError
from polyseme.kernels.memory import keep_freed
from polyseme.kernels.products import rounded
from polyseme.kernels.workers import side_by_side
from polyseme.lstm import LSTMLayer
from polyseme.model import BiLM
from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.convolutions import Groups, maxima
from polyseme.pretraining.highways import highway, linear
from polyseme.pretraining.losses import Draw, full_loss, sampled_loss
from polyseme.pretraining.recurrence import layer_window
from polyseme.token_encoder import Highway


@dataclass
class CarriedState:
    """The LSTM states carried from window to window, one row a stream of text."""

    h: Float[Tensor, "layers directions rows width"]
    c: Float[Tensor, "layers directions rows dim"]

    @classmethod
    def zeros(cls, config: LSTMConfig, rows: int, *, device: torch.device | str = "cpu") -> "CarriedState":
        """The state before the first window."""
        shape = (config.layers, len(config.directions), rows)
        return cls(h=torch.zeros(*shape, config.width, device=device), c=torch.zeros(*shape, config.dim, device=device))


@dataclass
class SparseRows:
    """A gradient that is zero outside the rows `ids`, which are distinct."""

    ids: Int[Tensor, "rows"]
    values: Float[Tensor, "rows ..."]

    def merged(self, other: "SparseRows") -> "SparseRows":
        """The sum of two gradients."""
        ids, inverse = torch.cat([self.ids, other.ids]).unique(return_inverse=True)
        values = self.values.new_zeros((len(ids), *self.values.shape[1:]))
        return SparseRows(ids, values.index_add_(0, inverse, torch.cat([self.values, other.values])))


@dataclass
class StepResult:
    """Mean negative log-likelihoods of a window (sampled where the softmax is), and the states after it."""

    loss: Float[Tensor, ""]
    forward: Float[Tensor, ""]
    backward: Float[Tensor, ""]
    state: CarriedState


class TrainingStep:
    """Runs windows through a model and leaves the gradients of loss × loss_scale.

    They are added to `.grad` of dense parameters, and to `sparse` (by parameter name) for those of which only some rows
    were touched; `clear` forgets both.
    """

    def __init__(
        self, model: BiLM, config: PretrainConfig, *, device: torch.device | str = "cpu", groups: Groups | None = None
    ) -> None:
        """`groups`: how the words lie by length, where no size may depend on the values read, as in a CUDA graph."""
        if not config.model.lstm.bidirectional:
            raise InputError("pretraining needs a bidirectional model; BiLMConfig.lstm.bidirectional is false.")
        self.model = model.to(device)
        self.config = config
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed()
        self.dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        self.groups = groups
        self.sparse: dict[str, SparseRows] = {}
        self._found: dict[tuple[int, str], SparseRows] = {}

    def clear(self) -> None:
        """Forgets all gradients."""
        self.model.zero_grad(set_to_none=True)
        self.sparse.clear()

    def run(
        self,
        words: Words,
        indices: tuple[Int[Tensor, "rows time"], Int[Tensor, "rows time"]],
        targets: tuple[Int[Tensor, "rows time"], Int[Tensor, "rows time"]],
        state: CarriedState,
        *,
        draws: tuple[Draw, Draw] | None = None,
        generator: torch.Generator | None = None,
        share: float = 1.0,
    ) -> StepResult:
        """Losses, gradients and the next state of one window.

        `indices` holds, forward then backward, positions in `words`; `targets` ids of the vocabulary; `draws` the
        sampled words of each direction, or None for the full softmax; `generator` (of this step's device) the dropout;
        `share` is the part this window has in the whole step when gradients are accumulated.
        """
        vectors = self._encode(words)
        # (D, T, B, width): directions outermost, so that they are one batched product; time next, so that a step is a slice.
        x = F.embedding(torch.stack([index.T for index in indices]), vectors)
        hidden, next_state = self._contextual(x, state, generator)
        flat_targets = [target.T.reshape(-1) for target in targets]
        sums = self._losses(hidden, flat_targets, draws)
        losses = [total / target.numel() for total, target in zip(sums, flat_targets, strict=True)]
        loss = 0.5 * (losses[0] + losses[1])
        (loss * (self.config.loss_scale * share)).backward()
        # Not as they came: directions worked off side by side end in any order, and sums depend on it.
        for place in sorted(self._found):
            self._add_sparse(place[1], self._found.pop(place))
        return StepResult(loss.detach(), losses[0].detach(), losses[1].detach(), next_state)

    def evaluate(
        self,
        words: Words,
        indices: tuple[Int[Tensor, "rows time"], Int[Tensor, "rows time"]],
        targets: tuple[Int[Tensor, "rows time"], Int[Tensor, "rows time"]],
        state: CarriedState,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""], CarriedState]:
        """Sums of full-softmax losses, forward and backward, without dropout, and the next state."""
        softmax = self.model.softmax
        assert softmax is not None
        with torch.no_grad():
            vectors = self._encode(words)
            x = F.embedding(torch.stack([index.T for index in indices]), vectors)
            hidden, next_state = self._contextual(x, state, None)
            forward, backward = (
                -softmax(hidden[d].flatten(0, 1), targets[d].T.reshape(-1)).sum(dtype=torch.float64) for d in range(2)
            )
        return forward, backward, next_state

    def _encode(self, words: Words) -> Float[Tensor, "words width"]:
        """Token vectors of distinct words."""
        encoder = self.model.token_encoder
        number = len(words)
        # A few rows more than words, up to the end: products have few sizes then.
        rows, parts = rounded(number), []
        if encoder.words is not None:
            assert words.ids is not None
            parts.append(F.pad(self._gather("token_encoder.words", encoder.words, words.ids, place=0), (0, 0, 0, rows - number)))
        if encoder.characters is not None:
            assert words.characters is not None
            cnn = encoder.characters
            convolutions = [layer for layer in cnn.convolutions if isinstance(layer, nn.Conv1d)]
            best = maxima(cnn.embedding, convolutions, words.characters, dtype=self.dtype, rows=rows, groups=self.groups)
            x = cnn.activation(best)
            for layer in cnn.highways:
                assert isinstance(layer, Highway)
                x = highway(layer, x, dtype=self.dtype)
            parts.append(x)
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return (x if encoder.projection is None else linear(encoder.projection, x, dtype=self.dtype))[:number]

    def _contextual(
        self, x: Float[Tensor, "D T B width"], state: CarriedState, generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "D T B width"], CarriedState]:
        """The top layer's output of both directions, dropped out, and the next state."""
        config = self.config.model.lstm
        stacks = [self.model.lstm.stack(direction) for direction in config.directions]
        final_h, final_c = [], []
        for layer in range(config.layers):
            x = self._drop(x, generator)
            cells: list[LSTMLayer] = [stack[layer] for stack in stacks]
            hidden, h, c = layer_window(cells, x, state.h[layer], state.c[layer], dtype=self.dtype)
            # The residual path carries the dropped-out input too, as in bilm-tf.
            x = hidden + x if layer > 0 and config.residual else hidden
            final_h.append(h)
            final_c.append(c)
        return self._drop(x, generator), CarriedState(torch.stack(final_h), torch.stack(final_c))

    def _drop(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Dropout from 16 random bits a value: a quarter of the draws of the usual way."""
        if generator is None or self.config.dropout == 0:
            return x
        threshold = round(self.config.dropout * 65536)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        # Without the sign bit only 15 of the top 16 bits would vary: ask for the whole range.
        bits.random_(-(2**63), None, generator=generator)
        kept = bits.view(torch.int16)[: x.numel()].view_as(x) >= threshold - 32768
        return x * kept.to(x.dtype).mul_(65536 / (65536 - threshold))

    def _losses(
        self, hidden: Float[Tensor, "D T B width"], targets: list[Int[Tensor, "positions"]], draws: tuple[Draw, Draw] | None
    ) -> list[Float[Tensor, ""]]:
        softmax = self.model.softmax
        assert softmax is not None
        flat = [part.flatten(0, 1) for part in hidden]
        if draws is None:
            return [full_loss(h, softmax.weight, softmax.bias, t, dtype=self.dtype) for h, t in zip(flat, targets, strict=True)]
        weight_name = "token_encoder.words" if self.config.model.tied_softmax else "softmax.weight"
        sums: list[Tensor] = [flat[0]] * len(flat)

        def work(direction: int) -> None:
            h, t, draw = flat[direction], targets[direction], draws[direction]
            distinct_targets = t.unique()
            ids = torch.cat([draw.ids, distinct_targets])
            rows = self._gather(weight_name, softmax.weight, ids, place=1 + direction)
            bias = self._gather("softmax.bias", softmax.bias, ids, place=1 + direction)
            columns = len(draw.ids) + torch.searchsorted(distinct_targets, t)
            sums[direction] = sampled_loss(h, rows, bias, t, columns, draw, draw.expected_of(t), dtype=self.dtype)

        pieces = [functools.partial(work, direction) for direction in range(len(flat))]
        if self.device.type == "cpu":
            side_by_side(*pieces)
        else:
            for piece in pieces:
                piece()
        return sums

    def _gather(self, name: str, parameter: Tensor, ids: Int[Tensor, "rows"], *, place: int) -> Tensor:
        """Rows of a parameter whose gradient goes to `sparse`; `place` says when, among those of a step."""
        rows = parameter.detach()[ids].requires_grad_(torch.is_grad_enabled())
        if rows.requires_grad:

            def found(leaf: Tensor) -> None:
                assert leaf.grad is not None
                self._found[place, name] = SparseRows(ids, leaf.grad)

            rows.register_post_accumulate_grad_hook(found)
        return rows

    def _add_sparse(self, name: str, rows: SparseRows) -> None:
        before = self.sparse.get(name)
        if before is None:
            before = SparseRows(rows.ids[:0], rows.values[:0])
        self.sparse[name] = before.merged(rows)
