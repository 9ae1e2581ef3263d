"""How long an epoch of a task model takes with the biLM's vectors cached, and with the biLM run anew.

    python benchmarks/task_epoch.py --data ../shared/data --model en-small
    python benchmarks/task_epoch.py --data ../shared/data --model original --measured 500

The full-size named-entity tagger on WNUT-17, repeated to 14,000 sentences (no two alike, so that nothing is kept once for
several), over a biLM with random weights: the numbers do not depend on their values. The biLM is timed on the first
--measured sentences, and the time multiplied up by their tokens. Writes one entry for each model into
benchmarks/results/task_epoch.json.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from polyseme.characters import ByteScheme, WordReader
from polyseme.elmo import Elmo
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import PRESETS
from polyseme.tasks.config import named_entities, with_elmo
from polyseme.tasks.fit import fit
from polyseme.tasks.layers import embed_texts
from polyseme.tasks.readers import read_columns

RESULTS = Path(__file__).parent / "results" / "task_epoch.json"


class Stand(Elmo):
    """A biLM's shape with vectors of no meaning, to fill the cache that the epochs read."""

    def embed_iter(self, sentences, **options):
        numbers = np.random.default_rng(0)
        for sentence in sentences:
            yield numbers.standard_normal((len(self.layers), len(sentence), self.dim), dtype=np.float32)


def main() -> None:
    """Prints the line and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder with ner/ and vectors/")
    parser.add_argument("--sentences", type=int, default=14_000)
    parser.add_argument("--model", choices=sorted(PRESETS), default="en-small", help="the shape of the biLM")
    parser.add_argument("--measured", type=int, default=14_000, help="sentences the biLM is timed on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = BiLM(replace(PRESETS[options.model](50_000).model, vocabulary_size=None))
    initialise(model, torch.Generator().manual_seed(0))
    elmo = Elmo(model, WordReader(scheme=ByteScheme(), lexicon=None), name="random")
    sentences = read_columns(options.data / "ner/wnut17/train.conll")
    with tempfile.TemporaryDirectory() as folder:
        train, dev = Path(folder) / "train.conll", Path(folder) / "dev.conll"
        with train.open("w", encoding="utf-8") as stream:
            for number in range(options.sentences):
                sentence = sentences[number % len(sentences)]
                # The last token carries the round's number: sentences differ, lengths stay.
                tokens = [*sentence.tokens[:-1], f"{sentence.tokens[-1]}{number // len(sentences) or ''}"]
                stream.writelines(f"{token}\t{tag}\n" for token, tag in zip(tokens, sentence.tags or (), strict=True))
                stream.write("\n")
        dev.write_text("a\tO\n\n", encoding="utf-8")
        texts = [sentence.tokens for sentence in read_columns(train)]
        embed_texts(elmo, texts[:1])  # what is computed once for all
        timed = texts[: options.measured]
        started = time.perf_counter()
        embed_texts(elmo, timed)
        bilm = (time.perf_counter() - started) * sum(map(len, texts)) / sum(map(len, timed))
        config = with_elmo(named_entities(), "random")
        config = replace(config, fit=replace(config.fit, epochs=2), cache=str(Path(folder) / "cache"))
        config = replace(config, train=str(train), dev=str(dev), folder=str(Path(folder) / "run"))
        config = replace(config, vectors=str(options.data / "vectors/glove-100d.npz"))
        epoch = fit(config, elmo=Stand(model, elmo.reader)).history[-1].seconds
    line = {
        "model": options.model,
        "sentences": len(texts),
        "tokens": sum(map(len, texts)),
        "threads": options.threads,
        "epoch_cached_s": round(epoch, 2),
        "bilm_s": round(bilm, 2),
        "bilm_measured_on": len(timed),
        "epoch_with_bilm_s": round(epoch + bilm, 2),
        "times_faster": round((epoch + bilm) / epoch, 2),
        "torch": torch.__version__,
    }
    print(json.dumps(line))
    found = json.loads(options.results.read_text()) if options.results.exists() else {}
    found[options.model] = line | {"command": " ".join(["python", "benchmarks/task_epoch.py", *sys.argv[1:]])}
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
