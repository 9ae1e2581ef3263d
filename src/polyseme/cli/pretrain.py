"""polyseme pretrain: train a biLM, or go on with one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from polyseme.cli.options import examples, json_option

if TYPE_CHECKING:
    from polyseme.pretraining.config import PretrainConfig
    from polyseme.pretraining.corpus import Corpus
    from polyseme.pretraining.handover import Start
    from polyseme.pretraining.plan import Plan


@click.command(
    epilog=examples(
        "polyseme pretrain corpus --output run --preset small --heldout heldout.txt",
        "polyseme pretrain corpus --output run --set precision=bfloat16 --set optimizer.learning_rate=0.1 --dry-run",
        "polyseme pretrain corpus --output run --from en-small --more 10_000_000",
        "torchrun --nproc-per-node 4 -m polyseme.pretraining corpus --output run --preset original --device cuda",
    )
)
@click.argument("corpus", metavar="CORPUS")
@click.option("-o", "--output", metavar="RUN", required=True, help="Where the run lives; the same command again goes on with it.")
@click.option("--preset", metavar="NAME", help="small, medium, original or en-small; small where nothing else says it.")
@click.option("--config", "config_file", metavar="FILE", help="A complete configuration (JSON), as a run writes it.")
@click.option("--from", "start", metavar="MODEL", help="Go on with this model: its weights, and its recipe where it has one.")
@click.option("--new-vocabulary", is_flag=True, help="With --from: predict the corpus's words instead of the model's.")
@click.option("--freeze-steps", type=click.IntRange(min=0), default=0, help="Steps in which only the softmax moves.")
@click.option("--tokens", type=click.IntRange(min=1), help="Tokens per direction to read in all; default: one pass.")
@click.option("--more", type=click.IntRange(min=1), help="Tokens to read beyond those read so far.")
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="Change the configuration: rows=64, seed=2, ...")
@click.option("--device", metavar="NAME", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ...")
@click.option("--heldout", metavar="TEXT", help="Held-out text: a prepared folder, or a file of tokenized lines.")
@click.option("--evaluate-every", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="In tokens.")
@click.option("--evaluate-tokens", type=click.IntRange(min=1), default=50_000, show_default=True, help="Of the held-out text.")
@click.option("--max-minutes", type=click.FloatRange(min=0), help="Stop after this time.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Stop after this many tokens, earlier calls included.")
@click.option("--checkpoint-minutes", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Between checkpoints.")
@click.option("--log-every", type=click.IntRange(min=1), default=50, show_default=True, help="Steps between records of the log.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events.")
@click.option("--export", "export_to", metavar="PATH", help="Also write the model here: a folder, or FILE.hdf5 as bilm-tf's.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True, help="Of a folder to export."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@json_option("The outcome as one JSON object on standard output.")
def command(
    corpus: str,
    output: str,
    preset: str | None,
    config_file: str | None,
    start: str | None,
    new_vocabulary: bool,
    freeze_steps: int,
    tokens: int | None,
    more: int | None,
    changes: tuple[str, ...],
    device: str,
    heldout: str | None,
    evaluate_every: int,
    evaluate_tokens: int,
    max_minutes: float | None,
    max_tokens: int | None,
    checkpoint_minutes: float,
    log_every: int,
    tensorboard: bool,
    export_to: str | None,
    dtype: Literal["float32", "float16"],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Trains a biLM on CORPUS, which `polyseme prepare` wrote, and writes RUN/model when it stops.

    A plan is shown first. Ctrl-C, SIGTERM, --max-minutes and --max-tokens save everything and stop; the same command goes on
    exactly there. RUN/log.jsonl holds the losses: sampled ones and held-out perplexities under different names.
    """
    from polyseme.pretraining.corpus import Corpus
    from polyseme.pretraining.loop import pretrain
    from polyseme.pretraining.processes import join
    from polyseme.progress import ProgressDisplay

    opened = Corpus.open(corpus)
    begun = _start(start, opened, new_vocabulary)
    config = _changed(_config(opened, preset, config_file, begun), changes)
    if tokens is None and more is None and (config_file or any(change.startswith("tokens=") for change in changes)):
        tokens = config.tokens
    config = _tokens(config, opened, Path(output), begun, tokens=tokens, more=more)
    with join(device) as place, ProgressDisplay("pretrain", unit="tokens", interval=60.0) as report:
        say = _quiet if place.rank else _say

        def approve(plan: "Plan") -> bool:
            say(plan.describe())
            return not dry_run

        outcome = pretrain(
            config,
            opened,
            output,
            start=begun,
            freeze_steps=freeze_steps,
            device=place.device,
            heldout=None if heldout is None else _heldout(heldout),
            evaluate_every=evaluate_every,
            evaluate_tokens=evaluate_tokens,
            max_minutes=max_minutes,
            max_tokens=max_tokens,
            checkpoint_minutes=checkpoint_minutes,
            log_every=log_every,
            tensorboard=tensorboard,
            approve=approve,
            say=say,
            report=None if place.rank else report,
        )
    if place.rank or outcome.reason == "planned":
        return
    if export_to is not None and outcome.model is not None:
        _export(outcome.model, Path(export_to), dtype)
    if as_json:
        values = {"reason": outcome.reason, "tokens": outcome.tokens, "steps": outcome.steps, "heldout": outcome.heldout}
        click.echo(json.dumps({**values, "model": str(outcome.model)}))
    else:
        click.echo(f"{outcome.reason}: {outcome.tokens:,} tokens in {outcome.steps:,} steps; the model is {outcome.model}")


def _say(message: str) -> None:
    click.echo(message, err=True)


def _quiet(message: str) -> None:
    """Other processes than the first are silent."""


def _start(path: str | None, corpus: "Corpus", new_vocabulary: bool) -> "Start | None":
    """The model to go on with."""
    if path is None:
        return None
    from polyseme.pretraining.handover import start_from

    vocabulary = corpus.vocabulary() if new_vocabulary else None
    return start_from(path, vocabulary=vocabulary)


def _config(corpus: "Corpus", preset: str | None, file: str | None, start: "Start | None") -> "PretrainConfig":
    """The configuration: a file's, else a preset's, else the model's recipe."""
    from polyseme.pretraining.config import PRESETS, PretrainConfig

    if preset is not None and (preset not in PRESETS or file is not None):
        known = ", ".join(PRESETS)
        raise click.BadParameter(f"{preset!r}; wanted one of {known}, and no --config with it.", param_hint="--preset")
    recipe = None if start is None else start.recipe
    size = len(corpus.vocabulary()) if start is None else len(start.lists.vocabulary)
    if file is not None:
        config = PretrainConfig.from_json(Path(file).read_text(encoding="utf-8"))
    elif preset is None and recipe is not None:
        config = recipe
    else:
        made = PRESETS[preset or "small"](max(size, 8193))
        few = made.negatives is not None and made.negatives >= size
        model = replace(made.model, vocabulary_size=size)
        config = replace(made, model=model, negatives=None if few else made.negatives)
    return config if start is None else replace(config, model=start.model.config)


def _changed(config: "PretrainConfig", changes: tuple[str, ...]) -> "PretrainConfig":
    """The configuration with NAME=VALUE changes; a value is JSON, or else a word."""
    values = config.to_dict()
    for change in changes:
        name, given, text = change.partition("=")
        part = values
        *path, last = name.split(".")
        for step in path:
            part = part[step] if isinstance(part.get(step), dict) else {}
        if not given or last not in part:
            raise click.BadParameter(
                f"{change!r}; wanted NAME=VALUE with one of {', '.join(part or values)}.", param_hint="--set"
            )
        try:
            part[last] = json.loads(text)
        except ValueError:
            part[last] = text
    if config.loss_scale == config.unroll and not any(change.startswith("loss_scale=") for change in changes):
        values["loss_scale"] = values["unroll"]  # bilm-tf's scale is the unroll, whatever that is
    return type(config).from_dict(values)


def _tokens(
    config: "PretrainConfig", corpus: "Corpus", output: Path, start: "Start | None", *, tokens: int | None, more: int | None
) -> "PretrainConfig":
    """How far to go: to --tokens, by --more beyond what was read, else one pass (more)."""
    from polyseme.pretraining import checkpoint

    if tokens is not None and more is not None:
        raise click.UsageError("--tokens and --more both say how far to go; give one of them.")
    seen, planned = 0, None
    saved = checkpoint.saved(output / "checkpoints")
    if saved:
        values = checkpoint.load(saved[-1])[1]
        before = values["config"]
        seen, planned = values["step"] * before["rows"] * before["unroll"], before["tokens"]
    elif start is not None and start.training is not None:
        seen = int(start.training["tokens"])
    if tokens is None:
        tokens = seen + more if more is not None else planned if planned is not None else seen + corpus.positions
    return replace(config, tokens=tokens)


def _heldout(path: str) -> "Corpus":
    from itertools import chain

    from polyseme.pretraining.corpus import Corpus
    from polyseme.sources import Reader

    if Path(path).is_dir():
        return Corpus.open(path)
    return Corpus.from_sentences(chain.from_iterable(block.sentences for block in Reader([path]).sentences()))


def _export(model: Path, target: Path, dtype: Literal["float32", "float16"]) -> None:
    """Writes the finished model elsewhere: a native folder with its record, or another layout by its suffix."""
    if target.suffix:
        from polyseme.weights import convert

        convert(model, target)
        return
    from polyseme.pretraining.handover import copy_model

    copy_model(model, target, dtype=dtype)
