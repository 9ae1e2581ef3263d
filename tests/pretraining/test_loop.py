"""The loop: a toy run learns, stops, is saved, killed, resumed bit for bit, rolled back, exported, gone on with."""

import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.errors import InputError, PolysemeError
from polyseme.pretraining.checkpoint import load, saved
from polyseme.pretraining.config import OptimizerConfig, PretrainConfig, medium, original, small
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.guard import Guard
from polyseme.pretraining.handover import start_from
from polyseme.pretraining.loop import Outcome, pretrain
from polyseme.pretraining.run import Lists, Run
from polyseme.pretraining.step import StepResult
from polyseme.vocabulary import Vocabulary

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.01, warmup_steps=10, schedule="cosine")
NOUNS, VERBS = ["cat", "dog", "bird", "horse"], ["sees", "hears", "likes", "fears"]


def grammar(sentences: int, seed: int) -> list[list[str]]:
    """A tiny language in which every word but the nouns follows from its neighbours."""
    choose = random.Random(seed)
    found = []
    for _ in range(sentences):
        pair = [(number, choose.choice(("the", "a"))) for number in (choose.randrange(4), choose.randrange(4))]
        subject, object_ = pair
        found.append([subject[1], NOUNS[subject[0]], VERBS[subject[0]], object_[1], NOUNS[object_[0]], "."])
    return found


def config(corpus: Corpus, **changes: object) -> PretrainConfig:
    """A small model with everything in it: characters, highway, projection, residual, sampled softmax, dropout."""
    model = BiLMConfig(
        characters=CharacterConfig(dim=4, filters=((1, 4), (2, 4), (3, 8)), max_characters=12),
        projection=12,
        lstm=LSTMConfig(dim=24, projection=12),
        vocabulary_size=len(corpus.vocabulary()),
    )
    values: dict[str, object] = {
        "model": model,
        "optimizer": OptimizerConfig(),
        "rows": 8,
        "unroll": 5,
        "negatives": 6,
        "dropout": 0.1,
        "loss_scale": 5.0,
        "tokens": 8 * 5 * 60,
    }
    return PretrainConfig(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_sentences(grammar(300, 1))


def records(folder: Path) -> list[dict]:
    """The log without what differs from run to run."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time", "tokens_per_second")} for line in lines]


def losses(folder: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["sampled_loss"], line["gradient_norm"]) for line in records(folder) if "sampled_loss" in line]


def test_a_toy_run_beats_the_unigram_and_reads_in_the_right_direction(corpus: Corpus, tmp_path: Path):
    """In seconds: full-softmax perplexity on held-out text below that of a unigram with the same words."""
    torch.manual_seed(0)
    heldout = Corpus.from_sentences(grammar(100, 2))
    setting = config(corpus, negatives=None, dropout=0.0, rows=16, unroll=7, loss_scale=7.0, tokens=16 * 7 * 150)
    outcome = pretrain(setting, corpus, tmp_path / "run", heldout=heldout, evaluate_every=10**9)
    vocabulary = corpus.vocabulary()
    counts = dict(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True))  # type: ignore[union-attr]
    text = [word for sentence in grammar(100, 2) for word in (*sentence, "</S>")]
    unigram = math.exp(-sum(math.log(counts[word] / corpus.positions) for word in text) / len(text))
    assert outcome.reason == "finished"
    assert 9 < unigram < 12
    for direction in ("forward", "backward", "average"):
        assert 1.5 < outcome.heldout[direction] < 0.4 * unigram

    import polyseme

    elmo = polyseme.load(outcome.model)
    before = elmo.embed([["the", "cat", "sees", "a", "dog", "."]], state="zero")[0]
    later = elmo.embed([["the", "cat", "sees", "a", "bird", "."]], state="zero")[0]
    half = elmo.config.lstm.width
    # Changing the fifth word changes backward layers before it and forward layers from it on, and nothing else.
    assert (before[1:, :4, :half] == later[1:, :4, :half]).all()
    assert (abs(before[1:, :5, half:] - later[1:, :5, half:]).max(axis=-1) > 1e-4).all()
    assert (abs(before[1:, 4:, :half] - later[1:, 4:, :half]).max(axis=-1) > 1e-4).all()
    assert (before[1:, 5:, half:] == later[1:, 5:, half:]).all()


def test_a_softmax_that_starts_from_frequencies_begins_near_the_unigram(corpus: Corpus):
    vocabulary = corpus.vocabulary()
    run = Run(config(corpus, start="unigram"), corpus, Lists(vocabulary))
    plain = Run(config(corpus), corpus, Lists(vocabulary))
    assert vocabulary.counts is not None
    shares = torch.from_numpy(vocabulary.counts / corpus.positions)
    for word in ("the", "cat", ".", "</S>"):
        place = vocabulary.get(word)
        expected = shares[place] / (1 + corpus.sentences / corpus.positions)  # <S> counts as </S>
        assert run.training.model.softmax.bias[place].exp().item() == pytest.approx(expected.item(), rel=1e-3)
    assert torch.equal(plain.training.model.softmax.weight * 0.1, run.training.model.softmax.weight)
    with pytest.raises(InputError, match="how often"):
        Run(config(corpus, start="unigram"), corpus, Lists(Vocabulary(vocabulary.words)))


def _split(corpus: Corpus, setting: PretrainConfig, folder: Path, at: int) -> Outcome:
    first = pretrain(setting, corpus, folder, log_every=1, max_tokens=at * setting.rows * setting.unroll)
    assert first.reason == "max_tokens"
    assert first.steps == at
    return pretrain(setting, corpus, folder, log_every=1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bfloat16"},
        {"negatives": None, "accumulate": 2},
        {
            "streams": "independent",
            "optimizer": OptimizerConfig(name="adamw", learning_rate=0.01, warmup_steps=10, schedule="cosine"),
        },
    ],
)
def test_stopped_and_resumed_equals_undisturbed(corpus: Corpus, tmp_path: Path, changes: dict):
    setting = config(corpus, tokens=8 * 5 * 20, **changes)
    pretrain(setting, corpus, tmp_path / "whole", log_every=1)
    _split(corpus, setting, tmp_path / "parts", 11)
    whole, parts = ([record for record in records(tmp_path / name) if "event" not in record] for name in ("whole", "parts"))
    assert len(whole) == 20
    assert whole == parts
    left, right = (load(saved(tmp_path / name / "checkpoints")[-1])[0] for name in ("whole", "parts"))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


CHILD = """
import sys, time, torch
torch.set_num_threads(2)
sys.path.insert(0, sys.argv[1])
from test_loop import *
corpus = Corpus.from_sentences(grammar(300, 1))
setting = config(corpus, precision="bfloat16", tokens=8 * 5 * 30)
def slow(done, total=None, *, note=""):
    time.sleep(float(sys.argv[3]))
pretrain(setting, corpus, sys.argv[2], log_every=1, checkpoint_minutes=0.5 / 60, report=slow)
"""


def _child(folder: Path, pause: float) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    return subprocess.Popen([sys.executable, "-c", CHILD, Path(__file__).parent, folder, str(pause)], env=environment)


def test_killed_and_resumed_is_bit_identical(tmp_path: Path):
    """kill -9 at an arbitrary moment; dropout, bfloat16, sampled softmax, two threads."""
    killed = _child(tmp_path / "killed", 0.1)
    deadline = time.monotonic() + 120
    while len(saved(tmp_path / "killed" / "checkpoints")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)  # somewhere between two checkpoints
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    reached = losses(tmp_path / "killed")
    assert 0 < len(reached) < 30
    assert _child(tmp_path / "whole", 0.0).wait(240) == 0
    assert _child(tmp_path / "killed", 0.0).wait(240) == 0
    assert losses(tmp_path / "whole")[: len(reached)] == reached
    assert len(losses(tmp_path / "whole")) == 30
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


@pytest.mark.parametrize(
    ("preset", "dim", "width", "highways"), [(small, 1024, 128, 1), (medium, 2048, 256, 1), (original, 4096, 512, 2)]
)
def test_the_presets_are_bilm_tfs(preset: Callable[[int], PretrainConfig], dim: int, width: int, highways: int):
    found = preset(50_000)
    lstm, characters = found.model.lstm, found.model.characters
    assert (lstm.dim, lstm.projection, lstm.layers, found.model.projection) == (dim, width, 2, width)
    assert (lstm.cell_clip, lstm.projection_clip, lstm.residual) == (3.0, 3.0, True)
    assert characters is not None
    assert (characters.dim, characters.max_characters, characters.highways, characters.activation) == (16, 50, highways, "relu")
    assert dict(characters.filters) == {1: 32, 2: 32, 3: 64, 4: 128, 5: 256, 6: 512, 7: 1024}
    assert found.optimizer == OptimizerConfig(
        name="adagrad", learning_rate=0.2, initial_accumulator=1.0, schedule="constant", warmup_steps=0, clip_norm=10.0
    )
    assert (found.rows, found.unroll, found.loss_scale, found.negatives, found.dropout) == (128, 20, 20.0, 8192, 0.1)
    assert (found.streams, found.precision, found.accumulate) == ("independent", "float32", 1)
    assert PretrainConfig.from_json(found.to_json()) == found


def test_a_signal_saves_and_stops(corpus: Corpus, tmp_path: Path):
    def stop(done: int, total: int | None = None, *, note: str = "") -> None:
        if done >= 8 * 5 * 7:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    outcome = pretrain(config(corpus), corpus, tmp_path / "run", report=stop)
    assert (outcome.reason, outcome.steps) == ("signal", 7)
    assert signal.getsignal(signal.SIGTERM) is before
    assert saved(tmp_path / "run" / "checkpoints")[-1].name == "step-000000007"
    assert outcome.model is not None
    assert (outcome.model / "model.safetensors").is_file()


def test_limits_in_time(corpus: Corpus, tmp_path: Path):
    outcome = pretrain(config(corpus, tokens=10**9), corpus, tmp_path / "run", max_minutes=0.3 / 60)
    assert outcome.reason == "max_minutes"
    assert 0 < outcome.steps < 10**5


def test_two_checkpoints_are_kept(corpus: Corpus, tmp_path: Path):
    pretrain(config(corpus, tokens=8 * 5 * 6), corpus, tmp_path / "run", checkpoint_minutes=0.0)
    names = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert sorted(names) == ["step-000000005", "step-000000006"]


def _poisoned(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Makes the losses and gradients of some steps not numbers, as a batch of bad numbers would."""
    honest = Run.run

    def run(self: Run, window, carried, draws) -> StepResult:
        result = honest(self, window, carried, draws)
        if self.step in steps:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.fill_(math.nan)
            result.state.h.fill_(math.nan)
            result.loss.fill_(math.nan)
        return result

    monkeypatch.setattr(Run, "run", run)


def test_a_bad_batch_is_skipped_and_said(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _poisoned(monkeypatch, {4})
    said: list[str] = []
    outcome = pretrain(config(corpus, tokens=8 * 5 * 10), corpus, tmp_path / "run", log_every=1, say=said.append)
    assert outcome.steps == 10
    assert said == ["step 5 was skipped: the loss is nan"]
    assert [line["step"] for line in records(tmp_path / "run") if "sampled_loss" in line] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    tensors, values = load(saved(tmp_path / "run" / "checkpoints")[-1])
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    assert int(tensors["optimizer/updates"]) == 9
    assert values["step"] == 10


def test_bad_batches_in_a_row_roll_the_run_back(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _poisoned(monkeypatch, {6, 7, 8, 9, 10})
    said: list[str] = []
    setting = config(corpus, tokens=8 * 5 * 14)
    pretrain(setting, corpus, tmp_path / "run", log_every=1, say=said.append)
    assert len(said) == 5
    assert said[-1].startswith("5 steps in a row were skipped, the last because the loss is nan")
    assert "those of step-000000000; the text goes on" in said[-1]
    tensors, _ = load(saved(tmp_path / "run" / "checkpoints")[-1])
    assert int(tensors["optimizer/updates"]) == 3
    _poisoned(monkeypatch, set(range(10**6)))
    with pytest.raises(PolysemeError, match="diverged"):
        pretrain(config(corpus, tokens=8 * 5 * 30), corpus, tmp_path / "other")


def test_the_guard_knows_spikes_from_noise():
    guard, noise = Guard(), random.Random(3)
    assert all(guard.judge(5 + noise.gauss(0, 0.1), 1.0) == "use" for _ in range(300))
    assert guard.judge(6.5, 1.0) == "skip"
    assert "far above its running mean of" in guard.reason
    assert guard.judge(5.1, math.inf) == "skip"
    assert guard.judge(5.1, 3.0) == "use"
    again = Guard()
    again.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert again == dataclasses.replace(guard, reason="")
    slow = Guard()
    assert all(slow.judge(9 - 0.02 * step + noise.gauss(0, 0.1), 1.0) == "use" for step in range(300))


def test_a_plan_changes_nothing(corpus: Corpus, tmp_path: Path):
    setting = config(corpus, tokens=8 * 5 * 12)
    plans = []

    def refuse(found) -> bool:
        plans.append(found)
        return False

    outcome = pretrain(setting, corpus, tmp_path / "planned", approve=refuse)
    assert outcome.reason == "planned"
    assert not (tmp_path / "planned").exists()
    pretrain(setting, corpus, tmp_path / "planned", log_every=1, approve=lambda found: True)
    pretrain(setting, corpus, tmp_path / "plain", log_every=1)
    assert records(tmp_path / "planned") == records(tmp_path / "plain")
    (plan,) = plans
    assert (plan.steps, plan.rows, plan.unroll) == (12, 8, 5)
    assert sum(plan.parameters.values()) == sum(p.numel() for p in Run(setting, corpus, _lists(corpus)).parameters.values())
    assert plan.seconds == 12 * plan.seconds_per_step
    assert "tokens/s" in plan.describe()
    json.dumps(plan.to_dict())


def _lists(corpus: Corpus):
    from polyseme.pretraining.run import Lists

    return Lists(corpus.vocabulary())


def test_another_configuration_or_text_is_refused(corpus: Corpus, tmp_path: Path):
    setting = config(corpus, tokens=8 * 5 * 2)
    pretrain(setting, corpus, tmp_path / "run")
    with pytest.raises(InputError, match=r"another configuration \(dropout 0.1 → 0.2\)"):
        pretrain(dataclasses.replace(setting, dropout=0.2), corpus, tmp_path / "run")
    other = Corpus.from_sentences([*grammar(300, 1), ["the", "cat", "."]])
    with pytest.raises(InputError, match="same corpus"):
        pretrain(setting, other, tmp_path / "run")
    longer = pretrain(dataclasses.replace(setting, tokens=8 * 5 * 4), corpus, tmp_path / "run")
    assert longer.steps == 4
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        pretrain(setting, corpus, tmp_path / "full")


def test_two_processes_do_not_train_in_one_folder(corpus: Corpus, tmp_path: Path):
    fcntl = pytest.importorskip("fcntl")
    setting = config(corpus, tokens=8 * 5 * 2)
    pretrain(setting, corpus, tmp_path / "run")
    longer = dataclasses.replace(setting, tokens=8 * 5 * 3)
    other = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process is training in"):
        pretrain(longer, corpus, tmp_path / "run")
    os.close(other)
    assert pretrain(longer, corpus, tmp_path / "run").steps == 3


def test_going_on_from_the_exported_model_alone(corpus: Corpus, tmp_path: Path):
    heldout = Corpus.from_sentences(grammar(60, 2))
    setting = config(corpus, tokens=8 * 5 * 60, negatives=None)
    first = pretrain(setting, corpus, tmp_path / "first", heldout=heldout)
    start = start_from(tmp_path / "first" / "model")
    assert start.recipe == setting
    said: list[str] = []
    more = dataclasses.replace(setting, tokens=8 * 5 * 70)
    second = pretrain(more, corpus, tmp_path / "second", start=start, heldout=heldout, say=said.append)
    assert said[0].startswith("going on at 2,400 tokens, where the model's training left the text")
    assert second.steps == 70
    again = start_from(tmp_path / "second" / "model").training
    assert start.training is not None
    assert again is not None
    assert again["seconds"] > start.training["seconds"] > 0
    # Re-warmed accumulators: ten more steps make it no worse, as a fresh Adagrad's first steps would.
    assert second.heldout["average"] < first.heldout["average"] * 1.03
    left = load(saved(tmp_path / "first" / "checkpoints")[-1])[0]["optimizer/accumulator/lstm.forward_layers.0.bias"]
    right = load(saved(tmp_path / "second" / "checkpoints")[-1])[0]["optimizer/accumulator/lstm.forward_layers.0.bias"]
    assert float((right.mean() - 1) / (left.mean() - 1)) == pytest.approx(70 / 60, abs=0.15)
    other = Corpus.from_sentences(grammar(50, 9))
    said.clear()
    pretrain(more, other, tmp_path / "third", start=start_from(tmp_path / "first" / "model"), say=said.append)
    assert "has seen 2,400 tokens of other text" in said[0]


def test_going_on_with_other_words_and_without_a_softmax(corpus: Corpus, tmp_path: Path):
    setting = config(corpus, tokens=8 * 5 * 30)
    model = pretrain(setting, corpus, tmp_path / "first").model
    assert model is not None
    other = Corpus.from_sentences([[*sentence[:-1], "!"] for sentence in grammar(50, 9)])
    vocabulary = other.vocabulary()
    kept = start_from(model, vocabulary=vocabulary)
    old = start_from(model)
    assert kept.model.softmax is not None
    assert old.model.softmax is not None
    word = "cat"
    rows = [one.lists.vocabulary.get(word) for one in (kept, old)]
    assert torch.equal(kept.model.softmax.weight[rows[0]], old.model.softmax.weight[rows[1]])
    (model / "softmax.safetensors").unlink()
    with pytest.raises(InputError, match="no softmax"):
        start_from(model)
    fresh = start_from(model, vocabulary=vocabulary)
    body = {name: value.clone() for name, value in fresh.model.state_dict().items()}
    longer = dataclasses.replace(setting, tokens=8 * 5 * 34)
    pretrain(longer, other, tmp_path / "frozen", start=fresh, freeze_steps=4)
    after = load(saved(tmp_path / "frozen" / "checkpoints")[-1])[0]
    moved = {name for name, value in body.items() if not torch.equal(value, after[f"model/{name}"])}
    assert moved == {"softmax.weight", "softmax.bias"}


def test_word_input_and_word_and_character_input(corpus: Corpus, tmp_path: Path):
    size = len(corpus.vocabulary())
    words = WordConfig(size=size, dim=6)
    plain = config(corpus).model
    both = dataclasses.replace(plain, words=words)
    tied = BiLMConfig(
        characters=None,
        words=WordConfig(size=size, dim=12),
        projection=None,
        lstm=plain.lstm,
        vocabulary_size=size,
        tied_softmax=True,
    )
    for name, model in (("both", both), ("tied", tied)):
        outcome = pretrain(config(corpus, model=model, tokens=8 * 5 * 4), corpus, tmp_path / name)
        assert outcome.steps == 4
        assert start_from(outcome.model).model.config == model  # type: ignore[arg-type]


def test_tensorboard_events(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard")
    pretrain(config(corpus, tokens=8 * 5 * 4), corpus, tmp_path / "run", log_every=2, tensorboard=True)
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"polyseme\[tensorboard\]"):
        pretrain(config(corpus, tokens=8 * 5 * 4), corpus, tmp_path / "other", tensorboard=True)
