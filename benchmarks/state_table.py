"""Where a sentence starts: zero, warm and carried state compared, on held-out perplexity and on a part-of-speech probe.

    python benchmarks/state_table.py --model en-small

The perplexities are those of all 19 held-out parts together, by benchmarks/perplexity_table.py; carried states follow each part
from its beginning. The probe is a linear softmax over the frozen vectors of one layer (UD English-EWT, Penn tags), the same for
every state; its text is cut into --rows streams of successive sentences, and carried states follow each stream. Tokens are
counted once all together, and once those among the first three of their sentence, where the start matters most. The results
go to benchmarks/results/state_table.json.
"""

import argparse
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from ngram_table import ROOT
from perplexity_table import DIRECTIONS, RESULTS, measured

import polyseme
from polyseme.elmo import Elmo
from polyseme.tasks.readers import bilm_form, read_conllu

STATES = ("zero", "warm", "carry")


def vectors(elmo: Elmo, text: Sequence[Sequence[str]], state: str, layer: str, rows: int) -> list[np.ndarray]:
    """One layer's vectors of every sentence."""
    if state != "carry":
        return list(elmo.embed(text, layers=layer, state=state))  # type: ignore[arg-type]
    bounds = np.linspace(0, len(text), rows + 1).astype(int).tolist()
    streams = [list(range(first, last)) for first, last in itertools.pairwise(bounds)]
    carried = elmo.state(len(streams))
    found: list[np.ndarray] = [np.zeros(0)] * len(text)
    # Rows are matched by position, and those that are not used keep their states: the longest streams come first.
    streams.sort(key=len, reverse=True)
    for step in range(len(streams[0])):
        numbers = [stream[step] for stream in streams if step < len(stream)]
        for number, array in zip(numbers, elmo.embed([text[n] for n in numbers], layers=layer, state=carried), strict=True):
            found[number] = array
    return found


def probe(train: tuple[np.ndarray, np.ndarray], dev: tuple[np.ndarray, np.ndarray], *, epochs: int) -> np.ndarray:
    """Which tokens of dev a linear softmax gets right."""
    torch.manual_seed(1)
    mean, deviation = train[0].mean(axis=0), train[0].std(axis=0) + 1e-6
    inputs, answers = torch.from_numpy((train[0] - mean) / deviation), torch.from_numpy(train[1])
    layer = torch.nn.Linear(inputs.shape[1], int(answers.max()) + 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.003)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(512):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(inputs[batch]), answers[batch]).backward()
            optimizer.step()
    with torch.inference_mode():
        return (layer(torch.from_numpy((dev[0] - mean) / deviation)).argmax(dim=1).numpy() == dev[1]).astype(float)


def tagged(path: Path) -> tuple[list[list[str]], list[str], np.ndarray]:
    """Sentences, the tags of all their tokens, and each token's place in its sentence."""
    sentences = read_conllu(path)
    tags = [tag for sentence in sentences for tag in sentence.tags or ()]
    places = np.concatenate([np.arange(len(sentence.tokens)) for sentence in sentences])
    return [[bilm_form(token) for token in sentence.tokens] for sentence in sentences], tags, places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--layer", default="lstm1")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--first", type=int, help="only so many sentences of each held-out part")
    parser.add_argument("--output", type=Path, default=RESULTS / "state_table.json")
    options = parser.parse_args()
    elmo = polyseme.load(options.model)
    data = (ROOT / os.environ.get("POLYSEME_SHARED", "../shared")).resolve() / "data" / "pos" / "ud-ewt"
    texts = {part: tagged(data / f"{part}.conllu.xz") for part in ("train", "dev")}
    ids = {tag: number for number, tag in enumerate(sorted(set(texts["train"][1])))}
    answers = {part: np.asarray([ids.get(tag, -1) for tag in tags]) for part, (_, tags, _) in texts.items()}
    lines = {}
    for state in STATES:
        arrays = {
            part: np.concatenate(vectors(elmo, text, state, options.layer, options.rows)) for part, (text, _, _) in texts.items()
        }
        right = probe((arrays["train"], answers["train"]), (arrays["dev"], answers["dev"]), epochs=options.epochs)
        lines[state] = {
            "probe_accuracy": float(right.mean()),
            "probe_accuracy_first_three": float(right[texts["dev"][2] < 3].mean()),
            "probe_tokens": len(right),
            "perplexity": measured(options.model, state, first=options.first, only=("held-out",))["held-out"],
        }
        print(state, {name: value for name, value in lines[state].items() if name != "perplexity"}, flush=True)
    found = {
        "command": f"python benchmarks/state_table.py --model {options.model}"
        + ("" if options.first is None else f" --first {options.first}"),
        "hash": elmo.hash,
        "layer": options.layer,
        "rows": options.rows,
        "states": lines,
    }
    beside = options.output.with_suffix(".partial")
    beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    beside.replace(options.output)
    print("| state | forward | backward | average | tags right | of the first three tokens |\n|---|---|---|---|---|---|")
    for state, line in lines.items():
        perplexity = " | ".join(f"{line['perplexity'][f'perplexity_{each}']:.2f}" for each in DIRECTIONS)
        print(f"| {state} | {perplexity} | {line['probe_accuracy']:.2%} | {line['probe_accuracy_first_three']:.2%} |")


if __name__ == "__main__":
    main()
