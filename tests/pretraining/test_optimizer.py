"""Steps from gradients: TensorFlow's Adagrad, AdamW against torch's, rows against dense, the schedule, saving."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from polyseme.errors import InputError
from polyseme.pretraining.config import OptimizerConfig
from polyseme.pretraining.optimizer import Gradients, Optimizer, learning_rate
from polyseme.pretraining.step import SparseRows

ADAGRAD = OptimizerConfig()
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2, weight_decay=0.1, betas=(0.9, 0.95))


def _parameters(seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "table": nn.Parameter(torch.randn(6, 3, generator=generator)),
        "bias": nn.Parameter(torch.randn(4, generator=generator)),
    }


def _set_gradients(parameters: dict[str, nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_adagrad_is_tensorflows():
    parameters = _parameters()
    expected = {name: parameter.detach().double().numpy().copy() for name, parameter in parameters.items()}
    accumulators = {name: np.ones_like(value) for name, value in expected.items()}
    method = Optimizer(parameters, ADAGRAD)
    for step in range(4):
        _set_gradients(parameters, step)
        method.step(Gradients(parameters, {}), rate=0.2, scale=0.5)
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            gradient = 0.5 * parameter.grad.double().numpy()
            accumulators[name] += gradient**2
            expected[name] -= 0.2 * gradient / np.sqrt(accumulators[name])
            np.testing.assert_allclose(parameter.detach(), expected[name], atol=1e-6)
            np.testing.assert_allclose(method.state["accumulator"][name], accumulators[name], rtol=1e-6)


def test_adamw_is_torchs_but_for_the_decay_of_vectors():
    ours, theirs = _parameters(), _parameters()
    method = Optimizer(ours, ADAMW)
    groups = [{"params": [theirs["table"]], "weight_decay": 0.1}, {"params": [theirs["bias"]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=ADAMW.epsilon)
    for step in range(5):
        _set_gradients(ours, step)
        _set_gradients(theirs, step)
        method.step(Gradients(ours, {}), rate=1e-2)
        reference.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("config", [ADAGRAD, ADAMW])
def test_rows_move_as_in_the_dense_step_and_others_stay(config: OptimizerConfig):
    dense, sparse = _parameters(), _parameters()
    methods = [Optimizer(parameters, config) for parameters in (dense, sparse)]
    ids, values = torch.tensor([4, 1]), torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
    dense["table"].grad = torch.zeros(6, 3).index_add_(0, ids, values)
    gradients = [Gradients(dense, {}), Gradients(sparse, {"table": SparseRows(ids, values)})]
    assert float(gradients[0].norm()) == pytest.approx(float(gradients[1].norm()))
    for method, gradient in zip(methods, gradients, strict=True):
        method.step(gradient, rate=0.1, scale=0.7)
    torch.testing.assert_close(sparse["table"][ids], dense["table"][ids])
    others = [0, 2, 3, 5]
    assert torch.equal(sparse["table"][others], _parameters()["table"][others])
    if config is ADAGRAD:
        torch.testing.assert_close(sparse["table"], dense["table"])


def test_both_kinds_of_gradient_of_one_parameter_are_added():
    parameters = _parameters()
    parameters["table"].grad = torch.ones(6, 3)
    gradients = Gradients(parameters, {"table": SparseRows(torch.tensor([2]), torch.full((1, 3), 5.0))})
    assert gradients.rows == {}
    assert gradients.dense["table"][:, 0].tolist() == [1, 1, 6, 1, 1, 1]
    with pytest.raises(InputError, match="elsewhere"):
        Gradients(parameters, {"elsewhere": SparseRows(torch.tensor([2]), torch.ones(1, 3))})


def test_the_norm_takes_in_everything():
    parameters = _parameters()
    parameters["bias"].grad = torch.tensor([3.0, 0.0, 0.0, 0.0])
    gradients = Gradients(parameters, {"table": SparseRows(torch.tensor([0]), torch.tensor([[0.0, 4.0, 0.0]]))})
    assert float(gradients.norm()) == 5.0


@pytest.mark.parametrize("config", [ADAGRAD, ADAMW])
def test_saved_and_loaded_it_goes_on_bit_for_bit(config: OptimizerConfig):
    whole, again = _parameters(), _parameters()
    method = Optimizer(whole, config)
    for step in range(3):
        _set_gradients(whole, step)
        method.step(Gradients(whole, {}), rate=0.1)
    saved = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    for name, parameter in whole.items():
        again[name].data.copy_(parameter.data)
    resumed = Optimizer(again, config)
    resumed.load_state_dict(saved)
    for step in range(3, 6):
        for parameters, one in ((whole, method), (again, resumed)):
            _set_gradients(parameters, step)
            one.step(Gradients(parameters, {}), rate=0.1)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    with pytest.raises(InputError, match="does not fit"):
        Optimizer(again, ADAMW if config is ADAGRAD else ADAGRAD).load_state_dict(saved)


def test_extrapolated_accumulators_stand_for_many_updates():
    parameters = _parameters()
    method = Optimizer(parameters, ADAGRAD)
    before = parameters["table"].detach().clone()
    for _ in range(2):
        parameters["table"].grad = torch.full((6, 3), 0.5)
        method.step(Gradients(parameters, {}), rate=0.0)
    assert torch.equal(parameters["table"], before)
    method.extrapolate(1000, {})
    torch.testing.assert_close(method.state["accumulator"]["table"], torch.full((6, 3), 1 + 1000 * 0.25))
    assert method.gathered() == pytest.approx({"table": 250.0, "bias": 0.0})
    method.extrapolate(1000, {"table": 80.0})
    torch.testing.assert_close(method.state["accumulator"]["table"], torch.full((6, 3), 81.0))
    assert method.updates == 1000


def test_the_schedule():
    warm = OptimizerConfig(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(warm, step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = OptimizerConfig(learning_rate=1.0, warmup_steps=10, schedule="cosine", final_rate=0.1)
    rates = [learning_rate(cosine, step, 110) for step in range(120)]
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[110] == pytest.approx(0.1)
    assert rates[119] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert math.isclose(rates[0], 0.1)
