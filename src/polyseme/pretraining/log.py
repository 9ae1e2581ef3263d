"""A run's log: one JSON object a line, and TensorBoard events where asked for."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polyseme.errors import InputError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Value = float | int | str


class Log:
    """Appends to `log.jsonl` in a folder; `say` hears the messages meant for people."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int | None = None,
        tensorboard: bool = False,
        step: int = 0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`keep`: bytes of an earlier log that stay, the rest having been written after the checkpoint taken up at `step`."""
        self._board = _board(folder / "tensorboard", step) if tensorboard else None
        self.path = folder / "log.jsonl"
        if self.path.exists() and keep is not None:
            os.truncate(self.path, min(keep, self.path.stat().st_size))
        self._file = open(self.path, "a" if keep is not None else "w", encoding="utf-8")
        self._say = say

    def write(self, step: int, tokens: int, values: Mapping[str, Value]) -> None:
        """One record; numbers also go to TensorBoard."""
        record = {"time": round(time.time(), 3), "step": step, "tokens": tokens, **values}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, step)

    def event(self, step: int, tokens: int, event: str, message: str) -> None:
        """Something a person should know."""
        self.write(step, tokens, {"event": event, "message": message})
        if self._say is not None:
            self._say(message)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        """Ends the log."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _board(folder: Path, step: int) -> "SummaryWriter":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            'TensorBoard events were asked for, but the package tensorboard is missing; pip install "polyseme[tensorboard]".'
        ) from error
    return SummaryWriter(str(folder), purge_step=step)
