"""The fused LSTM cell against its torch twin, and a training window of the recurrence with it.

    python benchmarks/bench_cell.py

First table: one cell step of 128 rows x 1024 on one thread, every kernel of this machine, eager and compiled torch; shortest of
many repetitions in microseconds. Second table: one layer of `small` (2x1024, 128) over a window of 20 steps x 128 rows, both
directions at once on two Python threads with one torch thread each: everything against the matrix products alone, forward,
backward with weight gradients, and both. Fails where only the torch twin is available.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from polyseme import kernels
from polyseme.kernels import twin
from polyseme.kernels.products import PackedWeight

ROWS, DIM, WIDTH, STEPS = 128, 1024, 128, 20


def shortest(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit into the time, in microseconds."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def cells(seconds: float) -> list[dict[str, object]]:
    """One step of the cell by itself."""
    lines: list[dict[str, object]] = []
    compiled = torch.compile(twin.cell_forward_into), torch.compile(twin.cell_backward_into)
    for name in (*kernels.available(), "torch compiled"):
        for dtype in (torch.float32, torch.bfloat16):
            gates, added = torch.randn(ROWS, 4 * DIM).mul(3).to(dtype), torch.randn(ROWS, 4 * DIM).to(dtype)
            before, c, dc, dc_prev = torch.randn(4, ROWS, DIM)
            m, dm = torch.empty(ROWS, DIM, dtype=dtype), torch.randn(ROWS, DIM).to(dtype)
            kept, dgates = torch.empty_like(gates), torch.empty_like(gates)

            def forward(
                activated: torch.Tensor | None, added: torch.Tensor | None = None, name=name, g=gates, b=before, c=c, m=m
            ):
                if name == "torch compiled":
                    compiled[0](g, b, c, m, activated, added, None, 1.0, 3.0)
                else:
                    kernels.cell_forward(
                        g, b, c=c, m=m, activated=activated, added=added, forget_bias=1.0, cell_clip=3.0, kernel=name
                    )

            def backward(name=name, a=kept, b=before, c=c, dm=dm, dc=dc, dg=dgates, dp=dc_prev):
                if name == "torch compiled":
                    compiled[1](a, b, c, dm, dc, dg, dp, None)
                else:
                    kernels.cell_backward(a, b, c, dm=dm, dc=dc, dgates=dg, dc_prev=dp, kernel=name)

            times = {
                "inference": shortest(lambda f=forward: f(None), seconds),
                "inference, two parts": shortest(lambda f=forward, x=added: f(None, x), seconds),
                "training": shortest(lambda f=forward, x=kept: f(x), seconds),
                "backward": shortest(backward, seconds),
            }
            precision = str(dtype).removeprefix("torch.")
            print(f"{name:15}{precision:10}" + "".join(f"{key} {value:.0f}   " for key, value in times.items()), flush=True)
            lines.append({"kernel": name, "precision": precision, **times})
    return lines


class Window:
    """One layer of one direction over a window, forward and backward by hand, in buffers made once.

    Inputs and previous outputs stand side by side in `xh`, so that one product serves both, in each of the three directions
    of a training step.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
        self.weight, self.projection = torch.randn(4 * DIM, 2 * WIDTH) * 0.05, torch.randn(WIDTH, DIM) * 0.05
        self.bias, self.dbias = torch.zeros(4 * DIM), torch.zeros(4 * DIM)
        self.xh = torch.randn(STEPS + 1, ROWS, 2 * WIDTH).mul(0.1).to(dtype)
        self.grad, self.dxh = torch.randn(STEPS, ROWS, WIDTH).mul(0.1).to(dtype), torch.zeros_like(self.xh)
        self.gates = torch.zeros(STEPS, ROWS, 4 * DIM, dtype=dtype)
        self.c, self.m = torch.zeros(STEPS + 1, ROWS, DIM), torch.zeros(STEPS, ROWS, DIM, dtype=dtype)
        self.dm, self.dc = torch.zeros(ROWS, DIM, dtype=dtype), torch.zeros(ROWS, DIM)
        self.pack()

    def pack(self) -> None:
        """The weights change with every training step."""
        self.read, self.unread = (PackedWeight(w, precision=self.precision, rows=ROWS) for w in (self.weight, self.weight.T))
        self.project = PackedWeight(self.projection, precision=self.precision, rows=ROWS)
        self.unproject = PackedWeight(self.projection.T, precision=self.precision, rows=ROWS)

    def forward(self, cell: bool) -> None:
        for t in range(STEPS):
            gates, h = self.gates[t], self.xh[t + 1][:, WIDTH:]
            self.read.product(self.xh[t], out=gates)
            if cell:
                kernels.cell_forward(
                    gates,
                    self.c[t],
                    c=self.c[t + 1],
                    m=self.m[t],
                    activated=gates,
                    bias=self.bias,
                    forget_bias=1.0,
                    cell_clip=3.0,
                )
            self.project.product(self.m[t], out=h)
            if cell:
                h.clamp_(-3.0, 3.0)

    def backward(self, cell: bool) -> None:
        dh = self.grad.clone()
        self.dc.zero_()
        self.dbias.zero_()
        for t in reversed(range(STEPS)):
            if cell and t + 1 < STEPS:
                dh[t].add_(self.dxh[t + 1][:, WIDTH:])
            if cell:
                dh[t].mul_(self.xh[t + 1][:, WIDTH:].abs() < 3.0)
            self.unproject.product(dh[t], out=self.dm)
            if cell:
                kernels.cell_backward(
                    self.gates[t], self.c[t], self.c[t + 1], dm=self.dm, dc=self.dc, dgates=self.gates[t], dc_prev=self.dc,
                    dbias=self.dbias,
                )  # fmt: skip
            self.unread.product(self.gates[t], out=self.dxh[t])
        torch.mm(self.xh[:-1].view(-1, 2 * WIDTH).T, self.gates.view(-1, 4 * DIM))
        torch.mm(dh.view(-1, WIDTH).T, self.m.view(-1, DIM))


def windows(seconds: float) -> list[dict[str, object]]:
    """Products alone and everything, two directions at once."""
    lines: list[dict[str, object]] = []
    for dtype in (torch.float32, torch.bfloat16):
        both = [Window(dtype), Window(dtype)]
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:

            def run(*parts: Callable[[Window], None], pool=pool, both=both) -> float:
                def one(window: Window) -> None:
                    for part in parts:
                        part(window)

                return shortest(lambda: list(pool.map(one, both)), seconds)

            times = {
                "pack": run(Window.pack),
                "everything": run(Window.pack, lambda w: w.forward(True), lambda w: w.backward(True)),
                "forward": run(lambda w: w.forward(True)),
                "products of forward": run(lambda w: w.forward(False)),
            }
            for direction in both:  # ordinary numbers for the products by themselves: repeated backward passes would shrink them
                direction.gates.normal_()
            times["products of backward"] = run(lambda w: w.backward(False))
        times["share"] = (times["products of forward"] + times["products of backward"]) / times["everything"]
        precision = str(dtype).removeprefix("torch.")
        print(
            f"{precision:10}" + "".join(f"{key} {value:.{0 if value > 2 else 2}f}   " for key, value in times.items()), flush=True
        )
        lines.append({"precision": precision, **times})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cell.json")
    arguments = parser.parse_args()
    if kernels.in_use() == "torch":
        sys.exit("the C file is not built here; install polyseme where a C compiler is")
    torch.set_num_threads(1)
    result = {
        "command": "python benchmarks/bench_cell.py",
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "kernel": kernels.in_use(), "cores": os.cpu_count(), "load": os.getloadavg(),
        "window_us": windows(arguments.seconds * 3), "cell_us": cells(arguments.seconds),
    }  # fmt: skip
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
