"""The rows of the table of results: every task, its data, its baseline, and how ELMo is added to it.

A new task adds a function that returns its rows, and its name to `rows`; recipes/paper_table.py does the rest. The
configurations are scaled down, so that a cell takes a few minutes at most on two cores; each says how, and the full size is
what `polyseme train TASK` starts from. With ELMo and without, a task has the same architecture, epochs and patience on dev.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyseme.tasks.classifier import Classification, ClassifierConfig
from polyseme.tasks.config import FitConfig, TaskConfig
from polyseme.tasks.inputs import ElmoConfig, InputsConfig, SpellingConfig, WordConfig
from polyseme.tasks.readers import split_folder
from polyseme.tasks.tagger import TaggerConfig, Tagging

LAYERS = ("token", "lstm1", "lstm2")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One task of the table.

    name, title  short, as --only takes it; and as the table shows it, with the score in brackets
    data         folder under --data, in which `files` finds train, dev and test
    config       the baseline, without files; what is fitted without ELMo
    elmo         where ELMo is added to it
    variants     the cells of a seed: without ELMo (False), with it (True)
    seeds        at most so many
    write, read  an answer as one line without its text, and back: what is kept of the predictions
    """

    name: str
    title: str
    data: str
    config: TaskConfig
    elmo: ElmoConfig
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    variants: tuple[bool, ...] = (False, True)
    seeds: int = 3
    files: Callable[[Path], dict[str, Path]] = split_folder


def write_tags(answer: Tagging) -> str:
    """The tags alone."""
    return " ".join(answer.tags)


def read_tags(line: str) -> Tagging:
    """The inverse of write_tags."""
    return Tagging(tuple(line.split()))


def write_label(answer: Any) -> str:
    """The label alone."""
    return answer.label


def read_label(line: str) -> Classification:
    """The inverse of write_label."""
    return Classification(line, {})


def named_entities() -> list[Row]:
    """WNUT-17. Full size: two biLSTMs of 200, 75 epochs, patience 25; here one of 100, 16 epochs, patience 5."""
    config = TaskConfig(
        model=TaggerConfig(hidden=100, layers=1, dropout=0.5),
        inputs=InputsConfig(words=WordConfig(), spelling=SpellingConfig(filters=((3, 64),))),
        fit=FitConfig(epochs=16, patience=5, batch=16, learning_rate=0.002),
    )
    row = Row(
        name="ner",
        title="Named entities, WNUT-17 (F1)",
        data="ner/wnut17",
        config=config,
        elmo=ElmoConfig(dropout=0.5),
        write=write_tags,
        read=read_tags,
    )
    context = replace(row.elmo, context="document")
    title = "Named entities, WNUT-17, document context (F1)"
    return [row, replace(row, name="ner-document", title=title, elmo=context, variants=(True,))]


def sentiment() -> list[Row]:
    """SST-5. Full size: 300 units everywhere, all phrases, 40 epochs; here 75, 20,000 phrases an epoch, 8 epochs."""
    config = TaskConfig(
        model=ClassifierConfig(file="trees", shortest=2, phrases=20_000, dense=150, hidden=75, input_dropout=0.3),
        inputs=InputsConfig(),
        fit=FitConfig(epochs=8, patience=4, batch=50),
    )
    whole = Row(
        name="sst5",
        title="Sentiment, SST-5 (accuracy)",
        data="sentiment/sst5",
        config=config,
        elmo=ElmoConfig(place="both", dropout=0.5),
        write=write_label,
        read=read_label,
    )
    rows = [whole]
    for share in (0.01, 0.1):
        fewer = replace(config, fit=replace(config.fit, share=share, epochs=24, patience=8))
        title = f"Sentiment, SST-5, {share:.0%} of the training data (accuracy)"
        rows.append(replace(whole, name=f"sst5-{share:g}", title=title, config=fewer))
    return rows


def parts_of_speech() -> list[Row]:
    """Penn tags of UD English EWT from a layer of the biLM, or their learned mix, through one linear map; 3 epochs."""
    rows = []
    for layer, name in enumerate((*LAYERS, "mix")):
        elmo = ElmoConfig(dropout=0.0, l2=0.0)
        if name != "mix":
            weights = tuple(0.0 if number == layer else -1e4 for number in range(len(LAYERS)))
            elmo = ElmoConfig(mix="fixed", weights=weights, dropout=0.0)
        config = TaskConfig(
            model=TaggerConfig(tags="labels", file="conllu", encoder="none", head="softmax", dropout=0.0),
            inputs=InputsConfig(words=None, spelling=None, elmo=elmo),
            fit=FitConfig(epochs=3, patience=3, batch=32, learning_rate=0.005),
            elmo="en-small",
        )
        row = Row(
            name=f"pos-{name}",
            title=f"Parts of speech, UD English EWT, linear, {name} (accuracy)",
            data="pos/ud-ewt",
            config=config,
            elmo=elmo,
            write=write_tags,
            read=read_tags,
            variants=(True,),
        )
        rows.append(row)
    return rows


def rows() -> list[Row]:
    """All rows of fitted models, in the order of the table."""
    return [*named_entities(), *sentiment(), *parts_of_speech()]
