"""Memory and time to load a model of the original's shapes (93.6 million parameters, 375 MB).

    python benchmarks/load_memory.py            # every layout
    python benchmarks/load_memory.py hdf5 native --out results.json

Random weights are written once to a temporary folder; then `polyseme.load` reads each layout in a fresh process. The figure is
the largest resident memory above that after `import torch` (VmHWM and VmRSS of /proc, so Linux only), divided by the size of the
weight file.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

LAYOUTS = ("hdf5", "native", "native-float16", "zip")


def write_random(folder: Path) -> None:
    """The original architecture with random weights, in every layout measured."""
    import torch

    from polyseme.config import BiLMConfig
    from polyseme.pretraining.config import original
    from polyseme.weights import Checkpoint, write, write_native
    from polyseme.weights.checkpoint import expected_shapes

    values = original(10_000).model.to_dict() | {"vocabulary_size": None}
    config = BiLMConfig.from_dict(values)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in expected_shapes(config).items()}
    checkpoint = Checkpoint(config=config, tensors=tensors)
    write(checkpoint, folder / "model.hdf5")
    write_native(checkpoint, folder / "native")
    write_native(checkpoint, folder / "native-float16", dtype="float16")
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(folder / "model.hdf5", "model.hdf5")
        archive.write(folder / "model_options.json", "options.json")


def paths(folder: Path) -> dict[str, tuple[Path, Path]]:
    """What to load, and the file whose size counts."""
    return {
        "hdf5": (folder / "model.hdf5", folder / "model.hdf5"),
        "native": (folder / "native", folder / "native" / "model.safetensors"),
        "native-float16": (folder / "native-float16", folder / "native-float16" / "model.safetensors"),
        "zip": (folder / "model.zip", folder / "model.zip"),
    }


def resident(kind: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {kind}")


def measure(path: Path) -> dict[str, float]:
    """Loads in this process; bytes of resident memory added at most, and seconds."""
    import torch

    before = resident("VmRSS")
    start = time.perf_counter()
    from polyseme import load

    model = load(path).model
    seconds = time.perf_counter() - start
    checked = sum(float(parameter.detach().sum()) for parameter in model.parameters())  # every page is touched
    assert torch.isfinite(torch.tensor(checked))
    return {"added": resident("VmHWM") - before, "seconds": seconds}


def run(folder: Path, layout: str) -> dict[str, float]:
    """One layout, measured in a fresh process."""
    path, counted = paths(folder)[layout]
    command = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout) | {"size": counted.stat().st_size}


def main() -> None:
    """Prints one line per layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help=f"of {', '.join(LAYOUTS)}; without any, all")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, the versions and the machine")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_random(folder)
        print(f"{'layout':16} {'file MB':>8} {'added MB':>9} {'ratio':>6} {'seconds':>8}")
        results = {}
        for layout in arguments.layouts or LAYOUTS:
            result = run(folder, layout)
            results[layout] = result
            ratio = result["added"] / result["size"]
            print(f"{layout:16} {result['size'] / 1e6:8.0f} {result['added'] / 1e6:9.0f} {ratio:6.2f} {result['seconds']:8.2f}")
    if arguments.out:
        arguments.out.write_text(json.dumps(about() | {"layouts": results}, indent=1) + "\n", encoding="utf-8")


def about() -> dict[str, object]:
    """How and where the figures were measured."""
    import h5py
    import torch

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {"python": platform.python_version(), "torch": torch.__version__, "h5py": h5py.__version__}
    machine = f"{cpu[1] if cpu else platform.machine()}, {torch.get_num_threads()} threads"
    return {"command": "python benchmarks/load_memory.py", "machine": machine, "versions": versions}


if __name__ == "__main__":
    main()
