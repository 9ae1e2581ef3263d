"""Tokens a second of pretraining `small`: bilm-tf's own training function and ours, side by side; and the products alone.

    python benchmarks/bench_pretrain.py CORPUS --peer PYTHON [--rounds 5]

CORPUS was written by `polyseme prepare`; PYTHON is that of an environment with `pip install tensorflow-cpu tf-keras h5py` and
`pip install --no-deps bilm`. Everyone trains on the same 20,000 sentences with the same vocabulary (CORPUS's, 50,000 words),
8,192 negatives, 128 rows of 20 positions, dropout 0.1, Adagrad, on two threads. Each contestant is a process of its own; in every
round each runs a few steps, reading included, while the others wait. The table gives the median of the rounds and their range,
for the clock's time and for the processor's: the second is tokens per second of CPU time, times the cores. On a machine that is
busy with other things only the second can be believed; on an idle one it leaves out the time in which a core has nothing to do.

"products" runs nothing but the matrix products that ours makes for such windows, each in the fastest form that was found for it
when it started (MKL or oneDNN, weight packed beforehand or not); where ours works off two pieces side by side, so does it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

SENTENCES, ROWS, UNROLL, NEGATIVES, DROPOUT, THREADS = 20_000, 128, 20, 8192, 0.1, 2
HERE = Path(__file__).parent
#: What takes part, and how many steps a round.
CONTESTANTS = {
    "bilm-tf": 2,
    "float32, independent": 3,
    "float32, shared": 3,
    "bfloat16, independent": 6,
    "bfloat16, shared": 6,
    "products float32, shared": 3,
    "products bfloat16, shared": 6,
}


def write_text(corpus_folder: str, folder: Path) -> int:
    """Writes a random sample of a corpus as text, its vocabulary, and bilm-tf's options for `small`; returns how many words."""
    import numpy as np

    from polyseme.pretraining.corpus import Corpus

    corpus = Corpus.open(corpus_folder)
    vocabulary = corpus.vocabulary()
    chosen = np.random.default_rng(1).choice(corpus.sentences, min(SENTENCES, corpus.sentences), replace=False)
    with open(folder / "text.txt", "w", encoding="utf-8") as file:
        for sentence in np.sort(chosen).tolist():
            ids = corpus.tokens.take(np.arange(corpus.offsets[sentence], corpus.offsets[sentence + 1]))
            file.write(" ".join(corpus.lexicon.words(i, i + 1)[0] for i in ids.tolist()) + "\n")
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in vocabulary.words), encoding="utf-8")
    (folder / "options.json").write_text(json.dumps(options()), encoding="utf-8")
    return len(vocabulary)


def options() -> dict:
    """bilm-tf's options that say the same as the preset."""
    from polyseme.pretraining.config import small

    model = small(NEGATIVES + 1).model
    characters, lstm = model.characters, model.lstm
    assert characters is not None
    return {
        "bidirectional": True,
        "char_cnn": {
            "activation": characters.activation,
            "embedding": {"dim": characters.dim},
            "filters": [list(pair) for pair in characters.filters],
            "max_characters_per_token": characters.max_characters,
            "n_characters": 261,
            "n_highway": characters.highways,
        },
        "lstm": {
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.projection_clip,
            "dim": lstm.dim,
            "n_layers": lstm.layers,
            "projection_dim": lstm.projection,
            "use_skip_connections": lstm.residual,
        },
        "dropout": DROPOUT,
        "all_clip_norm_val": 10.0,
        "n_epochs": 1000,
        "n_train_tokens": 10_000_000,
        "batch_size": ROWS,
        "unroll_steps": UNROLL,
        "n_negative_samples_batch": NEGATIVES,
    }


def serve(step: Callable[[], object]) -> None:
    """For every line "N" on standard input N steps; "seconds S" says how long they took."""
    step()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print("seconds", time.perf_counter() - began, flush=True)


def make_run(folder: Path, precision: str, streams: str):
    """A training run of ours over the text."""
    import torch

    from polyseme.pretraining.config import small
    from polyseme.pretraining.corpus import Corpus
    from polyseme.pretraining.run import Lists, Run
    from polyseme.vocabulary import Vocabulary

    torch.set_num_threads(THREADS)
    vocabulary = Vocabulary.read(folder / "vocab.txt")
    with open(folder / "text.txt", encoding="utf-8") as file:
        corpus = Corpus.from_sentences(line.split(" ") for line in file.read().splitlines())
    config = small(len(vocabulary))
    config = replace(config, rows=ROWS, unroll=UNROLL, negatives=NEGATIVES, dropout=DROPOUT, streams=streams, precision=precision)
    return Run(config, corpus, Lists(vocabulary))


def products(run, windows: int = 3) -> Callable[[], None]:
    """The matrix products of a step, with the sizes of some real windows, one window after the other."""
    import torch

    from polyseme.kernels.workers import side_by_side
    from polyseme.pretraining.run import read_window

    dtype = run.training.dtype
    forms: dict[tuple[int, int, int], Callable[[], object]] = {}

    def form(shape: tuple[int, int, int]) -> Callable[[], object]:
        if shape not in forms:
            forms[shape] = fastest(*shape, dtype)
        return forms[shape]

    ready = []
    for _ in range(windows):
        words = read_window(next(run.streams), run.words, run.device)[0]
        both, each = shapes(run, words)
        ready.append(([form(shape) for shape in both], [[form(shape) for shape in piece] for piece in each]))
    torch.set_num_threads(THREADS)
    turn = iter(range(10**9))

    def all_of(calls: list[Callable[[], object]]) -> None:
        for call in calls:
            call()

    def step() -> None:
        both, each = ready[next(turn) % windows]
        all_of(both)
        side_by_side(*(lambda piece=piece: all_of(piece) for piece in each))

    return step


Shapes = list[tuple[int, int, int]]


def shapes(run, words) -> tuple[Shapes, tuple[Shapes, Shapes]]:
    """(rows, inputs, outputs) of all products of a step: those on both cores, and those on one core each, side by side."""
    from polyseme.kernels.products import rounded
    from polyseme.pretraining.convolutions import by_length

    model = run.config.model
    characters, lstm = model.characters, model.lstm
    dim, width, filters = lstm.dim, lstm.projection, sum(number for _, number in characters.filters)
    many = rounded(len(words.characters))
    both: Shapes = []
    for outputs in (*[filters] * (2 * characters.highways), model.projection):
        both += [(many, filters, outputs), (many, outputs, filters), (outputs, many, filters)]
    # The convolutions' backward pass looks only at the positions that won: it makes no products.
    each: tuple[Shapes, Shapes] = ([], [])
    groups, _ = by_length(words.characters, max(reach for reach, _ in characters.filters))
    for number, group in enumerate(groups):
        for reach, outputs in characters.filters:
            rows = rounded(len(group) * (group.shape[1] - reach + 1))
            each[0 if number % 4 in (0, 3) else 1].append((rows, reach * characters.dim, outputs))
    window = ROWS * UNROLL
    for piece in each:
        for layer in range(lstm.layers):
            read = width + (model.token_width if layer == 0 else width)
            forward = [(ROWS, read, 4 * dim), (ROWS, dim, width)]
            backward = [(ROWS, width, dim), (ROWS, 4 * dim, read)]
            piece += [*forward, *backward] * UNROLL + [(read, window, 4 * dim), (dim, window, width)]
        piece += [(512, width, NEGATIVES), (512, NEGATIVES, width), (width, 512, NEGATIVES)] * (window // 512)
    return both, each


def fastest(rows: int, inputs: int, outputs: int, dtype) -> Callable[[], object]:
    """The form of a product that is fastest on one thread, ready to be called on any."""
    import torch

    torch.set_num_threads(1)
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    found = {"mm": lambda: torch.mm(x, weight.T)}
    if torch.backends.mkldnn.is_available():
        kernels, blocked = torch.ops.mkldnn, torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        found["onednn"] = lambda: kernels._linear_pointwise(x, weight, None, "none", [], "")
        found["onednn packed"] = lambda: kernels._linear_pointwise(x, blocked, None, "none", [], "")
    if dtype == torch.float32 and torch.backends.mkl.is_available():
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        found["mkl packed"] = lambda: torch.ops.mkl._mkl_linear(x, packed, weight, None, rows)
    return min(found.values(), key=_shortest)


def _shortest(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


class Contestant:
    """A process that runs steps when asked."""

    def __init__(self, name: str, folder: Path, peer: str, cores: list[int]) -> None:
        self.name = name
        command = [peer, str(HERE / "peers" / "bilm_tf_train.py"), str(folder)]
        if name != "bilm-tf":
            command = [sys.executable, __file__, "--contestant", name, str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
        self.versions: dict[str, str] = {}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip

    def settle(self) -> None:
        """Waits until all is loaded, and one step run."""
        if self.name == "bilm-tf":
            self.steps(1)
        else:
            self._hear("ready")

    def steps(self, number: int) -> tuple[float, float]:
        """The seconds that so many steps took, and those of all cores' work."""
        assert self.process.stdin is not None
        before = self._cpu()
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        seconds = float(self._hear("seconds"))
        return seconds, self._cpu() - before

    def _cpu(self) -> float:
        """Seconds that the process has computed so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _hear(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("versions "):
                self.versions = json.loads(line.removeprefix("versions "))
            if line.startswith(word):
                return line.removeprefix(word)
        sys.exit(f"{self.name} ended early; run its command by hand to see why")

    def end(self) -> None:
        """Lets the process end by itself."""
        self.process.kill()
        self.process.wait()


def rounds(contestants: list[Contestant], number: int) -> Iterator[dict[str, dict[str, float]]]:
    """Tokens a second of each contestant by the clock and by the processor, round after round."""
    for _ in range(number):
        line: dict[str, dict[str, float]] = {"clock": {}, "processor": {}}
        for contestant in contestants:
            steps = CONTESTANTS[contestant.name]
            seconds, cpu = contestant.steps(steps)
            tokens = steps * ROWS * UNROLL
            line["clock"][contestant.name], line["processor"][contestant.name] = tokens / seconds, THREADS * tokens / cpu
        yield line


def summary(lines: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians, ranges and ratios; a ratio is that of two numbers of one round."""
    found: dict[str, dict[str, float]] = {}
    for name in lines[0]:
        values = [line[name] for line in lines]
        found[name] = {
            "tokens_per_second": round(statistics.median(values)),
            "least": round(min(values)),
            "most": round(max(values)),
        }
        for other, key in (("bilm-tf", "times_bilm_tf"), (f"products {name}", "share_of_products")):
            if other in lines[0] and name != other and not name.startswith("products"):
                ratios = [line[name] / line[other] for line in lines]
                found[name][key] = round(statistics.median(ratios), 3)
                found[name][f"{key}_least"], found[name][f"{key}_most"] = round(min(ratios), 3), round(max(ratios), 3)
    return found


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = [dict(line.split("\t: ", 1) for line in [line.replace("\t\t: ", "\t: ")] if "\t: " in line) for line in lines]
        found = {key.strip(): value for field in fields for key, value in field.items()}
        return f"{found['model name']} (family {found['cpu family']}, model {found['model']})"
    except (OSError, KeyError):
        return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--peer", default="", help="python of the environment with bilm; without it only ours run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="contestants; default: all")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "bench_pretrain.json")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        *kind, streams = arguments.contestant.replace(",", "").split()
        run = make_run(Path(arguments.corpus), kind[-1], streams)
        serve(products(run) if kind[0] == "products" else run.advance)
        return
    measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Runs all contestants and writes the table."""
    import torch

    names = [name for name in arguments.only or CONTESTANTS if name != "bilm-tf" or arguments.peer]
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    with tempfile.TemporaryDirectory() as scratch:
        size = write_text(arguments.corpus, Path(scratch))
        contestants = [Contestant(name, Path(scratch), arguments.peer, cores) for name in names]
        try:
            for contestant in contestants:
                contestant.settle()
            lines = []
            for line in rounds(contestants, arguments.rounds):
                lines.append(line)
                for kind, values in line.items():
                    print(f"{kind:10}" + "   ".join(f"{name} {value:.0f}" for name, value in values.items()), flush=True)
        finally:
            for contestant in contestants:
                contestant.end()
    found = {kind: summary([line[kind] for line in lines]) for kind in lines[0]}
    for kind, table in found.items():
        for name, values in table.items():
            print(f"{kind:10}{name:28}" + "   ".join(f"{key} {value}" for key, value in values.items()))
    peer = {key: value for contestant in contestants for key, value in contestant.versions.items()}
    result = {
        "command": f"python benchmarks/bench_pretrain.py CORPUS --peer PYTHON --rounds {arguments.rounds}",
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "bilm-tf": {"bilm": "0.1.post5", **peer}},
        "cpu": processor(), "threads": THREADS, "load": os.getloadavg(),
        "vocabulary": size, "negatives": NEGATIVES, "rows": ROWS, "unroll": UNROLL, "steps_per_round": CONTESTANTS,
        "results": found,
        "rounds": [{kind: {name: round(value) for name, value in part.items()} for kind, part in line.items()} for line in lines],
    }  # fmt: skip
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
