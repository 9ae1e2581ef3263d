"""TaskConfig: one complete, frozen description of a task model, its data and its fitting; and the presets by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from polyseme.config import Checked, from_dict
from polyseme.errors import InputError
from polyseme.tasks.classifier import ClassifierConfig, ClassifierTask
from polyseme.tasks.inputs import ElmoConfig, InputsConfig, WordConfig
from polyseme.tasks.roles import RolesConfig, RolesTask
from polyseme.tasks.tagger import TaggerConfig, TaggerTask

# A new task is added in these three lines, to PRESETS below, and to the rows of recipes/paper_rows.py.
ModelConfig = TaggerConfig | ClassifierConfig | RolesConfig
Task = TaggerTask | ClassifierTask | RolesTask
KINDS: dict[str, tuple[type[ModelConfig], type[Task]]] = {
    "tagger": (TaggerConfig, TaggerTask),
    "classifier": (ClassifierConfig, ClassifierTask),
    "roles": (RolesConfig, RolesTask),
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


def with_elmo(config: TaskConfig, elmo: str | None, *, place: ElmoConfig | None = None) -> TaskConfig:
    """The same configuration with a biLM at its input (or where `place` says), or without any."""
    place = None if elmo is None else place or config.inputs.elmo or ElmoConfig()
    return replace(config, elmo=elmo, inputs=replace(config.inputs, elmo=place))


def named_entities() -> TaskConfig:
    """Spans in CoNLL columns: two biLSTMs of 200 and a CRF."""
    return TaskConfig(
        model=TaggerConfig(),
        inputs=InputsConfig(words=WordConfig(trainable=True)),
        fit=FitConfig(epochs=75, patience=25, batch=64),
    )


def chunks() -> TaskConfig:
    """Chunks in CoNLL-2000 columns (word, part of speech, chunk): the named-entity tagger."""
    return named_entities()


def parts_of_speech() -> TaskConfig:
    """Penn tags of CoNLL-U files: one biLSTM and a softmax."""
    return TaskConfig(
        model=TaggerConfig(tags="labels", file="conllu", head="softmax", layers=1, dropout=0.3),
        inputs=InputsConfig(words=WordConfig(trainable=True)),
        fit=FitConfig(epochs=30, patience=5, batch=32),
    )


def tags() -> TaskConfig:
    """One label a token in CoNLL columns: one biLSTM and a softmax."""
    config = parts_of_speech()
    return replace(config, model=TaggerConfig(tags="labels", head="softmax", layers=1, dropout=0.3))


def sentiment() -> TaskConfig:
    """Five classes of sentiment trees, trained on all phrases: the full-size biattentive network."""
    return TaskConfig(
        model=ClassifierConfig(file="trees"),
        inputs=InputsConfig(),
        fit=FitConfig(epochs=40, patience=5, batch=100),
    )


def sentiment_binary() -> TaskConfig:
    """Two classes of sentiment trees."""
    return replace(sentiment(), model=ClassifierConfig(file="trees", classes=2))


def classification() -> TaskConfig:
    """Lines of label<TAB>text: a biattentive network of a quarter of the size."""
    return TaskConfig(
        model=ClassifierConfig(dense=150, hidden=75),
        inputs=InputsConfig(),
        fit=FitConfig(epochs=40, patience=5, batch=50),
    )


def roles() -> TaskConfig:
    """Semantic roles in JSON lines: eight interleaved highway LSTMs of 300."""
    return TaskConfig(
        model=RolesConfig(),
        inputs=InputsConfig(words=WordConfig(trainable=True)),
        fit=FitConfig(epochs=500, patience=20, batch=80, optimizer="adadelta", learning_rate=1.0, clip_norm=None, clip_value=1.0),
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
    "roles": roles,
}
