"""Storing a corpus: memory over a long run, speed beside embed_iter, and time, memory and disk beside AllenNLP and simple_elmo.

    python benchmarks/bench_bulk.py growth 'corpus/*.txt.xz' --tokens 10_000_000 --out benchmarks/results/bulk_growth.json
    python benchmarks/bench_bulk.py peers 'corpus/*.txt.xz' --sentences 20_000 --peers PYTHON \
        --out benchmarks/results/bulk_peers.json [--only allennlp]

The model has the shape of the published `small` ELMo and random weights: neither time nor memory depends on their values. Text is
tokenized, one sentence a line. Every run is a process of its own; memory is resident memory (/proc, so Linux only).

growth   stores the top layer, bfloat16 arithmetic, float16 on disk. Up to twenty times (--slices) on the way, always when all
         that was computed is on disk, the run halts, its resident memory is taken, and every other time (--every) another
         process computes the same sentences with `embed_iter` and throws the vectors away. The speed is the median of these
         slices' ratios; that of the processor's time beside it shows whether others computed meanwhile.
peers    the mean of the layers of so many sentences: `polyseme embed -o DIR` and `-o FILE.hdf5`; AllenNLP's Elmo in a loop, 32
         sentences a batch, writing HDF5; simple_elmo's get_elmo_vectors on all sentences, saved as .npy. PYTHON is an
         interpreter that has both peers. `added` is the largest memory above what the imports take. What stands in the
         output file already is not run again; --only runs one of them, anew.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.sources import Block, Reader

HERE = Path(__file__).resolve()
CONTESTANTS = ("parquet", "hdf5", "allennlp", "simple_elmo")


def resident(kind: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most so far (VmHWM)."""
    found = re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of a folder's files."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def write_model(folder: Path) -> None:
    """The published small model's shape, random, as a native folder and as the peers read it."""
    import torch

    from polyseme.model import BiLM, initialise
    from polyseme.pretraining.config import PRESETS
    from polyseme.vocabulary import BILM_MARKERS
    from polyseme.weights import Checkpoint, write, write_native

    model = BiLM(replace(PRESETS["small"](10_000).model, vocabulary_size=None))
    initialise(model, torch.Generator().manual_seed(0))
    checkpoint = Checkpoint(model.config, {name: part.detach() for name, part in model.named_parameters()})
    write_native(checkpoint, folder / "native")
    (folder / "peer").mkdir()
    write(checkpoint, folder / "peer" / "weights.hdf5")
    (folder / "peer" / "vocab.txt").write_text("".join(f"{word}\n" for word in BILM_MARKERS))


def lines_of(inputs: list[str]) -> Iterator[str]:
    """Lines that are not blank."""
    from polyseme.sources import Reader

    for block in Reader(inputs).blocks():
        yield from (line for line in block.values if isinstance(line, str) and line)


def write_text(inputs: list[str], path: Path, *, tokens: int | None = None, sentences: int | None = None) -> None:
    """The first sentences, up to that many or so many tokens."""
    held = 0
    with path.open("w", encoding="utf-8") as file:
        for line in itertools.islice(lines_of(inputs), sentences):
            held += line.count(" ") + 1
            file.write(line + "\n")
            if tokens is not None and held >= tokens:
                return
    if tokens is not None:
        raise SystemExit(f"the input has {held:,} tokens; wanted {tokens:,}.")


def sliced(reader: "Reader", tokens: int, ended: Callable[[int], None]) -> "Iterator[Block]":
    """The blocks of a reader; `ended` is called after each slice of so many tokens, and says how many it had."""
    held = 0
    for block in reader.blocks():
        yield block
        held += sum(value.count(" ") + 1 for value in block.values if isinstance(value, str))
        if held >= tokens:
            ended(held)
            held = 0
    ended(held)


def child_long_store(model: str, text: str, output: str, tokens: str) -> None:
    """Stores all of the text; after each slice prints what it took, and waits for a line of standard input."""
    import polyseme
    from polyseme.bulk.run import embed_corpus
    from polyseme.bulk.settings import bulk_settings
    from polyseme.sources import Block, Reader

    class Halting(Reader):
        """Reads on when it is told to."""

        begun, processor, done, counted = time.perf_counter(), time.process_time(), 0, 0

        def blocks(self) -> Iterator[Block]:
            return sliced(super(), int(tokens), self.halt)  # pyrefly: ignore

        def report(self, done: int, total: int | None = None, *, note: str = "") -> None:
            self.done = done

        def halt(self, count: int) -> None:
            while any(Path(output, ".work").glob("part-*")):
                time.sleep(0.005)
            self.tell(rss=resident("VmRSS"))
            sys.stdin.readline()
            self.begun, self.processor = time.perf_counter(), time.process_time()

        def tell(self, **more: int) -> None:
            now, processor, fresh = time.perf_counter(), time.process_time(), self.done - self.counted
            self.counted = self.done
            told = {"tokens": fresh, "seconds": now - self.begun, "processor": processor - self.processor} | more
            print(json.dumps(told), flush=True)

    imports = resident("VmRSS")
    elmo = polyseme.load(model)
    elmo.embed([["warm"]], precision="bfloat16")
    settings = bulk_settings(elmo, layers="top", precision="bfloat16", tokenized=True)
    reader = Halting([text])
    reader.begun, reader.processor = time.perf_counter(), time.process_time()
    embed_corpus(reader, output, elmo, settings, report=reader.report)
    reader.tell(rss=resident("VmRSS"), imports=imports, peak=resident("VmHWM"), bytes=size_on_disk(Path(output)))


def child_long_iterate(model: str, text: str, tokens: str) -> None:
    """The slices' sentences again: each line of standard input names one, what embed_iter took is printed."""
    import polyseme
    from polyseme.sources import Reader

    elmo = polyseme.load(model)
    elmo.embed([["warm"]], precision="bfloat16")
    slices: list[list[str]] = [[]]
    for block in sliced(Reader([text]), int(tokens), lambda count: slices.append([])):
        slices[-1] += [value for value in block.values if isinstance(value, str)]
    for line in sys.stdin:
        sentences = (text.split() for text in slices[int(line)])
        begun, processor, count = time.perf_counter(), time.process_time(), 0
        for array in elmo.embed_iter(sentences, layers="top", precision="bfloat16"):
            count += len(array)
        seconds, processor = time.perf_counter() - begun, time.process_time() - processor
        print(json.dumps({"tokens": count, "seconds": seconds, "processor": processor}), flush=True)


def child_store(model: str, text: str, output: str, layers: str, precision: str, kind: str) -> dict[str, Any]:
    """Stores, and says what that took."""
    import h5py
    import pyarrow.parquet
    import torch  # the imports of the library and of the writers, before anything is done

    import polyseme
    from polyseme.bulk.hdf5 import embed_to_hdf5
    from polyseme.bulk.run import embed_corpus
    from polyseme.bulk.settings import bulk_settings
    from polyseme.sources import Reader

    assert all((h5py, pyarrow.parquet, torch))
    imports = resident("VmRSS")
    total = sum(line.count(" ") + 1 for line in Path(text).open(encoding="utf-8"))
    elmo = polyseme.load(model)
    elmo.embed([["warm"]], precision=precision)  # type: ignore[arg-type]
    begun = time.perf_counter()
    options: dict[str, Any] = {"layers": layers, "precision": precision, "tokenized": True}
    if kind == "hdf5":
        settings = bulk_settings(elmo, dtype="float32", container="arrow", **options)
        embed_to_hdf5(Reader([text]), Path(output), elmo, settings)
    else:
        embed_corpus(Reader([text]), output, elmo, bulk_settings(elmo, **options))
    seconds = time.perf_counter() - begun
    return {
        "tokens": total,
        "seconds": seconds,
        "rate": total / seconds,
        "imports": imports,
        "added": resident("VmHWM") - imports,
        "bytes": size_on_disk(Path(output)),
    }


def child_allennlp(folder: str, text: str, output: str) -> dict[str, Any]:
    """AllenNLP's Elmo with one even mix, batch by batch into HDF5, as scripts did."""
    import h5py
    import huggingface_hub

    for name in ("HfFolder", "Repository"):  # AllenNLP 2.10.1 imports these names, which are gone
        setattr(huggingface_hub, name, getattr(huggingface_hub, name, type(name, (), {})))
    import torch
    from transformers.utils import is_torchvision_available

    if not is_torchvision_available():  # AllenNLP's image models, never used here, import it
        for name in ("torchvision", "torchvision.ops", "torchvision.ops.boxes"):
            sys.modules[name] = types.ModuleType(name)
    from allennlp.modules.elmo import Elmo, batch_to_ids

    imports = resident("VmRSS")
    options, weights = (os.path.join(folder, name) for name in ("options.json", "weights.hdf5"))
    elmo = Elmo(options, weights, num_output_representations=1, dropout=0.0, requires_grad=False).eval()
    sentences = [line.split() for line in Path(text).read_text(encoding="utf-8").splitlines()]
    begun = time.perf_counter()
    with torch.no_grad(), h5py.File(output, "w") as file:
        for start in range(0, len(sentences), 32):
            batch = sentences[start : start + 32]
            found = elmo(batch_to_ids(batch))["elmo_representations"][0].numpy()
            for number, (row, sentence) in enumerate(zip(found, batch, strict=True), start):
                file.create_dataset(str(number), data=row[: len(sentence)], dtype="float32")
    return _peer(begun, sum(map(len, sentences)), imports, Path(output), "allennlp", "torch", "h5py")


def child_simple_elmo(folder: str, text: str, output: str) -> dict[str, Any]:
    """simple_elmo on the whole list, as its documentation shows it."""
    os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")
    import numpy as np
    import tensorflow
    from simple_elmo import ElmoModel

    assert tensorflow
    imports = resident("VmRSS")
    model = ElmoModel()
    model.load(folder, max_batch_size=32, limit=10**6)
    sentences = [line.split() for line in Path(text).read_text(encoding="utf-8").splitlines()]
    begun = time.perf_counter()
    np.save(output, model.get_elmo_vectors(sentences, warmup=False, layers="average"))
    return _peer(begun, sum(map(len, sentences)), imports, Path(output), "simple_elmo", "tensorflow", "numpy")


def _peer(begun: float, tokens: int, imports: int, output: Path, *packages: str) -> dict[str, Any]:
    seconds = time.perf_counter() - begun
    return {
        "tokens": tokens,
        "seconds": seconds,
        "rate": tokens / seconds,
        "imports": imports,
        "added": resident("VmHWM") - imports,
        "bytes": size_on_disk(output),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def run(python: str, name: str, *arguments: object) -> dict[str, Any]:
    """A child of this script in a process of its own."""
    command = [python, str(HERE), "child", name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    line = f"{name} {Path(str(arguments[-1])).name}: {result['rate']:,.0f} tokens/s"
    if "added" in result:
        line += f", {result['added'] / 1e6:,.0f} MB above the imports, {result['bytes'] / 1e6:,.1f} MB on disk"
    print(line, flush=True)
    return result


def growth(folder: Path, inputs: list[str], tokens: int, slices: int, every: int) -> dict[str, Any]:
    """A long run's memory, and its speed beside that of the computation alone."""
    text, model = folder / "text.txt", folder / "native"
    write_text(inputs, text, tokens=tokens)
    stored = []

    def begin(name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE), "child", name, *map(str, arguments), str(tokens // slices)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(process: subprocess.Popen[str], line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return process.stdout.readline()

    with begin("long_store", model, text, folder / "vectors") as store, begin("long_iterate", model, text) as iterate:
        answer = json.loads(ask(store, ""))
        while "imports" not in answer:
            stored.append(answer)
            if len(stored) <= slices and (len(stored) - 1) % every == 0:
                answer["embed_iter"] = json.loads(ask(iterate, str(len(stored) - 1)))
            print(f"{len(stored)}: {answer}", flush=True)
            answer = json.loads(ask(store, "on"))
        assert iterate.stdin is not None
        iterate.stdin.close()
    stored.append(answer)

    def ratio(of: str) -> float:
        """How much of embed_iter's tokens for each second of that kind."""
        pairs = [(part, part["embed_iter"]) for part in stored if "embed_iter" in part]
        return statistics.median(ours["tokens"] / ours[of] / (pure["tokens"] / pure[of]) for ours, pure in pairs)

    count, seconds = (sum(part[name] for part in stored) for name in ("tokens", "seconds"))
    done = itertools.accumulate(part["tokens"] for part in stored)
    tenth = next(part["rss"] for part, so_far in zip(stored, done, strict=True) if so_far >= 0.99 * tokens / 10)
    found = {
        "tokens": count,
        "seconds": seconds,
        "rate": count / seconds,
        "rss_tenth": tenth,
        "memory_ratio": answer["rss"] / tenth,
        "speed_ratio": ratio("seconds"),
        "processor_ratio": ratio("processor"),
        "slices": stored,
    }
    shown = "resident at the end {memory_ratio:.3f} of that at a tenth; speed {speed_ratio:.3f} of embed_iter's"
    print((shown + " (by the processor's time {processor_ratio:.3f})").format(**found))
    return found


def beside_peers(
    folder: Path,
    inputs: list[str],
    sentences: int,
    peers: str,
    wanted: Sequence[str],
    found: dict[str, Any],
    keep: Callable[[], None],
) -> None:
    """The same sentences by those who are wanted, one after the other, put to what is found; `keep` is called after each."""
    text, model = folder / "text.txt", folder / "native"
    write_text(inputs, text, sentences=sentences)
    calls: dict[str, tuple[object, ...]] = {
        "parquet": (sys.executable, "store", model, text, folder / "vectors", "mean", "float32", "parquet"),
        "hdf5": (sys.executable, "store", model, text, folder / "ours.hdf5", "mean", "float32", "hdf5"),
        "allennlp": (peers, "allennlp", folder / "peer", text, folder / "theirs.hdf5"),
        "simple_elmo": (peers, "simple_elmo", folder / "peer", text, folder / "theirs.npy"),
    }
    for name, (python, *call) in calls.items():
        if name in wanted:
            found[name] = run(str(python), *map(str, call)) | {"sentences": sentences}
            keep()
    for name, ours in itertools.product(("allennlp", "simple_elmo"), ("parquet", "hdf5")):
        if name in found and ours in found:
            time_ratio = found[name]["seconds"] / found[ours]["seconds"]
            memory = found[ours]["added"] / found[name]["added"]
            disk = found[ours]["bytes"] / found[name]["bytes"]
            print(f"{ours} beside {name}: {time_ratio:.2f} times as fast, {memory:.3f} of the memory, {disk:.3f} of the disk")


def about() -> dict[str, Any]:
    """How and where the figures were measured."""
    import pyarrow
    import torch

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {"python": platform.python_version(), "torch": torch.__version__, "pyarrow": pyarrow.__version__}
    machine = f"{cpu[1] if cpu else platform.machine()}, {torch.get_num_threads()} threads"
    return {"command": " ".join(["python", "benchmarks/bench_bulk.py", *sys.argv[1:]]), "machine": machine, "versions": versions}


def main() -> None:
    """Prints figures, and writes them to a file where asked."""
    if sys.argv[1:2] == ["child"]:
        children = {
            "store": child_store,
            "allennlp": child_allennlp,
            "simple_elmo": child_simple_elmo,
        }
        long = {"long_store": child_long_store, "long_iterate": child_long_iterate}
        if sys.argv[2] in long:
            long[sys.argv[2]](*sys.argv[3:])
        else:
            print(json.dumps(children[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = HERE.parent.parent / os.environ.get("POLYSEME_SHARED", "../shared")
    parser.add_argument("what", nargs="?", default="growth", choices=["growth", "peers"])
    parser.add_argument(
        "inputs", nargs="*", default=[str(shared / "data/corpus/*.txt.xz")], help="tokenized text, one sentence a line"
    )
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--slices", type=int, default=20, help="how often the long run halts")
    parser.add_argument("--every", type=int, default=2, help="of how many slices one is computed by embed_iter too")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--only", choices=CONTESTANTS, help="one of the peers' table, anew")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, the versions and the machine")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}

    def keep() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps(about() | {arguments.what: found}, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        if arguments.what == "growth":
            found |= growth(folder, arguments.inputs, arguments.tokens, arguments.slices, arguments.every)
            keep()
            return
        if arguments.out and arguments.out.exists():
            earlier = json.loads(arguments.out.read_text(encoding="utf-8"))["peers"]
            found |= {one: part for one, part in earlier.items() if part["sentences"] == arguments.sentences}
        wanted = [arguments.only] if arguments.only else [one for one in CONTESTANTS if one not in found]
        beside_peers(folder, arguments.inputs, arguments.sentences, arguments.peers, wanted, found, keep)


if __name__ == "__main__":
    main()
