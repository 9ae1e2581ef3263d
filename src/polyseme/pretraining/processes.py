"""One process or many: what has to be brought together between them.

Every process deals all rows of the global batch and keeps its own, draws the same negatives, and takes the same steps from
gradients averaged over all. Only the first writes files.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from polyseme.pretraining.step import SparseRows


@dataclass(frozen=True)
class Place:
    """Which process this is, and the device it computes on."""

    rank: int
    device: str


@contextmanager
def join(device: str) -> Iterator[Place]:
    """Joins the other processes, if torchrun started this one, until the block ends; each then gets an accelerator of its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Place(0, device)
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Place(dist.get_rank(), device)
    finally:
        # Threads of gloo that still run when the interpreter ends bring the whole process down.
        dist.destroy_process_group()


class Processes:
    """The processes of a run, this one being number `rank` of `size`; alone unless torch.distributed was initialised."""

    def __init__(self, device: torch.device) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1
        self.device = device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def rows(self, rows: int) -> tuple[int, int]:
        """Which of the global rows are this process's: from, up to."""
        each = rows // self.size
        return self.rank * each, (self.rank + 1) * each

    def average(self, parameters: Mapping[str, nn.Parameter], sparse: dict[str, SparseRows]) -> None:
        """Averages gradients in place: dense ones by name, sparse ones by joining their rows."""
        if self.size == 1:
            return
        for parameter in parameters.values():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(self.size)
        for name in sorted(sparse):
            ids = self.gather(sparse[name].ids)
            values = self.gather(sparse[name].values)
            total = SparseRows(ids[0], values[0])
            for part in zip(ids[1:], values[1:], strict=True):
                total = total.merged(SparseRows(*part))
            sparse[name] = SparseRows(total.ids, total.values.div_(self.size))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of small tensors over all processes."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values = values / self.size
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.size == 1:
            return flag
        value = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value)

    def agree(self, value: int) -> bool:
        """Whether all processes give the same number."""
        return all(int(other) == value for other in self.gather(torch.tensor([value], device=self.device)))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor, in order of rank; their first axes may differ in length."""
        if self.size == 1:
            return [tensor]
        lengths = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(tensor)], device=self.device))
        longest = max(int(length) for length in lengths)
        padded = tensor.new_zeros((longest, *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [part[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def joined(self, tensor: Tensor, *, axis: int) -> Tensor:
        """All processes' tensors, side by side along their rows."""
        parts = self.gather(tensor.to(self.device).movedim(axis, 0).contiguous())
        return torch.cat(parts).movedim(0, axis)

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            dist.barrier()
