"""Writes the model card of the bundled English model: what its training.json records, and its perplexity, measured here.

    python recipes/en_small_card.py HELDOUT... [--model FOLDER]

HELDOUT are the held-out parts of the training corpus, one tokenized sentence a line; their perplexity is exact, over all tokens.
It takes some minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polyseme
from polyseme.weights.native import model_card
from polyseme.weights.read import read

FOLDER = Path(polyseme.__file__).parent / "models" / "en-small"


def measure(model: Path, texts: list[str]) -> dict[str, Any]:
    """The exact likelihood of all texts together, every sentence from the model's constant state."""
    program = Path(sys.executable).with_name("polyseme")
    command = [str(program), "perplexity", "--model", str(model), "--tokenized", "--json", *texts]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["together"]


CARD = """\
---
language: en
license: apache-2.0
library_name: polyseme
tags: [elmo, bilm, contextual-embeddings]
---

# en-small

The English model that comes with polyseme: a small bidirectional language model (ELMo), trained from scratch by polyseme itself.
It is meant for trying things out and for tasks on a laptop; models many times its size, trained on many times the text, are
better.

{architecture}
* Numbers are stored in 16 bits.

```python
import polyseme

elmo = polyseme.load("en-small")
```

## Training

* {tokens:,} tokens per direction read ({passes:.2f} passes over the text), {step:,} steps, {time}.
* {rows} rows × {unroll} positions a step, one shared stream, states carried; {negatives:,} negatives; dropout {dropout:g};
  products in {precision}.
* {optimizer[name]}, rate {optimizer[learning_rate]:g}, warm-up {optimizer[warmup_steps]} steps, then {optimizer[schedule]} to
  {optimizer[final_rate]:g} of it, decay {optimizer[weight_decay]:g}, gradients clipped at {optimizer[clip_norm]:g};
  `benchmarks/pretrain_recipes.py` compares it with others.
* The whole recipe, and where in the text the training stands, is in `training.json`; `polyseme pretrain --from en-small` goes on
  from there.

## Held-out perplexity

Documents of the same sources that were not trained on: {words:,} words, {unknown_rate:.2%} of them outside the vocabulary. Exact,
full softmax, every sentence from the model's constant state.

| direction | perplexity | without `<UNK>` | bits per character |
|---|---|---|---|
{perplexities}

```bash
python recipes/en_small_card.py 'data/corpus/heldout/*.txt.xz'  # measures this and writes this card
```

## Text

About 99 million tokens, shuffled by sentence; all sources allow trained weights to be passed on. Tokens are Penn-like, with
straight quotes and plain brackets (`do n't`, `"`, `(`).

| source | tokens (M) | licence |
|---|---|---|
| English Wikipedia, 2014/15 | 26 | CC BY-SA 3.0 |
| books, 593 novels and essays, mostly 1750 to 1930 | 22 | public domain (US); ELTeC mark-up CC BY 4.0 |
| Simple English Wikipedia, 2018 | 7 | CC BY-SA 3.0 |
| OpenStax textbooks | 7 | CC BY 4.0 |
| Wikinews, 2004 to 2022 | 5.8 | CC BY 2.5 / 4.0 |
| UN General Debate speeches | 5 | CC0 |
| eLife articles | 4 | CC BY 4.0 / CC0 |
| speeches, Federal Reserve transcripts and reports, government web pages | 9.3 | US government, public domain, CC0 |
| documentation and technical blogs, open web | 8 | CC BY-SA 2.5 / 4.0, CC BY 4.0, MIT / Apache |
| ACL Anthology abstracts | 2 | CC BY 4.0 |
| MedQuAD patient information | 1.2 | CC BY 4.0 |
| Stack Exchange, Common Voice, SCP stories | 2.1 | CC BY-SA, CC0, CC BY-SA |

Texts of Wikipedia and Wikinews may contain the raw text of documents that OntoGUM or SQuAD annotate. What the texts say of people
and groups the model has learned with the rest: mostly formal English, and old novels.
"""


def card(model: Path, found: dict[str, Any]) -> str:
    """The whole card."""
    facts = json.loads((model / "training.json").read_text(encoding="utf-8"))
    architecture = [line for line in model_card(read(model)).splitlines() if line.startswith("* ") and "tokens" not in line]
    rows = [
        f"| {name} | {found[f'perplexity_{name}']:.1f} | {found[f'perplexity_{name}_without_unknown']:.1f} "
        f"| {found[f'bits_per_character_{name}']:.3f} |"
        for name in ("forward", "backward", "average")
    ]
    time = f"{facts['seconds'] / 60:.0f} minutes of computing"
    if "hardware" in facts:  # where recipes/pretrain_cuda.py trained it
        time = (
            f"{facts['seconds'] / 60:.0f} minutes\n  on an {facts['hardware']}, the last 15 % of them with the full softmax\n"
            f"  (`python recipes/pretrain_cuda.py CORPUS HELDOUT OUT --seconds {facts['seconds'] // 10 * 10:.0f}`)"
        )
    values = {**facts["recipe"], **facts, **found, "time": time}
    return CARD.format_map({**values, "architecture": "\n".join(architecture), "perplexities": "\n".join(rows)})


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heldout", nargs="+")
    parser.add_argument("--model", type=Path, default=FOLDER)
    options = parser.parse_args()
    text = card(options.model, measure(options.model, options.heldout))
    target = options.model / "README.md"
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
