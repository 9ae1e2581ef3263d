"""Going on with published models: weights without a softmax (HDF5), and a checkpoint with one, on new words."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_loop import grammar

import polyseme
from polyseme.errors import InputError
from polyseme.pretraining.config import OptimizerConfig, PretrainConfig
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.handover import Start, start_from
from polyseme.pretraining.loop import pretrain
from polyseme.pretraining.perplexity import Scorer
from polyseme.pretraining.run import Run
from polyseme.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_sentences(grammar(300, 1))


def _config(start: Start, *, steps: int, **changes: object) -> PretrainConfig:
    values = {"rows": 8, "unroll": 5, "negatives": None, "loss_scale": 5.0, "dropout": 0.0, "tokens": 8 * 5 * steps, **changes}
    return PretrainConfig(model=start.model.config, optimizer=OptimizerConfig(learning_rate=1.0), **values)  # type: ignore[arg-type]


def _perplexity(folder: Path | None) -> float:
    elmo = polyseme.load(folder)  # type: ignore[arg-type]
    return Scorer(elmo.model, elmo.reader, elmo.vocabulary).evaluate([grammar(60, 2)])[0].perplexity()


def _moved(start: dict[str, torch.Tensor], now: dict[str, torch.Tensor]) -> set[str]:
    return {name.split(".")[0] for name, tensor in start.items() if not torch.equal(tensor, now[name])}


@pytest.mark.parametrize("family", ["bilm_tf", "allennlp"])
def test_from_hdf5_first_the_softmax_alone_then_all(golden: Path, corpus: Corpus, tmp_path: Path, family: str):
    weights = golden / "public_fixtures" / family / "lm_weights.hdf5"
    assert polyseme.load(weights).model.softmax is None
    with pytest.raises(InputError, match="has no softmax; give the vocabulary"):
        start_from(weights)
    start = start_from(weights, vocabulary=corpus.vocabulary())
    assert start.fresh
    reader = polyseme.load(weights).reader
    unigram = Scorer(start.model, reader, corpus.vocabulary()).evaluate([grammar(60, 2)])[0].perplexity()
    body = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    setting = _config(start, steps=60)
    frozen = pretrain(setting, corpus, tmp_path / "run", start=start, freeze_steps=30, max_tokens=8 * 5 * 30)
    then = start_from(frozen.model)
    assert _moved(body, then.model.state_dict()) == {"softmax"}
    before = _perplexity(frozen.model)
    # The same command goes on and lets the rest move.
    again = start_from(weights, vocabulary=corpus.vocabulary())
    tuned = pretrain(setting, corpus, tmp_path / "run", start=again, freeze_steps=30)
    assert tuned.steps == 60
    assert _moved(body, start_from(tuned.model).model.state_dict()) == {"softmax", "lstm", "token_encoder"}
    assert _perplexity(tuned.model) < min(1.05 * before, unigram)


def test_a_new_softmax_is_the_unigram_model(golden: Path, corpus: Corpus):
    weights = golden / "public_fixtures" / "bilm_tf" / "lm_weights.hdf5"
    vocabulary = corpus.vocabulary()
    start = start_from(weights, vocabulary=vocabulary)
    scorer = Scorer(start.model, polyseme.load(weights).reader, vocabulary)
    (found,) = scorer.evaluate([grammar(60, 2)], state="zero")
    assert vocabulary.counts is not None
    counts = np.maximum(vocabulary.counts, 1).astype(float)
    counts[0] = counts[1]
    words = [word for sentence in grammar(60, 2) for word in (*sentence, "</S>")]
    expected = -np.log(counts[vocabulary.ids(words)] / counts.sum()).mean()
    assert found.loss("forward") == pytest.approx(expected, rel=1e-5)
    uncounted = start_from(weights, vocabulary=Vocabulary(vocabulary.words))
    (uniform,) = Scorer(uncounted.model, scorer.reader, vocabulary).evaluate([grammar(60, 2)])
    assert uniform.perplexity() == pytest.approx(len(vocabulary))


def test_the_rest_warms_up_when_it_thaws(golden: Path, corpus: Corpus):
    """Accumulators as after 5,000 updates for what was trained before, from 30 updates for the new softmax."""
    from polyseme.pretraining.handover import take_up

    start = start_from(golden / "public_fixtures" / "bilm_tf" / "lm_weights.hdf5", vocabulary=corpus.vocabulary())
    run = Run(_config(start, steps=60), corpus, start.lists, model=start.model)
    take_up(run, start, freeze_steps=30)
    while run.step < 30:
        run.advance()
    frozen = run.optimizer.gathered()
    assert all((value > 0) == name.startswith("softmax.") for name, value in frozen.items())
    run.advance()
    thawed = run.optimizer.gathered()
    assert all(thawed[name] < 1.3 * frozen[name] for name in frozen if name.startswith("softmax."))
    gradient = run.parameters["lstm.forward_layers.0.bias"].grad
    assert gradient is not None
    assert thawed["lstm.forward_layers.0.bias"] > 500 * float(gradient.square().mean())


def test_from_a_checkpoint_its_softmax_stays(golden: Path, corpus: Corpus, tmp_path: Path):
    folder = golden / "tf_checkpoint" / "full"
    listed = Vocabulary.read(golden / "tf_checkpoint" / "vocab.txt")
    text = [line.split() for line in (golden / "tf_checkpoint" / "train.txt").read_text(encoding="utf-8").splitlines()]
    own = Corpus.from_sentences(text[:300])
    from polyseme.weights import convert

    convert(folder, tmp_path / "native", vocabulary=golden / "tf_checkpoint" / "vocab.txt")
    start = start_from(tmp_path / "native")
    assert not start.fresh
    assert start.lists.vocabulary == listed
    outcome = pretrain(_config(start, steps=3), own, tmp_path / "same", start=start)
    assert start_from(outcome.model).lists.vocabulary == listed
    other = start_from(tmp_path / "native", vocabulary=corpus.vocabulary())
    outcome = pretrain(_config(other, steps=3), corpus, tmp_path / "other", start=other)
    assert start_from(outcome.model).lists.vocabulary == corpus.vocabulary()
    assert not other.fresh


def test_counts_of_a_given_list(corpus: Corpus):
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "absent", "cat", "."])
    counted = corpus.counted(vocabulary)
    words = [word for sentence in grammar(300, 1) for word in sentence]
    cats = words.count("cat")
    assert counted == vocabulary
    assert counted.counts is not None
    assert counted.counts.tolist() == [0, 300, len(words) - cats - 300, 0, cats, 300]


def test_each_process_may_draw_for_itself(corpus: Corpus, monkeypatch: pytest.MonkeyPatch):
    from test_loop import config

    from polyseme.pretraining.run import Lists

    runs = [Run(replace(config(corpus), draws="own"), corpus, Lists(corpus.vocabulary())) for _ in range(2)]
    monkeypatch.setattr(runs[1].processes, "rank", 1)
    drawn = [run._draw() for run in runs]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert not all(torch.equal(one.ids, two.ids) for one, two in zip(*drawn, strict=True))
    states = [run.draws.bit_generator.state for run in runs]
    assert states[0] == states[1]
