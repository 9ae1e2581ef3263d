"""polyseme ngram: Kneser-Ney n-gram models, the baseline of every language model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import click

from polyseme.cli.likelihoods import show
from polyseme.cli.options import examples, json_option

if TYPE_CHECKING:
    from polyseme.pretraining.ngram import NgramModel
    from polyseme.vocabulary import Vocabulary

Tokenization = Literal["whitespace", "penn", "characters"]


@click.command(
    epilog=examples(
        "polyseme ngram 'text/*.txt.xz' --vocabulary vocab.txt --test heldout.txt",
        "polyseme ngram 'text/*.txt.xz' --output counts",
        "polyseme ngram --counts counts --order 3 --test heldout.txt",
    )
)
@click.argument("inputs", metavar="[TEXT]...", nargs=-1)
@click.option("--test", "tests", metavar="FILE", multiple=True, help="Held-out text; may be given several times.")
@click.option("--order", type=click.IntRange(1, 8), help="Longest n-grams.  [default: 5, or that of the counts]")
@click.option("--each-order", is_flag=True, help="Also report every lower order; one count serves all.")
@click.option("--vocabulary", metavar="FILE", help="The closed vocabulary, one word a line, with <S>, </S> and <UNK>.")
@click.option(
    "--vocabulary-size",
    type=click.IntRange(min=4),
    default=50_000,
    show_default=True,
    help="Without --vocabulary: the most frequent words of TEXT, markers included; TEXT is read twice.",
)
@click.option("-o", "--output", metavar="FOLDER", help="Keep the counts here.")
@click.option("--overwrite", is_flag=True, help="Replace the folder if it is there.")
@click.option("--counts", metavar="FOLDER", help="Use these counts instead of reading TEXT.")
@click.option(
    "--tokenization",
    type=click.Choice(["whitespace", "penn", "characters"]),
    default="whitespace",
    show_default=True,
    help="How lines become words.",
)
@click.option("--memory", type=click.FloatRange(min=0.01), default=2.0, show_default=True, help="GB that sorting may take.")
@json_option("One JSON object for each order.")
def command(
    inputs: tuple[str, ...],
    tests: tuple[str, ...],
    order: int | None,
    each_order: bool,
    vocabulary: str | None,
    vocabulary_size: int,
    output: str | None,
    overwrite: bool,
    counts: str | None,
    tokenization: Tokenization,
    memory: float,
    as_json: bool,
) -> None:
    """An interpolated modified Kneser-Ney model of TEXT, and its perplexity on held-out text.

    TEXT is files with one sentence a line. The estimate is that of KenLM's lmplz without pruning, over a closed vocabulary:
    what is predicted is its words, <UNK>, which stands for all others, and </S>. Counts go to disk; memory stays bounded.
    """
    import tempfile
    from pathlib import Path

    from polyseme.pretraining.ngram import NgramModel, train
    from polyseme.progress import ProgressDisplay
    from polyseme.vocabulary import Vocabulary

    if bool(inputs) == (counts is not None):
        raise click.UsageError("give TEXT to count, or --counts FOLDER, one of them.")
    if counts is not None and (output or vocabulary):
        raise click.UsageError("--counts goes with neither --output nor --vocabulary; the counts have their vocabulary.")
    if not tests and not output:
        raise click.UsageError("nothing to do: give --test FILE, --output FOLDER, or both.")
    with ExitStack() as stack:
        if counts is None:
            folder = Path(output) if output else Path(stack.enter_context(tempfile.TemporaryDirectory())) / "counts"
            if vocabulary is None and "-" in inputs:
                raise click.UsageError("the standard input can be read once; give --vocabulary FILE, or files.")
            listed = Vocabulary.read(vocabulary) if vocabulary else _vocabulary(inputs, vocabulary_size, tokenization)
            report = stack.enter_context(ProgressDisplay("ngram", unit="items"))
            sentences = _sentences(inputs, tokenization)
            model = train(
                sentences, listed, folder, order=order or 5, memory=int(memory * 1e9), overwrite=overwrite, report=report
            )
        else:
            folder = Path(counts)
            model = NgramModel(folder, order=order)
        for each in range(1, model.order) if each_order else []:
            _show(NgramModel(folder, order=each), tests, tokenization, as_json=as_json)
        _show(model, tests, tokenization, as_json=as_json)


def _show(model: "NgramModel", tests: tuple[str, ...], tokenization: Tokenization, *, as_json: bool) -> None:
    """The model in two lines, and its perplexity on each text."""
    from polyseme.sources import find

    about = {
        "order": model.order,
        "training_words": model.words,
        "training_sentences": model.sentences,
        "vocabulary": len(model.vocabulary),
        "entries": list(model.entries),
        "discounts": [list(discounts.values) for discounts in model.discounts],
        "discounts_estimated": [discounts.estimated for discounts in model.discounts],
    }
    if not as_json:
        size = ", ".join(f"{entries:,}" for entries in model.entries)
        click.echo(f"order {model.order}: {model.words:,} words, {len(model.vocabulary):,} in the vocabulary; n-grams {size}")
        fixed = [str(k) for k, discounts in enumerate(model.discounts, 1) if not discounts.estimated]
        if fixed:
            click.echo(f"no discounts could be estimated for order {', '.join(fixed)}: 0.5, 1 and 1.5 are taken")
    names = [source.name for source in find(tests)] if tests else []
    paths = ["-" if name == "standard input" else name for name in names]
    found = {name: model.evaluate(_sentences((path,), tokenization)) for name, path in zip(names, paths, strict=True)}
    if found or as_json:
        show(about, found, as_json=as_json)


def _cutter(tokenization: Tokenization) -> Callable[[str], list[list[str]]] | None:
    if tokenization == "whitespace":
        return None
    from polyseme.text import tokenizer

    tokenize = tokenizer(tokenization).tokenize
    return lambda line: [tokenize(line)]


def _sentences(inputs: tuple[str, ...], tokenization: Tokenization) -> Iterator[list[str]]:
    from polyseme.sources import Reader

    for block in Reader(inputs).sentences(_cutter(tokenization)):
        yield from block.sentences


def _vocabulary(inputs: tuple[str, ...], size: int, tokenization: Tokenization) -> "Vocabulary":
    """The most frequent words, equal counts in code point order."""
    from collections import Counter

    from polyseme.vocabulary import BILM_MARKERS, Vocabulary

    counts: Counter[str] = Counter()
    for sentence in _sentences(inputs, tokenization):
        counts.update(sentence)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary([*BILM_MARKERS, *[word for word in frequent if word not in BILM_MARKERS][: size - len(BILM_MARKERS)]])
