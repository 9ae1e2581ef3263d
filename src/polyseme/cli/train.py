"""polyseme train: fit a task model, with ELMo or without."""

import json
from typing import TYPE_CHECKING

import click

from polyseme.cli.options import examples, json_option
from polyseme.errors import InputError

if TYPE_CHECKING:
    from polyseme.tasks.config import TaskConfig
    from polyseme.tasks.fit import FitResult


@click.command(
    epilog=examples(
        "polyseme train ner --data conll2003 --elmo en-small --vectors glove.6B.100d.txt -o tagger",
        "polyseme train classification --train reviews.tsv --dev dev.tsv --elmo none -o classifier --seed 1 --seed 2",
        "polyseme train sst5 --data sst --set inputs.elmo.place=both --set fit.epochs=10 -o sentiment",
    )
)
@click.argument("task", metavar="TASK|RECIPE")
@click.option("--data", metavar="FOLDER", help="Holds files named train*, dev* (or valid*) and perhaps test*.")
@click.option("--train", "train_file", metavar="FILE", help="Labelled records to learn from.")
@click.option("--dev", "dev_file", metavar="FILE", help="Labelled records to choose the best epoch by.")
@click.option("--test", "test_file", metavar="FILE", help="Labelled records to score the chosen model on, once.")
@click.option("--elmo", metavar="MODEL", help="A biLM at the inputs, or none; a task starts from en-small, a recipe has its own.")
@click.option("--vectors", metavar="FILE", help="Word vectors: .npz with words and vectors, or GloVe text.")
@click.option("-o", "--output", "folder", metavar="FOLDER", required=True, help="The task model; a run that stopped goes on.")
@click.option("--seed", "seeds", type=int, multiple=True, help="Give several to fit several models, each in seed-N.")
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="Change one value, such as fit.epochs=10.")
@click.option("--cache", metavar="FOLDER", help="Keep the biLM's vectors there for other runs; else in memory.")
@click.option("--chart", metavar="FILE.png", help="Draw the learned layer weights.")
@click.option(
    "--text", metavar="FILE", help="Write the training text as the biLM reads it and stop: to fine-tune the biLM first."
)
@click.option("--show", is_flag=True, help="Print the complete configuration and stop.")
@json_option("One JSON object with scores and layer weights.")
def command(
    task: str,
    data: str | None,
    train_file: str | None,
    dev_file: str | None,
    test_file: str | None,
    elmo: str | None,
    vectors: str | None,
    folder: str,
    seeds: tuple[int, ...],
    changes: tuple[str, ...],
    cache: str | None,
    chart: str | None,
    text: str | None,
    show: bool,
    as_json: bool,
) -> None:
    """Fit a task model, with ELMo or without.

    TASK is ner, chunking, pos, tagging, sst5, sst2, classification, snli, choices, roles, coreference or answers; a RECIPE is
    a Python file whose function config() returns a TaskConfig. The best epoch on dev is kept. The folder written names the
    biLM that the model needs; `polyseme predict` and `polyseme evaluate` read it.
    """
    from polyseme.progress import ProgressDisplay
    from polyseme.tasks.fit import fit, fit_seeds

    files = {"train": train_file, "dev": dev_file, "test": test_file, "vectors": vectors, "cache": cache, "folder": folder}
    config = _configuration(task, data, files, elmo, changes)
    if show:
        click.echo(config.to_json(), nl=False)
        return
    if text is not None:
        _write_text(config, text)
        return
    with ProgressDisplay("train", unit="steps") as progress:
        if len(seeds) > 1:
            results = fit_seeds(config, seeds, report=progress)
        else:
            results = [fit(_changed(config, f"fit.seed={seeds[0]}") if seeds else config, report=progress)]
    if chart is not None:
        from polyseme.tasks.charts import write_layer_chart

        write_layer_chart({task: results[0].layer_weights}, chart)
    _show(results, folder, as_json=as_json)


def _configuration(
    task: str, data: str | None, files: dict[str, str | None], elmo: str | None, changes: tuple[str, ...]
) -> "TaskConfig":
    from dataclasses import replace

    from polyseme.tasks.config import PRESETS, with_elmo
    from polyseme.tasks.readers import split_folder

    if task.endswith(".py"):
        config = _recipe(task)
    elif task in PRESETS:
        config = with_elmo(PRESETS[task](), "en-small")
    else:
        raise InputError(f"there is no task {task!r}; wanted one of {', '.join(PRESETS)}, or a recipe that ends in .py.")
    if elmo is not None:
        config = with_elmo(config, None if elmo == "none" else elmo)
    found = {} if data is None else {part: str(path) for part, path in split_folder(data).items()}
    found.update({name: value for name, value in files.items() if value is not None})
    config = replace(config, **found)  # pyrefly: ignore
    for change in changes:
        config = _changed(config, change)
    if not config.train or not config.dev:
        raise InputError("no training data: give --data FOLDER with train* and dev* files, or --train and --dev.")
    return config


def _write_text(config: "TaskConfig", path: str) -> None:
    """The distinct texts of the training records, one a line."""
    from pathlib import Path

    from polyseme.tasks.config import make_task
    from polyseme.tasks.readers import bilm_text
    from polyseme.tasks.trained import write_beside

    task = make_task(config.model)
    lines = bilm_text(text for record in task.read(config.train) for text in task.texts(record))  # pyrefly: ignore
    write_beside(Path(path), lambda place: place.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8"))


def _recipe(path: str) -> "TaskConfig":
    """What the function config() of a Python file returns."""
    import runpy

    from polyseme.tasks.config import TaskConfig

    names = runpy.run_path(path)
    config = names["config"]() if callable(names.get("config")) else None
    if not isinstance(config, TaskConfig):
        raise InputError(f"{path} is no recipe: wanted a function config() that returns a TaskConfig.")
    return config


def _changed(config: "TaskConfig", change: str) -> "TaskConfig":
    """The configuration with one value, named by its path, replaced."""
    from polyseme.tasks.config import TaskConfig

    name, equals, text = change.partition("=")
    values = config.to_dict()
    place = values
    *path, last = name.split(".")
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    if not equals or not isinstance(place, dict) or last not in place:
        known = ", ".join(place) if isinstance(place, dict) else ", ".join(values)
        raise InputError(f"--set {change!r} names nothing that can be set; wanted NAME=VALUE with a name among {known}.")
    try:
        place[last] = json.loads(text)
    except ValueError:
        place[last] = text
    return TaskConfig.from_dict(values)


def _show(results: "list[FitResult]", folder: str, *, as_json: bool) -> None:
    from polyseme.tasks.fit import mean_and_spread

    metric = results[0].trained.task.metric
    if as_json:
        runs = [
            {
                "seed": result.trained.config.fit.seed,
                "best_epoch": result.best_epoch,
                "dev": result.dev,
                "test": result.test,
                "layer_weights": result.layer_weights,
            }
            for result in results
        ]
        click.echo(json.dumps({"folder": folder, "metric": metric, "runs": runs}))
        return
    for part in ("dev", "test"):
        scores = [values for result in results if (values := getattr(result, part)) is not None]
        if scores:
            mean, spread = mean_and_spread([values[metric] for values in scores])
            note = f" ± {spread:.2f} over {len(scores)} seeds" if len(scores) > 1 else ""
            rest = ", ".join(f"{name} {value:.2f}" for name, value in scores[0].items() if name != metric) if not note else ""
            click.echo(f"{part}: {metric} {mean:.2f}{note}" + (f" ({rest})" if rest else ""))
    for place, (*shares, gamma) in results[0].layer_weights.items():
        layers = ", ".join(f"{'token' if n == 0 else f'lstm{n}'} {share:.3f}" for n, share in enumerate(shares))
        click.echo(f"layers at the {place}: {layers}; gamma {gamma:.3f}")
    if results[0].vocabulary is not None:
        click.echo(f"train and dev: {results[0].vocabulary}")
    click.echo(f"written to {folder}")
