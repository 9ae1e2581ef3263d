"""polyseme perplexity: how well a model predicts held-out text."""

import json
from itertools import chain
from typing import Literal

import click

from polyseme.cli.likelihoods import show
from polyseme.cli.options import ModelFiles, examples, json_option, model_option
from polyseme.cli.reading import SentenceSource


@click.command(
    epilog=examples(
        "polyseme perplexity --tokenized heldout/*.txt.xz",
        "polyseme perplexity --model run --tokenized --state carry heldout.txt",
        "polyseme perplexity --model checkpoint --tokenized --bilm-tf --rows 256 heldout.txt",
    )
)
@click.argument("inputs", metavar="TEXT...", nargs=-1, required=True)
@click.option("--tokenized", is_flag=True, help="Tokens stand between single blanks; else the model's tokenizer is used.")
@click.option("--split", is_flag=True, help="A line may hold several sentences: split it.")
@model_option
@click.option(
    "--state",
    type=click.Choice(["warm", "zero", "carry"]),
    default="warm",
    show_default=True,
    help="Where the LSTMs start in each sentence; carry: where the sentence before it in the same TEXT ended.",
)
@click.option("--batch-tokens", type=click.IntRange(min=1), default=1 << 14, show_default=True, help="Tokens read at a time.")
@click.option("--bilm-tf", is_flag=True, help="Compute as bilm-tf's test does; the number depends on --rows.")
@click.option("--rows", type=click.IntRange(min=1), default=256, show_default=True, help="With --bilm-tf: streams of text.")
@json_option("One JSON object.")
def command(
    inputs: tuple[str, ...],
    tokenized: bool,
    split: bool,
    model: str,
    options: str | None,
    vocabulary: str | None,
    token_embeddings: str | None,
    layout: str | None,
    revision: str | None,
    device: str,
    state: Literal["warm", "zero", "carry"],
    batch_tokens: int,
    bilm_tf: bool,
    rows: int,
    as_json: bool,
) -> None:
    """The perplexity of each TEXT and of all together: exact, over all tokens, whatever the batch size.

    A TEXT is a file with one sentence a line (plain, gz, xz, zst, JSON lines, Parquet, CoNLL), or - for the standard input;
    blank lines are left out. Forward is the prediction of each word and of the sentence's end from the left, backward of each
    word and of the begin from the right, average their geometric mean.
    """
    from polyseme.pretraining.perplexity import Scorer
    from polyseme.progress import ProgressDisplay
    from polyseme.sources import find

    names = [source.name for source in find(inputs)]
    files = ModelFiles(
        path=model,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    elmo = files.open(device=device)
    paths = ["-" if name == "standard input" else name for name in names]
    source = SentenceSource((), paths, elmo, tokenized=tokenized, split=split)
    scorer = Scorer(elmo.model, elmo.reader, elmo.vocabulary, batch_tokens=batch_tokens)
    texts = list(source.documents())
    if not bilm_tf:
        with ProgressDisplay("perplexity", unit="words") as report:
            found = scorer.evaluate(texts, state=state, report=report)
        show({"model": model, "state": state}, dict(zip(names, found, strict=True)), as_json=as_json)
        return
    with ProgressDisplay("perplexity", unit="words") as report:
        perplexity, steps = scorer.as_bilm_tf(chain.from_iterable(texts), rows=rows, report=report)
    if as_json:
        click.echo(json.dumps({"model": model, "rows": rows, "steps": steps, "perplexity": perplexity}))
    else:
        click.echo(f"perplexity {perplexity:.4f} in {steps:,} steps of {rows:,} rows, as bilm-tf computes it")
