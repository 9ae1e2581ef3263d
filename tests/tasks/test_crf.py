import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseme.tasks.crf import CRF, allowed_transitions
from polyseme.tasks.spans import first_illegal

BIOUL = ["O", "B-x", "I-x", "U-x", "L-x"]


def problem(seed, labels, lengths, *, borders=True):
    """A CRF, emissions and label sequences, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        crf = CRF(labels, borders=borders).double()
    for parameter in crf.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    emissions = torch.randn(len(lengths), max(1, *lengths), labels, generator=generator, dtype=torch.float64)
    wanted = torch.randint(labels, (len(lengths), max(1, *lengths)), generator=generator)
    return crf, emissions, wanted, torch.tensor(lengths)


def naive_score(crf, emissions, sequence):
    if not len(sequence):
        return emissions.new_zeros(())
    score = crf.begin[sequence[0]] + crf.end[sequence[-1]]
    for time, label in enumerate(sequence):
        score = score + emissions[time, label]
        if time:
            score = score + crf.transitions[sequence[time - 1], label]
    return score


def all_sequences(labels, length):
    return list(itertools.product(range(labels), repeat=length))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 3), st.lists(st.integers(0, 4), min_size=2, max_size=3).filter(any))
def test_partition_viterbi_and_gradients_equal_enumeration(seed, labels, lengths):
    crf, emissions, wanted, sizes = problem(seed, labels, lengths)
    emissions.requires_grad_()
    scores = [
        torch.stack([naive_score(crf, emissions[row], s) for s in all_sequences(labels, length)])
        for row, length in enumerate(lengths)
    ]
    partition = torch.stack([torch.logsumexp(row, 0) for row in scores])
    torch.testing.assert_close(crf.log_partition(emissions, sizes), partition)
    gold = torch.stack([naive_score(crf, emissions[row], wanted[row, :length]) for row, length in enumerate(lengths)])
    likelihood = crf.log_likelihood(emissions, wanted, sizes)
    torch.testing.assert_close(likelihood, gold - partition)
    for row, best in enumerate(crf.decode(emissions, sizes)):
        assert tuple(best) == all_sequences(labels, lengths[row])[int(scores[row].argmax())]

    leaves = [emissions, crf.transitions, crf.begin, crf.end]
    ours = torch.autograd.grad(likelihood.sum(), leaves, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad((gold - partition).sum(), leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 4), min_size=2, max_size=3))
def test_constrained_decoding_is_the_best_legal_sequence(seed, lengths):
    crf, emissions, _, sizes = problem(seed, len(BIOUL), lengths)
    allowed = CRF(len(BIOUL), allowed=allowed_transitions(BIOUL, "bioul"), borders=True).double()
    allowed.load_state_dict(crf.state_dict())
    for row, best in enumerate(allowed.decode(emissions, sizes)):
        legal = [
            s for s in all_sequences(len(BIOUL), lengths[row]) if first_illegal([BIOUL[label] for label in s], "bioul") is None
        ]
        assert tuple(best) == max(legal, key=lambda s: naive_score(crf, emissions[row], s).item())


def test_padding_changes_nothing():
    crf, emissions, wanted, _ = problem(3, 4, [5, 5])
    sizes = torch.tensor([5, 3])
    whole = crf.log_likelihood(emissions, wanted, sizes)
    alone = crf.log_likelihood(emissions[1:, :3], wanted[1:, :3], sizes[1:])
    torch.testing.assert_close(whole[1:], alone)
    emissions[1, 3:] = 1e6
    wanted[1, 3:] = 3
    torch.testing.assert_close(crf.log_likelihood(emissions, wanted, sizes), whole)


def test_without_borders_nothing_is_learned_there():
    crf = CRF(3)
    assert [name for name, parameter in crf.named_parameters() if parameter.requires_grad] == ["transitions"]


@pytest.mark.parametrize(("before", "after", "legal"), [("O", "I-x", False), ("B-x", "L-x", True), ("B-x", "O", False)])
def test_allowed_transitions(before, after, legal):
    allowed = allowed_transitions(BIOUL, "bioul")
    assert bool(allowed[BIOUL.index(before), BIOUL.index(after)]) is legal
    assert allowed[-2, 0]
    assert not allowed[-2, BIOUL.index("L-x")]
    assert not allowed[BIOUL.index("B-x"), -1]
