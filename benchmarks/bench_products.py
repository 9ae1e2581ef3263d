"""Matrix products of the recurrence, at its real shapes: which library and which layout of the weight is fastest.

    python benchmarks/bench_products.py

Every product is rows x inputs by inputs x outputs, as in `small` (2x1024, 128) and `original` (2x4096, 512), forward and
backward. Three ways of using two cores: one thread alone, one product on two threads, and two products at once on two Python
threads with one thread each (the two directions). The shortest of many repetitions counts. Forms:
    mm         torch.mm with the weight as it is stored (outputs x inputs)
    mm turned  torch.mm with a transposed copy
    add turned the same, added to what is there
    mkl        MKL's packed form (float32)
    onednn     oneDNN's packed form
    pack ...   making that form from the float32 weight
"""

import argparse
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

SHAPES = {
    "small recurrent": (128, 128, 4096),
    "small projection": (128, 1024, 128),
    "small projection, backward": (128, 128, 1024),
    "small recurrent, backward": (128, 4096, 128),
    "original recurrent, 64 rows": (64, 512, 16384),
    "original recurrent, 128 rows": (128, 512, 16384),
    "original projection, 64 rows": (64, 4096, 512),
    "original projection, 128 rows": (128, 4096, 512),
}
Call = Callable[[], object]


def forms(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> dict[str, Callable[[], Call]]:
    """What to time; each entry makes its own tensors, so that two threads do not share them."""
    full = torch.randn(outputs, inputs) * 0.05
    weight = full.to(dtype)
    turned = weight.T.contiguous()
    kernels, mkl = torch.ops.mkldnn, torch.ops.mkl

    def given(make: Callable[[torch.Tensor, torch.Tensor], Call]) -> Callable[[], Call]:
        return lambda: make(torch.randn(rows, inputs).to(dtype), torch.zeros(rows, outputs, dtype=dtype))

    found = {
        "mm": given(lambda x, out: lambda: torch.mm(x, weight.T, out=out)),
        "mm turned": given(lambda x, out: lambda: torch.mm(x, turned, out=out)),
        "add turned": given(lambda x, out: lambda: torch.addmm(out, x, turned, beta=0.5, out=out)),
        "pack turned": given(lambda x, out: lambda: full.to(dtype).T.contiguous()),
    }
    if torch.backends.mkldnn.is_available():
        packed = kernels._reorder_linear_weight(weight, rows)
        found["onednn"] = given(lambda x, out: lambda: kernels._linear_pointwise(x, packed, None, "none", [], ""))
        found["pack onednn"] = given(lambda x, out: lambda: kernels._reorder_linear_weight(full.to(dtype), rows))
    if dtype == torch.float32 and torch.backends.mkl.is_available():
        mkl_packed = mkl._mkl_reorder_linear_weight(weight, rows)
        found["mkl"] = given(lambda x, out: lambda: mkl._mkl_linear(x, mkl_packed, weight, None, rows))
    return found


def shortest(call: Call, seconds: float) -> float:
    """The shortest of the calls that fit into the time."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def at_once(make: Callable[[], Call], seconds: float) -> float:
    """Two threads at work at the same time: the slower one's time for its own product."""
    barrier, times = threading.Barrier(2), [0.0, 0.0]

    def work(number: int) -> None:
        torch.set_num_threads(1)
        call = make()
        barrier.wait()
        times[number] = shortest(call, seconds)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "products.json")
    arguments = parser.parse_args()
    lines = []
    print(f"{'shape':30}{'precision':10}{'form':13}{'1 thread':>18}{'2 threads':>18}{'2 at once':>18}   microseconds, GFLOP/s")
    for name, (rows, inputs, outputs) in SHAPES.items():
        for dtype in (torch.float32, torch.bfloat16):
            precision = str(dtype).removeprefix("torch.")
            for form, make in forms(rows, inputs, outputs, dtype).items():
                torch.set_num_threads(1)
                one = shortest(make(), arguments.seconds)
                pair = at_once(make, arguments.seconds)
                torch.set_num_threads(2)
                two = shortest(make(), arguments.seconds)
                flop = 0 if form.startswith("pack") else 2e-9 * rows * inputs * outputs
                shown = "".join(f"{t * 1e6:10.0f} {k * flop / t or 0:7.0f}" for t, k in ((one, 1), (two, 1), (pair, 2)))
                print(f"{name:30}{precision:10}{form:13}{shown}", flush=True)
                lines.append(
                    {"shape": name, "rows": rows, "inputs": inputs, "outputs": outputs, "precision": precision, "form": form,
                     "one_thread_us": one * 1e6, "two_threads_us": two * 1e6, "two_at_once_us": pair * 1e6}
                )  # fmt: skip
    result = {
        "command": "python benchmarks/bench_products.py",
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(), "cores": os.cpu_count(), "load": os.getloadavg(),
        "lines": lines,
    }  # fmt: skip
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
