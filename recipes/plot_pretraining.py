"""Held-out perplexity over the tokens a pretraining run has read, drawn from its log.

    python recipes/plot_pretraining.py RUN [RUN ...] --out docs/pretraining.svg

RUN is a folder that `polyseme pretrain --heldout TEXT` wrote. Both directions and their geometric mean are drawn, of several
runs the means alone.
"""

import argparse
import json
import os
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

DIRECTIONS = {"forward": "--", "backward": ":", "average": "-"}


def curves(run: Path) -> dict[str, list[tuple[float, float]]]:
    """For each direction pairs of million tokens and perplexity. A run that was resumed may have measured a place twice."""
    found: dict[str, dict[int, float]] = {direction: {} for direction in DIRECTIONS}
    for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off where a process was killed
        for direction, points in found.items():
            value = record.get(f"heldout_perplexity_{direction}")
            if value is not None:
                points[record["tokens"]] = value
    if not found["average"]:
        raise SystemExit(f"{run}/log.jsonl holds no held-out perplexity; train with --heldout TEXT")
    return {direction: [(tokens / 1e6, points[tokens]) for tokens in sorted(points)] for direction, points in found.items()}


def main() -> None:
    """Draws the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pretraining.svg"))
    options = parser.parse_args()
    rcParams["svg.hashsalt"] = "polyseme"  # the same numbers give the same file
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for run in options.runs:
        found = curves(run)
        for direction, style in DIRECTIONS.items():
            if direction == "average" or len(options.runs) == 1:
                label = direction if len(options.runs) == 1 else run.name
                axes.plot(*zip(*found[direction], strict=True), style, marker=".", markersize=4, linewidth=1.2, label=label)
        tokens, perplexity = found["average"][-1]
        axes.annotate(f"{perplexity:.0f}", (tokens, perplexity), textcoords="offset points", xytext=(4, 6))
        print(f"{run.name}: {perplexity:.1f} after {tokens:.1f} million tokens")
    axes.set_yscale("log")
    ticks = [50, 100, 200, 500, 1000, 2000, 5000]
    low, high = axes.get_ylim()
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low, high)
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("held-out perplexity")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    beside = options.out.with_name(f".{options.out.name}.{os.getpid()}")
    figure.savefig(
        beside, format=options.out.suffix.lstrip("."), metadata={"Date": None} if options.out.suffix == ".svg" else None
    )
    beside.replace(options.out)


if __name__ == "__main__":
    main()
