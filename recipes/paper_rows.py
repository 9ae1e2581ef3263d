"""The rows of the table of results: every task, its data, its baseline, and how ELMo is added to it.

A new task adds a function that returns its rows, and its name to `rows`; recipes/paper_table.py does the rest. The
configurations are scaled down, so that a cell takes a few minutes at most on two cores; each says how, and the full size is
what `polyseme train TASK` starts from. With ELMo and without, a task has the same architecture, epochs and patience on dev.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import answers_split
from polyseme.tasks.answers import Answer, AnswersConfig
from polyseme.tasks.classifier import Classification, ClassifierConfig
from polyseme.tasks.config import FitConfig, TaskConfig, make_task, with_elmo
from polyseme.tasks.coreference import CoreferenceConfig, Coreferences
from polyseme.tasks.documents import Mention
from polyseme.tasks.entailment import EntailmentConfig
from polyseme.tasks.fit import fit
from polyseme.tasks.inputs import ElmoConfig, InputsConfig, SpellingConfig, WordConfig, WordVectors
from polyseme.tasks.readers import split_folder
from polyseme.tasks.role_readers import Proposition
from polyseme.tasks.roles import Roles, RolesConfig
from polyseme.tasks.spans import Span, read_spans
from polyseme.tasks.spans import write_tags as spell
from polyseme.tasks.tagger import TaggerConfig, Tagging

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

LAYERS = ("token", "lstm1", "lstm2")


@dataclass(frozen=True)
class Tools:
    """What the cells share: the biLM and the name it was loaded by, word vectors, the data, and a place for models."""

    elmo: "Elmo | None"
    elmo_name: str
    vectors: WordVectors | None
    data: Path
    work: Path


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

    def identity(self, elmo_hash: str | None, seed: int) -> str:
        """What decides a cell's numbers, as far as it departs from the defaults: not paths, nor options added since."""
        config = with_elmo(self.config, None if elmo_hash is None else "", place=self.elmo)
        return digest({"row": self.name, "seed": seed, "elmo": elmo_hash, "config": _departures(config)})

    def run(self, tools: Tools, *, with_it: bool, seed: int) -> tuple[dict[str, Any], list[str]]:
        """Fits the model; the cell's numbers, and the answers to the test records, one a line."""
        elmo = tools.elmo if with_it else None
        config = with_elmo(self.config, tools.elmo_name if with_it else None, place=self.elmo)
        files = self.files(tools.data / self.data)
        vectors = None if config.inputs.words is None else tools.vectors
        config = replace(
            config,
            train=str(files["train"]),
            dev=str(files["dev"]),
            test=str(files["test"]),
            vectors=None if vectors is None else str(tools.data / "vectors/glove-100d.npz"),
            fit=replace(config.fit, seed=seed),
            folder=str(tools.work / f"{self.name}-{seed}-{self.identity(elmo.hash if elmo else None, seed)}"),
            cache=str(tools.work / "cache"),
        )
        result = fit(config, elmo=elmo, vectors=vectors)
        scores, metric = result.test or {}, result.trained.task.metric
        values = {
            "elmo": None if result.trained.reference is None else asdict(result.trained.reference),
            "metric": metric,
            "dev": result.dev[metric],
            "test": scores[metric],
            "scores": scores,
            "epochs": len(result.history),
            "best_epoch": result.best_epoch,
            "dev_by_epoch": [epoch.scores[metric] for epoch in result.history],
            "layer_weights": result.layer_weights,
            "vocabulary": None if result.vocabulary is None else asdict(result.vocabulary),
            "config": replace(config, train="", dev="", test=None, folder="", cache=None, vectors=None).to_dict(),
        }
        return values, [self.write(answer) for answer in result.test_answers]

    def rescore(self, line: dict[str, Any], predictions: Sequence[str], data: Path) -> float:
        """The score that a cell's predictions get."""
        task = make_task(TaskConfig.from_dict(line["config"]).model)
        records = task.read(self.files(data / self.data)["test"])
        return task.score(records, [self.read(text) for text in predictions])[line["metric"]]  # pyrefly: ignore


def digest(values: dict[str, Any]) -> str:
    """A short name of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _departures(value: Any) -> Any:
    """The fields of a configuration that are not at their defaults."""
    if not is_dataclass(value):
        return value
    pairs = [(field, getattr(value, field.name)) for field in fields(value)]
    return {field.name: _departures(own) for field, own in pairs if own != field.default}


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


def write_roles(answer: Roles) -> str:
    """The predicates found; and for each predicate its token, the sentence's length and the spans of its roles."""
    roles = [[p.index, len(p.tags or ()), [[*span] for span in read_spans(p.tags or ())]] for p in answer.propositions]
    return json.dumps([answer.found, roles], separators=(",", ":"))


def read_roles(line: str) -> Roles:
    """The inverse of write_roles."""
    found, roles = json.loads(line)
    propositions = [
        Proposition(index, tuple(spell([Span(*span) for span in spans], length, "bio"))) for index, length, spans in roles
    ]
    return Roles(tuple(propositions), tuple(found))


def write_clusters(answer: Coreferences) -> str:
    """The clusters as lists of [start, end]."""
    return json.dumps(answer.clusters, separators=(",", ":"))


def read_clusters(line: str) -> Coreferences:
    """The inverse of write_clusters."""
    return Coreferences(tuple(tuple(Mention(*pair) for pair in cluster) for cluster in json.loads(line)))


def write_answer(answer: Answer) -> str:
    """The answer's text, any white space in it a single blank, which the score does not see."""
    return " ".join(answer.text.split())


def read_answer(line: str) -> Answer:
    """The inverse of write_answer, but for white space."""
    return Answer(line)


def named_entities() -> list[Row]:
    """WNUT-17. Full size: two biLSTMs of 200, 75 epochs, patience 25; here one of 100, 24 epochs, patience 6."""
    config = TaskConfig(
        model=TaggerConfig(hidden=100, layers=1, dropout=0.5),
        inputs=InputsConfig(words=WordConfig(), spelling=SpellingConfig(filters=((3, 64),))),
        fit=FitConfig(epochs=24, patience=6, batch=16, learning_rate=0.002),
    )
    return [
        Row(
            name="ner",
            title="Named entities, WNUT-17 (F1)",
            data="ner/wnut17",
            config=config,
            elmo=ElmoConfig(dropout=0.0),
            write=write_tags,
            read=read_tags,
        )
    ]


def sentiment() -> list[Row]:
    """SST-5. Full size: 300 units everywhere, all phrases, 40 epochs; here 75, 20,000 phrases an epoch, 8 epochs.

    With shares of the training data an epoch has fewer phrases, and there are more epochs.
    """
    model = ClassifierConfig(file="trees", shortest=2, phrases=20_000, dense=150, hidden=75, input_dropout=0.3)
    config = TaskConfig(
        model=model,
        inputs=InputsConfig(),
        fit=FitConfig(epochs=8, patience=4, batch=50),
    )
    whole = Row(
        name="sst5",
        title="Sentiment, SST-5 (accuracy)",
        data="sentiment/sst5",
        config=config,
        elmo=ElmoConfig(dropout=0.3),
        write=write_label,
        read=read_label,
    )
    rows = [whole]
    for share, phrases in ((0.01, 1_000), (0.1, 4_000)):
        few = replace(config.fit, share=share, epochs=20, patience=6)
        fewer = replace(config, model=replace(model, phrases=phrases), fit=few)
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
    whole = replace(rows[-1].elmo, context="document")
    title = "Parts of speech, UD English EWT, linear, mix, vectors in document context (accuracy)"
    return [*rows, replace(rows[-1], name="pos-mix-document", title=title, elmo=whole)]


def entailment() -> list[Row]:
    """The first 100,000 pairs of SNLI. Full size: 300 units, batches of 32, 75 epochs; here 100, of 64, 2 epochs."""
    config = TaskConfig(
        model=EntailmentConfig(hidden=100, dropout=0.3),
        inputs=InputsConfig(spelling=SpellingConfig(filters=((3, 64),))),
        fit=FitConfig(epochs=2, patience=2, batch=64, learning_rate=0.001),
    )
    row = Row(
        name="snli",
        title="Entailment, 100,000 pairs of SNLI (accuracy)",
        data="entailment/snli",
        config=config,
        elmo=ElmoConfig(dropout=0.3),
        write=write_label,
        read=read_label,
    )
    return [row]


def semantic_roles() -> list[Row]:
    """PropBank over English EWT. Full size: 8 layers of 300, Adadelta, 500 epochs; here 4 of 128, Adam, 5 epochs.

    With shares of the training data there are more epochs.
    """
    config = TaskConfig(
        model=RolesConfig(hidden=128, layers=4, indicator=50, finder=50),
        inputs=InputsConfig(spelling=SpellingConfig(filters=((3, 64),)), dropout=0.2),
        fit=FitConfig(epochs=5, patience=3, batch=64, learning_rate=0.002),
    )
    whole = Row(
        name="roles",
        title="Semantic roles, PropBank EWT (F1)",
        data="roles/propbank-ewt",
        config=config,
        elmo=ElmoConfig(dropout=0.2),
        write=write_roles,
        read=read_roles,
    )
    rows = [whole]
    for share in (0.01, 0.1):
        fewer = replace(config, fit=replace(config.fit, share=share, epochs=24, patience=8))
        title = f"Semantic roles, PropBank EWT, {share:.0%} of the training data (F1)"
        rows.append(replace(whole, name=f"roles-{share:g}", title=title, config=fewer))
    return rows


def coreference() -> list[Row]:
    """OntoGUM. Full size: 3 biLSTMs of 200, spans of 30 tokens, 50 antecedents picked from twice, 50 sentences, 150 epochs.

    Here one biLSTM of 100, spans of 12 (98 % of the mentions), antecedents picked once, 20 sentences, 15 epochs.
    """
    config = TaskConfig(
        model=CoreferenceConfig(
            hidden=100, layers=1, max_width=12, antecedents=50, depth=1, sentences=20, input_dropout=0.4, encoder_dropout=0.3
        ),
        inputs=InputsConfig(words=WordConfig(unknown="zero"), spelling=SpellingConfig(dim=8, filters=((3, 50),))),
        fit=FitConfig(epochs=15, patience=5, batch=1, learning_rate=0.001),
    )
    row = Row(
        name="coreference",
        title="Coreference, OntoGUM (mean F1 of MUC, B³ and CEAFφ4)",
        data="coreference/ontogum",
        config=config,
        elmo=ElmoConfig(dropout=0.0, l2=0.0),
        write=write_clusters,
        read=read_clusters,
    )
    return [row]


def answers() -> list[Row]:
    """SQuAD: the train sample and 32 articles of the development set, 4 others for dev, 12 for test (recipes/answers_split.py).

    Full size: LSTMs of 90, dense layers of 180, Adadelta, 24 epochs of batches of 45; here 50 and 100, Adam, 8 epochs, of 30.
    """
    config = TaskConfig(
        model=AnswersConfig(hidden=50, dense=100),
        inputs=InputsConfig(words=WordConfig(unknown="zero"), spelling=SpellingConfig(dim=16, filters=((5, 50),))),
        fit=FitConfig(epochs=8, patience=3, batch=30, learning_rate=0.002),
    )
    row = Row(
        name="answers",
        title="Question answering, SQuAD sample and parts of its development set (F1)",
        data="answers/squad",
        config=config,
        elmo=ElmoConfig(place="both", l2=0.0, context="document"),
        write=write_answer,
        read=read_answer,
        files=answers_split.files,
    )
    return [row]


def rows() -> list[Row]:
    """All rows of fitted models, in the order of the table."""
    return [*named_entities(), *sentiment(), *parts_of_speech(), *entailment(), *semantic_roles(), *coreference(), *answers()]
