"""The guard against loss spikes: what looks like damage is not learned from, and what keeps looking so is undone."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from polyseme.errors import PolysemeError

Verdict = Literal["use", "skip", "roll back"]


@dataclass
class Guard:
    """Judges steps by their loss and gradient norm.

    A step is skipped where either is not finite, or where the loss lies more than `nats` and more than `deviations` mean
    deviations above its running mean, which is trusted after `settle` steps. After `patience` skipped steps in a row the run
    rolls back to its last checkpoint; when `rollbacks` of them have not helped, it stops with an error.
    """

    nats: float = 1.0
    deviations: float = 10.0
    settle: int = 50
    patience: int = 5
    rollbacks: int = 3
    memory: float = 0.98

    mean: float = 0.0
    deviation: float = 0.0
    seen: int = 0
    streak: int = 0
    rolled_back: int = 0
    reason: str = ""

    def judge(self, loss: float, norm: float) -> Verdict:
        """What to do with a step; `reason` then says why it is not used."""
        self.reason = self._fault(loss, norm)
        if not self.reason:
            self._learn(loss)
            return "use"
        self.streak += 1
        if self.streak < self.patience:
            return "skip"
        self.streak, self.seen = 0, 0
        self.rolled_back += 1
        if self.rolled_back > self.rollbacks:
            raise PolysemeError(
                f"the training has diverged: {self.reason}, and {self.rollbacks} returns to a checkpoint have not helped; "
                "lower the learning rate or the clipping norm, or look at the data."
            )
        return "roll back"

    def _fault(self, loss: float, norm: float) -> str:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self.seen >= self.settle and loss > self.mean + max(self.nats, self.deviations * self.deviation):
            return f"the loss is {loss:.3f}, far above its running mean of {self.mean:.3f}"
        return ""

    def _learn(self, loss: float) -> None:
        memory = min(self.memory, self.seen / (self.seen + 1))
        self.mean = memory * self.mean + (1 - memory) * loss
        self.deviation = memory * self.deviation + (1 - memory) * abs(loss - self.mean)
        self.seen += 1
        self.streak = 0
        if self.seen >= 20 * self.settle:
            self.rolled_back = 0  # what went wrong before has been overcome

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {name: getattr(self, name) for name in ("mean", "deviation", "seen", "streak", "rolled_back")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of state_dict."""
        self.mean, self.deviation = float(state["mean"]), float(state["deviation"])
        self.seen, self.streak, self.rolled_back = int(state["seen"]), int(state["streak"]), int(state["rolled_back"])
