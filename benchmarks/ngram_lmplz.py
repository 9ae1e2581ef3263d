"""Our 5-gram model and KenLM's lmplz on the same sample of the English corpus: perplexity on the held-out parts, side by side.

    POLYSEME_KENLM=FOLDER python benchmarks/ngram_lmplz.py --scratch FOLDER --tokens 10e6

POLYSEME_KENLM names the folder with KenLM's lmplz, build_binary and query, built from the source package `kenlm` 0.3.0. To lmplz,
which refuses `<unk>` in its input, our <UNK> is spelled @UNK@; its own `<unk>` never occurs, and to us it is one more word that
never occurs. The result goes to benchmarks/results/ngram_lmplz.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ngram_table import ROOT, sentences, vocabulary_of

from polyseme.pretraining.ngram import NgramModel, train
from polyseme.vocabulary import Vocabulary

PROGRAMS = ("lmplz", "build_binary", "query")


def kenlm(text: Path, test: Path, scratch: Path, programs: dict[str, str], order: int) -> float:
    """KenLM's perplexity."""
    arpa, binary = scratch / "arpa", scratch / "binary"
    command = [
        programs["lmplz"],
        "-o",
        str(order),
        "--discount_fallback",
        "-S",
        "2G",
        "-T",
        scratch,
        "--text",
        text,
        "--arpa",
        arpa,
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(
        [programs["build_binary"], "trie", arpa, binary], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    arpa.unlink()
    with open(test, "rb") as lines:
        said = subprocess.run(
            [programs["query"], "-v", "summary", binary], stdin=lines, check=True, capture_output=True, text=True
        ).stdout
    binary.unlink()
    return float(next(line for line in said.splitlines() if line.startswith("Perplexity including OOVs")).split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True, help="where text, counts and KenLM's files are kept meanwhile")
    parser.add_argument("--tokens", type=float, default=10e6, help="size of the random sample of sentences")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "ngram_lmplz.json")
    arguments = parser.parse_args()
    found = {name: shutil.which(name, path=os.environ.get("POLYSEME_KENLM")) for name in PROGRAMS}
    programs = {name: path for name, path in found.items() if path is not None}
    if len(programs) < len(PROGRAMS):
        sys.exit(f"skipped: KenLM's {', '.join(PROGRAMS)} are not here; set POLYSEME_KENLM to the folder that holds them.")
    shared = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve() / "data" / "corpus"
    corpus, held_out = sorted(shared.glob("*.txt.xz")), sorted((shared / "heldout").glob("*.txt.xz"))
    frequent, total = vocabulary_of(corpus, 50_000)
    vocabulary = Vocabulary([*frequent.words, "\x01never"])
    share = arguments.tokens / total
    scratch = arguments.scratch / "ngram_lmplz"
    scratch.mkdir(parents=True, exist_ok=True)
    text, test = scratch / "text", scratch / "test"
    for path, source in ((text, sentences(corpus, share=share)), (test, sentences(held_out))):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(" ".join([w if w in vocabulary else "@UNK@" for w in words]) + "\n" for words in source)
    theirs = kenlm(text, test, scratch, programs, arguments.order)
    train(sentences(corpus, share=share), vocabulary, scratch / "counts", order=arguments.order, overwrite=True)
    model = NgramModel(scratch / "counts")
    ours = model.evaluate(sentences(held_out)).perplexity()
    shutil.rmtree(scratch)
    result = {
        "command": f"python benchmarks/ngram_lmplz.py --scratch FOLDER --tokens {arguments.tokens:g} --order {arguments.order}",
        "tokens": model.words,
        "perplexity": ours,
        "perplexity_kenlm": theirs,
    }
    print(json.dumps(result, indent=1))
    beside = arguments.output.with_suffix(".partial")
    beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    beside.replace(arguments.output)


if __name__ == "__main__":
    main()
