"""What fine-tuning gains: a model's held-out perplexity on one domain before and after, and what it costs elsewhere.

    python benchmarks/fine_tune.py --model en-small --domain techdocs --scratch FOLDER

Four lines, each exact perplexity over all tokens, with the model's own vocabulary, so that they compare:

    before         the model as it is
    fresh softmax  its body alone, from an HDF5 file, with a new softmax; only that moves in the first --freeze-steps
    own softmax    the model with its softmax
    from scratch   new weights, the same configuration but for its rate, the same text

each after the same number of tokens of the domain's training text. "Elsewhere" is all other held-out parts together. The result
goes to benchmarks/results/fine_tune.json, one entry for each domain.
"""

import argparse
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from ngram_table import ROOT, processor, sentences

import polyseme
from polyseme.elmo import Elmo
from polyseme.pretraining.config import PretrainConfig, en_small
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.handover import Start, start_from
from polyseme.pretraining.loop import pretrain
from polyseme.pretraining.perplexity import Likelihood, Scorer
from polyseme.progress import ProgressDisplay


def perplexities(elmo: Elmo, texts: dict[str, list[Path]], first: int | None) -> dict[str, dict]:
    """What the model makes of each group of files."""
    scorer = Scorer(elmo.model, elmo.reader, elmo.vocabulary)
    found = {}
    for name, paths in texts.items():
        with ProgressDisplay(name, unit="words") as report:
            parts = scorer.evaluate([list(sentences([path]))[:first] for path in paths], report=report)
        found[name] = sum(parts, Likelihood()).to_dict()
    return found


def trained(config: PretrainConfig, corpus: Corpus, start: Start | None, elmo: Elmo, folder: Path, frozen: int) -> Elmo:
    """A model after its run."""
    with ProgressDisplay(folder.name, unit="tokens", interval=60.0) as report:
        outcome = pretrain(config, corpus, folder, start=start, vocabulary=elmo.vocabulary, freeze_steps=frozen, report=report)
    assert outcome.model is not None
    return polyseme.load(outcome.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--domain", default="techdocs", help="a source of the corpus")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--freeze-steps", type=int, default=150)
    parser.add_argument("--first", type=int, help="only so many sentences of each held-out part")
    parser.add_argument("--only", action="append", choices=["fresh softmax", "own softmax", "from scratch"], help="default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "fine_tune.json")
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    data = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve() / "data" / "corpus"
    own = data / "heldout" / f"{options.domain}.txt.xz"
    texts = {options.domain: [own], "elsewhere": [path for path in sorted(own.parent.glob("*.txt.xz")) if path != own]}
    corpus = Corpus.from_sentences(sentences([data / own.name]))
    elmo = polyseme.load(options.model)
    assert elmo.vocabulary is not None
    scratch = options.scratch / f"fine_tune-{options.domain}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    polyseme.convert(options.model, scratch / "body.hdf5")
    fresh = start_from(scratch / "body.hdf5", vocabulary=corpus.counted(elmo.vocabulary))
    assert fresh.fresh
    kept = replace(start_from(options.model), training=None)  # the text is another one: its schedule begins anew
    recipe = en_small()
    optimizer = replace(recipe.optimizer, learning_rate=options.rate, warmup_steps=50)
    config = replace(recipe, model=kept.model.config, tokens=options.tokens, optimizer=optimizer)
    ordinary = replace(config, optimizer=replace(optimizer, learning_rate=recipe.optimizer.learning_rate))
    runs: dict[str, tuple[PretrainConfig, Start | None, int]] = {
        "fresh softmax": (config, fresh, options.freeze_steps),
        "own softmax": (config, kept, 0),
        "from scratch": (ordinary, None, 0),
    }
    lines = {"before": perplexities(elmo, texts, options.first)}
    for name, (chosen, start, frozen) in runs.items():
        if options.only is None or name in options.only:
            after = trained(chosen, corpus, start, elmo, scratch / name.replace(" ", "-"), frozen)
            lines[name] = perplexities(after, texts, options.first)
            print(name, json.dumps(lines[name]), flush=True)
    found = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    found[options.domain] = {
        "command": f"python benchmarks/fine_tune.py --model {options.model} --domain {options.domain} --scratch FOLDER "
        f"--tokens {options.tokens} --rate {options.rate} --freeze-steps {options.freeze_steps}"
        + ("" if options.first is None else f" --first {options.first}"),
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "hash": elmo.hash,
        "corpus_tokens": len(corpus.tokens),
        "lines": lines,
    }
    beside = options.output.with_suffix(".partial")
    beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    beside.replace(options.output)
    print(f"| {options.domain} | forward | backward | average | elsewhere |\n|---|---|---|---|---|")
    for name, line in lines.items():
        cells = " | ".join(f"{line[options.domain][f'perplexity_{each}']:.1f}" for each in ("forward", "backward", "average"))
        print(f"| {name} | {cells} | {line['elsewhere']['perplexity_average']:.1f} |")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
