"""polyseme score: how probable sentences are."""

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from polyseme.cli.options import ModelFiles, examples, json_option, model_option, text_options
from polyseme.cli.reading import SentenceSource
from polyseme.cli.vector_files import printable, shortest

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_WINDOW = 512  # sentences scored at a time
_WINDOW_TOKENS = 16384


@click.command(
    epilog=examples(
        'polyseme score "He drank strong tea." "He drank powerful tea."',
        'polyseme score --words "He drank strong tea."',
        "polyseme score --tokenized -i sentences.txt --json",
    )
)
@text_options
@model_option
@click.option("--state", type=click.Choice(["warm", "zero"]), default="warm", show_default=True, help="Where the LSTMs start.")
@click.option("--batch-tokens", type=click.IntRange(min=1), help="How many tokens are computed at a time.")
@click.option("--rank/--no-rank", default=None, help="The most probable first (default for sentences given as arguments).")
@click.option(
    "--by",
    type=click.Choice(["total", "word"]),
    default="total",
    show_default=True,
    help="Rank by the sum, or by the mean per word.",
)
@click.option("--words", is_flag=True, help="Every word's log-probability, given what stands to its left and to its right.")
@json_option("One JSON object for each sentence, with every word's log-probabilities.")
def command(
    texts: tuple[str, ...],
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
    state: Literal["warm", "zero"],
    batch_tokens: int | None,
    rank: bool | None,
    by: Literal["total", "word"],
    words: bool,
    as_json: bool,
) -> None:
    """Say how probable sentences are, and rank them.

    Sentences are arguments, the lines of files, or the lines of the standard input. For each: the natural logarithm of the
    probability, the mean of both directions; the mean per word (the end of the sentence counts as one); and the perplexity.
    Candidates of different lengths are better compared --by word. Needs a model with a softmax; a word outside its
    vocabulary is scored as the unknown word, and counted.
    """
    files = ModelFiles(
        path=model,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    elmo = files.open(device=device)
    source = SentenceSource(texts, inputs, elmo, tokenized=tokenized, split=split)
    records = _scored(elmo, source, state, batch_tokens)
    if rank if rank is not None else source.only_arguments:
        records = iter(sorted(records, key=lambda record: -record["log_probability" if by == "total" else "per_word"]))
    header = f"{'log-probability':>15} {'per word':>9} {'perplexity':>11} {'unknown':>7}  sentence"
    for record in records:
        if as_json:
            click.echo(json.dumps(record, ensure_ascii=False))
            continue
        if header:
            click.echo(header)
            header = ""
        click.echo(
            f"{record['log_probability']:15.3f} {record['per_word']:9.3f} {record['perplexity']:11.4g} "
            f"{len(record['unknown']):7}  {' '.join(record['tokens'])}"
        )
        if words:
            for line in _word_lines(record):
                click.echo(line)


def _scored(
    elmo: "Elmo", source: SentenceSource, state: Literal["warm", "zero"], batch_tokens: int | None
) -> Iterator[dict[str, Any]]:
    """One record for each sentence, in order."""
    from polyseme.sentences import windows

    number = 0
    for window in windows(source, _WINDOW, _WINDOW_TOKENS):
        for score in elmo.score(window, state=state, batch_tokens=batch_tokens):
            per_word = score.total / len(score.forward)
            known = elmo.vocabulary
            yield {
                "sentence": number,
                "tokens": printable(score.tokens),
                "log_probability": round(score.total, 6),
                "per_word": round(per_word, 6),
                "perplexity": float(f"{math.exp(min(-per_word, 700)):.7g}"),
                "unknown": [i for i, token in enumerate(score.tokens) if known is not None and token not in known],
                "forward": shortest(score.forward),
                "backward": None if score.backward is None else shortest(score.backward),
            }
            number += 1


def _word_lines(record: dict[str, Any]) -> Iterator[str]:
    """A word's log-probability given its left and its right context; the markers at the ends."""
    tokens, forward, backward = record["tokens"], record["forward"], record["backward"]
    width = max(map(len, (*tokens, "(begin)")))
    yield f"    {'':<{width}} {'from left':>10} {'from right':>10}"
    for place, token in enumerate(["(begin)", *tokens, "(end)"]):
        left = "" if place == 0 else f"{forward[place - 1]:.3f}"
        right = "" if backward is None or place > len(tokens) else f"{backward[place]:.3f}"
        mark = "  not in the vocabulary" if place - 1 in record["unknown"] else ""
        yield f"    {token:<{width}} {left:>10} {right:>10}{mark}".rstrip()
