"""Scores of answers to questions, equal to those of SQuAD's official script for version 1.1: exact match and F1."""

import re
import string
from collections import Counter
from collections.abc import Sequence

from polyseme.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def plain(text: str) -> str:
    """In lower case, without ASCII punctuation, then without articles, words parted by single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, wanted: Sequence[str]) -> float:
    """1 where the answer is one of the wanted ones, else 0."""
    return float(any(plain(answer) == plain(text) for text in wanted))


def word_f1(answer: str, wanted: Sequence[str]) -> float:
    """The best F1 of the answer's words against a wanted answer's; 0 without a common word, even where both are empty."""
    return max((_f1(plain(answer).split(), plain(text).split()) for text in wanted), default=0.0)


def answer_scores(answers: Sequence[str], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means over all questions, as percentages; `wanted` are the answers that people gave to each."""
    if len(answers) != len(wanted):
        raise InputError(f"{len(answers)} answers to {len(wanted)} questions; give one for each.")
    total = max(1, len(answers))
    f1 = sum(word_f1(*pair) for pair in zip(answers, wanted, strict=True))
    exact = sum(exact_match(*pair) for pair in zip(answers, wanted, strict=True))
    return {"f1": 100 * f1 / total, "exact_match": 100 * exact / total}


def _f1(answer: list[str], wanted: list[str]) -> float:
    common = (Counter(answer) & Counter(wanted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
