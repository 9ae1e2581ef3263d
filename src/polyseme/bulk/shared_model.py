"""A model that several processes read from one file, memory-mapped, so that its weights are in memory once."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from polyseme.elmo import Elmo
    from polyseme.weights import Checkpoint

_ALIGNMENT = 64  # bytes; torch's own allocator keeps to it, and products may sum in another order elsewhere


@dataclass(frozen=True)
class SharedModel:
    """Where the weights lie, what they are, and all else that makes an Elmo of them; the softmax is left out."""

    path: Path
    rest: "Checkpoint"
    places: dict[str, tuple[int, tuple[int, ...]]]
    numbers: int
    hash: str
    name: str
    device: str

    @classmethod
    @contextlib.contextmanager
    def write(cls, elmo: "Elmo", folder: Path | None) -> Iterator[Self]:
        """Writes the weights into a file that is there while the block lasts."""
        from polyseme.weights.loading import checkpoint_of

        whole = checkpoint_of(elmo)
        tensors = {name: tensor for name, tensor in whole.tensors.items() if not name.startswith("softmax.")}
        places, numbers = {}, 0
        for name, tensor in tensors.items():
            places[name] = (numbers, tuple(tensor.shape))
            numbers += -(-tensor.numel() * 4 // _ALIGNMENT) * _ALIGNMENT // 4
        with tempfile.NamedTemporaryFile(dir=folder, prefix="weights.") as file:
            for name, tensor in tensors.items():
                file.seek(places[name][0] * 4)
                file.write(tensor.detach().to(torch.float32).contiguous().numpy().reshape(-1).data)
            file.truncate(numbers * 4)
            file.flush()
            config = replace(whole.config, vocabulary_size=None, tied_softmax=False)
            rest = replace(whole, config=config, tensors={}, vocabulary=None)
            yield cls(Path(file.name), rest, places, numbers, elmo.hash, elmo.name, str(elmo.device))

    def open(self) -> "Elmo":
        """The model over the mapped file; what is written to the weights would stay in this process."""
        from polyseme.weights.loading import elmo

        mapped = torch.from_file(str(self.path), shared=False, size=self.numbers, dtype=torch.float32)
        tensors = {}
        for name, (first, shape) in self.places.items():
            count = int(torch.Size(shape).numel())
            tensors[name] = mapped[first : first + count].view(shape)
        made = elmo(replace(self.rest, tensors=tensors), name=self.name)
        return made if self.device == "cpu" else made.to(self.device)
