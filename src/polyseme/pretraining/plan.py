"""What a run will take, measured before it starts: tokens, steps, parameters, memory, time."""

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyseme.model import BiLM
from polyseme.pretraining.run import Run
from polyseme.progress import duration


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers `describe` puts into words. Memory is what this process used after a few steps, on its device."""

    tokens: int
    tokens_done: int
    corpus_tokens: int
    passes: float
    steps: int
    rows: int
    unroll: int
    parameters: dict[str, int]
    weights_bytes: int
    memory_bytes: int
    device: str
    seconds_per_step: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(vars(self))

    def describe(self) -> str:
        """A few lines for people."""
        parts = ", ".join(f"{name} {number:,}" for name, number in self.parameters.items())
        left = self.tokens - self.tokens_done
        lines = [
            f"tokens      {left:,} per direction to read ({self.tokens_done:,} of {self.tokens:,} done); "
            f"the corpus has {self.corpus_tokens:,}, so {self.passes:.2f} passes in all",
            f"steps       {self.steps:,} of {self.rows} rows × {self.unroll} tokens",
            f"parameters  {sum(self.parameters.values()):,} ({parts})",
            f"memory      {self.memory_bytes / 1e9:.2f} GB on {self.device} after a few steps; "
            f"weights and optimizer {self.weights_bytes / 1e9:.2f} GB",
            f"time        {duration(self.seconds)} at {self.rows * self.unroll / self.seconds_per_step:,.0f} tokens/s "
            "(measured, without the optimizer)",
        ]
        return "\n".join(lines)


def plan(run: Run, *, tokens: int, windows: int = 3) -> Plan:
    """Measures a few windows of a run, which is left as it was; `tokens` is where it is to end."""
    position, draws, dropout = run.streams.state_dict(), run.draws.bit_generator.state, run.dropout.get_state()
    run.measure()
    began = time.perf_counter()
    for _ in range(windows):
        run.measure()
    seconds = (time.perf_counter() - began) / windows
    memory = memory_bytes(run.device)
    run.training.clear()
    run.streams.load_state_dict(position)
    run.draws.bit_generator.state = draws
    run.dropout.set_state(dropout)
    config = run.config
    steps = max(0, -(-(tokens - run.tokens) // (config.rows * config.unroll)))
    return Plan(
        tokens=tokens,
        tokens_done=run.tokens,
        corpus_tokens=len(run.corpus.tokens),
        passes=tokens / run.corpus.positions,
        steps=steps,
        rows=config.rows,
        unroll=config.unroll,
        parameters=parameters(run.training.model),
        weights_bytes=4 * (1 + len(run.optimizer.slots)) * sum(parameters(run.training.model).values()),
        memory_bytes=memory,
        device=str(run.device),
        seconds_per_step=seconds,
        seconds=steps * seconds,
    )


def parameters(model: BiLM) -> dict[str, int]:
    """How many numbers each part of a model holds."""
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = {"token_encoder": "token encoder", "lstm": "LSTMs", "softmax": "softmax"}[name.split(".")[0]]
        found[part] = found.get(part, 0) + parameter.numel()
    return found


def memory_bytes(device: torch.device) -> int:
    """What this process holds: allocated on an accelerator, else anonymous resident memory (without mapped files)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no Linux: the peak, mapped files included
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
