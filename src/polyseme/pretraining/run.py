"""A pretraining run in memory: model, data, optimizer, generators and carried states; one step; all of it as tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from polyseme.characters import ByteScheme, LexiconScheme, WordReader
from polyseme.errors import InputError
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import PretrainConfig
from polyseme.pretraining.corpus import Corpus, CorpusWords
from polyseme.pretraining.guard import Guard, Verdict
from polyseme.pretraining.losses import Draw, sample_log_uniform
from polyseme.pretraining.optimizer import Gradients, Optimizer, learning_rate
from polyseme.pretraining.processes import Processes
from polyseme.pretraining.step import CarriedState, StepResult, TrainingStep
from polyseme.pretraining.streams import Streams, Window
from polyseme.vocabulary import Vocabulary


@dataclass(frozen=True)
class Lists:
    """The word lists of a model: of the softmax, of the word embedding, and of a lexicon's characters."""

    vocabulary: Vocabulary
    lexicon: Vocabulary | None = None
    characters: Vocabulary | None = None


@dataclass(frozen=True)
class Step:
    """What one step gave: mean losses (sampled where the softmax is), the gradient's norm before clipping, the rate."""

    loss: float
    forward: float
    backward: float
    norm: float
    rate: float
    verdict: Verdict


class Run:
    """Everything a run changes, in one place.

    `model` is a network to go on with; None starts a new one. `step`, `tokens` count what was read before, too.
    """

    def __init__(
        self,
        config: PretrainConfig,
        corpus: Corpus,
        lists: Lists,
        *,
        device: torch.device | str = "cpu",
        model: BiLM | None = None,
    ) -> None:
        _check(config, lists)
        self.config, self.corpus, self.lists = config, corpus, lists
        self.device = torch.device(device)
        self.processes = Processes(self.device)
        parts = config.accumulate * self.processes.size
        if config.rows % parts:
            raise InputError(f"rows is {config.rows}; wanted a multiple of accumulate × processes, {parts}.")
        if model is None:
            model = BiLM(config.model)
            initialise(model, torch.Generator().manual_seed(config.seed))
            if config.start == "unigram":
                start_from_frequencies(model, lists.vocabulary)
        self.training = TrainingStep(model.requires_grad_(), config, device=self.device)
        self.parameters = dict(model.named_parameters())
        self.optimizer = Optimizer(self.parameters, config.optimizer)
        self.targets = corpus.table(lists.vocabulary)
        self.reader = word_reader(config, lists)
        self.words = CorpusWords(corpus, self.reader)
        first, last = self.processes.rows(config.rows)
        self.streams = Streams(
            corpus,
            self.targets,
            rows=config.rows,
            unroll=config.unroll,
            streams=config.streams,
            shuffle=config.shuffle,
            seed=config.seed,
            keep=(first, last),
        )
        self.carried = CarriedState.zeros(config.model.lstm, last - first, device=self.device)
        self.draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, 1])))
        seed = int(np.random.SeedSequence([config.seed, 2, self.processes.rank]).generate_state(1)[0])
        self.dropout = torch.Generator(device=self.device).manual_seed(seed)
        self.guard = Guard()
        self.step = 0
        self.frozen_until = 0  # before this step only the softmax moves
        self.thaw_updates = 0  # the updates that Adagrad's accumulators are made to stand for then

    @property
    def tokens(self) -> int:
        """Positions per direction read so far."""
        return self.step * self.config.rows * self.config.unroll

    @property
    def steps(self) -> int:
        """Steps in all."""
        return steps_of(self.config)

    def advance(self) -> Step:
        """Reads one window, and learns from it unless the guard says otherwise."""
        if self.thaw_updates and self.step >= self.frozen_until:
            self.rewarm(self.thaw_updates, {}, fresh_softmax=True)
            self.thaw_updates = 0
        self.training.clear()
        losses, carried = self._gradients(next(self.streams))
        gradients = self._averaged()
        loss, forward, backward = self.processes.mean(losses).tolist()
        norm = float(gradients.norm())
        rate = learning_rate(self.config.optimizer, self.step, self.steps)
        verdict = self.guard.judge(loss, norm)
        if verdict == "use":
            clip = self.config.optimizer.clip_norm
            scale = 1.0 if clip is None or norm <= clip else clip / norm
            self.optimizer.step(gradients, rate=rate, scale=scale)
            # A step that is not used leaves the states before it: they may be what is wrong.
            self.carried = carried
        self.step += 1
        return Step(loss, forward, backward, norm, rate, verdict)

    def _averaged(self) -> Gradients:
        """The gradients that move weights, averaged over all processes; the softmax's alone while the rest is frozen."""
        self.processes.average(self.parameters, self.training.sparse)
        if self.step >= self.frozen_until:
            return Gradients(self.parameters, self.training.sparse)
        moving = {name: parameter for name, parameter in self.parameters.items() if name.startswith("softmax.")}
        return Gradients(moving, {name: rows for name, rows in self.training.sparse.items() if name in moving})

    def measure(self) -> None:
        """A window's work without its consequences, but for the position in the data and the generators."""
        self.training.clear()
        losses, _ = self._gradients(next(self.streams))
        float(losses[0])  # waits for the device

    def reseed(self) -> None:
        """New draws for a run that goes on from a model: other than those its training began with."""
        self.draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.config.seed, 1, self.step])))
        seed = np.random.SeedSequence([self.config.seed, 2, self.processes.rank, self.step]).generate_state(1)
        self.dropout.manual_seed(int(seed[0]))

    def _gradients(self, window: Window) -> tuple[Tensor, CarriedState]:
        """Runs a window in as many parts as the configuration says; the losses' means, and the states after it."""
        draws = self._draw()
        parts = self.config.accumulate
        rows = len(window.forward_inputs) // parts
        results = [
            self.run(window.rows(part * rows, (part + 1) * rows), self._carried_rows(part * rows, (part + 1) * rows), draws)
            for part in range(parts)
        ]
        losses = torch.stack([torch.stack([result.loss, result.forward, result.backward]) for result in results]).mean(dim=0)
        h = torch.cat([result.state.h for result in results], dim=2)
        c = torch.cat([result.state.c for result in results], dim=2)
        return losses, CarriedState(h, c)

    def _carried_rows(self, first: int, last: int) -> CarriedState:
        return CarriedState(self.carried.h[:, :, first:last], self.carried.c[:, :, first:last])

    def run(self, window: Window, carried: CarriedState, draws: tuple[Draw, Draw] | None) -> StepResult:
        """The losses of a window, its gradients added to those that are there."""
        words, indices, targets = read_window(window, self.words, self.device)
        return self.training.run(
            words, indices, targets, carried, draws=draws, generator=self.dropout, share=1 / self.config.accumulate
        )

    def _draw(self) -> tuple[Draw, Draw] | None:
        """The negatives of a step, one draw a direction."""
        negatives, size = self.config.negatives, self.config.model.vocabulary_size
        if negatives is None or size is None:
            return None
        source = self.draws
        if self.config.draws == "own":
            # Seeded by a number that all draw: their generators stay alike, and one checkpoint serves all.
            seed = int(source.integers(1 << 63))
            source = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, self.processes.rank])))
        forward, backward = (sample_log_uniform(source, negatives, size).to(self.device) for _ in range(2))
        return forward, backward

    def rewarm(self, updates: int, means: Mapping[str, float], *, fresh_softmax: bool = False, windows: int = 100) -> None:
        """Gives a new Adagrad the accumulators that `updates` updates would have left.

        The gradients of the next windows are gathered without moving a weight, and what they gathered is multiplied so that
        its mean is as in `means` (by parameter), or by the number of updates. The windows are read again afterwards. Without
        this the rate of a fresh Adagrad would throw a trained model far off. A fresh softmax keeps its own accumulators, as it
        has far to go. AdamW begins anew: averages warmed so were tried, and were worse, as they hold what is read next.
        """
        if self.config.optimizer.name != "adagrad" or not updates:
            return
        position, carried, step = self.streams.state_dict(), self.carried, self.step
        softmax = [name for name in self.parameters if fresh_softmax and name.startswith("softmax.")]
        kept = [(slots[name], slots[name].clone()) for slots in self.optimizer.state.values() for name in softmax]
        for _ in range(min(windows, updates)):
            self.training.clear()
            _, self.carried = self._gradients(next(self.streams))
            gradients = self._averaged()
            norm, clip = float(gradients.norm()), self.config.optimizer.clip_norm
            self.optimizer.step(gradients, rate=0.0, scale=1.0 if clip is None or norm <= clip else clip / norm)
        self.training.clear()
        self.optimizer.extrapolate(updates, means)
        for tensor, before in kept:
            tensor.copy_(before)
        self.streams.load_state_dict(position)
        self.carried, self.step = carried, step

    def tensors(self) -> dict[str, Tensor]:
        """All tensors a checkpoint holds; every process must call this, as carried rows come from all."""
        found = {f"model/{name}": parameter for name, parameter in self.parameters.items()}
        found |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state_dict().items()}
        found["carried/h"] = self.processes.joined(self.carried.h, axis=2)
        found["carried/c"] = self.processes.joined(self.carried.c, axis=2)
        found["dropout"] = self.processes.joined(self.dropout.get_state(), axis=0)
        return found

    def values(self) -> dict[str, Any]:
        """What else a checkpoint holds, as plain JSON values."""
        return {
            "step": self.step,
            "frozen_until": self.frozen_until,
            "thaw_updates": self.thaw_updates,
            "streams": self.streams.state_dict(),
            "draws": self.draws.bit_generator.state,
            "guard": self.guard.state_dict(),
            "processes": self.processes.size,
            "torch": torch.__version__,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.restore_weights(tensors)
        if values["processes"] != self.processes.size:
            before = values["processes"]
            raise InputError(f"the run was made by {before} processes, not {self.processes.size}; resume with as many.")
        # A copy: given a part of a larger tensor, torch reads past it.
        self.dropout.set_state(tensors["dropout"].chunk(self.processes.size)[self.processes.rank].clone())
        self.streams.load_state_dict(values["streams"])
        self.draws.bit_generator.state = values["draws"]
        self.guard.load_state_dict(values["guard"])
        self.step, self.frozen_until = int(values["step"]), int(values["frozen_until"])
        self.thaw_updates = int(values.get("thaw_updates", 0))

    @torch.no_grad()
    def restore_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back weights, optimizer and carried states alone: the data goes on."""
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"model/{name}"])
        prefix = "optimizer/"
        self.optimizer.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        first, last = self.processes.rows(self.config.rows)
        h, c = (tensors[f"carried/{name}"][:, :, first:last].contiguous().to(self.device) for name in ("h", "c"))
        self.carried = CarriedState(h, c)


def steps_of(config: PretrainConfig) -> int:
    """How many steps it takes to read the configured number of tokens."""
    return -(-config.tokens // (config.rows * config.unroll))


@torch.no_grad()
def start_from_frequencies(model: BiLM, vocabulary: Vocabulary) -> None:
    """Makes a new softmax predict every word as often as the text has it; see PretrainConfig.start."""
    if vocabulary.counts is None:
        raise InputError('start="unigram" needs to know how often each word occurs; use the words of a prepared corpus.')
    assert model.softmax is not None
    counts = np.maximum(vocabulary.counts, 1).astype(np.float64)
    end = vocabulary.get(vocabulary.markers[1])
    begin = vocabulary.get(vocabulary.markers[0])
    if begin is not None and end is not None:
        counts[begin] = counts[end]  # what the backward direction predicts as often
    model.softmax.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
    if not model.config.tied_softmax:
        model.softmax.weight.mul_(0.1)


def word_reader(config: PretrainConfig, lists: Lists) -> WordReader:
    """How the model reads words."""
    characters, words = config.model.characters, config.model.words
    scheme: ByteScheme | LexiconScheme | None = None
    if characters is not None and characters.scheme == "bytes":
        scheme = ByteScheme(max_characters=characters.max_characters)
    elif characters is not None:
        if lists.characters is None:
            raise InputError("the model spells words by a character lexicon, which was not given (Lists.characters).")
        scheme = LexiconScheme(lists.characters, max_characters=characters.max_characters)
    lexicon = None if words is None else lists.lexicon if lists.lexicon is not None else lists.vocabulary
    return WordReader(scheme, lexicon, limit=None if words is None else words.limit)


def _check(config: PretrainConfig, lists: Lists) -> None:
    size = config.model.vocabulary_size
    if size != len(lists.vocabulary):
        raise InputError(f"the configuration's vocabulary_size is {size}, but the vocabulary has {len(lists.vocabulary)} words.")
    words = config.model.words
    lexicon = lists.vocabulary if lists.lexicon is None else lists.lexicon
    if words is not None and words.size != len(lexicon):
        raise InputError(f"the word embedding has {words.size} rows, but its list has {len(lexicon)} words; make them equal.")
    if words is not None and words.markers != lexicon.markers:
        raise InputError(f"model.words.markers are {words.markers}, but those of its list {lexicon.markers}; make them equal.")
    characters = config.model.characters
    if characters is not None and lists.characters is not None and characters.size != len(lists.characters):
        raise InputError(
            f"model.characters.size is {characters.size}, but the character lexicon has {len(lists.characters)} lines; "
            "make them equal."
        )


def read_window(
    window: Window, words: CorpusWords, device: torch.device
) -> tuple[Any, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A window as the step wants it: its distinct words, where in them each position's word is, and the targets."""
    inputs = np.stack([window.forward_inputs, window.backward_inputs])
    ids, inverse = np.unique(inputs, return_inverse=True)
    index = torch.from_numpy(inverse.reshape(inputs.shape)).to(device)
    targets = torch.from_numpy(np.stack([window.forward_targets, window.backward_targets])).to(device)
    return words.read(ids).to(device), (index[0], index[1]), (targets[0], targets[1])


class Heldout:
    """Held-out text, evaluated as it is dealt: rows in file order, states carried from zero, full softmax, no dropout."""

    def __init__(self, corpus: Corpus, run: Run, *, tokens: int) -> None:
        self.rows = min(run.config.rows, corpus.sentences)
        self.unroll = run.config.unroll
        self.windows = max(1, min(tokens, corpus.positions) // (self.rows * self.unroll))
        self.corpus = corpus
        self.targets = corpus.table(run.lists.vocabulary)
        self.words = CorpusWords(corpus, run.reader)

    def losses(self, training: TrainingStep) -> dict[Literal["forward", "backward"], float]:
        """The mean negative log-likelihoods of both directions."""
        streams = Streams(self.corpus, self.targets, rows=self.rows, unroll=self.unroll, shuffle=False)
        carried = CarriedState.zeros(training.config.model.lstm, self.rows, device=training.device)
        totals = torch.zeros(2, dtype=torch.float64)
        for _ in range(self.windows):
            words, indices, targets = read_window(next(streams), self.words, training.device)
            forward, backward, carried = training.evaluate(words, indices, targets, carried)
            totals += torch.stack([forward, backward]).to("cpu", torch.float64)
        forward_mean, backward_mean = (totals / (self.windows * self.rows * self.unroll)).tolist()
        return {"forward": forward_mean, "backward": backward_mean}
