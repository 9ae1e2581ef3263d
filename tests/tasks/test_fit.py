import json
import re
from dataclasses import replace

import pytest
import torch

from polyseme.errors import FormatError, InputError
from polyseme.tasks.classifier import ClassifierConfig
from polyseme.tasks.config import PRESETS, FitConfig, TaskConfig, with_elmo
from polyseme.tasks.fit import batches, fit, fit_seeds, mean_and_spread
from polyseme.tasks.inputs import ElmoConfig
from polyseme.tasks.readers import open_text
from polyseme.tasks.tagger import TaggerConfig
from tasks.examples import classifier, tagger, write_entities
from tiny import tiny_elmo


def test_a_tagger_learns_and_the_test_file_is_scored(tmp_path):
    config = tagger(tmp_path, test=str(write_entities(tmp_path / "test.conll", seed=2, count=8)))
    steps = []
    result = fit(config, report=lambda done, total=None, *, note="": steps.append((done, total, note)))
    assert result.test["f1"] > 95
    assert result.dev == max((epoch.scores for epoch in result.history), key=lambda scores: scores["f1"])
    assert steps[-1][:2] == (96, 96)
    assert "best dev" in steps[-1][2]
    written = json.loads((tmp_path / "run/result.json").read_text())
    assert written["test"]["f1"] == result.test["f1"]
    assert len(written["history"]) == 8


@pytest.mark.parametrize("encoder", ["lstm", "cnn", "feedforward", "none"])
def test_every_encoder_learns_labels_with_a_softmax(tmp_path, encoder):
    model = TaggerConfig(tags="labels", head="softmax", encoder=encoder, hidden=16, layers=1, dropout=0.0)
    assert fit(tagger(tmp_path, model=model)).dev["accuracy"] > 95


@pytest.mark.parametrize("head", ["maxout", "feedforward"])
def test_a_classifier_learns(tmp_path, head):
    model = ClassifierConfig(dense=16, hidden=8, head=head, input_dropout=0.0, dense_dropout=0.0, head_dropout=(0.0, 0.0, 0.0))
    assert fit(classifier(tmp_path, model=model)).dev["accuracy"] > 95


@pytest.mark.parametrize("place", ["input", "both"])
@pytest.mark.parametrize("task", [tagger, classifier])
def test_with_elmo_the_mix_is_learned(tmp_path, task, place):
    elmo = tiny_elmo()
    config = with_elmo(task(tmp_path, epochs=3, cache=str(tmp_path / "cache")), "tiny", place=ElmoConfig(place=place))
    result = fit(config, elmo=elmo)
    assert set(result.layer_weights) == ({"input", "output"} if place == "both" else {"input"})
    for *shares, gamma in result.layer_weights.values():
        assert sum(shares) == pytest.approx(1)
        assert gamma != 1
    assert (tmp_path / "cache").is_dir()
    assert result.trained.reference.hash == elmo.hash


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path):
    whole = fit(tagger(tmp_path, model=TaggerConfig(hidden=8, layers=2, dropout=0.3), epochs=4))
    config = replace(whole.trained.config, folder=str(tmp_path / "parts"))
    seen = []

    def interrupt(done, total=None, *, note=""):
        seen.append(done)
        if done == 30:  # in the third epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(config, report=interrupt)
    resumed = fit(config)
    assert seen[-1] == 30
    assert [epoch.loss for epoch in resumed.history] == [epoch.loss for epoch in whole.history]
    for name, tensor in whole.trained.model.state_dict().items():
        assert torch.equal(tensor, resumed.trained.model.state_dict()[name]), name


def test_a_finished_run_is_not_run_again_and_another_configuration_is_refused(tmp_path):
    config = tagger(tmp_path, epochs=2)
    first = fit(config)
    calls = []
    second = fit(config, report=lambda *arguments, note="", **options: calls.append(note))
    assert not any("epoch" in note for note in calls)
    assert [epoch.loss for epoch in first.history] == [epoch.loss for epoch in second.history]
    with pytest.raises(InputError, match="holds a run of another configuration"):
        fit(replace(config, fit=replace(config.fit, batch=5)))
    (tmp_path / "run/checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(FormatError, match="the checkpoint is damaged"):
        fit(config)


def test_training_stops_when_dev_no_longer_rises(tmp_path):
    config = tagger(tmp_path, epochs=50)
    result = fit(replace(config, fit=replace(config.fit, patience=2)))
    best = max(epoch.scores["f1"] for epoch in result.history)
    assert result.history[result.best_epoch - 1].scores["f1"] == best
    assert len(result.history) == result.best_epoch + 2 < 50


def test_the_callers_random_numbers_are_left_alone_and_seeds_decide(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = fit_seeds(tagger(tmp_path, epochs=1), [1, 2])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again = fit_seeds(tagger(tmp_path, epochs=1, folder=str(tmp_path / "other")), [1])
    assert again[0].history[0].loss == runs[0].history[0].loss != runs[1].history[0].loss


def test_labels_not_trained_on_name_their_line(tmp_path):
    config = tagger(tmp_path)
    (tmp_path / "dev.conll").write_text("She\tO\n\nRome\tB-city\n")
    with pytest.raises(FormatError, match=r"line 3 \('Rome'\): the label 'city' does not occur .* one of person, place"):
        fit(config)
    config = classifier(tmp_path)
    (tmp_path / "dev.tsv").write_text("good\tyes\nso-so\twell\n")
    with pytest.raises(FormatError, match=r"line 2: the label 'so-so' does not occur .* one of bad, good"):
        fit(config)


def test_configurations_survive_json_and_are_checked(tmp_path):
    for preset in PRESETS.values():
        config = with_elmo(preset(), "en-small")
        assert TaskConfig.from_json(config.to_json()) == config
        assert with_elmo(config, None).inputs.elmo is None
    with pytest.raises(InputError, match="kind is 'x'; wanted one of tagger"):
        TaskConfig.from_dict({"model": {"kind": "x"}})
    with pytest.raises(InputError, match="give both or neither"):
        replace(with_elmo(PRESETS["ner"](), "en-small"), elmo=None)
    with pytest.raises(InputError, match="needs train, dev and folder"):
        fit(with_elmo(PRESETS["ner"](), None))
    with pytest.raises(InputError, match="at least 1"):
        FitConfig(batch=0)


def test_batches_hold_every_record_once():
    import numpy as np

    generator = np.random.default_rng(0)
    lengths = list(range(23))
    found = list(batches(list(range(100, 123)), lengths, 4, generator))
    assert sorted(number for batch in found for number in batch) == list(range(100, 123))
    assert max(map(len, found)) == 4


def test_phrases_are_drawn_anew_each_epoch(tmp_path):
    (tmp_path / "train.txt").write_text("(3 (2 It) (4 (2 really) (4 works)))\n(1 (1 bad) (2 film))\n")
    (tmp_path / "dev.txt").write_text("(3 (2 It) (4 works))\n")
    model = ClassifierConfig(file="trees", phrases=3, dense=4, hidden=2)
    config = classifier(tmp_path, model=model, epochs=2, train=str(tmp_path / "train.txt"), dev=str(tmp_path / "dev.txt"))
    steps = []
    fit(replace(config, fit=replace(config.fit, batch=1)), report=lambda done, total=None, *, note="": steps.append(total))
    assert steps[-1] == 2 * (2 + 3)


def test_a_share_of_the_training_data(tmp_path):
    def steps(share):
        config = tagger(tmp_path, epochs=1, folder=str(tmp_path / str(share)))
        totals = []
        fit(replace(config, fit=replace(config.fit, share=share, batch=1)), report=lambda d, t=None, *, note="": totals.append(t))
        return totals[-1]

    assert (steps(1.0), steps(0.5), steps(0.001)) == (48, 24, 1)
    (tmp_path / "train.txt").write_text("(3 (2 It) (4 works))\n" * 4)
    (tmp_path / "dev.txt").write_text("(3 (2 It) (4 works))\n")
    model = ClassifierConfig(file="trees", dense=4, hidden=2)
    config = classifier(tmp_path, model=model, epochs=1, train=str(tmp_path / "train.txt"), dev=str(tmp_path / "dev.txt"))
    totals = []
    fit(replace(config, fit=replace(config.fit, share=0.5, batch=1)), report=lambda d, t=None, *, note="": totals.append(t))
    assert totals[-1] == 2 * 3
    with pytest.raises(InputError, match="share is 0"):
        FitConfig(share=0.0)


def test_mean_and_spread():
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_and_spread([5.0]) == (5.0, 0.0)


def _labelled(tree):
    """label<TAB>text of a sentiment tree."""
    return f"{tree[1]}\t{' '.join(re.findall(r'([^ ()]+)[)]', tree))}"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ner", "sst5", "pos", "classification"])
def test_200_records_are_learned(task, shared, tmp_path):
    """Without dropout every model learns 200 real records by heart; each takes well under two minutes."""
    data, take = {
        "ner": ("ner/wnut17/train.conll", lambda text: text.split("\n\n")[:200]),
        "sst5": ("sentiment/sst5/train.txt", lambda text: text.splitlines()[:200]),
        "classification": ("sentiment/sst5/train.txt", lambda text: [_labelled(tree) for tree in text.splitlines()[:200]]),
        "pos": ("pos/ud-ewt/dev.conllu.xz", lambda text: text.split("\n\n")[:200]),
    }[task]
    with open_text(shared / "data" / data) as stream:
        kept = take(stream.read())
    path = tmp_path / "records"
    path.write_text(("\n\n" if task in ("ner", "pos") else "\n").join(kept) + "\n", encoding="utf-8")
    config = with_elmo(PRESETS[task](), None)
    if task in ("sst5", "classification"):
        model = replace(
            config.model, subtrees=False, dense=100, hidden=50, input_dropout=0.0, dense_dropout=0.0, head_dropout=(0.0, 0.0, 0.0)
        )
    else:
        model = replace(config.model, hidden=100, layers=1, dropout=0.0)
    config = replace(config, model=model, train=str(path), dev=str(path), folder=str(tmp_path / "run"))
    result = fit(replace(config, fit=replace(config.fit, epochs=40, patience=40, batch=20, learning_rate=0.003)))
    assert result.dev[result.trained.task.metric] >= 99
