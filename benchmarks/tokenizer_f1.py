"""Token and sentence F1 of the penn tokenizer on UD English-EWT, by places in the text; and its speed in processor time.

    python benchmarks/tokenizer_f1.py ../shared/data/pos/ud-ewt --out benchmarks/results/tokenizer_f1.json

Raw text is the `# text` lines; gold tokens are the words, and of a multiword token (don't) its words where they spell it
(do, n't). For sentences, those of a document are joined, by a space within a paragraph and an empty line between paragraphs,
and have to be found again. Many of EWT's paragraphs hold letter heads and lists on one line, which nothing in the text ends.

Every stretch of text that is cut differently counts for the first of KINDS that it shows, by the tokens only one of both has.
"""

import argparse
import json
import lzma
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from polyseme.text import split_sentences, tokenizer

#: What is cut differently, told from the text of the stretch.
KINDS = {
    "addresses and file names": r"@|www|http|\.(com|org|net|edu|gov)\b|\.(doc|xls|pdf|html?|jpg)",
    "words written together": r"^[A-Za-z]+$",
    "slashes": r"/",
    "hyphens inside words": r"\w[-–]\w",
    "apostrophes": r"['’`]",
    "units": r"^\d[\d.,:]*[A-Za-z]+\.?$",
    "abbreviations": r"^[\w.&]+\.$",
    "signs and single cases": r"",
}


def differences(text: str, mine: set[tuple[int, int]], gold: set[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Every stretch of the text that is cut differently: its kind, and how many tokens only one of both has there."""
    stretches: list[list[int]] = []
    for start, end in sorted(mine ^ gold):
        if stretches and start < stretches[-1][1]:
            stretches[-1] = [stretches[-1][0], max(stretches[-1][1], end), stretches[-1][2] + 1]
        else:
            stretches.append([start, end, 1])
    for start, end, count in stretches:
        yield next(kind for kind, pattern in KINDS.items() if re.search(pattern, text[start:end])), count


def sentences(path: Path) -> Iterator[tuple[str, str, list[tuple[int, int]]]]:
    """Of every sentence of a CoNLL-U file: what begins here (doc, par or nothing), the text, the places of its tokens."""
    begins, text, rows = "", "", []
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line.startswith("# newdoc"):
                begins = "doc"
            elif line.startswith("# newpar"):
                begins = begins or "par"
            elif line.startswith("# text = "):
                text = line.removeprefix("# text = ")
            elif line and not line.startswith("#"):
                rows.append(line.split("\t")[:2])
            elif not line and rows:
                yield begins, text, _places(text, rows)
                begins, text, rows = "", "", []


def _places(text: str, rows: list[list[str]]) -> list[tuple[int, int]]:
    places, position, row = [], 0, 0
    while row < len(rows):
        number, form = rows[row]
        row += 1
        if "." in number:  # an empty node
            continue
        words = [form]
        if "-" in number:
            first, last = map(int, number.split("-"))
            count = last - first + 1
            inside = [word for _, word in rows[row : row + count]]
            row += count
            words = inside if len("".join(inside)) == len(form) else [form]
        position = text.index(form, position)
        for word in words:
            places.append((position, position + len(word)))
            position += len(word)
    return places


def f1(gold: int, found: int, both: int) -> dict[str, float]:
    """Precision, recall and F1 in per cent."""
    return {
        "precision": round(100 * both / found, 2),
        "recall": round(100 * both / gold, 2),
        "f1": round(200 * both / (gold + found), 2),
    }


def measure(paths: list[Path]) -> dict[str, object]:
    """The figures over all files together."""
    penn = tokenizer("penn")
    penn.spans("compiled once")
    gold = found = both = 0
    seconds = 0.0
    kinds: Counter[str] = Counter()
    documents: list[list[str]] = []
    for path in paths:
        for begins, text, places in sentences(path):
            start = time.process_time()
            spans = penn.spans(text)
            seconds += time.process_time() - start
            mine = {(token.start, token.end) for token in spans}
            for kind, count in differences(text, mine, set(places)):
                kinds[kind] += count
            gold, found, both = gold + len(places), found + len(mine), both + len(mine & set(places))
            if begins == "doc" or not documents:
                documents.append([])
            documents[-1].append(("\n\n" if begins == "par" else " ") + text)
    ends = [0, 0, 0]
    for texts in documents:
        wanted, position = set(), 0
        for text in texts:
            wanted.add((position + len(text) - len(text.lstrip()), position + len(text)))
            position += len(text)
        split = {(span.start, span.end) for span in split_sentences("".join(texts))}
        ends = [ends[0] + len(wanted), ends[1] + len(split), ends[2] + len(wanted & split)]
    return {
        "files": [path.name for path in paths],
        "tokens": {"gold": gold, **f1(gold, found, both)},
        "differences_percent": {kind: round(100 * count / kinds.total(), 1) for kind, count in kinds.most_common()},
        "sentences": {"gold": ends[0], **f1(*ends)},
        "tokens_per_second": round(found / seconds),
    }


def main() -> None:
    """Prints one JSON object for dev and test together, and one for train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).resolve().parent.parent / os.environ.get("POLYSEME_SHARED", "../shared")
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=shared / "data/pos/ud-ewt",
        help="the folder with dev.conllu.xz, test.conllu.xz and train.conllu.xz",
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the same figures")
    arguments = parser.parse_args()
    results = []
    for parts in (["dev", "test"], ["train"]):
        results.append(measure([arguments.folder / f"{part}.conllu.xz" for part in parts]))
        print(json.dumps(results[-1]))
    if arguments.out:
        command = "python benchmarks/tokenizer_f1.py ../shared/data/pos/ud-ewt"
        arguments.out.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
