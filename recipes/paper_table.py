"""The table of results: every task with ELMo and without, on freely available data.

    python recipes/paper_table.py --data DATA --elmo en-small            run what is missing, print the table
    python recipes/paper_table.py --data DATA --elmo none --only ner     the baseline of one task
    python recipes/paper_table.py --table                                print the table of what has been run

A cell is one task, with or without ELMo, one seed; recipes/paper_rows.py holds their configurations. Cells are run seed by
seed, each in one of --jobs processes. A finished cell is appended at once to results/paper_table.jsonl, its predictions go to
results/paper_table/; a cell that is there already, with the same configuration, is not run again, and one that was
interrupted goes on with its next epoch. Two figures are drawn beside the table: the layers' shares in each task's mix, and
the scores by share of the training data.
"""

import argparse
import gzip
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paper_rows
from paper_rows import Row, Tools
from paper_senses import SenseRow, sense_table
from polyseme.tasks.fit import mean_and_spread
from polyseme.tasks.inputs import WordVectors

RESULTS = Path(__file__).parent / "results" / "paper_table.jsonl"
Cell = tuple[str, bool, int]  # the row's name, with ELMo or not, the seed


def rows() -> dict[str, Row | SenseRow]:
    """All rows by name, in the order of the table."""
    return {row.name: row for row in [*paper_rows.rows(), SenseRow()]}


def finished(path: Path) -> list[dict[str, Any]]:
    """The results so far; of several for one cell, as after a change of its configuration, the last."""
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list({(line["task"], line["elmo"] is not None, line["seed"]): line for line in lines}.values())


def missing(options: argparse.Namespace, elmo_hash: str | None) -> list[Cell]:
    """The cells still to be run, seed by seed."""
    done = {line["identity"] for line in finished(options.results)}
    found = []
    for seed in range(1, options.seeds + 1):
        for row in rows().values():
            if seed <= row.seeds and (not options.only or row.name.startswith(tuple(options.only))):
                for with_it in row.variants:
                    used = elmo_hash if with_it else None
                    if with_it <= (elmo_hash is not None) and row.identity(used, seed) not in done:
                        found.append((row.name, with_it, seed))
    return found


_TOOLS: Tools | None = None  # of a process that runs cells


def prepare(options: argparse.Namespace) -> None:
    """Loads what all cells of this process need."""
    import torch

    import polyseme

    global _TOOLS
    torch.set_num_threads(options.threads)
    elmo = None if options.elmo == "none" else polyseme.load(options.elmo)
    vectors = WordVectors.read(options.data / "vectors/glove-100d.npz")
    _TOOLS = Tools(elmo, options.elmo, vectors, options.data, options.work)


def run(cell: Cell) -> tuple[dict[str, Any], list[str]]:
    """One cell's line and predictions."""
    assert _TOOLS is not None
    name, with_it, seed = cell
    row = rows()[name]
    started = time.monotonic()
    values, predictions = row.run(_TOOLS, with_it=with_it, seed=seed)
    key = row.identity(_TOOLS.elmo.hash if with_it and _TOOLS.elmo else None, seed)
    line = {"task": name, "title": row.title, "data": row.data, "identity": key, "seed": seed, **values}
    line["seconds"] = round(time.monotonic() - started, 1)
    line["predictions"] = f"{name}-{'elmo' if with_it else 'baseline'}-{seed}-{key}.txt.gz"
    return line, predictions


def outcomes(cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The cells' results as they come."""
    if options.jobs == 1:
        prepare(options)
        yield from map(run, cells)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(options.jobs, len(cells)), prepare, (options,)) as pool:
        yield from pool.imap_unordered(run, cells)


def append(results: Path, line: dict[str, Any], predictions: Iterable[str]) -> None:
    """Writes a cell's predictions and then its line."""
    place = results.with_suffix("") / line["predictions"]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress("".join(text + "\n" for text in predictions).encode(), mtime=0))
    with results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def predictions_of(line: dict[str, Any], results: Path) -> list[str]:
    """What `append` wrote of a cell's answers."""
    return gzip.decompress((results.with_suffix("") / line["predictions"]).read_bytes()).decode().split("\n")[:-1]


def progress(line: dict[str, Any], number: int, count: int) -> str:
    """A line for a finished cell."""
    epochs = f", epoch {line['best_epoch']} of {line['epochs']}" if "epochs" in line else ""
    return (
        f"[{number}/{count}] {line['task']} {'without' if line['elmo'] is None else 'with'} ELMo, seed {line['seed']}: "
        f"{line['metric']} test {line['test']:.2f}, dev {line['dev']:.2f}{epochs}, {line['seconds']:.0f} s"
    )


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: per task the baseline, the model with ELMo, and what it changes; then layers and senses."""
    out = ["| task | seeds | without ELMo | with ELMo | change | errors |", "|---|---|---|---|---|---|"]
    known = rows()
    names = sorted({line["task"] for line in lines}, key=lambda name: [*known, name].index(name))
    for name in names:
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
        wanted = known[name].seeds if name in known else 3
        counts = sorted({len(found) for found in parts.values() if found})
        seeds = "/".join(map(str, counts)) + ("" if counts[0] >= wanted else f" (fewer than {wanted})")
        out.append(f"| {own[0]['title']} | {seeds} | {shown.get(False, '')} | {shown.get(True, '')} | {change} | {errors} |")
    weights = mean_weights(lines)
    if weights:
        out += ["", "| layers' shares | token | lstm1 | lstm2 | gamma |", "|---|---|---|---|---|"]
        for name, places in weights.items():
            for place, values in places.items():
                out.append(f"| {name}, {place} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    senses = [line for line in lines if "layers" in line]
    return "\n".join(out) + ("\n\n" + sense_table(senses) if senses else "")


def mean_weights(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """For each task with learned mixes the layers' shares and gamma of each place, averaged over the seeds."""
    known = rows()
    found: dict[str, dict[str, list[list[float]]]] = {}
    for line in sorted(lines, key=lambda line: [*known, line["task"]].index(line["task"])):
        if line["layer_weights"] and line["config"]["inputs"]["elmo"]["mix"] == "learned":
            for place, values in line["layer_weights"].items():
                found.setdefault(line["task"], {}).setdefault(place, []).append(values)
    return {
        name: {place: [sum(column) / len(runs) for column in zip(*runs, strict=True)] for place, runs in places.items()}
        for name, places in found.items()
    }


def draw(lines: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """The figures: layers' shares by task, and scores by share of the training data."""
    from matplotlib.figure import Figure

    from polyseme.tasks.charts import write_layer_chart

    drawn = []
    weights = mean_weights(lines)
    if weights:
        drawn.append(folder / "paper_table_layers.png")
        write_layer_chart(weights, drawn[-1])
    # A row of a share is named after the whole one: sst5-0.1.
    points: dict[str, dict[bool, dict[float, list[float]]]] = {}
    for line in lines:
        share = line.get("config", {}).get("fit", {}).get("share")
        name = line["task"].removesuffix(f"-{share}")
        if share is not None and (share == 1) == (name == line["task"]):
            kinds = points.setdefault(name, {False: {}, True: {}})
            kinds[line["elmo"] is not None].setdefault(share, []).append(line["test"])
    points = {name: kinds for name, kinds in points.items() if any(len(by_share) > 1 for by_share in kinds.values())}
    if points:
        titles = {line["task"]: line["title"] for line in lines}
        figure = Figure(figsize=(4.5 * len(points), 3.2), layout="constrained")
        for axes, (name, kinds) in zip(figure.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True):
            for kind, by_share in kinds.items():
                found = sorted((share, *mean_and_spread(values)) for share, values in by_share.items())
                axes.errorbar(
                    [100 * share for share, _, _ in found],
                    [mean for _, mean, _ in found],
                    [spread for _, _, spread in found],
                    marker="o",
                    capsize=3,
                    label=f"with{'' if kind else 'out'} ELMo",
                )
            axes.set_xscale("log")
            axes.set_xticks([1, 10, 100], ["1 %", "10 %", "100 %"])
            axes.set_xlabel("of the training data")
            axes.set_title(titles.get(name, name), fontsize=10)
            axes.legend(frameon=False)
        drawn.append(folder / "paper_table_shares.png")
        figure.savefig(drawn[-1], dpi=150)
    return drawn


def main() -> None:
    """Runs the missing cells and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with ner/, sentiment/, pos/, senses/, vectors/")
    parser.add_argument("--elmo", default="en-small", help="a model for polyseme.load, or none for the baselines alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="TASK", help="rows whose names begin so; several may be given")
    parser.add_argument("--work", type=Path, default=Path("runs/paper_table"), help="task models and cached vectors")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time; a process of --threads threads each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table and stop")
    options = parser.parse_args()
    if not options.table:
        import polyseme

        if options.data is None:
            parser.error("--data is needed to run cells; --table prints what has been run.")
        cells = missing(options, None if options.elmo == "none" else polyseme.load(options.elmo).hash)
        print(f"{len(cells)} cells to run", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end with this one
        for number, (line, predictions) in enumerate(outcomes(cells, options) if cells else (), 1):
            append(options.results, line, predictions)
            print(progress(line, number, len(cells)), flush=True)
    lines = finished(options.results)
    print(table(lines) if lines else "No cell has been run.")
    for path in draw(lines, options.results.parent):
        print(path)


if __name__ == "__main__":
    main()
