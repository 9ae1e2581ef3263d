"""The training step against the reference model under autograd, in both precisions; and where dropout acts."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from test_loop import config, grammar

from polyseme.config import WordConfig
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.recurrence import layer_window
from polyseme.pretraining.run import Lists, Run, read_window
from polyseme.pretraining.step import CarriedState, TrainingStep


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_sentences(grammar(100, 1))


def _gradients(run: Run, times: int = 1) -> dict[str, torch.Tensor]:
    run.training.clear()
    for _ in range(times):
        words, indices, targets = read_window(next(run.streams), run.words, run.device)
        run.training.run(words, indices, targets, run.carried)
    found = {name: parameter.grad.clone() for name, parameter in run.parameters.items() if parameter.grad is not None}
    for name, rows in run.training.sparse.items():
        before = found.get(name, torch.zeros_like(run.parameters[name]))
        found[name] = before.index_add(0, rows.ids, rows.values)
    return found


def _full(corpus: Corpus, **changes: object) -> PretrainConfig:
    return config(corpus, negatives=None, dropout=0.0, **changes)


def _run(setting: PretrainConfig, corpus: Corpus) -> Run:
    return Run(setting, corpus, Lists(corpus.vocabulary()))


def _by_autograd(run: Run) -> dict[str, torch.Tensor]:
    """The gradients of the same window by the model's own modules, one direction and one step after the other."""
    model, setting = run.training.model, run.config
    words, indices, targets = read_window(next(run.streams), run.words, run.device)
    vectors = model.token_encoder(words)
    losses = []
    for direction, index, target in zip(("forward", "backward"), indices, targets, strict=True):
        x = vectors[index]
        for number, layer in enumerate(model.lstm.stack(direction)):
            h = torch.zeros(len(x), setting.model.lstm.width)
            c = torch.zeros(len(x), setting.model.lstm.dim)
            outputs = []
            for t in range(x.shape[1]):
                i, f, g, o = (x[:, t] @ layer.input_weight.T + h @ layer.recurrent_weight.T + layer.bias).chunk(4, dim=1)
                c = torch.sigmoid(f + setting.model.lstm.forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
                c = c.clamp(-3.0, 3.0)
                h = torch.sigmoid(o) * torch.tanh(c)
                h = (h @ layer.projection_weight.T).clamp(-3.0, 3.0)
                outputs.append(h)
            hidden = torch.stack(outputs, dim=1)
            x = hidden + x if number else hidden
        assert model.softmax is not None
        logits = F.linear(x.flatten(0, 1), model.softmax.weight, model.softmax.bias)
        losses.append(F.cross_entropy(logits, target.flatten()))
    model.zero_grad(set_to_none=True)
    (setting.loss_scale * 0.5 * (losses[0] + losses[1])).backward()
    return {name: parameter.grad.clone() for name, parameter in run.parameters.items() if parameter.grad is not None}


@pytest.mark.parametrize("words", [False, True])
def test_gradients_are_autograds(corpus: Corpus, words: bool):
    setting = _full(corpus)
    if words:
        both = dataclasses.replace(setting.model, words=WordConfig(size=len(corpus.vocabulary()), dim=6))
        setting = dataclasses.replace(setting, model=both)
    run = _run(setting, corpus)
    place = run.streams.state_dict()
    found = _gradients(run)
    run.streams.load_state_dict(place)
    expected = _by_autograd(run)
    assert found.keys() == expected.keys() == set(run.parameters)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_bfloat16_is_float32_but_for_rounding(corpus: Corpus):
    found = [_gradients(_run(_full(corpus, precision=precision), corpus), times=8) for precision in ("float32", "bfloat16")]
    for name, exact in found[0].items():
        rough = found[1][name]
        assert rough.dtype is torch.float32
        assert not torch.equal(rough, exact) or not exact.any(), name
        # Rounding may choose another of nearly equal maxima of a convolution: the gradient then goes to other characters.
        limit = 0.3 if "embedding" in name or "convolutions" in name else 0.03
        assert float((rough - exact).norm() / exact.norm()) < limit, name


def test_dropout_acts_where_bilm_tf_has_it(corpus: Corpus):
    """On the input of every layer, the skip path's included, and on the top; a mask for each position and direction."""
    setting = config(corpus, dropout=0.25)
    step = TrainingStep(BiLM(setting.model), setting)
    initialise(step.model, torch.Generator().manual_seed(0))
    x = torch.ones(2, 50, 40, 12)
    dropped = step._drop(x, torch.Generator().manual_seed(1))
    kept = dropped > 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)
    assert dropped[kept].unique().tolist() == pytest.approx([1 / 0.75], rel=1e-4)
    for one, other in ((kept[0], kept[1]), (kept[:, :25], kept[:, 25:]), (kept[..., :6], kept[..., 6:])):
        assert float((one == other).float().mean()) == pytest.approx(0.75**2 + 0.25**2, abs=0.02)
    assert step._drop(x, None) is x

    state = CarriedState.zeros(setting.model.lstm, 40)
    found, _ = step._contextual(x, state, torch.Generator().manual_seed(2))
    same = torch.Generator().manual_seed(2)
    y = step._drop(x, same)
    for layer in range(2):
        y = step._drop(y, same) if layer else y
        cells = [step.model.lstm.stack(direction)[layer] for direction in ("forward", "backward")]
        hidden = layer_window(cells, y, state.h[layer], state.c[layer])[0]
        y = hidden + y if layer else hidden
    torch.testing.assert_close(found, step._drop(y, same))
