"""How long an epoch of a task model takes with the biLM's vectors cached, and with the biLM run anew.

    python benchmarks/task_epoch.py --train data/ner/wnut17/train.conll --vectors data/vectors/glove-100d.npz

The full-size named-entity tagger on WNUT-17, repeated to 14,000 sentences (no two alike, so that nothing is kept once for
several), over a biLM with random weights: the numbers do not depend on their values. Writes one JSON line.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from polyseme.characters import ByteScheme, WordReader
from polyseme.elmo import Elmo
from polyseme.model import BiLM, initialise
from polyseme.pretraining.config import PRESETS
from polyseme.tasks.config import named_entities, with_elmo
from polyseme.tasks.fit import fit
from polyseme.tasks.layers import embed_texts
from polyseme.tasks.readers import read_columns


def main() -> None:
    """Prints the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=14_000)
    parser.add_argument("--model", choices=sorted(PRESETS), default="en-small", help="the shape of the biLM")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = BiLM(replace(PRESETS[options.model](50_000).model, vocabulary_size=None))
    initialise(model, torch.Generator().manual_seed(0))
    elmo = Elmo(model, WordReader(scheme=ByteScheme(), lexicon=None), name="random")
    sentences = read_columns(options.train)
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
        started = time.perf_counter()
        embed_texts(elmo, texts)
        bilm = time.perf_counter() - started
        config = with_elmo(named_entities(), "random")
        config = replace(config, fit=replace(config.fit, epochs=2), cache=str(Path(folder) / "cache"))
        config = replace(config, train=str(train), dev=str(dev), folder=str(Path(folder) / "run"), vectors=str(options.vectors))
        epoch = fit(config, elmo=elmo).history[-1].seconds
    line = {
        "model": options.model,
        "sentences": len(texts),
        "tokens": sum(map(len, texts)),
        "threads": options.threads,
        "epoch_cached_s": round(epoch, 2),
        "bilm_s": round(bilm, 2),
        "epoch_with_bilm_s": round(epoch + bilm, 2),
        "times_faster": round((epoch + bilm) / epoch, 2),
        "torch": torch.__version__,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
