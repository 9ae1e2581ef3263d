"""Scores, equal to those of the official programs: conlleval and plain accuracy."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from polyseme.errors import InputError
from polyseme.tasks.spans import read_spans

_T = TypeVar("_T")


@dataclass(frozen=True)
class Counts:
    """How many were wanted, found, and both; precision, recall and F1 as percentages, 0 where nothing can be divided."""

    wanted: int = 0
    found: int = 0
    correct: int = 0

    @property
    def precision(self) -> float:
        """Share of the found that are correct."""
        return 100 * self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the wanted that were found."""
        return 100 * self.correct / self.wanted if self.wanted else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True)
class SpanScores:
    """What conlleval prints: token accuracy, and counts over all spans and for each label."""

    tokens: int
    correct_tokens: int
    overall: Counts
    labels: dict[str, Counts] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Share of the tokens with the right tag, O included."""
        return 100 * self.correct_tokens / self.tokens if self.tokens else 0.0


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """The scores conlleval gives to predicted tags against gold ones, sentence by sentence.

    A span counts as correct when start, end and label agree. Token accuracy compares tags as they are, so both sides
    should be in one scheme.
    """
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    tokens = correct_tokens = 0
    for number, (want, have) in enumerate(_pairs(gold, predicted), 1):
        if len(want) != len(have):
            raise InputError(f"sentence {number} has {len(want)} gold tags, {len(have)} predicted ones; give one for each token.")
        tokens += len(want)
        correct_tokens += sum(a == b for a, b in zip(want, have, strict=True))
        gold_spans, predicted_spans = read_spans(want), read_spans(have)
        wanted.update(span.label for span in gold_spans)
        found.update(span.label for span in predicted_spans)
        correct.update(span.label for span in set(gold_spans) & set(predicted_spans))
    labels = {label: Counts(wanted[label], found[label], correct[label]) for label in sorted(wanted | found)}
    overall = Counts(wanted.total(), found.total(), correct.total())
    return SpanScores(tokens=tokens, correct_tokens=correct_tokens, overall=overall, labels=labels)


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Percentage of equal items; 0 for no items."""
    pairs = _pairs(gold, predicted)
    return 100 * sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


def _pairs(gold: Sequence[_T], predicted: Sequence[_T]) -> list[tuple[_T, _T]]:
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold items but {len(predicted)} predicted ones; give one prediction for each.")
    return list(zip(gold, predicted, strict=True))
