"""Anonymous resident memory of `prepare` and `pretrain`, preset small, on a large corpus and on a twentieth of its lines.

    python benchmarks/pretrain_memory.py 'text/*.txt.xz' --steps 30

Anonymous memory is what the process holds itself (RssAnon): memory-mapped files, which the system may drop at any time, are
not in it. Each measurement runs in a process of its own. The result goes to results/pretrain_memory.json.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _peak(queue: "multiprocessing.Queue[dict]", work: Callable[..., dict], arguments: tuple) -> None:
    """Runs the work while a thread watches."""
    peak, stop = [anonymous()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            peak.append(max(peak.pop(), anonymous()))

    thread = threading.Thread(target=watch)
    began = time.perf_counter()
    thread.start()
    found = work(*arguments)
    stop.set()
    thread.join()
    queue.put({**found, "seconds": round(time.perf_counter() - began, 1), "peak_anonymous_mb": round(peak[0] / 1e6)})


def measure(work: Callable[..., dict], *arguments: object) -> dict:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_peak, args=(queue, work, arguments))
    process.start()
    found = queue.get()
    process.join()
    return found


def run_prepare(inputs: list[str], folder: str) -> dict:
    from polyseme.pretraining.prepare import prepare

    report = prepare(inputs, folder)
    return {"tokens": report.tokens, "distinct": report.distinct}


def run_pretrain(folder: str, out: str, steps: int, streams: str) -> dict:
    from dataclasses import replace

    from polyseme.pretraining.config import small
    from polyseme.pretraining.corpus import Corpus
    from polyseme.pretraining.loop import pretrain

    torch.set_num_threads(2)
    corpus = Corpus.open(folder)
    size = len(corpus.vocabulary())
    config = small(size)
    config = replace(config, streams=streams, tokens=steps * config.rows * config.unroll)
    outcome = pretrain(config, corpus, out)
    return {"tokens": len(corpus.tokens), "steps": outcome.steps, "vocabulary": size}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", nargs="+", help="files or patterns")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    from polyseme.sources import Reader

    found = {"command": " ".join(["python", "benchmarks/pretrain_memory.py", "TEXT", "--steps", str(options.steps)])}
    with tempfile.TemporaryDirectory() as scratch:
        # The same mixture: how many different words a window has decides much of what a step takes.
        part = Path(scratch) / "part.txt"
        with part.open("w", encoding="utf-8") as file:
            lines = (line for block in Reader(options.inputs).blocks() for line in block.values)
            file.writelines(f"{line}\n" for line in itertools.islice(lines, 0, None, 20))
        for name, inputs in (("a part", [str(part)]), ("all", options.inputs)):
            folder = f"{scratch}/{name}"
            found[f"prepare {name}"] = measure(run_prepare, inputs, folder)
            found[f"pretrain small {name}"] = measure(run_pretrain, folder, f"{folder} run", options.steps, "independent")
            print(json.dumps(found, indent=1), flush=True)
    found["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    target = Path(__file__).parent / "results" / "pretrain_memory.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
