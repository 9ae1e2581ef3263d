"""polyseme prepare: text → a corpus folder for pretraining."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import click

from polyseme.cli.options import examples, json_option


@click.command(
    epilog=examples(
        "polyseme prepare --output corpus 'text/*.txt.xz'",
        "polyseme prepare --output corpus --raw --field body --damaged skip crawl.jsonl.zst",
        "cat text | polyseme prepare --output corpus -",
    )
)
@click.argument("inputs", metavar="TEXT...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FOLDER", required=True, help="Where to write the corpus.")
@click.option(
    "--vocabulary-size",
    type=click.IntRange(min=4),
    default=50_000,
    show_default=True,
    help="Words to be predicted, the three markers included; other sizes can be had later.",
)
@click.option("--raw", is_flag=True, help="The text is not tokenized: split it into sentences and tokens.")
@click.option(
    "--tokenizer",
    type=click.Choice(["penn", "whitespace", "characters"]),
    default="penn",
    show_default=True,
    help="With --raw: how sentences are cut into tokens.",
)
@click.option(
    "--form",
    type=click.Choice(["text", "jsonl", "parquet", "conll"]),
    help="What the files are, where names do not say it.",
)
@click.option("--field", metavar="NAME", default="text", show_default=True, help="JSON lines, Parquet: where the text is.")
@click.option("--column", metavar="N", type=click.IntRange(min=0), help="CoNLL: where the words are, from 0.")
@click.option(
    "--damaged",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do with a line that cannot be read.",
)
@click.option("--max-characters", type=click.IntRange(min=3), default=50, show_default=True, help="The model's limit.")
@click.option("--overwrite", is_flag=True, help="Replace the folder if it is there.")
@json_option("The report as one JSON object.")
def command(
    inputs: tuple[str, ...],
    output: str,
    vocabulary_size: int,
    raw: bool,
    tokenizer: Literal["penn", "whitespace", "characters"],
    form: Literal["text", "jsonl", "parquet", "conll"] | None,
    field: str,
    column: int | None,
    damaged: Literal["error", "skip"],
    max_characters: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Counts the words of TEXT and writes it as memory-mapped word ids, for `polyseme pretrain`.

    A TEXT is a file or a quoted pattern (plain, gz, xz, zst; JSON lines, Parquet, CoNLL), or - for the standard input: one
    tokenized sentence a line, unless --raw says otherwise. Blank lines are left out.
    """
    from polyseme.pretraining.prepare import prepare
    from polyseme.progress import ProgressDisplay

    with ProgressDisplay("prepare", unit="bytes") as report:
        found = prepare(
            inputs,
            Path(output),
            vocabulary_size=vocabulary_size,
            tokenizer=tokenizer if raw else None,
            form=form,
            field=field,
            column=column,
            damaged=damaged,
            max_characters=max_characters,
            overwrite=overwrite,
            report=report,
        )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    click.echo(f"{found.tokens:,} tokens in {found.sentences:,} sentences ({found.blank:,} blank lines left out)")
    click.echo(f"{found.distinct:,} distinct words; {found.cut:.4%} of tokens are longer than {max_characters - 2} bytes")
    for size, share in found.unknown.items():
        click.echo(f"{share:8.2%} of tokens are outside a vocabulary of {size:,}")
    if found.skipped:
        click.echo(f"{found.skipped:,} damaged lines were skipped, such as: {found.first_skipped[0]}")
