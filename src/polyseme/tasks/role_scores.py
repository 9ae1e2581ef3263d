"""The scores of semantic roles, equal to those of the CoNLL-2005 shared task's program, srl-eval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polyseme.errors import InputError
from polyseme.tasks.metrics import Counts
from polyseme.tasks.spans import read_spans

#: One argument: its role, and its pieces as (start, end), the end not included. Most have one piece.
Argument = tuple[str, tuple[tuple[int, int], ...]]

_VERB = "V"


@dataclass(frozen=True)
class RoleScores:
    """What srl-eval prints: counts over all arguments and for each role, the verb apart; and the wholly right propositions."""

    propositions: int
    perfect: int
    overall: Counts
    roles: dict[str, Counts] = field(default_factory=dict)
    verb: Counts = field(default_factory=Counts)

    @property
    def perfect_share(self) -> float:
        """Percentage of the propositions of which every argument is right and none is too many."""
        return 100 * self.perfect / self.propositions if self.propositions else 0.0


def read_arguments(tags: Sequence[str]) -> list[Argument]:
    """The arguments that a predicate's BIO tags spell.

    A span C-X continues the last argument X before it, and both are one argument; where there is none it is an X of its own.
    A reference R-X is a role like any other.
    """
    found: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}
    for span in read_spans(tags):
        role = span.label.removeprefix("C-")
        if role != span.label and role in last:
            last[role].append((span.start, span.end))
        else:
            last[role] = [(span.start, span.end)]
            found.append((role, last[role]))
    return [(role, tuple(pieces)) for role, pieces in found]


def role_scores(gold: Sequence[Mapping[int, Sequence[str]]], predicted: Sequence[Mapping[int, Sequence[str]]]) -> RoleScores:
    """The scores srl-eval gives; one mapping for each sentence, from the predicates' positions to their BIO tags.

    An argument is right when its role and all of its pieces are. The roles of a gold predicate that was not found are
    missed, and a predicate that is none in the gold is passed over. V, the predicate itself, counts for nothing.
    """
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold sentences but {len(predicted)} predicted ones; give one for each.")
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    propositions = perfect = 0
    for number, (want, have) in enumerate(zip(gold, predicted, strict=True), 1):
        for position, tags in want.items():
            answer = have.get(position, ["O"] * len(tags))
            if len(answer) != len(tags):
                raise InputError(
                    f"sentence {number}, predicate at {position}: {len(tags)} gold tags but {len(answer)} predicted ones; "
                    "give one for each token."
                )
            right, ours = set(read_arguments(tags)), set(read_arguments(answer))
            wanted.update(role for role, _ in right)
            found.update(role for role, _ in ours)
            correct.update(role for role, _ in right & ours)
            propositions += 1
            perfect += all(role == _VERB for role, _ in right ^ ours)
    counts = {role: Counts(wanted[role], found[role], correct[role]) for role in sorted(wanted | found)}
    verb = counts.pop(_VERB, Counts())
    overall = Counts(
        sum(count.wanted for count in counts.values()),
        sum(count.found for count in counts.values()),
        sum(count.correct for count in counts.values()),
    )
    return RoleScores(propositions, perfect, overall, counts, verb)
