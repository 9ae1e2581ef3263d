"""Vectors for text: the engine beside AllenNLP, simple_elmo and two Transformer encoders, on the same sentences and threads.

    python -m venv build/peers-engine && P=build/peers-engine/bin/pip
    $P install -c constraints.txt torch numpy h5py && $P install --no-deps allennlp==2.10.1
    $P install tensorflow-cpu tf-keras simple_elmo
    $P install transformers spacy cached_path lmdb dill base58 more_itertools fairscale
    python benchmarks/bench_engine.py            # everything but --linear; results are kept, so it may be run in parts:
    python benchmarks/bench_engine.py --only small --only polyseme
    python benchmarks/bench_engine.py --only original --only allennlp
    python benchmarks/bench_engine.py --part latency --only small
    python benchmarks/bench_engine.py --part latency --only original --only polyseme --precision bfloat16
    python benchmarks/bench_engine.py --part linear

Models have random weights in the published shapes; sentences are held-out news, then encyclopedia articles, in natural order.
Every program gives the mean of the layers; a peer runs at the best of the batch sizes. "cold" means that no word was seen before,
"warm" that all were.

Fails where the C kernel is not in use.
"""

import argparse
import json
import lzma
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from polyseme import convert, save
from polyseme.characters import ByteScheme, WordReader
from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig
from polyseme.elmo import Elmo
from polyseme.kernels import in_use, sweep
from polyseme.kernels.products import PackedWeight
from polyseme.kernels.workers import side_by_side
from polyseme.model import BiLM, initialise

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("POLYSEME_SHARED", HERE.parent.parent / "shared"))
THREADS = 2
#: Cells of the LSTM, width of its projection, highway layers; sentences.
MODELS = {"small": (1024, 128, 1, 1000), "original": (4096, 512, 2, 200)}
PEERS = ("allennlp", "simple_elmo")
ENCODERS = ("bert-base", "minilm")
BATCHES = (16, 32, 64, 128)
PRECISIONS = ["float32", "bfloat16"]


def random_elmo(name: str) -> Elmo:
    dim, projection, highways, _ = MODELS[name]
    filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    config = BiLMConfig(
        characters=CharacterConfig(filters=filters, highways=highways),
        projection=projection,
        lstm=LSTMConfig(dim=dim, projection=projection),
    )
    model = BiLM(config)
    initialise(model, torch.Generator().manual_seed(0))
    return Elmo(model, WordReader(scheme=ByteScheme(), lexicon=None), name=name)


def lines(*files: Path) -> Iterator[list[str]]:
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as stream:
            yield from (words for line in stream if (words := line.split()))


def heldout(count: int, length: int | None = None) -> list[list[str]]:
    """The first sentences, of that length where one is given; half news, half encyclopedia."""
    found = []
    for name in ("wikinews", "wikipedia"):
        stream = (words for words in lines(SHARED / f"data/corpus/heldout/{name}.txt.xz") if length in (None, len(words)))
        found += [words for words, _ in zip(stream, range(count // 2), strict=False)]
    return found


class Peer:
    """Another program, in its own process and environment."""

    def __init__(self, python: str, name: str, folder: Path) -> None:
        command = [python, str(HERE / "peers" / "embed_peer.py"), name, str(folder), str(THREADS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **order: object) -> dict:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise SystemExit(f"the peer ended with status {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def products_alone(elmo: Elmo, precision: str, sentences: list[list[str]]) -> tuple[float, dict[str, int]]:
    """Seconds for the matrix products of one cold call alone, each by the fastest of oneDNN's, torch's and MKL's forms.

    Steps of few rows are read by the usual products here, whose calls can be noted.
    """
    calls: dict[int, list[tuple[PackedWeight, int]]] = {}
    original = PackedWeight.product

    def noting(self, x, *, out=None):
        calls.setdefault(threading.get_ident(), []).append((self, len(x)))
        return original(self, x, out=out)

    few, sweep._FEW_ROWS = sweep._FEW_ROWS, 0
    PackedWeight.product = noting
    elmo.engine(precision).forget()
    elmo.embed(sentences, layers="mean", precision=precision)
    PackedWeight.product, sweep._FEW_ROWS = original, few
    best: dict[tuple[int, int, int], tuple[float, str, Callable[[], object]]] = {}
    torch.set_num_threads(1)
    for weight, rows in {(id(weight), rows): (weight, rows) for each in calls.values() for weight, rows in each}.values():
        shape = (weight.inputs, weight.outputs, rows)
        if shape not in best:
            best[shape] = min(timed_forms(weight, rows), key=lambda form: form[0])
    torch.set_num_threads(THREADS)
    works = [[best[weight.inputs, weight.outputs, rows][2] for weight, rows in each] for each in calls.values()]
    forms: dict[str, int] = {}
    for _, form, _ in best.values():
        forms[form] = forms.get(form, 0) + 1
    alone = min(seconds(lambda: side_by_side(*(lambda work=work: [call() for call in work] for work in works))) for _ in range(3))
    return alone, forms


def timed_forms(weight: PackedWeight, rows: int) -> Iterator[tuple[float, str, Callable[[], object]]]:
    plain = torch.randn(weight.outputs, weight.inputs) * 0.05
    low, x = plain.to(weight.dtype), torch.randn(rows, weight.inputs).to(weight.dtype)
    turned = low.T.contiguous()
    forms: dict[str, Callable[[], object]] = {"packed": lambda: weight.product(x), "torch": lambda: torch.mm(x, turned)}
    if weight.dtype is torch.float32 and torch.backends.mkl.is_available():
        mkl = torch.ops.mkl._mkl_reorder_linear_weight(low, rows)
        forms["mkl"] = lambda: torch.ops.mkl._mkl_linear(x, mkl, low, None, rows)
    for name, call in forms.items():
        call()
        yield min(seconds(call) for _ in range(3)), name, call


def ours(name: str, repeats: int, record: dict) -> None:
    elmo, sentences = random_elmo(name), heldout(MODELS[name][3])
    for precision in PRECISIONS:
        engine = elmo.engine(precision)

        def call(precision: str = precision) -> None:
            elmo.embed(sentences, layers="mean", precision=precision)

        first = seconds(call)
        cold, warm = [], []
        for _ in range(repeats):
            engine.forget()
            cold.append(seconds(call))
            warm.append(seconds(call))
        alone, forms = products_alone(elmo, precision, sentences)
        record[f"polyseme {precision}"] = {
            "first": first, "cold": cold, "warm": warm, "products": alone, "products_share": alone / statistics.median(cold),
            "fastest_forms": forms, "version": f"polyseme, torch {torch.__version__}, kernel {in_use()}",
        }  # fmt: skip


def folder_of(name: str, into: Path) -> Path:
    """The model as files the peers read, with the sentences."""
    elmo = random_elmo(name)
    save(elmo, into / "native")
    convert(into / "native", into / "weights.hdf5")
    (into / "sentences.json").write_text(json.dumps(heldout(MODELS[name][3])), encoding="utf-8")
    (into / "short.json").write_text(json.dumps(heldout(100, 12)), encoding="utf-8")
    return into


def peer(python: str, name: str, contestant: str, repeats: int, record: dict) -> None:
    count = MODELS[name][3]
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder_of(name, Path(scratch))
        program = Peer(python, contestant, folder)
        tried = {}
        for batch in BATCHES:
            if not tried:
                program.ask(do="time", batch=batch, count=batch)  # the graph is made, the libraries warm up
            some = min(count, max(batch, 64))
            words = sum(map(len, heldout(some)))
            tried[batch] = words / program.ask(do="time", batch=batch, count=some)["seconds"]
        batch = max(tried, key=tried.__getitem__)
        found = [program.ask(do="time", batch=batch, count=count) for _ in range(repeats)]
        entry = {"batch": batch, "tried": tried, "cold": [one["seconds"] for one in found], "version": found[0]["version"]}
        if contestant in PEERS:
            file = Path(scratch) / "vectors.npz"
            program.ask(do="vectors", batch=batch, count=16, file=str(file))
            entry["vectors"] = differences(name, np.load(file))
        program.close()
    record[contestant] = entry


def differences(name: str, theirs: "np.lib.npyio.NpzFile") -> dict[str, dict[str, float]]:
    """Ours from the zero state beside what a peer gave: the largest difference, the smallest cosine of a token."""
    elmo, sentences = random_elmo(name), heldout(MODELS[name][3])[: len(theirs.files)]
    result = {}
    for precision in PRECISIONS:
        most, least = 0.0, 1.0
        for number, mine in enumerate(elmo.embed(sentences, layers="mean", state="zero", precision=precision)):
            other = theirs[f"arr_{number}"].astype(np.float32)
            most = max(most, float(np.abs(mine - other).max()))
            lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(other, axis=1)
            least = min(least, float(((mine * other).sum(axis=1) / lengths).min()))
        result[precision] = {"largest_difference": most, "smallest_cosine": least}
    return result


def latency(python: str, name: str, who: list[str], record: dict, calls: int = 200) -> None:
    """One sentence of 12 tokens; the peer first, then ours with words seen before and with words never seen; 1,000 calls."""
    if "allennlp" in who:
        peers_latency(python, name, record, calls // 4)
    if "polyseme" in who:
        our_latency(name, record, calls)


def peers_latency(python: str, name: str, record: dict, calls: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        program = Peer(python, "allennlp", folder_of(name, Path(scratch)))
        program.ask(do="latency", calls=10)
        times = program.ask(do="latency", calls=calls)["seconds"]
        record["allennlp"] = {"median_ms": 1000 * statistics.median(times)}
        program.close()


def our_latency(name: str, record: dict, calls: int) -> None:
    elmo, sentences = random_elmo(name), heldout(100, 12)
    for precision in PRECISIONS:

        def call(number: int, precision: str = precision) -> None:
            elmo.embed([sentences[number % len(sentences)]], layers="mean", precision=precision)

        for number in range(len(sentences)):
            call(number)
        known = [seconds(lambda number=number: call(number)) for number in range(calls)]
        new = []
        for number in range(calls // 4):
            elmo.engine(precision).forget()
            new.append(seconds(lambda number=number: call(number)))
        before = resident()
        for number in range(1000):
            call(number)
        record[f"polyseme {precision}"] = {
            "median_ms": 1000 * statistics.median(known), "median_ms_new_words": 1000 * statistics.median(new),
            "growth_in_1000_calls_mb": (resident() - before) / 1e6,
        }  # fmt: skip


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def burn() -> None:
    while True:
        pass


def loaded(name: str, repeats: int, record: dict) -> None:
    """Speed while another process keeps one core busy, as a share of the undisturbed speed."""
    elmo, sentences = random_elmo(name), heldout(MODELS[name][3])
    for precision in PRECISIONS:

        def call(precision: str = precision) -> None:
            elmo.engine(precision).forget()
            elmo.embed(sentences, layers="mean", precision=precision)

        call()
        alone = [seconds(call) for _ in range(repeats)]
        other = multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
        other.start()
        time.sleep(1)
        disturbed = [seconds(call) for _ in range(repeats)]
        other.terminate()
        share = statistics.median(alone) / statistics.median(disturbed)
        record[f"polyseme {precision}"] = {"alone": alone, "beside_a_busy_core": disturbed, "share": share}


def linear(record: dict) -> None:
    """`small`, bfloat16, one layer, through embed_iter: a hundred thousand tokens and ten million."""
    elmo = random_elmo("small")
    files = sorted((SHARED / "data/corpus").glob("*.txt.xz"))

    def read(tokens: int) -> Iterator[list[str]]:
        for words in lines(*files):
            if tokens <= 0:
                return
            tokens -= len(words)
            yield words

    for tokens in (10_000, 100_000, 10_000_000):
        elmo.engine("bfloat16").forget()
        begun, found = time.perf_counter(), 0
        for vectors in elmo.embed_iter(read(tokens), layers="top", precision="bfloat16"):
            found += len(vectors)
        taken = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        record[str(tokens)] = {"tokens": found, "seconds": taken, "tokens_per_second": found / taken, "peak_mb": peak}
        print(tokens, record[str(tokens)], flush=True)


def table(results: dict) -> None:
    """What has been measured so far, as tokens a second and as ratios to the faster peer."""
    for name, record in results["models"].items():
        tokens = record["tokens"]
        speeds = {who: tokens / statistics.median(entry["cold"]) for who, entry in record["contestants"].items()}
        peers = {who: speeds[who] for who in PEERS if who in speeds}
        print(f"\n{name}: {record['sentences']} sentences, {tokens} tokens, {record['distinct']} distinct words")
        for who, entry in record["contestants"].items():
            for kind in ("cold", "warm"):
                if kind in entry:
                    rates = sorted(tokens / one for one in entry[kind])
                    line = f"  {who:20}{kind:6}{statistics.median(rates):9.0f} tokens/s ({rates[0]:.0f} to {rates[-1]:.0f})"
                    for other in peers:
                        if who.startswith("polyseme"):
                            each = [tokens / one for one in record["contestants"][other]["cold"]]
                            low, high = rates[0] / max(each), rates[-1] / min(each)
                            line += f"  {statistics.median(rates) / peers[other]:5.1f} x {other} ({low:.1f} to {high:.1f})"
                    print(line)
            if "products_share" in entry:
                print(f"  {'':20}products' share {entry['products_share']:.2f}, fastest forms {entry['fastest_forms']}")
            for precision, values in entry.get("vectors", {}).items():
                print(f"  {'':20}beside our {precision}: {values}")
    for part in ("latency", "loaded", "linear"):
        for name, record in results.get(part, {}).items():
            print(part, name, json.dumps(record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["speed", "latency", "loaded", "linear"], action="append")
    parser.add_argument("--only", action="append", help="a model (small, original) or a contestant (polyseme or a peer)")
    parser.add_argument("--precision", choices=PRECISIONS, help="ours in this one alone")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sentences", type=int, help="fewer of them, to try the script out")
    parser.add_argument("--python", default=str(HERE.parent / "build/peers-engine/bin/python"), help="the peers' interpreter")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "bench_engine.json")
    arguments = parser.parse_args()
    if in_use() == "torch":
        sys.exit("the C kernel is not in use: build it first (pip install . with a compiler at hand)")
    torch.set_num_threads(THREADS)
    if arguments.precision:
        PRECISIONS[:] = [arguments.precision]
    if arguments.sentences:
        MODELS.update({name: (*shape[:3], arguments.sentences) for name, shape in MODELS.items()})
    results = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"models": {}}
    results |= {
        "command": "python benchmarks/bench_engine.py", "threads": THREADS, "kernel": in_use(), "torch": torch.__version__,
        "python": platform.python_version(), "processor": processor(), "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    only = set(arguments.only or ())
    models = [name for name in MODELS if not only & set(MODELS) or name in only]
    who = [one for one in ("polyseme", *PEERS, *ENCODERS) if not only - set(MODELS) or one in only]

    def keep() -> None:
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    for part in arguments.part or ["speed", "latency", "loaded"]:
        if part == "linear":
            linear(results.setdefault("linear", {}).setdefault("small bfloat16 top", {}))
        for name in models:
            if part == "speed":
                sentences = heldout(MODELS[name][3])
                record = results["models"].setdefault(name, {"contestants": {}})
                record |= {"sentences": len(sentences), "tokens": sum(map(len, sentences))}
                record["distinct"] = len({word for sentence in sentences for word in sentence})
                for one in who:
                    load = os.getloadavg()
                    if one == "polyseme":
                        ours(name, arguments.repeats, record["contestants"])
                    elif one in PEERS or name == "small":
                        peer(arguments.python, name, one, arguments.repeats, record["contestants"])
                    record.setdefault("load_before", {})[one] = load
                    keep()
            elif part == "latency":
                latency(arguments.python, name, who, results.setdefault("latency", {}).setdefault(name, {}))
            elif part == "loaded":
                loaded(name, arguments.repeats, results.setdefault("loaded", {}).setdefault(name, {}))
            keep()
    table(results)


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return next(
        (line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    main()
