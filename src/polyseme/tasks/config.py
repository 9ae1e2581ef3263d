"""TaskConfig: one complete, frozen description of a task model, its data and its fitting; and the presets by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from polyseme.config import Checked, from_dict
from polyseme.errors import InputError
from polyseme.tasks.answers import AnswersConfig, AnswersTask
from polyseme.tasks.choices import ChoicesConfig, ChoicesTask
from polyseme.tasks.classifier import ClassifierConfig, ClassifierTask
from polyseme.tasks.coreference import CoreferenceConfig, CoreferenceTask
from polyseme.tasks.entailment import EntailmentConfig, EntailmentTask
from polyseme.tasks.inputs import ElmoConfig, InputsConfig, SpellingConfig, WordConfig
from polyseme.tasks.roles import RolesConfig, RolesTask
from polyseme.tasks.tagger import TaggerConfig, TaggerTask

# A new task is added in these three lines, to PRESETS below, and to the rows of recipes/paper_rows.py.
ModelConfig = TaggerConfig | ClassifierConfig | RolesConfig | EntailmentConfig | ChoicesConfig | CoreferenceConfig | AnswersConfig
Task = TaggerTask | ClassifierTask | RolesTask | EntailmentTask | ChoicesTask | CoreferenceTask | AnswersTask
KINDS: dict[str, tuple[type[ModelConfig], type[Task]]] = {
    "tagger": (TaggerConfig, TaggerTask),
    "classifier": (ClassifierConfig, ClassifierTask),
    "roles": (RolesConfig, RolesTask),
    "entailment": (EntailmentConfig, EntailmentTask),
    "choices": (ChoicesConfig, ChoicesTask),
    "coreference": (CoreferenceConfig, CoreferenceTask),
    "answers": (AnswersConfig, AnswersTask),
}


@dataclass(frozen=True, kw_only=True)
class FitConfig(Checked):
    """How a model is fitted.

    epochs, patience     at most so many; stop when the score on dev has not risen for so many
    batch                records a step
    share                of the training records; smaller shares are part of larger ones, whatever the seed
    bilm_rate            a fine-tuned biLM learns at this share of the learning rate
    clip_norm            of the gradient; None: not clipped
    clip_value           of each of the gradient's entries; None: not clipped
    decay, decay_after   the rate is multiplied by `decay` when dev has not risen for `decay_after` epochs
    """

    epochs: int = 75
    patience: int = 25
    batch: int = 32
    share: float = 1.0
    optimizer: Literal["adam", "adadelta"] = "adam"
    learning_rate: float = 0.001
    bilm_rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip_norm: float | None = 5.0
    clip_value: float | None = None
    decay: float | None = None
    decay_after: int = 2
    seed: int = 1

    def validate(self) -> None:
        """Counts must be possible."""
        self.positive("epochs", "patience", "batch", "decay_after")
        if not 0 < self.share <= 1:
            raise InputError(f"FitConfig.share is {self.share}; wanted more than 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Checked):
    """A task model to be fitted.

    train, dev, test   files; the test file is read only after fitting, once
    folder             where the model is written, and where an interrupted run goes on
    elmo               a model for polyseme.load, or None for the baseline without it
    vectors            word vectors (.npz or GloVe text), or None
    cache              folder for the biLM's vectors of these files; None keeps them in memory
    """

    model: ModelConfig
    inputs: InputsConfig
    fit: FitConfig
    train: str = ""
    dev: str = ""
    test: str | None = None
    folder: str = ""
    elmo: str | None = None
    vectors: str | None = None
    cache: str | None = None

    def validate(self) -> None:
        """A biLM is named exactly when the inputs have a place for it."""
        if (self.elmo is None) != (self.inputs.elmo is None):
            raise InputError("TaskConfig.elmo names a biLM exactly when inputs.elmo says where it goes in; give both or neither.")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of to_dict, strict; `model.kind` says which task it is."""
        model = values.get("model")
        if isinstance(model, dict):
            kind = model.get("kind")
            if kind not in KINDS:
                raise InputError(f"TaskConfig.model.kind is {kind!r}; wanted one of {', '.join(KINDS)}.")
            values = {**values, "model": from_dict(KINDS[kind][0], model)}
        return from_dict(cls, values)


def make_task(config: ModelConfig) -> Task:
    """The task that a model's configuration belongs to."""
    return KINDS[config.kind][1](config)  # pyrefly: ignore


#: Where ELMo goes in unless told otherwise; at the input of the tasks that are not here.
_PLACES = {
    "coreference": ElmoConfig(dropout=0.0, l2=0.0),  # the model's own dropout falls on all its inputs
    "answers": ElmoConfig(place="both", l2=0.0, context="document"),
}


def with_elmo(config: TaskConfig, elmo: str | None, *, place: ElmoConfig | None = None) -> TaskConfig:
    """The same configuration with a biLM at its input (or where `place` says), or without any."""
    place = None if elmo is None else place or config.inputs.elmo or _PLACES.get(config.model.kind, ElmoConfig())
    return replace(config, elmo=elmo, inputs=replace(config.inputs, elmo=place))


#: The biLM the presets stand over; `with_elmo(config, None)` is the baseline. The models' own dropouts fall on its vectors.
ELMO = "en-small"


def named_entities() -> TaskConfig:
    """Spans in CoNLL columns: two biLSTMs of 200 and a CRF."""
    return TaskConfig(
        model=TaggerConfig(),
        inputs=InputsConfig(words=WordConfig(trainable=True), elmo=ElmoConfig(dropout=0.0, l2=0.1)),
        fit=FitConfig(epochs=75, patience=25, batch=64),
        elmo=ELMO,
    )


def chunks() -> TaskConfig:
    """Chunks in CoNLL-2000 columns (word, part of speech, chunk): the named-entity tagger."""
    return named_entities()


def parts_of_speech() -> TaskConfig:
    """Penn tags of CoNLL-U files: one biLSTM and a softmax."""
    return TaskConfig(
        model=TaggerConfig(tags="labels", file="conllu", head="softmax", layers=1, dropout=0.3),
        inputs=InputsConfig(words=WordConfig(trainable=True), elmo=ElmoConfig(dropout=0.0)),
        fit=FitConfig(epochs=30, patience=5, batch=32),
        elmo=ELMO,
    )


def tags() -> TaskConfig:
    """One label a token in CoNLL columns: one biLSTM and a softmax."""
    config = parts_of_speech()
    return replace(config, model=TaggerConfig(tags="labels", head="softmax", layers=1, dropout=0.3))


def sentiment() -> TaskConfig:
    """Five classes of sentiment trees, trained on all phrases: the full-size biattentive network."""
    return TaskConfig(
        model=ClassifierConfig(file="trees"),
        inputs=InputsConfig(elmo=ElmoConfig(dropout=0.0)),
        fit=FitConfig(epochs=40, patience=5, batch=100),
        elmo=ELMO,
    )


def sentiment_binary() -> TaskConfig:
    """Two classes of sentiment trees."""
    return replace(sentiment(), model=ClassifierConfig(file="trees", classes=2))


def classification() -> TaskConfig:
    """Lines of label<TAB>text: a biattentive network of a quarter of the size."""
    return TaskConfig(
        model=ClassifierConfig(dense=150, hidden=75),
        inputs=InputsConfig(elmo=ElmoConfig(dropout=0.0)),
        fit=FitConfig(epochs=40, patience=5, batch=50),
        elmo=ELMO,
    )


def entailment() -> TaskConfig:
    """Pairs of SNLI: ESIM with 300 units."""
    return TaskConfig(
        model=EntailmentConfig(),
        inputs=InputsConfig(elmo=ElmoConfig(place="both", dropout=0.0)),
        fit=FitConfig(epochs=75, patience=5, batch=32, learning_rate=0.0004, clip_norm=10.0, decay=0.5, decay_after=1),
        elmo=ELMO,
    )


def choices() -> TaskConfig:
    """Questions with several answers, pick one: ESIM with 300 units."""
    return replace(entailment(), model=ChoicesConfig())


def roles() -> TaskConfig:
    """Semantic roles in JSON lines: eight interleaved highway LSTMs of 300."""
    return TaskConfig(
        model=RolesConfig(),
        inputs=InputsConfig(words=WordConfig(trainable=True), elmo=ElmoConfig(dropout=0.1)),
        fit=FitConfig(epochs=500, patience=20, batch=80, optimizer="adadelta", learning_rate=1.0, clip_norm=None, clip_value=1.0),
        elmo=ELMO,
    )


def coreference() -> TaskConfig:
    """Clusters of mentions in documents: span ranking, a document a step."""
    return TaskConfig(
        model=CoreferenceConfig(),
        inputs=InputsConfig(
            words=WordConfig(unknown="zero"), spelling=SpellingConfig(dim=8, filters=((3, 50), (4, 50), (5, 50)))
        ),
        fit=FitConfig(epochs=150, patience=10, batch=1),
    )


def answers() -> TaskConfig:
    """Answers that stand in a text: bidirectional attention flow with self-attention."""
    return TaskConfig(
        model=AnswersConfig(),
        inputs=InputsConfig(words=WordConfig(unknown="zero"), spelling=SpellingConfig(dim=20, filters=((5, 100),))),
        fit=FitConfig(epochs=24, patience=8, batch=45, optimizer="adadelta", learning_rate=1.0),
    )


#: What `polyseme train NAME` starts from.
PRESETS: dict[str, Callable[[], TaskConfig]] = {
    "ner": named_entities,
    "chunking": chunks,
    "pos": parts_of_speech,
    "tagging": tags,
    "sst5": sentiment,
    "sst2": sentiment_binary,
    "classification": classification,
    "snli": entailment,
    "choices": choices,
    "roles": roles,
    "coreference": coreference,
    "answers": answers,
}
