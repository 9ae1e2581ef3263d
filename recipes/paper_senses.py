"""Word senses in the table of results: SemCor's centroids in each layer, on the five unified evaluation sets and all together."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paper_rows import Tools, digest
from polyseme.tasks.senses import (
    SenseCentroids,
    SenseIndex,
    SenseSentence,
    first_senses,
    read_evaluation,
    read_semcor,
    sense_f1,
)
from polyseme.tasks.trained import ElmoReference

#: The development set first, as the sets' authors have it.
SETS = ("semeval2007", "senseval2", "senseval3", "semeval2013", "semeval2015")


@dataclass(frozen=True, kw_only=True)
class SenseRow:
    """Without ELMo the first sense, with it the nearest neighbour of each layer; nothing is drawn, so one seed is all.

    The row's score is that of the layer which is best on SemEval-2007, on all sets together, SemEval-2007 among them.
    """

    name: str = "senses"
    title: str = "Word senses, all five sets, best layer on SemEval-2007 (F1)"
    data: str = "senses"
    variants: tuple[bool, ...] = (False, True)
    seeds: int = 1

    def identity(self, elmo_hash: str | None, seed: int) -> str:
        """What decides the numbers."""
        return digest({"row": self.name, "seed": seed, "elmo": elmo_hash})

    def run(self, tools: Tools, *, with_it: bool, seed: int) -> tuple[dict[str, Any], list[str]]:
        """The cell's numbers, and for each instance its key in every layer."""
        folder = tools.data / self.data
        index = SenseIndex.read(folder / "wordnet-3.0-index.sense.xz")
        sets = read_sets(folder)
        everything = [sentence for sentences in sets.values() for sentence in sentences]
        reference = None
        if with_it and tools.elmo is not None:
            reference = asdict(ElmoReference(tools.elmo_name, tools.elmo.hash, len(tools.elmo.layers), tools.elmo.dim))
            centroids = SenseCentroids(tools.elmo)
            centroids.add(read_semcor(folder / "semcor.jsonl.xz"))
            answers = centroids.predict(everything, index)
        else:
            answers = {"first sense": first_senses(everything, index)}
        scores = score(sets, answers)
        best = max(answers, key=lambda layer: scores[f"{layer}: {SETS[0]}"])
        values = {
            "elmo": reference,
            "metric": "f1",
            "dev": scores[f"{best}: {SETS[0]}"],
            "test": scores[f"{best}: all"],
            "scores": scores,
            "layers": list(answers),
            "best_layer": best,
            "layer_weights": {},
        }
        names = next(iter(answers.values()))
        return values, ["\t".join([name, *(found[name] for found in answers.values())]) for name in names]

    def rescore(self, line: dict[str, Any], predictions: Sequence[str], data: Path) -> float:
        """The score that a cell's predictions get."""
        columns = zip(*(text.split("\t") for text in predictions), strict=True)
        names, *keys = columns
        answers = {layer: dict(zip(names, found, strict=True)) for layer, found in zip(line["layers"], keys, strict=True)}
        scores = score(read_sets(data / self.data), answers)
        return scores[f"{line['best_layer']}: all"]


def read_sets(folder: Path) -> dict[str, list[SenseSentence]]:
    """The five sets; instances are named by their set, for numbers begin anew in each."""
    sets = {}
    for name in SETS:
        sentences = read_evaluation(folder / f"raganato/{name}.data.xml.xz", folder / f"raganato/{name}.gold.key.txt.xz")
        sets[name] = [
            replace(
                sentence,
                instances=tuple(replace(instance, id=f"{name}.{instance.id}") for instance in sentence.instances),
                document=f"{name}.{sentence.document}",
            )
            for sentence in sentences
        ]
    return sets


def score(sets: dict[str, list[SenseSentence]], answers: dict[str, dict[str, str]]) -> dict[str, float]:
    """F1 by layer and set, and on all sets together."""
    everything = [sentence for sentences in sets.values() for sentence in sentences]
    groups = {**sets, "all": everything}
    return {f"{layer}: {name}": sense_f1(group, found) for layer, found in answers.items() for name, group in groups.items()}


def sense_table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: F1 of the first sense and of each layer on every set."""
    out = ["| senses, F1 | " + " | ".join((*SETS, "all")) + " |", "|---" * (len(SETS) + 2) + "|"]
    for line in sorted(lines, key=lambda line: line["elmo"] is not None):
        for layer in line["layers"]:
            found = (f"{line['scores'][f'{layer}: {name}']:.1f}" for name in (*SETS, "all"))
            out.append(f"| {layer} | {' | '.join(found)} |")
    return "\n".join(out)
