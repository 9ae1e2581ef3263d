"""Pretrain a biLM on one CUDA device, the whole step (optimizer included) as one CUDA graph.

    python recipes/pretrain_cuda.py CORPUS HELDOUT OUT --model en-small --seconds 1000

CORPUS and HELDOUT were written by `polyseme prepare`. OUT is the model's folder, in 16 bits; it is written anew every few
minutes, and `polyseme pretrain --from OUT` goes on from it. Given several --rates, short runs choose among them first.

On a GPU the step is a matter of launches, not of arithmetic, so all of its kernels are replayed from one graph. A graph needs
sizes that never change: distinct words are padded to a fixed number and lie by length, and the corpus is dealt on the device:
every pass shuffles the sentences and cuts the stream into as many pieces as there are rows.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from polyseme.characters import ByteScheme, WordReader, Words, used_characters
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import OptimizerConfig, PretrainConfig, en_small, medium, original
from polyseme.pretraining.corpus import Corpus, CorpusWords
from polyseme.pretraining.handover import TRAINING_FORMAT, write_trained
from polyseme.pretraining.losses import Draw, sample_log_uniform, sampled_loss
from polyseme.pretraining.run import start_from_frequencies
from polyseme.pretraining.step import CarriedState, TrainingStep
from polyseme.weights.checkpoint import Checkpoint

DEVICE = "cuda"
#: Distinct words a window may hold, as a share of its positions; a window with more is left out and counted.
DISTINCT_SHARE = 0.42
#: This share of them, at least, has so few characters, its two marks among them; else the window is left out, too.
SHORT_SHARE, SHORT = 0.9375, 15
#: Part of the time, at its end, that runs on the full softmax.
FULL_SHARE = 0.15


def log(**values: object) -> None:
    """One JSON line on standard output."""
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}), flush=True)


class DeviceCorpus:
    """A prepared corpus on the device: lexicon ids of all tokens, and every word's character ids."""

    def __init__(self, folder: str, vocabulary_size: int) -> None:
        corpus = self.corpus = Corpus.open(folder)
        self.tokens = torch.from_numpy(corpus.tokens.take(np.arange(len(corpus.tokens))).astype(np.int32)).to(DEVICE)
        self.offsets = torch.from_numpy(corpus.offsets.astype(np.int64)).to(DEVICE)
        self.begin, self.end = corpus.begin, corpus.end
        self.vocabulary = corpus.vocabulary(vocabulary_size)
        self.targets = torch.from_numpy(corpus.table(self.vocabulary).astype(np.int64)).to(DEVICE)
        ids = np.arange(len(corpus.lexicon) + 2)
        reader = CorpusWords(corpus, WordReader(ByteScheme(), None))
        parts = [reader.read(part).characters for part in np.array_split(ids, 64)]
        self.characters = torch.cat([part.to(torch.int16) for part in parts if part is not None]).to(DEVICE)
        self.lengths = used_characters(self.characters)

    def stream(self, order: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (lexicon ids) of all sentences in this order: [directions, rows, time], cut to whole rows.

        A sentence of n words gives n + 1 positions: forward reads <S> w1..wn, backward </S> wn..w1.
        """
        lengths = (self.offsets[1:] - self.offsets[:-1])[order]
        ends = (lengths + 1).cumsum(0)
        starts = ends - lengths - 1
        total = int(ends[-1])
        sentence = torch.repeat_interleave(torch.arange(len(order), device=DEVICE), lengths + 1)
        place = torch.arange(total, device=DEVICE) - starts[sentence]
        first = self.offsets[:-1][order][sentence]
        length = lengths[sentence]
        inputs, targets = [], []
        for marker, other, at in ((self.begin, self.end, place - 1), (self.end, self.begin, length - place)):
            read = self.tokens[(first + at).clamp(0, len(self.tokens) - 1)]
            inputs.append(torch.where(place == 0, marker, read))
            following = at + 1 if marker == self.begin else at - 1
            expected = self.tokens[(first + following).clamp(0, len(self.tokens) - 1)]
            targets.append(torch.where(place == length, other, expected))
        time_steps = total // rows
        shape = (2, rows, time_steps)
        return tuple(torch.stack(x)[:, : rows * time_steps].reshape(shape) for x in (inputs, targets))  # type: ignore


class GraphStep:
    """A training step captured once and replayed."""

    def __init__(self, model: BiLM, config: PretrainConfig, corpus: DeviceCorpus, *, distinct: int) -> None:
        self.config, self.corpus, self.distinct = config, corpus, distinct
        characters = config.model.characters
        assert characters is not None
        assert config.model.vocabulary_size is not None
        self.short = int(distinct * SHORT_SHARE)
        enough = SHORT + max(width for width, _ in characters.filters)
        groups = (self.short, enough), (distinct - self.short, characters.max_characters)
        self.step = TrainingStep(model, config, device=DEVICE, groups=groups)
        self.size = config.model.vocabulary_size
        shape = (2, config.rows, config.unroll)
        self.words = torch.zeros(distinct, characters.max_characters, dtype=torch.int64, device=DEVICE)
        self.index = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
        self.targets = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
        self.state = CarriedState.zeros(config.model.lstm, config.rows, device=DEVICE)
        samples = config.negatives or 1
        self.sampled = torch.zeros(2, samples, dtype=torch.int64, device=DEVICE)
        self.expected = torch.ones(2, samples, device=DEVICE)
        self.true_expected = torch.ones(2, config.rows * config.unroll, device=DEVICE)
        self.generator = torch.cuda.default_generators[torch.cuda.current_device()]
        optimizer = config.optimizer
        self.rate = torch.tensor(0.0, device=DEVICE)
        self.parameters = list(model.parameters())
        matrices, others = ([p for p in self.parameters if (p.ndim > 1) == matrix] for matrix in (True, False))
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": optimizer.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.rate, betas=optimizer.betas, eps=optimizer.epsilon, fused=True, capturable=True,
        )  # fmt: skip
        self.losses = torch.zeros(3, device=DEVICE)
        self.norm = torch.zeros((), device=DEVICE)
        self.total = torch.zeros(4, dtype=torch.float64, device=DEVICE)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _sampled_losses(self, hidden: torch.Tensor, targets: list[torch.Tensor]) -> list[torch.Tensor]:
        softmax = self.step.model.softmax
        assert softmax is not None
        sums = []
        for d, target in enumerate(targets):
            ids = torch.cat([self.sampled[d], target])
            rows, bias = F.embedding(ids, softmax.weight), softmax.bias[ids]
            columns = torch.arange(len(target), device=DEVICE) + self.sampled.shape[1]
            draw = Draw(ids=self.sampled[d], expected=self.expected[d], tries=0, size=self.size)
            expected = self.true_expected[d]
            flat, dtype = hidden[d].flatten(0, 1), self.step.dtype
            sums.append(sampled_loss(flat, rows, bias, target, columns, draw, expected, dtype=dtype, chunk=4096))
        return sums

    def _eager(self) -> None:
        self.step.clear()
        model, config = self.step.model, self.config
        vectors = self.step._encode(Words(self.words, None))
        x = F.embedding(self.index.transpose(1, 2), vectors)
        hidden, state = self.step._contextual(x, self.state, self.generator)
        targets = [target.T.reshape(-1) for target in self.targets]
        sums = self.step._losses(hidden, targets, None) if config.negatives is None else self._sampled_losses(hidden, targets)
        forward, backward = (total / targets[0].numel() for total in sums)
        loss = 0.5 * (forward + backward)
        (loss * config.loss_scale).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # A step whose gradient is not finite changes nothing but the moments' decay.
        finite = torch.isfinite(norm)
        limit = config.optimizer.clip_norm or math.inf
        scale = torch.where(finite, (limit / (norm + 1e-6)).clamp(max=1.0), 0.0)
        for gradient in gradients:
            gradient.copy_(torch.where(finite, gradient * scale, 0.0))
        self.optimizer.step()
        self.state.h.copy_(state.h)
        self.state.c.copy_(state.c)
        self.losses.copy_(torch.stack([loss.detach(), forward.detach(), backward.detach()]))
        self.norm.copy_(norm)
        self.total.add_(torch.cat([self.losses, torch.ones(1, device=DEVICE)]).double().nan_to_num())

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Three steps by hand at rate 0 on a side stream, as CUDA graphs want, then the capture."""
        self.rate.fill_(0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eager()
        torch.cuda.current_stream().wait_stream(side)
        self.step.clear()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._eager()
        return self.graph

    def use_full_softmax(self) -> None:
        """From here on no words are drawn; the next step is captured anew."""
        self.config = replace(self.config, negatives=None)
        self.graph = None
        self.total.zero_()

    def prepare(self, inputs: torch.Tensor, targets: torch.Tensor, rng: np.random.Generator) -> tuple | None:
        """What a window needs, or None where it holds too many distinct words, or too many long ones."""
        found, index = torch.unique(inputs, return_inverse=True)
        if len(found) > self.distinct:
            return None
        padded = F.pad(found, (0, self.distinct - len(found)), value=int(self.corpus.begin))
        lengths, order = self.corpus.lengths[padded].sort(stable=True)
        if int(lengths[self.short - 1]) > SHORT:
            return None
        words, index = self.corpus.characters[padded[order]].long(), order.argsort()[index]
        wanted = self.corpus.targets[targets]
        if self.config.negatives is None:
            return words, index, wanted, None, None, None
        draws = [sample_log_uniform(rng, self.config.negatives, self.size) for _ in range(2)]
        expected = torch.stack([draw.expected_of(wanted[d].T.reshape(-1)) for d, draw in enumerate(draws)])
        return words, index, wanted, torch.stack([d.ids for d in draws]), torch.stack([d.expected for d in draws]), expected

    def run(self, prepared: tuple, rate: float) -> None:
        """One step on a prepared window."""
        buffers = (self.words, self.index, self.targets, self.sampled, self.expected, self.true_expected)
        for buffer, value in zip(buffers, prepared, strict=True):
            if value is not None:
                buffer.copy_(value, non_blocking=True)
                if value.is_cuda:  # made on the preparing stream, read on this one
                    value.record_stream(torch.cuda.current_stream())
        graph = self.graph or self._capture()
        self.rate.fill_(rate)
        graph.replay()


def heldout_perplexity(model: BiLM, config: PretrainConfig, heldout: DeviceCorpus, vocabulary: DeviceCorpus) -> dict[str, float]:
    """Full-softmax perplexity over all held-out positions dealt to 256 rows, state carried, zero at the start."""
    rows = 256
    table = torch.from_numpy(heldout.corpus.table(vocabulary.vocabulary).astype(np.int64)).to(DEVICE)
    inputs, targets = heldout.stream(torch.arange(len(heldout.offsets) - 1, device=DEVICE), rows)
    step = TrainingStep(model, replace(config, rows=rows, precision="bfloat16"), device=DEVICE)
    state = CarriedState.zeros(config.model.lstm, rows, device=DEVICE)
    sums = torch.zeros(2, dtype=torch.float64, device=DEVICE)
    for start in range(0, inputs.shape[2], 64):
        part = inputs[:, :, start : start + 64]
        found, index = torch.unique(part, return_inverse=True)
        wanted = table[targets[:, :, start : start + 64]]
        words = Words(heldout.characters[found].long(), None)
        forward, backward, state = step.evaluate(words, (index[0], index[1]), (wanted[0], wanted[1]), state)
        sums += torch.stack([forward, backward])
    forward, backward = (sums / inputs[0].numel()).tolist()
    return {"forward": math.exp(forward), "backward": math.exp(backward), "average": math.exp((forward + backward) / 2)}


def configuration(
    name: str, *, rate: float, decay: float, rows: int, unroll: int, negatives: int, dropout: float
) -> PretrainConfig:
    """The complete configuration of a run."""
    base = {"en-small": en_small, "medium": medium, "original": original}[name](50_000)
    optimizer = OptimizerConfig(
        name="adamw", learning_rate=rate, betas=(0.9, 0.99), weight_decay=decay, schedule="cosine", warmup_steps=400,
        final_rate=0.02, clip_norm=1.0,
    )  # fmt: skip
    return replace(
        base, optimizer=optimizer, rows=rows, unroll=unroll, negatives=negatives, dropout=dropout, loss_scale=1.0,
        streams="shared", start="unigram", precision="bfloat16",
    )  # fmt: skip


def train(
    config: PretrainConfig, corpus: DeviceCorpus, heldout: DeviceCorpus, *, seconds: float, out: Path | None
) -> dict[str, float]:
    """Trains for this long. The rate follows the clock, so that the schedule ends when the time does.

    The last `FULL_SHARE` of the time runs on the full softmax, which costs more than twice as much a step and ends lower.
    """
    began = time.time()
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    model = BiLM(config.model)
    initialise(model, torch.Generator().manual_seed(config.seed))
    start_from_frequencies(model, corpus.vocabulary)
    model.to(DEVICE)
    step = GraphStep(model, config, corpus, distinct=-(-int(config.rows * config.unroll * DISTINCT_SHARE) // 256) * 256)
    order = torch.Generator(device=DEVICE).manual_seed(config.seed)
    preparing = torch.cuda.Stream()
    name = f"{config.optimizer.learning_rate:g}"
    steps, skipped, saved = 0, 0, time.time()

    def windows() -> Iterator[tuple | None]:
        while True:
            shuffled = torch.randperm(len(corpus.offsets) - 1, generator=order, device=DEVICE)
            inputs, targets = corpus.stream(shuffled, config.rows)
            torch.cuda.current_stream().synchronize()
            for start in range(0, inputs.shape[2] - config.unroll + 1, config.unroll):
                part = slice(start, start + config.unroll)
                with torch.cuda.stream(preparing):
                    ready = step.prepare(inputs[:, :, part], targets[:, :, part], rng)
                yield ready

    def facts() -> dict[str, float]:
        tokens = steps * config.rows * config.unroll
        return {"steps": steps, "tokens": tokens, "passes": tokens / corpus.corpus.positions, "seconds": time.time() - began}

    stream = windows()
    ready = next(stream)
    while True:
        share = (time.time() - began) / seconds
        if share >= 1:
            break
        if share > 1 - FULL_SHARE and step.config.negatives is not None:
            log(rate=name, event="full softmax from here", **facts())
            step.use_full_softmax()
            ready = next(stream)
        torch.cuda.current_stream().wait_stream(preparing)
        if ready is None:
            skipped += 1
        else:
            optimizer = config.optimizer
            cosine = optimizer.final_rate + (1 - optimizer.final_rate) * 0.5 * (1 + math.cos(math.pi * share))
            step.run(ready, optimizer.learning_rate * cosine * min(1.0, (steps + 1) / optimizer.warmup_steps))
            steps += 1
            if steps % 500 == 0:
                mean = (step.total[:3] / step.total[3]).tolist()
                step.total.zero_()
                log(rate=name, event="train", **facts(), loss=mean[0], forward=mean[1], backward=mean[2],
                    norm=float(step.norm), skipped=skipped)  # fmt: skip
        ready = next(stream)
        if out is not None and time.time() - saved > 150:
            saved = time.time()
            result = heldout_perplexity(model, config, heldout, corpus)
            log(rate=name, event="heldout", **facts(), **result)
            save(model, config, corpus, out, facts(), result)
    result = heldout_perplexity(model, config, heldout, corpus)
    log(rate=name, event="heldout", **facts(), **result)
    if out is not None:
        save(model, config, corpus, out, facts(), result)
    return result


def save(
    model: BiLM, config: PretrainConfig, corpus: DeviceCorpus, out: Path, facts: dict[str, float], heldout: dict[str, float]
) -> None:
    """The model's folder. Who goes on from it reads the sentences of a shuffle of their own, from the same place on.

    Nobody without such a device can hold all rows at once: the recipe that is written adds up the gradients of an eighth each.
    """
    tokens = int(facts["tokens"])
    recipe = replace(config, tokens=tokens, accumulate=8)
    position = {
        "identity": {"dealt": "by recipes/pretrain_cuda.py", "corpus": corpus.corpus.digest},
        "dealers": [{"pulled": round(facts["passes"] * corpus.corpus.sentences)}],
    }
    training = {
        **TRAINING_FORMAT, "recipe": recipe.to_dict(), "step": int(facts["steps"]), "tokens": tokens,
        "updates": int(facts["steps"]), "gathered": {}, "passes": facts["passes"], "position": position,
        "seconds": facts["seconds"], "hardware": torch.cuda.get_device_name(), "heldout": heldout,
    }  # fmt: skip
    tensors = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    checkpoint = Checkpoint(config=config.model, tensors=tensors, vocabulary=corpus.vocabulary)
    write_trained(checkpoint, out, training, dtype="float16")


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("heldout")
    parser.add_argument("out")
    parser.add_argument("--model", default="en-small", choices=["en-small", "medium", "original"])
    parser.add_argument("--seconds", type=float, default=1000, help="of the long run")
    parser.add_argument("--rates", default="4e-3", help="learning rates to try, with commas between")
    parser.add_argument("--search", type=float, default=35, help="seconds for each")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument("--negatives", type=int, default=2048)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--decay", type=float, default=0.01, help="of matrices, times the rate")
    options = parser.parse_args()
    # Pieces of a step are worked off in this thread: another would not launch into the stream that is captured.
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    began = time.time()
    corpus, heldout = DeviceCorpus(options.corpus, 50_000), DeviceCorpus(options.heldout, 50_000)
    log(event="corpus", seconds=time.time() - began, tokens=len(corpus.tokens), heldout=len(heldout.tokens))
    configs = [
        configuration(
            options.model, rate=float(rate), decay=options.decay, rows=options.rows, unroll=options.unroll,
            negatives=options.negatives, dropout=options.dropout,
        )
        for rate in options.rates.split(",")
    ]  # fmt: skip
    scores = []
    for config in configs if len(configs) > 1 else []:
        scores.append(train(config, corpus, heldout, seconds=options.search, out=None)["average"])
        torch.cuda.empty_cache()
    best = configs[int(np.argmin(scores))] if scores else configs[0]
    log(event="chosen", rate=best.optimizer.learning_rate, of=options.rates, scores=str(scores))
    train(best, corpus, heldout, seconds=options.seconds, out=Path(options.out))


if __name__ == "__main__":
    main()
