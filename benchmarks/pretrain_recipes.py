"""Optimizers, rates, batches and starts for the model en-small, compared after equally many tokens.

    python benchmarks/pretrain_recipes.py CORPUS HELDOUT --scratch FOLDER [--tokens 1000000] [--only NAME]

CORPUS and HELDOUT were written by `polyseme prepare`. Every recipe reads the same sentences in the same order; what counts is
the full-softmax perplexity of the held-out text at the end. A finished recipe is not run again: its line stands in
results/pretrain_recipes.json, which is written after each.
"""

import argparse
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from polyseme.pretraining.config import OptimizerConfig, PretrainConfig, en_small
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.loop import pretrain
from polyseme.progress import ProgressDisplay

RESULTS = Path(__file__).parent / "results" / "pretrain_recipes.json"


def adamw(rate: float, **changes: object) -> PretrainConfig:
    """en-small under AdamW with a short warm-up and a cosine."""
    optimizer = replace(en_small().optimizer, learning_rate=rate, warmup_steps=50)
    return replace(en_small(), optimizer=optimizer, **changes)  # type: ignore


def adagrad(rate: float, *, dropout: float) -> PretrainConfig:
    """en-small as bilm-tf trains, but in bfloat16."""
    return replace(en_small(), optimizer=OptimizerConfig(learning_rate=rate), loss_scale=20.0, dropout=dropout)


RECIPES = {
    "adamw 0.004": adamw(0.004),
    "adamw 0.008": adamw(0.008),
    "adamw 0.002": adamw(0.002),
    "adamw 0.004, 64 rows": adamw(0.004, rows=64),
    "adamw 0.004, softmax as bilm-tf starts it": adamw(0.004, start="bilm_tf"),
    "adagrad 0.2": adagrad(0.2, dropout=0.0),
    "adagrad 0.2, dropout 0.1, softmax as bilm-tf starts it": replace(adagrad(0.2, dropout=0.1), start="bilm_tf"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("heldout")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    corpus, heldout = Corpus.open(options.corpus), Corpus.open(options.heldout)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"command": "", "recipes": {}}
    found["command"] = f"python benchmarks/pretrain_recipes.py CORPUS HELDOUT --scratch FOLDER --tokens {options.tokens}"
    for name in options.only or RECIPES:
        if found["recipes"].get(name, {}).get("tokens", 0) >= options.tokens:
            continue
        folder = options.scratch / name.replace(" ", "_").replace(",", "")
        with ProgressDisplay(name, unit="tokens", interval=60.0) as report:
            outcome = pretrain(
                replace(RECIPES[name], tokens=options.tokens),
                corpus,
                folder,
                heldout=heldout,
                evaluate_every=10**9,
                report=report,
            )
        shutil.rmtree(folder)
        line = {key: round(value, 1) for key, value in outcome.heldout.items()} | {"tokens": outcome.tokens}
        found["recipes"][name] = line
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name:40} {line}")


if __name__ == "__main__":
    main()
