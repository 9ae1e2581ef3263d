"""The loop around the steps: checkpoints, log, held-out text, the guard's verdicts, signals and limits.

RUN/config.json      the configuration
RUN/log.jsonl        one record every `log_every` steps, one for each evaluation and each event
RUN/checkpoints/     the newest two; the same command again goes on from the last
RUN/model/           the model as a native folder, written when the run stops for whatever foreseen reason
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from polyseme.errors import InputError
from polyseme.pretraining import checkpoint
from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.corpus import Corpus
from polyseme.pretraining.handover import Start, export, take_up, training_facts
from polyseme.pretraining.log import Log
from polyseme.pretraining.plan import Plan, plan
from polyseme.pretraining.run import Heldout, Lists, Run, Step
from polyseme.progress import Report
from polyseme.vocabulary import MANY_LANGS_MARKERS, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call of `pretrain` ended.

    reason     "finished", "max_tokens", "max_minutes", "signal", or "planned" where the plan was not approved
    tokens     positions per direction read in all, `steps` the steps that took
    heldout    the last held-out perplexities: forward, backward, average; empty without held-out text
    """

    reason: str
    tokens: int
    steps: int
    heldout: dict[str, float]
    model: Path | None


def pretrain(
    config: PretrainConfig,
    corpus: Corpus,
    folder: str | Path,
    *,
    vocabulary: Vocabulary | Lists | None = None,
    start: Start | None = None,
    freeze_steps: int = 0,
    device: torch.device | str = "cpu",
    heldout: Corpus | None = None,
    evaluate_every: int = 1_000_000,
    evaluate_tokens: int = 50_000,
    max_minutes: float | None = None,
    max_tokens: int | None = None,
    checkpoint_minutes: float = 5.0,
    keep: int = 2,
    log_every: int = 50,
    tensorboard: bool = False,
    approve: Callable[[Plan], bool] | None = None,
    say: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> Outcome:
    """Trains a biLM, or goes on with the run that `folder` holds.

    Args:
        config: Everything that decides the numbers; see `polyseme.pretraining.config` for presets.
        corpus: The prepared text: `Corpus.open(folder)`.
        folder: Where the run lives. A run that is there is gone on with if it has the same configuration and text.
        vocabulary: The words to predict; None: the corpus's most frequent, as many as the model predicts.
        start: A model to go on with (`start_from`), instead of new weights; its word lists are used.
        freeze_steps: Steps in which only the softmax moves, for a softmax that is new.
        device: Where to compute.
        heldout: Text to measure perplexity on, every `evaluate_every` tokens and at the end, `evaluate_tokens` of it.
        evaluate_every: Tokens between two such measurements.
        evaluate_tokens: Tokens of held-out text to measure on.
        max_minutes: Stop after this time, of this call.
        max_tokens: Stop after this many tokens, of all calls.
        checkpoint_minutes: Time between checkpoints; one is also written at the start and at the end.
        keep: Checkpoints to keep.
        log_every: Steps between records of the log.
        tensorboard: Also write TensorBoard events.
        approve: Is shown the plan before the start; False stops there.
        say: Hears messages for people.
        report: Told the tokens read.
    """
    lists = start.lists if start is not None else _lists(vocabulary, config, corpus)
    run = Run(config, corpus, lists, device=device, model=None if start is None else start.model)
    loop = _Loop(
        run=run,
        folder=Path(folder),
        heldout=None if heldout is None else Heldout(heldout, run, tokens=evaluate_tokens),
        evaluate_every=evaluate_every,
        max_minutes=math.inf if max_minutes is None else max_minutes,
        max_tokens=config.tokens if max_tokens is None else min(config.tokens, max_tokens),
        checkpoint_minutes=checkpoint_minutes,
        keep=keep,
        log_every=log_every,
        say=say,
        report=report,
    )
    try:
        loop.hold()
        messages = loop.take_up(start, freeze_steps)
        if approve is not None and not approve(plan(run, tokens=loop.max_tokens)):
            return loop.outcome("planned", None)
        loop.open(messages, tensorboard=tensorboard)
        return loop.go()
    finally:
        loop.close()


def _lists(given: Vocabulary | Lists | None, config: PretrainConfig, corpus: Corpus) -> Lists:
    if isinstance(given, Lists):
        return given
    characters = config.model.characters
    words = corpus.vocabulary(config.model.vocabulary_size) if given is None else given
    if characters is None or characters.scheme == "bytes":
        return Lists(words)
    if given is None and words.counts is not None:
        # This scheme's markers are looked up among the words, too.
        counts = words.counts.tolist()
        words = Vocabulary((*MANY_LANGS_MARKERS, *words.words[3:]), markers=MANY_LANGS_MARKERS, counts=counts)
    return Lists(words, characters=corpus.characters(characters.size))


@dataclass
class _Loop:
    run: Run
    folder: Path
    heldout: Heldout | None
    evaluate_every: int
    max_minutes: float
    max_tokens: int
    checkpoint_minutes: float
    keep: int
    log_every: int
    say: Callable[[str], None] | None
    report: Report | None
    log: Log | None = None
    handle: int | None = None  # of the folder
    measured: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0  # of earlier calls, and of the model's training before this run
    log_bytes: int | None = None
    gathered: list[Step] = field(default_factory=list)
    began: float = 0.0
    logged: float = 0.0

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def first(self) -> bool:
        return self.run.processes.first

    def take_up(self, start: Start | None, freeze_steps: int) -> list[str]:
        """Goes on from the folder's last checkpoint, else from a model, else from nothing; what to tell about it."""
        saved = checkpoint.saved(self.checkpoints)
        if not self.run.processes.agree(int(saved[-1].name.removeprefix("step-")) if saved else -1):
            raise InputError(f"not all processes see the same checkpoints in {self.folder}; put it where all machines see it.")
        if saved:
            tensors, values = checkpoint.load(saved[-1])
            _compare(values["config"], self.run.config, self.folder)
            self.run.restore(tensors, values)
            self.seconds, self.log_bytes, self.measured = values["seconds"], values["log_bytes"], values["heldout"]
            return [f"going on from {saved[-1].name}, at {self.run.tokens:,} tokens"]
        others = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        if set(others) - {"config.json", "log.jsonl", "checkpoints", "tensorboard"}:
            raise InputError(f"{self.folder} holds {', '.join(sorted(others)[:3])} but no run; give an empty or a new folder.")
        if start is None:
            return []
        self.seconds = 0.0 if start.training is None else float(start.training["seconds"])
        return [take_up(self.run, start, freeze_steps=freeze_steps)]

    def open(self, messages: list[str], *, tensorboard: bool) -> None:
        """Makes the folder, the log and the first checkpoint."""
        if self.first:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.hold()
            (self.folder / "config.json").write_text(self.run.config.to_json(), encoding="utf-8")
            self.log = Log(self.folder, keep=self.log_bytes, tensorboard=tensorboard, step=self.run.step, say=self.say)
            for message in messages:
                self.log.event(self.run.step, self.run.tokens, "start", message)
        self.began = self.logged = time.monotonic()
        if not checkpoint.saved(self.checkpoints):
            self.save()

    def hold(self) -> None:
        """Keeps other processes away from the folder, once it is there."""
        if self.handle is not None or not self.first or not self.folder.is_dir():
            return
        import fcntl

        self.handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is training in {self.folder}; wait for it, or give a new folder.") from error

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        if self.handle is not None:
            os.close(self.handle)

    def go(self) -> Outcome:
        """Steps until something says stop."""
        run = self.run
        due = time.monotonic() + 60 * self.checkpoint_minutes
        with _signals() as caught:
            while not (reason := self._reason(caught)):
                step = run.advance()
                self.gathered.append(step)
                if step.verdict != "use":
                    self._refused(step)
                if run.step % self.log_every == 0:
                    self._write_log()
                if self.report is not None:
                    self.report(run.tokens, self.max_tokens, note=f"loss {step.loss:.3f}")
                each = run.config.rows * run.config.unroll
                if self.heldout is not None and run.tokens // self.evaluate_every > (run.tokens - each) // self.evaluate_every:
                    self._evaluate()
                if run.processes.any(time.monotonic() >= due):
                    self.save()
                    due = time.monotonic() + 60 * self.checkpoint_minutes
        if self.heldout is not None and self.measured.get("tokens") != run.tokens:
            self._evaluate()
        self._write_log()
        self.save()
        return self.outcome(reason, self._export())

    def _reason(self, caught: list[str]) -> str:
        """Why to stop now, if there is a reason; the same in every process."""
        if self.run.tokens >= self.run.config.tokens:
            return "finished"
        if self.run.tokens >= self.max_tokens:
            return "max_tokens"
        if self.run.processes.any(bool(caught)):
            return "signal"
        late = time.monotonic() - self.began >= 60 * self.max_minutes
        return "max_minutes" if self.run.processes.any(late) else ""

    def _refused(self, step: Step) -> None:
        """What follows when the guard does not let a step through."""
        message = f"step {self.run.step} was skipped: {self.run.guard.reason}"
        if step.verdict == "roll back":
            path = checkpoint.saved(self.checkpoints)[-1]
            tensors, _ = checkpoint.load(path)
            self.run.restore_weights(tensors)
            message = (
                f"{self.run.guard.patience} steps in a row were skipped, the last because {self.run.guard.reason}: weights, "
                f"optimizer and states are again those of {path.name}; the text goes on"
            )
        if self.log is not None:
            self.log.event(self.run.step, self.run.tokens, step.verdict, message)
        if step.verdict == "roll back":
            self.save()

    def _write_log(self) -> None:
        """A record of the steps since the last one."""
        now = time.monotonic()
        used = [step for step in self.gathered if step.verdict == "use"]
        if self.log is not None and used:
            config = self.run.config
            loss = "sampled_loss" if config.negatives is not None else "training_loss"
            self.log.write(
                self.run.step,
                self.run.tokens,
                {
                    loss: _mean([step.loss for step in used]),
                    f"{loss}_forward": _mean([step.forward for step in used]),
                    f"{loss}_backward": _mean([step.backward for step in used]),
                    "gradient_norm": _mean([step.norm for step in used]),
                    "learning_rate": used[-1].rate,
                    "tokens_per_second": len(self.gathered) * config.rows * config.unroll / max(now - self.logged, 1e-9),
                },
            )
        self.gathered.clear()
        self.logged = now

    def _evaluate(self) -> None:
        """Held-out perplexity with the full softmax."""
        assert self.heldout is not None
        began = time.monotonic()
        losses = self.heldout.losses(self.run.training)
        average = 0.5 * (losses["forward"] + losses["backward"])
        found = {name: math.exp(min(loss, 700.0)) for name, loss in (*losses.items(), ("average", average))}
        self.measured = {**found, "tokens": self.run.tokens}
        if self.log is not None:
            values = {f"heldout_perplexity_{name}": value for name, value in found.items()}
            self.log.write(self.run.step, self.run.tokens, values)
            if self.say is not None:
                self.say(f"{self.run.tokens:,} tokens: held-out perplexity {found['average']:.1f}")
        self.logged += time.monotonic() - began

    def save(self) -> None:
        """A checkpoint."""
        tensors = self.run.tensors()
        if self.first:
            values: dict[str, Any] = {
                **self.run.values(),
                "config": self.run.config.to_dict(),
                "seconds": self.seconds + time.monotonic() - self.began,
                "log_bytes": 0 if self.log is None else self.log.size,
                "heldout": self.measured,
            }
            checkpoint.save(self.checkpoints, self.run.step, tensors, values, keep=self.keep)
        self.run.processes.wait()

    def _export(self) -> Path | None:
        if not self.first:
            return None
        facts = training_facts(self.run, seconds=self.seconds + time.monotonic() - self.began, heldout=self.measured)
        export(self.run, self.folder / "model", facts)
        return self.folder / "model"

    def outcome(self, reason: str, model: Path | None) -> Outcome:
        return Outcome(reason=reason, tokens=self.run.tokens, steps=self.run.step, heldout=self.measured, model=model)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _compare(saved: dict[str, Any], config: PretrainConfig, folder: Path) -> None:
    """A run may be prolonged, but not changed."""
    before = replace(PretrainConfig.from_dict(saved), tokens=config.tokens)
    if before == config:
        return
    old, new = _flat(before.to_dict()), _flat(config.to_dict())
    odd = [f"{name} {old.get(name)} → {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)]
    changes = "; ".join(odd)
    raise InputError(f"{folder} holds a run with another configuration ({changes}); give a new folder, or its configuration.")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


@contextmanager
def _signals() -> Iterator[list[str]]:
    """Names of the signals that asked to stop; a second one stops at once. Only the main thread can listen."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def listen(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(signal.Signals(number).name)

    before = {number: signal.signal(number, listen) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
