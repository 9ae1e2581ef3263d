"""The table of results: every task with ELMo and without, on freely available data.

    python recipes/paper_table.py --data DATA --elmo en-small            run what is missing, print the table
    python recipes/paper_table.py --data DATA --elmo none --only ner     the baseline of one task
    python recipes/paper_table.py --table                                print the table of what has been run

A cell is one task, with or without ELMo, one seed. Each finished cell is appended at once to results/paper_table.jsonl, its
predictions go to results/paper_table/; a cell that is there already, with the same configuration, is not run again. Cells are
run seed by seed. The configurations are scaled down, so that a cell takes a few minutes on two cores; each says how. With
ELMo and without, a task has the same architecture, epochs and patience, chosen on dev.
"""

import argparse
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_rows import Row, rows
from polyseme.tasks.config import TaskConfig, with_elmo
from polyseme.tasks.fit import fit, mean_and_spread
from polyseme.tasks.inputs import WordVectors

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

RESULTS = Path(__file__).parent / "results" / "paper_table.jsonl"


def cells(rows: Sequence[Row], options: argparse.Namespace, with_elmo: bool) -> Iterator[tuple[Row, bool, int]]:
    """(row, with ELMo, seed), seed by seed."""
    for seed in range(1, options.seeds + 1):
        for row in rows:
            if seed <= row.seeds and (not options.only or row.name.startswith(tuple(options.only))):
                yield from ((row, variant, seed) for variant in row.variants if with_elmo or not variant)


def identity(config: TaskConfig, elmo_hash: str | None) -> str:
    """What decides a cell's numbers: everything but paths."""
    values = replace(config, train="", dev="", test=None, folder="", cache=None, vectors=None).to_dict() | {"elmo": elmo_hash}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def finished(path: Path) -> list[dict[str, Any]]:
    """The results so far; of several for one cell, as after a change of its configuration, the last."""
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list({(line["task"], line["elmo"] is not None, line["seed"]): line for line in lines}.values())


def cell_config(row: Row, elmo_name: str | None, seed: int, data: Path, work: Path) -> TaskConfig:
    """The complete configuration of a cell."""
    files = row.files(data / row.data)
    config = replace(
        row.config,
        train=str(files["train"]),
        dev=str(files["dev"]),
        test=str(files["test"]),
        vectors=None if row.config.inputs.words is None else str(data / "vectors/glove-100d.npz"),
        fit=replace(row.config.fit, seed=seed),
        folder=str(work / f"{row.name}-{'elmo' if elmo_name else 'baseline'}-{seed}"),
        cache=str(work / "cache"),
    )
    return with_elmo(config, elmo_name, place=row.elmo)


def run_cell(
    row: Row, config: TaskConfig, elmo: "Elmo | None", vectors: WordVectors | None, results: Path, report: Callable[[str], None]
) -> dict[str, Any]:
    """Runs one cell, writes its predictions and then its line."""
    started = time.monotonic()
    result = fit(config, elmo=elmo if config.elmo else None, vectors=vectors if config.vectors else None)
    key = identity(config, None if elmo is None or not config.elmo else elmo.hash)
    predictions = results.with_suffix("") / f"{row.name}-{'elmo' if config.elmo else 'baseline'}-{config.fit.seed}-{key}.txt.gz"
    predictions.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(row.write(answer) + "\n" for answer in result.test_answers)
    predictions.write_bytes(gzip.compress(text.encode(), mtime=0))
    metric = result.trained.task.metric
    scores = result.test or {}
    line = {
        "task": row.name,
        "title": row.title,
        "data": row.data,
        "identity": key,
        "elmo": None if result.trained.reference is None else asdict(result.trained.reference),
        "seed": config.fit.seed,
        "metric": metric,
        "dev": result.dev[metric],
        "test": scores[metric],
        "scores": scores,
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        "layer_weights": result.layer_weights,
        "seconds": round(time.monotonic() - started, 1),
        "predictions": predictions.name,
        "config": replace(config, train="", dev="", test=None, folder="", cache=None, vectors=None).to_dict(),
    }
    with results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    report(
        f"{row.name} {'with' if config.elmo else 'without'} ELMo, seed {config.fit.seed}: {metric} test {line['test']:.2f}, "
        f"dev {line['dev']:.2f}, epoch {result.best_epoch} of {len(result.history)}, {line['seconds']:.0f} s"
    )
    return line


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: per task the baseline, the model with ELMo, and what it changes."""
    out = ["| task | seeds | without ELMo | with ELMo | change | errors |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == name]
        parts = {kind: [line for line in own if (line["elmo"] is not None) == kind] for kind in (False, True)}
        shown, means = {}, {}
        for kind, found in parts.items():
            if found:
                mean, spread = mean_and_spread([line["test"] for line in found])
                means[kind] = mean
                shown[kind] = f"{mean:.2f}" + (f" ± {spread:.2f}" if len(found) > 1 else "")
        change = errors = ""
        if len(means) == 2:
            change = f"{means[True] - means[False]:+.2f}"
            errors = f"{100 * (means[False] - means[True]) / (100 - means[False]):+.1f} %"
        counts = sorted({len(found) for found in parts.values() if found})
        seeds = "/".join(map(str, counts)) + ("" if counts[0] >= 3 or own[0]["task"].startswith("pos") else " (fewer than 3)")
        out.append(f"| {own[0]['title']} | {seeds} | {shown.get(False, '')} | {shown.get(True, '')} | {change} | {errors} |")
    return "\n".join(out)


def main() -> None:
    """Runs the missing cells and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with ner/, sentiment/, pos/, vectors/")
    parser.add_argument("--elmo", default="en-small", help="a model for polyseme.load, or none for the baselines alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="TASK", help="rows whose names begin so; several may be given")
    parser.add_argument("--work", type=Path, default=Path("runs/paper_table"), help="task models and cached vectors")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table and stop")
    options = parser.parse_args()
    if not options.table:
        import torch

        import polyseme

        if options.data is None:
            parser.error("--data is needed to run cells; --table prints what has been run.")
        torch.set_num_threads(options.threads)
        elmo = None if options.elmo == "none" else polyseme.load(options.elmo)
        vectors = WordVectors.read(options.data / "vectors/glove-100d.npz")
        done = {line["identity"] for line in finished(options.results)}
        for row, with_it, seed in cells(rows(), options, elmo is not None):
            config = cell_config(row, options.elmo if with_it else None, seed, options.data, options.work)
            if identity(config, elmo.hash if with_it and elmo else None) not in done:
                run_cell(row, config, elmo, vectors, options.results, lambda text: print(text, flush=True))
    lines = finished(options.results)
    print(table(lines) if lines else "No cell has been run.")


if __name__ == "__main__":
    main()
