"""Vectors of the words seen last, exactly as they were computed."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_FIRST_ROOM = 1024


class RecentVectors:
    """A table of at most `capacity` vectors; the one not asked for longest makes room for a new one.

    It may be used from several threads at once.
    """

    def __init__(self, width: int, capacity: int, *, device: torch.device | str = "cpu") -> None:
        self.capacity = capacity
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._table = torch.empty(min(_FIRST_ROOM, capacity), width, dtype=torch.float32, device=device)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """Forgets all vectors."""
        with self._lock:
            self._places.clear()

    def find(self, keys: Sequence[Hashable]) -> tuple[Float[Tensor, "keys width"], list[int]]:
        """A row for each key, and the numbers of those keys that are not known, whose rows mean nothing."""
        with self._lock:
            places, missing = [], []
            for number, key in enumerate(keys):
                place = self._places.get(key)
                if place is None:
                    missing.append(number)
                    place = 0
                else:
                    self._places.move_to_end(key)
                places.append(place)
            if len(missing) == len(keys):
                return self._table.new_empty(len(keys), self._table.shape[1]), missing
            return self._table[torch.tensor(places, device=self._table.device)], missing

    def keep(self, keys: Sequence[Hashable], vectors: Float[Tensor, "keys width"]) -> None:
        """Remembers vectors of different keys; of more than it can hold, the last."""
        keys, vectors = keys[-self.capacity :], vectors[-self.capacity :]
        with self._lock:
            places = []
            for key in keys:
                place = self._places.pop(key, None)
                if place is None:
                    place = len(self._places)
                    if place >= self.capacity:
                        _, place = self._places.popitem(last=False)
                self._places[key] = place
                places.append(place)
            if len(self._places) > len(self._table):
                # All of it at once, zeros written: grown bit by bit it would leave holes, and a long run's memory would creep up.
                table = self._table.new_empty(self.capacity, self._table.shape[1]).zero_()
                table[: len(self._table)] = self._table
                self._table = table
            if places:
                self._table[torch.tensor(places, device=self._table.device)] = vectors
