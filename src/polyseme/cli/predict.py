"""polyseme predict: a task model's answers to new text."""

import json
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from polyseme.cli.options import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polyseme.tasks.trained import TrainedTask


@click.command(
    epilog=examples(
        'echo "He flew to Rome." | polyseme predict tagger',
        "polyseme predict tagger --input task --output task test.conll > answers.conll",
        'polyseme predict reader article.txt --question "Who wrote it?"',
    )
)
@click.argument("folder", metavar="FOLDER")
@click.argument("file", metavar="[FILE]", default="-")
@click.option(
    "--input",
    "kind",
    type=click.Choice(["text", "tokens", "task"]),
    default="text",
    show_default=True,
    help="Lines of raw text, lines of tokens parted by blanks, or the task's own file format, labels not looked at.",
)
@click.option(
    "--output", type=click.Choice(["jsonl", "task"]), default="jsonl", show_default=True, help="JSON lines, or the task's own."
)
@click.option("--question", "questions", metavar="TEXT", multiple=True, help="Ask this about the whole FILE; repeatable.")
@click.option("--elmo", metavar="MODEL", help="Where the biLM is now; by default the name the task model was fitted with.")
def command(
    folder: str,
    file: str,
    kind: Literal["text", "tokens", "task"],
    output: Literal["jsonl", "task"],
    questions: tuple[str, ...],
    elmo: str | None,
) -> None:
    """Answer new text with the task model in FOLDER.

    FILE is one sentence a line, for coreference one document; "-", the default, is the standard input. Questions about a text
    are lines of question<TAB>text, or --question asks about FILE. Pairs are lines of premise<TAB>hypothesis, choices of
    question<TAB>answer<TAB>answer. Answers come in order, as they are made.
    """
    from polyseme.progress import ProgressDisplay
    from polyseme.tasks.trained import TrainedTask
    from polyseme.weights.loading import load

    if kind == "task" and file == "-":
        raise click.UsageError("--input task reads a FILE, not the standard input.")
    if kind == "task" and questions:
        raise click.UsageError("--input task reads the questions of a FILE; leave --question away.")
    trained = TrainedTask.load(folder, elmo=None if elmo is None else load(elmo))
    if questions and trained.config.model.kind != "answers":
        raise click.UsageError(f"--question is for models that answer questions; {folder} holds a {trained.config.model.kind}.")
    with ProgressDisplay("predict", unit="records") as progress:
        for record, answer in trained.answer(_records(trained, file, kind, questions), report=progress):
            if output == "task":
                click.echo(trained.task.to_lines(record, answer), nl=False)
            else:
                click.echo(json.dumps(trained.task.to_json(record, answer), ensure_ascii=False))


def _records(
    trained: "TrainedTask", file: str, kind: Literal["text", "tokens", "task"], questions: tuple[str, ...]
) -> "Iterator[Any]":
    from polyseme.tasks.readers import read_lines

    if kind == "task":
        yield from trained.task.read_unlabelled(file)
        return
    lines = sys.stdin if file == "-" else (line for _, line in read_lines(file))
    texts = (line.rstrip("\r\n") for line in lines)
    tokenized = kind == "tokens"
    if questions:
        text = "\n".join(texts)
        asked = ([question, text] for question in questions)
        yield from trained.records([part.split() for part in pair] if tokenized else pair for pair in asked)
        return
    yield from trained.records(trained.task.items(texts, tokenized=tokenized), cut=str.split if tokenized else None)
