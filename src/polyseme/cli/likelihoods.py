"""Likelihoods of texts as a table, or as JSON: what perplexity and ngram print."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from polyseme.pretraining.perplexity import Direction, Likelihood


def show(model: Mapping[str, object], found: "Mapping[str, Likelihood]", *, as_json: bool) -> None:
    """Prints one line for each text and direction, and all texts together where there are several.

    Args:
        model: What was asked, for JSON.
        found: The texts' names and likelihoods.
        as_json: One JSON object instead of the table.
    """
    from polyseme.pretraining.perplexity import Likelihood

    together = sum(found.values(), Likelihood())
    if as_json:
        texts = [{"text": name, **each.to_dict()} for name, each in found.items() if each.words]
        click.echo(json.dumps({**model, "texts": texts, "together": together.to_dict()}, ensure_ascii=False))
        return
    lines = {name: each for name, each in found.items() if each.words}
    if len(lines) != 1:
        lines["together"] = together
    width = max(map(len, lines))
    directions: tuple[Direction, ...] = ("forward", "backward", "average") if together.backward is not None else ("forward",)
    click.echo(f"{'':<{width}}  {'words':>11} {'unknown':>8}  {'':<8} {'perplexity':>10} {'w/o unknown':>11} {'bits/char':>9}")
    for name, each in lines.items():
        counts = f"{name:<{width}}  {each.words:>11,} {each.unknown_rate:>8.2%}"
        for direction in directions:
            click.echo(
                f"{counts}  {direction:<8} {each.perplexity(direction):>10.2f} "
                f"{each.perplexity(direction, unknown=False):>11.2f} {each.bits_per_character(direction):>9.4f}"
            )
            counts = " " * len(counts)
