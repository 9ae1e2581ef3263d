"""What is lost when a run goes on from its exported model alone, instead of from its checkpoint.

    python benchmarks/pretrain_handover.py RUN CORPUS HELDOUT --scratch FOLDER [--more 500000]

RUN is a finished run of `polyseme pretrain`, with its checkpoint and its model. Two runs go on from there, over the same text and
along a cosine made twice as long, so that the rate is one at which weights still move: from the checkpoint, and from the model
with its numbers rounded to 16 bits, as the bundled model is stored.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.handover import Start, copy_model, start_from
from polyseme.pretraining.loop import pretrain

RESULTS = Path(__file__).parent / "results" / "pretrain_handover.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("heldout")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--more", type=int, default=500_000)
    options = parser.parse_args()
    corpus, heldout = Corpus.open(options.corpus), Corpus.open(options.heldout)
    recipe = PretrainConfig.from_json((options.run / "config.json").read_text(encoding="utf-8"))
    config = replace(recipe, tokens=2 * recipe.tokens)
    command = f"python benchmarks/pretrain_handover.py RUN CORPUS HELDOUT --scratch FOLDER --more {options.more}"
    found: dict[str, object] = {"command": command, "tokens_before": recipe.tokens}

    def measure(name: str, folder: Path, start: Start | None) -> None:
        outcome = pretrain(
            config, corpus, folder, start=start, heldout=heldout, evaluate_every=10**9, evaluate_tokens=200_000,
            max_tokens=recipe.tokens + options.more, log_every=10,
        )  # fmt: skip
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()[-20:]]
        after = [line for line in lines if line.get("tokens", 0) > recipe.tokens and "sampled_loss" in line]
        losses = {line["tokens"]: round(line["sampled_loss"], 4) for line in after}
        found[name] = {**{key: round(value, 2) for key, value in outcome.heldout.items()}, "sampled_loss": losses}
        print(name, found[name], flush=True)
        shutil.rmtree(folder)

    shutil.copytree(options.run, options.scratch / "checkpoint")
    measure("from the checkpoint", options.scratch / "checkpoint", None)
    copy_model(options.run / "model", options.scratch / "model", dtype="float16")
    measure("from the model", options.scratch / "model run", start_from(options.scratch / "model"))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
