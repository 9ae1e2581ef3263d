"""A run on disk: everything needed to go on bit for bit, in folders that are there whole or not at all.

RUN/checkpoints/step-000012500/tensors.safetensors    weights, optimizer, carried states, generators, rows of the data
RUN/checkpoints/step-000012500/state.json             counters, configuration, corpus, and the rest

The newest two stay.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from polyseme.errors import WeightsError
from polyseme.weights.files import replacing_folder

_TENSORS, _STATE = "tensors.safetensors", "state.json"


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Writes a checkpoint and deletes all but the newest `keep`."""
    from safetensors.torch import save_file

    target = folder / f"step-{step:09d}"
    with replacing_folder(target, known=frozenset({_TENSORS, _STATE})) as work:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, work / _TENSORS)
        (work / _STATE).write_text(json.dumps(dict(values), indent=1) + "\n", encoding="utf-8")
    for old in saved(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def saved(folder: Path) -> list[Path]:
    """The checkpoints, the newest last."""
    return sorted(path for path in folder.glob("step-*") if (path / _STATE).is_file())


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the values of one checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path / _TENSORS), json.loads((path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(f"{path} is a damaged checkpoint ({error}); delete it to go on from the one before.") from error
