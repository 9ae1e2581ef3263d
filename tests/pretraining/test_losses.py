"""The softmax losses against the definition; the sampled one over all the draws there can be of a vocabulary of six."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import InputError
from polyseme.pretraining.losses import Draw, expected_count, full_loss, sample_log_uniform, sampled_loss

SIZE, WIDTH, POSITIONS = 6, 3, 9
PROBABILITIES = [math.log((k + 2) / (k + 1)) / math.log(SIZE + 1) for k in range(SIZE)]


@pytest.fixture(scope="module")
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden values, weights, biases and targets; every word is a target."""
    generator = torch.Generator().manual_seed(11)
    hidden = torch.randn(POSITIONS, WIDTH, generator=generator)
    weight = torch.randn(SIZE, WIDTH, generator=generator)
    return hidden, weight, torch.randn(SIZE, generator=generator), torch.arange(POSITIONS) % SIZE


def ours(problem: tuple[Tensor, ...], draw: Draw, true_expected: Tensor, chunk: int = 4) -> list[Tensor]:
    """The loss, and the gradients of hidden values, weights and biases, of the rows that are touched."""
    hidden, weight, bias, targets = problem
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    distinct = targets.unique()
    ids = torch.cat([draw.ids, distinct])
    columns = len(draw.ids) + torch.searchsorted(distinct, targets)
    loss = sampled_loss(leaves[0], leaves[1][ids], leaves[2][ids], targets, columns, draw, true_expected, chunk=chunk)
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]


def by_hand(problem: tuple[Tensor, ...], chosen: tuple[int, ...], expected: list[float]) -> list[Tensor]:
    """The same by the definition, one position after the other, in float64."""
    hidden, weight, bias = (tensor.double().requires_grad_() for tensor in problem[:3])
    loss = torch.zeros((), dtype=torch.float64)
    for h, target in zip(hidden, problem[3].tolist(), strict=True):
        words = [target, *(word for word in chosen if word != target)]
        logits = torch.stack([weight[word] @ h + bias[word] - math.log(expected[word]) for word in words])
        loss = loss - F.log_softmax(logits, dim=0)[0]
    loss.backward()
    return [loss.detach(), hidden.grad, weight.grad, bias.grad]  # type: ignore[list-item]


def outcomes(samples: int, most: int = 400) -> Iterator[tuple[tuple[int, ...], int, float]]:
    """All pairs of a candidate set and a number of tries, with their probability; what is left out is below 1e-9."""
    open_sets: dict[frozenset[int], float] = {frozenset(): 1.0}
    for tries in range(1, most):
        after: dict[frozenset[int], float] = {}
        for chosen, probability in open_sets.items():
            for word, share in enumerate(PROBABILITIES):
                grown = chosen | {word}
                if len(grown) == samples and word not in chosen:
                    yield tuple(sorted(grown)), tries, probability * share
                else:
                    after[grown] = after.get(grown, 0.0) + probability * share
        open_sets = after


def tensorflows(tries: int, samples: int) -> list[float]:
    """The expected count of each word after so many tries."""
    if tries == samples:
        return [tries * probability for probability in PROBABILITIES]
    return [-math.expm1(tries * math.log1p(-probability)) for probability in PROBABILITIES]


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_averaged_over_all_candidate_sets_it_is_the_definition(problem: tuple[Tensor, ...], samples: int):
    sums: list[list[Tensor]] = [[torch.zeros((), dtype=torch.float64)] * 4, [torch.zeros((), dtype=torch.float64)] * 4]
    total = 0.0
    for chosen, tries, probability in outcomes(samples, most=40):
        total += probability
        ids = torch.tensor(chosen)
        draw = Draw(ids, expected_count(ids, samples=samples, tries=tries, size=SIZE), tries, SIZE)
        found = ours(problem, draw, draw.expected_of(problem[3]))
        wanted = by_hand(problem, chosen, tensorflows(tries, samples))
        for number, parts in enumerate((found, wanted)):
            sums[number] = [old + probability * part.double() for old, part in zip(sums[number], parts, strict=True)]
    assert total == pytest.approx(1.0, abs=0.02)
    for mean, definition in zip(*sums, strict=True):
        torch.testing.assert_close(mean, definition, atol=2e-5, rtol=1e-5)


def inclusion(samples: int) -> list[float]:
    """The probability of each word to be among the first `samples` different ones."""
    found = [0.0] * SIZE
    for chosen, _, probability in outcomes(samples):
        for word in chosen:
            found[word] += probability
    return found


def test_the_gap_to_the_full_softmax_shrinks_with_each_sample(problem: tuple[Tensor, ...]):
    hidden, weight, bias, targets = problem
    full = float(full_loss(hidden, weight, bias, targets))
    gaps = []
    for samples in range(1, SIZE + 1):
        counts = torch.tensor(inclusion(samples)).float()
        mean = 0.0
        chances: dict[tuple[int, ...], float] = {}
        for chosen, _, probability in outcomes(samples):
            chances[chosen] = chances.get(chosen, 0.0) + probability
        for chosen, probability in chances.items():
            ids = torch.tensor(chosen)
            mean += probability * float(ours(problem, Draw(ids, counts[ids], samples, SIZE), counts[targets])[0])
        gaps.append(abs(mean - full))
    assert all(later < earlier for earlier, later in itertools.pairwise(gaps))
    assert gaps[0] > 0.5
    assert gaps[-1] < 1e-4  # every word is drawn


def test_with_every_word_drawn_the_gradients_are_the_full_softmaxs(problem: tuple[Tensor, ...]):
    draw = Draw(torch.tensor([3, 0, 5, 1, 4, 2]), torch.ones(SIZE), 10**9, SIZE)
    found = ours(problem, draw, draw.expected_of(problem[3]))
    leaves = [tensor.clone().requires_grad_() for tensor in problem[:3]]
    loss = full_loss(*leaves, problem[3], chunk=4)
    loss.backward()
    reference = [tensor.clone().requires_grad_() for tensor in problem[:3]]
    plain = F.cross_entropy(F.linear(*reference), problem[3], reduction="sum")
    plain.backward()
    for mine, wide, wanted in zip(
        found, [loss, *(x.grad for x in leaves)], [plain, *(x.grad for x in reference)], strict=True
    ):  # fmt: skip
        torch.testing.assert_close(mine, wanted.detach(), atol=5e-6, rtol=1e-5)
        torch.testing.assert_close(wide.detach(), wanted.detach(), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_words_and_low_precision(dtype: torch.dtype):
    torch.manual_seed(5)
    hidden, weight, bias = torch.randn(50, 16), torch.randn(400, 16) * 0.3, torch.randn(400)
    targets = torch.randint(0, 400, (50,))
    draw = sample_log_uniform(np.random.default_rng(3), 60, 400)
    distinct = targets.unique()
    ids, columns = torch.cat([draw.ids, distinct]), 60 + torch.searchsorted(distinct, targets)
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight[ids], bias[ids])]
    expected = draw.expected_of(targets)
    loss = sampled_loss(*leaves, targets, columns, draw, expected, dtype=dtype, chunk=16)
    loss.backward()
    mirror = [tensor.clone().requires_grad_() for tensor in (hidden, weight[ids], bias[ids])]
    logits = F.linear(mirror[0], mirror[1], mirror[2])
    sampled = (logits[:, :60] - draw.expected.log()).masked_fill(draw.ids == targets[:, None], -torch.inf)
    true = logits[torch.arange(50), columns] - expected.log()
    reference = (torch.cat([sampled, true[:, None]], dim=1).logsumexp(dim=1) - true).sum()
    reference.backward()
    exact = dtype is torch.float32
    torch.testing.assert_close(loss, reference, rtol=1e-5 if exact else 1e-2, atol=0)
    for leaf, other in zip(leaves, mirror, strict=True):
        torch.testing.assert_close(leaf.grad, other.grad, atol=2e-5 if exact else 5e-2, rtol=1e-4 if exact else 5e-2)


def test_the_sampler_draws_as_often_as_the_enumeration_says():
    generator, number = np.random.default_rng(8), 6000
    seen: dict[tuple[int, ...], int] = {}
    tries = 0
    for _ in range(number):
        draw = sample_log_uniform(generator, 3, SIZE)
        chosen = tuple(sorted(draw.ids.tolist()))
        assert len(set(chosen)) == 3
        torch.testing.assert_close(draw.expected, torch.tensor(tensorflows(draw.tries, 3))[draw.ids], rtol=1e-6, atol=0)
        seen[chosen] = seen.get(chosen, 0) + 1
        tries += draw.tries
    chances: dict[tuple[int, ...], float] = {}
    mean = 0.0
    for chosen, count, probability in outcomes(3):
        chances[chosen] = chances.get(chosen, 0.0) + probability
        mean += count * probability
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-9)
    for chosen, chance in chances.items():
        assert abs(seen.get(chosen, 0) - number * chance) < 4.5 * math.sqrt(number * chance * (1 - chance))
    assert tries / number == pytest.approx(mean, rel=0.03)
    with pytest.raises(InputError, match="draw fewer"):
        sample_log_uniform(generator, 7, SIZE)
