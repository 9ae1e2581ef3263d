"""The perplexity table: n-gram models and biLMs on the same held-out text, the same vocabulary, the same events.

    python benchmarks/perplexity_table.py --model en-small                exact perplexities of a model, added to the results
    python benchmarks/perplexity_table.py --model RUN/model --state zero
    python benchmarks/perplexity_table.py                                 the whole table as Markdown

Texts are all 19 held-out parts together and wikitext-2 (raw variant, as it is tokenized there). The n-gram lines are those of
results/ngram_table.json (benchmarks/ngram_table.py); those of models are in results/perplexity_table.json, one for each set
of weights and starting state. The tokens a model has seen are taken from its training.json.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from ngram_table import ROOT, processor, sentences

import polyseme
from polyseme.pretraining.handover import start_from
from polyseme.pretraining.perplexity import Likelihood, Scorer
from polyseme.progress import ProgressDisplay

RESULTS = ROOT / "benchmarks" / "results"
DIRECTIONS = ("forward", "backward", "average")


def texts() -> dict[str, list[Path]]:
    """The held-out texts by name."""
    shared = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve() / "data"
    wikitext = shared / "language-model" / "wikitext-2"
    return {
        "held-out": sorted((shared / "corpus" / "heldout").glob("*.txt.xz")),
        "wikitext-2 valid": [wikitext / "valid.txt.xz"],
        "wikitext-2 test": [wikitext / "test.txt.xz"],
    }


def measured(model: str, state: str, *, first: int | None, only: Collection[str] | None = None) -> dict[str, Any]:
    """A line of the results."""
    elmo = polyseme.load(model)
    record = start_from(model).training
    line: dict[str, Any] = {
        "model": elmo.name,
        "hash": elmo.hash,
        "tokens": None if record is None else record["tokens"],
        "state": state,
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    scorer = Scorer(elmo.model, elmo.reader, elmo.vocabulary)
    for name, paths in texts().items():
        if only is not None and name not in only:
            continue
        documents = [list(sentences([path]))[:first] for path in paths]
        began = time.perf_counter()
        with ProgressDisplay(f"{elmo.name}, {state}, {name}", unit="words") as report:
            found = scorer.evaluate(documents, state=state, report=report)  # type: ignore[arg-type]
        line[name] = {**sum(found, Likelihood()).to_dict(), "seconds": round(time.perf_counter() - began, 1)}
    return line


def table(results: Path) -> str:
    """The table as Markdown: perplexities forward, backward, average."""
    names = list(texts())
    lines = ["| model | tokens read | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    for model in json.loads((RESULTS / "ngram_table.json").read_text(encoding="utf-8"))["models"]:
        for order in model["orders"]:
            cells = [f"{order[name]['perplexity_forward']:.1f}" for name in names]
            lines.append(f"| {order['order']}-gram Kneser-Ney | {model['tokens']:,} | " + " | ".join(cells) + " |")
    models = json.loads(results.read_text(encoding="utf-8"))["models"] if results.exists() else []
    for model in sorted(models, key=lambda line: (line["tokens"] or 0, line["state"])):
        cells = [" / ".join(f"{model[name][f'perplexity_{each}']:.1f}" for each in DIRECTIONS) for name in names]
        tokens = "" if model["tokens"] is None else f"{model['tokens']:,}"
        lines.append(f"| {model['model']}, {model['state']} | {tokens} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], help="what polyseme.load takes; may be given several times")
    parser.add_argument("--state", action="append", choices=["warm", "zero", "carry"], help="default: warm")
    parser.add_argument("--first", type=int, help="only so many sentences of each part, to try the script")
    parser.add_argument("--output", type=Path, default=RESULTS / "perplexity_table.json")
    options = parser.parse_args()
    for model, state in ((model, state) for model in options.model for state in options.state or ["warm"]):
        line = measured(model, state, first=options.first)
        known = json.loads(options.output.read_text(encoding="utf-8"))["models"] if options.output.exists() else []
        kept = [other for other in known if (other["hash"], other["state"]) != (line["hash"], line["state"])]
        found = {"command": "python benchmarks/perplexity_table.py --model MODEL --state STATE", "models": [*kept, line]}
        beside = options.output.with_suffix(".partial")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(options.output)
    print(table(options.output))


if __name__ == "__main__":
    main()
