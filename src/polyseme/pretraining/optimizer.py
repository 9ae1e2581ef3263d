"""Gradients → steps: clipping by the global norm, Adagrad as TensorFlow's, AdamW, the learning rate's schedule.

Gradients are dense (in `.grad`) or given for some rows only (`SparseRows`). A row without a gradient does not move: for
Adagrad that is what the dense arithmetic does anyway, for AdamW it is its lazy form.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from polyseme.errors import InputError
from polyseme.kernels.training import adagrad, adamw
from polyseme.pretraining.config import OptimizerConfig
from polyseme.pretraining.step import SparseRows


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The rate of step number `step` (from 0) out of `steps`: linear warm-up, then constant or along a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    share = config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * share


class Gradients:
    """All gradients of one step by parameter name: dense, or rows. A parameter that has both kinds becomes dense."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], sparse: Mapping[str, SparseRows]) -> None:
        self.dense: dict[str, Tensor] = {}
        self.rows: dict[str, SparseRows] = {}
        for name, parameter in parameters.items():
            rows = sparse.get(name)
            if parameter.grad is not None:
                if rows is not None:
                    parameter.grad.index_add_(0, rows.ids, rows.values)
                self.dense[name] = parameter.grad
            elif rows is not None:
                self.rows[name] = rows
        lost = set(sparse) - set(parameters)
        if lost:
            raise InputError(f"there are gradients for {', '.join(sorted(lost))}, which the optimizer does not hold.")

    def norm(self) -> Float[Tensor, ""]:
        """The norm of all gradients together."""
        parts = [*self.dense.values(), *(rows.values for rows in self.rows.values())]
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))


class Optimizer:
    """The method that `config` names, over named parameters, with tensors of their shapes as its state.

    Adagrad is TensorFlow's: accumulators start at a constant, there is no epsilon and no decay. AdamW decays matrices only.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig) -> None:
        self.parameters = dict(parameters)
        self.config = config
        self.updates = 0
        self.slots = ("accumulator",) if config.name == "adagrad" else ("first", "second")
        initial = config.initial_accumulator if config.name == "adagrad" else 0.0
        self.state: dict[str, dict[str, Tensor]] = {
            slot: {name: torch.full_like(parameter, initial, requires_grad=False) for name, parameter in self.parameters.items()}
            for slot in self.slots
        }

    @torch.no_grad()
    def step(self, gradients: Gradients, *, rate: float, scale: float = 1.0) -> None:
        """One update by gradients × scale (the clipping's factor)."""
        self.updates += 1
        for name, gradient in gradients.dense.items():
            slots = [self.state[slot][name] for slot in self.slots]
            self._update(self.parameters[name], gradient, slots, rate, scale, matrix=gradient.ndim >= 2)
        for name, rows in gradients.rows.items():
            whole = [self.parameters[name], *(self.state[slot][name] for slot in self.slots)]
            parts = [tensor[rows.ids] for tensor in whole]
            self._update(parts[0], rows.values, parts[1:], rate, scale, matrix=rows.values.ndim >= 2)
            for tensor, part in zip(whole, parts, strict=True):
                tensor.index_copy_(0, rows.ids, part)

    def _update(self, value: Tensor, gradient: Tensor, slots: list[Tensor], rate: float, scale: float, *, matrix: bool) -> None:
        """Moves `value`, and the state that belongs to it, in place."""
        if self.config.name == "adagrad":
            adagrad(value, gradient, slots[0], rate=rate, scale=scale)
            return
        beta1, beta2 = self.config.betas
        adamw(
            value, gradient, *slots, rate=rate / (1 - beta1**self.updates), scale=scale, betas=self.config.betas,
            decay=1 - rate * self.config.weight_decay if matrix else 1.0, root=(1 - beta2**self.updates) ** -0.5,
            epsilon=self.config.epsilon,
        )  # fmt: skip

    @torch.no_grad()
    def extrapolate(self, updates: int, means: Mapping[str, float]) -> None:
        """Makes what Adagrad has gathered so far stand for `updates` updates.

        `means` are the `gathered` of those updates, where they are known: early gradients are larger than late ones.
        """
        if self.config.name != "adagrad" or not self.updates:
            return
        initial = self.config.initial_accumulator
        for name, accumulator in self.state["accumulator"].items():
            now = float(accumulator.sub_(initial).mean())
            factor = means[name] / now if name in means and now > 0 else updates / self.updates
            accumulator.mul_(factor).add_(initial)
        self.updates = updates

    def gathered(self) -> dict[str, float]:
        """The mean of what each of Adagrad's accumulators has gathered."""
        initial = self.config.initial_accumulator
        return {name: float(tensor.mean()) - initial for name, tensor in self.state.get("accumulator", {}).items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The state as flat named tensors, not copied."""
        flat = {f"{slot}/{name}": tensor for slot, tensors in self.state.items() for name, tensor in tensors.items()}
        return {**flat, "updates": torch.tensor(self.updates)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of state_dict, strict."""
        wanted = self.state_dict()
        if set(state) != set(wanted):
            odd = ", ".join(sorted(set(state) ^ set(wanted))[:3])
            raise InputError(f"the optimizer's saved state does not fit this model and method (it differs in {odd}).")
        for name, tensor in wanted.items():
            if tensor.shape != state[name].shape:
                raise InputError(
                    f"the optimizer's saved {name} has shape {tuple(state[name].shape)}; wanted {tuple(tensor.shape)}."
                )
            if name != "updates":
                tensor.copy_(state[name])
        self.updates = int(state["updates"])
