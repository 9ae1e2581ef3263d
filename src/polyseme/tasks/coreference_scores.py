"""Coreference scores, equal to those of the official scorer (8.01): MUC, B³ and CEAFφ4, and the mean of their F1.

A cluster is a list of mentions, and a mention whatever can be compared. As the official program does it: counts are summed
over documents before anything is divided; clusters of one mention count in B³ and CEAF; a mention of the response that stood
in an earlier cluster already is dropped from the later one if the key knows it, and counts in both if not; of a mention in two
clusters of the key, the later one is the one the response is compared with.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Float, Int

from polyseme.errors import InputError

Clusters = Sequence[Sequence[Hashable]]


@dataclass(frozen=True)
class Ratio:
    """Recall and precision as sums still to be divided; both and F1 as percentages, 0 where nothing can be divided."""

    recalled: float = 0.0
    wanted: float = 0.0
    correct: float = 0.0
    found: float = 0.0

    def __add__(self, other: "Ratio") -> "Ratio":
        return Ratio(
            self.recalled + other.recalled, self.wanted + other.wanted, self.correct + other.correct, self.found + other.found
        )

    @property
    def recall(self) -> float:
        """Share of what is wanted that was found."""
        return 100 * self.recalled / self.wanted if self.wanted else 0.0

    @property
    def precision(self) -> float:
        """Share of what was found that is wanted."""
        return 100 * self.correct / self.found if self.found else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision."""
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


@dataclass(frozen=True)
class CoreferenceScores:
    """The three scores and how well the mentions themselves were found."""

    muc: Ratio
    b_cubed: Ratio
    ceaf: Ratio
    mentions: Ratio

    @property
    def mean_f1(self) -> float:
        """The CoNLL score: the mean of the three F1."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf.f1) / 3


def coreference_scores(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> CoreferenceScores:
    """The scores the official program gives to the clusters of each document."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold documents but {len(predicted)} predicted ones; give one prediction for each.")
    sums = [Ratio()] * 4
    for wanted, found in zip(gold, predicted, strict=True):
        key = [list(cluster) for cluster in wanted]
        response = _without_repeats(found, set(chain.from_iterable(key)))
        parts = (muc(key, response), b_cubed(key, response), ceaf(key, response), _mentions(key, response))
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
    return CoreferenceScores(*sums)


def muc(key: Clusters, response: Clusters) -> Ratio:
    """Links: a cluster of n mentions has n - 1; of a response cluster those count that join mentions of one key cluster."""
    places = _places(key)
    correct = 0
    for cluster in response:
        counts = Counter(places[mention] for mention in cluster if mention in places)
        correct += sum(count - 1 for count in counts.values())
    wanted, found = (sum(max(0, len(cluster) - 1) for cluster in clusters) for clusters in (key, response))
    return Ratio(correct, wanted, correct, found)


def b_cubed(key: Clusters, response: Clusters) -> Ratio:
    """For each mention the share of its cluster that is right, averaged over mentions."""
    places = _places(key)
    sets = [set(cluster) for cluster in key]
    recalled = correct = 0.0
    for cluster in response:
        counts = Counter(cluster)
        for mention in cluster:
            if mention in places:
                wanted = places[mention]
                common = sum(count for other, count in counts.items() if other in sets[wanted])
                correct += common / len(cluster)
                recalled += common / len(key[wanted])
    return Ratio(recalled, sum(map(len, key)), correct, sum(map(len, response)))


def ceaf(key: Clusters, response: Clusters) -> Ratio:
    """Clusters matched one to one so that the sum of their similarities 2·common/(sizes) is largest."""
    wanted, found = [cluster for cluster in key if cluster], [cluster for cluster in response if cluster]
    if not wanted or not found:
        return Ratio(0, len(wanted), 0, len(found))
    similarity = np.zeros((len(wanted), len(found)))
    sets = [set(cluster) for cluster in found]
    for row, cluster in enumerate(wanted):
        for column, other in enumerate(sets):
            common = sum(mention in other for mention in cluster)
            similarity[row, column] = 2 * common / (len(cluster) + len(found[column]))
    best = float(sum(similarity[row, column] for row, column in enumerate(assign(similarity)) if column >= 0))
    return Ratio(best, len(wanted), best, len(found))


def assign(values: Float[np.ndarray, "rows columns"]) -> Int[np.ndarray, "rows"]:
    """For each row another column, so that the sum of the values is largest; -1 where there are fewer columns than rows.

    The Hungarian method by shortest augmenting paths.
    """
    if values.shape[0] > values.shape[1]:
        rows = np.full(values.shape[0], -1, dtype=np.int64)
        turned = assign(values.T)
        rows[turned] = np.arange(len(turned))
        return rows
    count, width = values.shape
    costs = np.pad(values.max(initial=0.0) - values, ((1, 0), (1, 0)))  # row and column 0 stand for none
    row_price, column_price = np.zeros(count + 1), np.zeros(width + 1)
    owner = np.zeros(width + 1, dtype=np.int64)
    for row in range(1, count + 1):
        owner[0], column = row, 0
        slack, came = np.full(width + 1, np.inf), np.zeros(width + 1, dtype=np.int64)
        done = np.zeros(width + 1, dtype=bool)
        while owner[column]:
            done[column] = True
            current = owner[column]
            reduced = costs[current] - row_price[current] - column_price
            better = ~done & (reduced < slack)
            better[0] = False
            slack[better], came[better] = reduced[better], column
            free = ~done
            free[0] = False
            following = int(np.flatnonzero(free)[np.argmin(slack[free])])
            step = slack[following]
            row_price[owner[done]] += step
            column_price[done] -= step
            slack[free] -= step
            column = following
        while column:
            owner[column] = owner[came[column]]
            column = came[column]
    found = np.full(count, -1, dtype=np.int64)
    taken = np.flatnonzero(owner[1:]) + 1
    found[owner[taken] - 1] = taken - 1
    return found


def _mentions(key: Clusters, response: Clusters) -> Ratio:
    wanted, found = set(chain.from_iterable(key)), set(chain.from_iterable(response))
    common = len(wanted & found)
    return Ratio(common, len(wanted), common, len(found))


def _places(clusters: Clusters) -> dict[Hashable, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _without_repeats(clusters: Iterable[Iterable[Hashable]], known: set[Hashable]) -> list[list[Hashable]]:
    """The clusters without mentions of `known` that stood before."""
    seen: set[Hashable] = set()
    kept = []
    for cluster in clusters:
        own = []
        for mention in cluster:
            if mention not in seen:
                own.append(mention)
            if mention in known:
                seen.add(mention)
        if own:
            kept.append(own)
    return kept
