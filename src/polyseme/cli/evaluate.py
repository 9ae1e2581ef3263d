"""polyseme evaluate: a task model's scores on a labelled file."""

import json

import click

from polyseme.cli.options import examples, json_option


@click.command(
    epilog=examples("polyseme evaluate tagger conll2003/test.txt", "polyseme evaluate tagger test.txt --predictions out.txt")
)
@click.argument("folder", metavar="FOLDER")
@click.argument("file", metavar="FILE")
@click.option("--elmo", metavar="MODEL", help="Where the biLM is now; by default the name the task model was fitted with.")
@click.option("--predictions", metavar="OUT", help="Write the answers in the task's format, gold labels beside them.")
@json_option("One JSON object with all scores.")
def command(folder: str, file: str, elmo: str | None, predictions: str | None, as_json: bool) -> None:
    """Score the task model in FOLDER on the labelled FILE.

    Named entities and chunks are scored as conlleval does: predictions written with --predictions may be given to it.
    """
    from pathlib import Path

    from polyseme.progress import ProgressDisplay
    from polyseme.tasks.trained import TrainedTask, write_beside
    from polyseme.weights.loading import load

    trained = TrainedTask.load(folder, elmo=None if elmo is None else load(elmo))
    with ProgressDisplay("evaluate", unit="records") as progress:
        scores, records, answers = trained.evaluate(file, report=progress)
    if predictions is not None:
        text = trained.task.to_file(records, answers)  # pyrefly: ignore
        write_beside(Path(predictions), lambda path: path.write_text(text, encoding="utf-8"))
    if as_json:
        click.echo(json.dumps({"records": len(records), "scores": scores}))
    else:
        click.echo(f"{len(records):,} records")
        for name, value in scores.items():
            click.echo(f"{name} {value:.2f}")
