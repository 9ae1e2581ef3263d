"""Seconds an epoch and peak memory of the tasks that read whole texts, with ELMo's cached vectors and without.

    python benchmarks/reading_epoch.py --data DATA --task coreference
    python benchmarks/reading_epoch.py --data DATA --task answers --elmo
    python benchmarks/reading_epoch.py --data DATA --task roles

The configurations are those of the table of results. So many steps of training are timed, on records drawn at random, and
dev records answered; what a whole epoch takes is the median time of a token by the number of tokens. `train_epoch_cpu_s` is
the time that all threads computed together: where it is less than the other, the machine was busy with other things. With
--elmo the biLM has en-small's shape and random weights: the times do not depend on their values. `bilm_s` is what its vectors
of train and dev take, once. Writes one JSON line.
"""

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))
import paper_rows
from polyseme.characters import ByteScheme, WordReader
from polyseme.elmo import Elmo
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import PRESETS
from polyseme.tasks.config import make_task, with_elmo
from polyseme.tasks.inputs import Words, WordVectors
from polyseme.tasks.layers import embed_texts
from polyseme.tasks.task import Batch
from polyseme.tasks.trained import answer_all, build_model, number_texts, text_documents


def random_elmo() -> Elmo:
    """A biLM of en-small's shape."""
    model = BiLM(replace(PRESETS["en-small"](50_000).model, vocabulary_size=None))
    initialise(model, torch.Generator().manual_seed(0))
    return Elmo(model, WordReader(scheme=ByteScheme(), lexicon=None), name="random")


def timed_steps(model: Any, records: list[Any], places: list[range], texts: Any, size: int) -> list[tuple[float, float, int]]:
    """Seconds, seconds of computing, and tokens of each step of training on the records once, after one that is not timed."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model.train()
    tokens = [sum(int(texts.lengths[text]) for text in place) for place in places]
    order = np.argsort(tokens)
    steps = []
    for first in [0, *range(0, len(records), size)]:
        chosen = order[first : first + size]
        started, computed = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        batch = Batch([records[n] for n in chosen], [places[n] for n in chosen], texts)
        (model.loss(batch) + model.inputs.penalty()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        steps.append((time.perf_counter() - started, time.process_time() - computed, sum(tokens[n] for n in chosen)))
    return steps[1:]


def main() -> None:
    """Prints the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", choices=["coreference", "answers", "snli", "roles"], required=True)
    parser.add_argument("--elmo", action="store_true")
    parser.add_argument("--steps", type=int, default=20, help="steps of training that are timed; 0 for a whole epoch")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    (row,) = [row for row in paper_rows.rows() if row.name == options.task]
    elmo = random_elmo() if options.elmo else None
    config = with_elmo(row.config, "random" if options.elmo else None, place=row.elmo)
    files, task, size = row.files(options.data / row.data), make_task(config.model), config.fit.batch
    train, dev = task.read(files["train"], training=True), task.read(files["dev"])
    tokens = {
        part: sum(len(text) for r in records for text in task.texts(r)) for part, records in (("train", train), ("dev", dev))
    }
    generator = np.random.default_rng(0)
    steps = options.steps or -(-len(train) // size)
    kept = [train[n] for n in generator.permutation(len(train))[: steps * size]]
    asked = [dev[n] for n in generator.permutation(len(dev))[: max(4, steps * size // 5)]]
    words = None
    if config.inputs.words is not None:
        vectors = WordVectors.read(options.data / "vectors/glove-100d.npz")
        words = Words.build(config.inputs.words, vectors, [text for record in train for text in task.texts(record)])
    model = build_model(config, words, task.inventory(train), elmo)
    lists, places = number_texts(task, [*kept, *asked])
    layers, bilm_s = None, 0.0
    if elmo is not None:
        started = time.perf_counter()
        layers = embed_texts(elmo, lists, context=row.elmo.context, documents=text_documents(task, [*kept, *asked]))
        bilm_s = (time.perf_counter() - started) / len(layers.vectors)
        everything, _ = number_texts(task, [*train, *dev])
        distinct = sum(map(len, set(everything)))  # a text that occurs again is not computed again
        bilm_s *= distinct
    texts = model.inputs.read(lists, layers)
    steps_taken = timed_steps(model, kept, places[: len(kept)], texts, size)
    pace, computing = (float(np.median([step[kind] / step[2] for step in steps_taken])) for kind in (0, 1))
    started = time.perf_counter()
    answer_all(model, asked, texts, places[len(kept) :], batch=size)
    answering = time.perf_counter() - started
    seen = sum(len(text) for record in asked for text in task.texts(record))
    line = {
        "task": options.task,
        "elmo": options.elmo,
        "threads": options.threads,
        "train_records": len(train),
        "train_tokens": tokens["train"],
        "timed_steps": len(steps_taken),
        "step_s": round(pace * tokens["train"] / -(-len(train) // size), 3),
        "train_epoch_s": round(pace * tokens["train"], 1),
        "train_epoch_cpu_s": round(computing * tokens["train"], 1),
        "dev_s": round(answering * tokens["dev"] / seen, 1),
        "bilm_s": round(bilm_s, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "torch": torch.__version__,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
