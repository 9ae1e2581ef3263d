"""Kneser-Ney models of order 1 to 5 on the English corpus: the baseline of the perplexity table.

    python benchmarks/ngram_table.py --scratch FOLDER --tokens 50e6 --tokens 20e6 --tokens 10e6

The vocabulary is the 50,000 most frequent words of the whole corpus, markers included; nothing is pruned; events are the words,
<UNK> and </S>. Each model is asked about all 19 held-out parts together and about wikitext-2 (raw variant, as it is
tokenized there). A number of tokens stands for a random sample of the corpus's sentences, of about that size. The results
go to benchmarks/results/ngram_table.json. Counts stay in the scratch folder, and a later run goes on with those it finds there.
"""

import argparse
import json
import os
import platform
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy

from polyseme.pretraining.ngram import NgramModel, train
from polyseme.progress import ProgressDisplay
from polyseme.sources import Reader
from polyseme.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parent.parent
MARKERS = ("<S>", "</S>", "<UNK>")


def sentences(paths: list[Path], *, share: float = 1.0, seed: int = 1) -> Iterator[list[str]]:
    """The sentences of tokenized files, or a random share of them; wikitext-2 has some blanks too many."""
    draw = random.Random(seed).random
    for block in Reader(paths).sentences(lambda line: [line.split()]):
        for sentence in block.sentences:
            if share >= 1 or draw() < share:
                yield sentence


def vocabulary_of(paths: list[Path], size: int) -> tuple[Vocabulary, int]:
    """The most frequent words, equal counts in code point order, and the number of tokens."""
    counts: Counter[str] = Counter()
    for sentence in sentences(paths):
        counts.update(sentence)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary([*MARKERS, *[word for word in frequent if word not in MARKERS][: size - 3]]), counts.total()


def overlap(texts: dict[str, list[Path]], corpus: list[Path], size: int = 12) -> dict[str, dict[str, int]]:
    """How many of each text's sentence beginnings of so many words begin a sentence of the corpus too.

    A text of paragraphs is cut at periods. Texts tokenized in different ways share fewer than they would.
    """
    wanted: dict[str, set[tuple[str, ...]]] = {}
    for name, paths in texts.items():
        pieces = (piece.split() for line in sentences(paths) for piece in " ".join(line).split(" . "))
        wanted[name] = {tuple(words[:size]) for words in pieces if len(words) > size}
    anywhere = set().union(*wanted.values())
    found = {start for sentence in sentences(corpus) if (start := tuple(sentence[:size])) in anywhere}
    return {name: {"beginnings": len(starts), "in the corpus": len(starts & found)} for name, starts in wanted.items()}


def row(model: NgramModel, texts: dict[str, list[Path]]) -> dict[str, object]:
    """One line of the table."""
    found: dict[str, object] = {"order": model.order, "entries": list(model.entries)}
    found["discounts"] = [list(discounts.values) for discounts in model.discounts]
    found["discounts_estimated"] = [discounts.estimated for discounts in model.discounts]
    for name, paths in texts.items():
        found[name] = model.evaluate(sentences(paths)).to_dict()
    return found


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scratch", type=Path, required=True, help="where counts are kept: about 40 bytes a token while counting"
    )
    parser.add_argument(
        "--tokens", type=float, action="append", default=[], help="also train on a sample of about so many tokens"
    )
    parser.add_argument("--memory", type=float, default=2.0, help="GB for sorting")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "ngram_table.json")
    arguments = parser.parse_args()
    shared = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve() / "data"
    corpus = sorted((shared / "corpus").glob("*.txt.xz"))
    texts = {
        "held-out": sorted((shared / "corpus" / "heldout").glob("*.txt.xz")),
        "wikitext-2 valid": [shared / "language-model" / "wikitext-2" / "valid.txt.xz"],
        "wikitext-2 test": [shared / "language-model" / "wikitext-2" / "test.txt.xz"],
    }
    vocabulary, total = vocabulary_of(corpus, 50_000)
    options = " ".join(f"--tokens {tokens:g}" for tokens in arguments.tokens)
    table: dict[str, object] = {
        "command": f"python benchmarks/ngram_table.py --scratch FOLDER {options}".strip(),
        "machine": f"{processor()}, one core",
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__},
        "vocabulary": len(vocabulary),
        "overlap": overlap(texts, corpus),
        "models": (models := []),
    }
    for wanted in sorted([*arguments.tokens, total]):  # the least first: something is known soon, and memory's peak grows
        share = wanted / total
        folder = arguments.scratch / f"counts-{wanted:.0f}"
        begun = time.process_time()
        cost = folder.with_suffix(".json")
        if folder.exists() and cost.exists():
            model = NgramModel(folder)
        else:
            with ProgressDisplay(f"{wanted:.3g} tokens", unit="items") as report:
                model = train(
                    sentences(corpus, share=share),
                    vocabulary,
                    folder,
                    memory=int(arguments.memory * 1e9),
                    overwrite=True,
                    report=report,
                )
            spent = {
                "processor_seconds_to_train": round(time.process_time() - begun),
                "peak_bytes_in_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            cost.write_text(json.dumps(spent), encoding="utf-8")
        models.append(
            {
                "text": "the whole corpus" if share >= 1 else f"a random sample of sentences, seed 1, share {share:.4f}",
                "tokens": model.words,
                "sentences": model.sentences,
                **json.loads(cost.read_text(encoding="utf-8")),
                "bytes_on_disk": sum(path.stat().st_size for path in folder.iterdir()),
                "orders": [row(NgramModel(folder, order=order), texts) for order in range(1, 6)],
            }
        )
        for line in models[-1]["orders"]:
            print(f"{model.words:,} tokens, order {line['order']}: {line['held-out']['perplexity_forward']:.2f}", file=sys.stderr)
        beside = arguments.output.with_suffix(".partial")
        beside.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        beside.replace(arguments.output)


if __name__ == "__main__":
    main()
