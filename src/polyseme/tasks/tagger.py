"""The sequence tagger: named entities, chunks and parts of speech, with a CRF or a softmax, and as a linear probe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.config import Checked
from polyseme.errors import FormatError, InputError
from polyseme.tasks.crf import CRF, allowed_transitions
from polyseme.tasks.encoders import EncoderKind, make_encoder
from polyseme.tasks.inputs import Inputs, TextBatch
from polyseme.tasks.metrics import accuracy, span_scores
from polyseme.tasks.readers import TaggedSentence, check_scheme, read_columns, read_conllu
from polyseme.tasks.spans import Scheme, Span, read_spans, write_tags
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(Checked):
    """A tagger and the files it reads.

    tags      "spans": tags spell labelled spans and the score is conlleval's F1; "labels": every token has one, accuracy
    scheme    of the files' tags ("auto": told from the tags); the model itself works in BIOUL
    file      "columns", or "conllu" with `column` upos or xpos
    token_column, tag_column   of CoNLL columns, from 0, or from the end with -1
    encoder   "none" with a softmax is a linear probe
    """

    kind: Literal["tagger"] = "tagger"
    tags: Literal["spans", "labels"] = "spans"
    scheme: Literal["auto", "iob1", "bio", "bioul", "bioes"] = "auto"
    file: Literal["columns", "conllu"] = "columns"
    column: Literal["upos", "xpos"] = "xpos"
    token_column: int = 0
    tag_column: int = -1
    encoder: EncoderKind = "lstm"
    hidden: int = 200
    layers: int = 2
    dropout: float = 0.5
    head: Literal["crf", "softmax"] = "crf"

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden", "layers")


@dataclass(frozen=True)
class Tagging:
    """One tag for each token, in BIO where tags spell spans."""

    tags: tuple[str, ...]

    @property
    def spans(self) -> list[Span]:
        """The spans the tags spell."""
        return read_spans(self.tags)


class Tagger(TaskModel[TaggedSentence, Tagging]):
    """Inputs, encoder, one score per tag, and a CRF or a softmax over them."""

    def __init__(self, config: TaggerConfig, inputs: Inputs, inventory: Inventory) -> None:
        super().__init__()
        self.config = config
        self.inputs = inputs
        self.labels = tuple(inventory["labels"])
        self.ids = {label: number for number, label in enumerate(self.labels)}
        self.encoder = make_encoder(config.encoder, inputs.width, config.hidden, layers=config.layers, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.scores = nn.Linear(self.encoder.width + inputs.output_width, len(self.labels))
        # With plain labels every order is legal; a softmax over span tags is decoded under the same constraints.
        spans = config.tags == "spans"
        self.crf = CRF(len(self.labels), allowed=allowed_transitions(self.labels, "bioul") if spans else None)
        if config.head == "softmax":
            self.crf.requires_grad_(False)
            nn.init.zeros_(self.crf.transitions)

    def emissions(self, batch: TextBatch) -> Float[Tensor, "rows tokens labels"]:
        """The scores of all tags at each token."""
        vectors = self.inputs(batch)
        encoded = self.encoder(self.dropout(vectors.input), batch.lengths)
        return self.scores(vectors.beside(self.dropout(encoded)))

    def loss(self, batch: Batch[TaggedSentence]) -> Float[Tensor, ""]:
        """Negative log-likelihood: of the sequence, the mean over sentences, or of the tags, the mean over tokens."""
        texts = batch.inputs()
        wanted = self._wanted(batch.records, texts.words.shape[1]).to(texts.lengths.device)
        emissions = self.emissions(texts)
        if self.config.head == "crf":
            return -self.crf.log_likelihood(emissions, wanted, texts.lengths).mean()
        return F.cross_entropy(emissions[texts.mask], wanted[texts.mask])

    @torch.no_grad()
    def answer(self, batch: Batch[TaggedSentence]) -> list[Tagging]:
        """The best legal tags of each sentence."""
        texts = batch.inputs()
        best = self.crf.decode(self.emissions(texts), texts.lengths)
        taggings = []
        for sequence in best:
            tags = [self.labels[number] for number in sequence]
            if self.config.tags == "spans":
                tags = write_tags(read_spans(tags), len(tags), "bio")
            taggings.append(Tagging(tuple(tags)))
        return taggings

    def _wanted(self, records: Sequence[TaggedSentence], longest: int) -> Int[Tensor, "rows tokens"]:
        wanted = torch.zeros(len(records), longest, dtype=torch.int64)
        for row, record in enumerate(records):
            ids = [self.ids[tag] for tag in _model_tags(record, self.config)]
            wanted[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        return wanted


def _model_tags(record: TaggedSentence, config: TaggerConfig) -> Sequence[str]:
    """The record's tags as the model numbers them: BIOUL for spans."""
    if record.tags is None:
        raise InputError(f"the sentence {' '.join(record.tokens)[:60]!r} has no tags; training needs labelled sentences.")
    if config.tags == "labels":
        return record.tags
    return write_tags(read_spans(record.tags), len(record.tags), "bioul")


class TaggerTask(Task[TaggedSentence, Tagging]):
    """Tagged sentences from CoNLL columns or CoNLL-U."""

    metric: ClassVar[str]

    def __init__(self, config: TaggerConfig) -> None:
        self.config = config
        self.metric = "f1" if config.tags == "spans" else "accuracy"  # pyrefly: ignore

    def read(self, path: str | Path, *, training: bool = False) -> list[TaggedSentence]:
        """Sentences with their tags, spans in BIO; an illegal tag is an error that names its line."""
        if self.config.file == "conllu":
            return read_conllu(path, column=self.config.column)
        sentences = read_columns(path, token=self.config.token_column, tag=self.config.tag_column)
        if self.config.tags == "spans":
            sentences, _ = check_scheme(sentences, path, self.config.scheme)
        return sentences

    def read_unlabelled(self, path: str | Path) -> list[TaggedSentence]:
        """Sentences without their tags."""
        if self.config.file == "conllu":
            return [replace(sentence, tags=None) for sentence in read_conllu(path, column=self.config.column)]
        return read_columns(path, token=self.config.token_column, tag=None)

    def from_tokens(self, tokens: Sequence[str]) -> TaggedSentence:
        """A sentence to be tagged."""
        return TaggedSentence(tuple(tokens), None)

    def texts(self, record: TaggedSentence) -> Sequence[tuple[str, ...]]:
        """The sentence."""
        return (record.tokens,)

    def document(self, record: TaggedSentence) -> int:
        """As the file numbers them."""
        return record.document

    def inventory(self, records: Sequence[TaggedSentence]) -> dict[str, list[str]]:
        """The tags; for spans all BIOUL tags of each label, met or not."""
        found = {tag for record in records for tag in _model_tags(record, self.config)}
        if self.config.tags == "spans":
            names = sorted({tag[2:] for tag in found if tag != "O"})
            return {"labels": ["O", *(f"{letter}-{name}" for name in names for letter in "BIUL")]}
        return {"labels": sorted(found)}

    def check(self, records: Sequence[TaggedSentence], inventory: Inventory, path: str | Path) -> None:
        """Every label must have been seen in training."""
        known = set(inventory["labels"])
        for record in records:
            for position, tag in enumerate(_model_tags(record, self.config)):
                if tag not in known:
                    label = tag[2:] if self.config.tags == "spans" else tag
                    names = sorted({name[2:] for name in known if name != "O"}) if self.config.tags == "spans" else sorted(known)
                    raise FormatError(
                        f"{path}, line {record.lines[position]} ({record.tokens[position]!r}): the label {label!r} does not "
                        f"occur in the training data; wanted one of {', '.join(names)}."
                    )

    def model(self, inputs: Inputs, inventory: Inventory) -> Tagger:
        """A new tagger."""
        return Tagger(self.config, inputs, inventory)

    def score(self, records: Sequence[TaggedSentence], answers: Sequence[Tagging]) -> dict[str, float]:
        """conlleval's F1, precision and recall, and accuracy; or accuracy alone."""
        gold = [record.tags or () for record in records]
        tags = [answer.tags for answer in answers]
        if self.config.tags == "labels":
            return {"accuracy": accuracy([t for s in gold for t in s], [t for s in tags for t in s])}
        scores = span_scores(gold, tags)
        overall = scores.overall
        result = {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, "accuracy": scores.accuracy}
        return result | {f"f1:{label}": counts.f1 for label, counts in scores.labels.items()}

    def to_json(self, record: TaggedSentence, answer: Tagging) -> dict[str, Any]:
        """Tokens, tags, and spans where tags spell them."""
        values: dict[str, Any] = {"tokens": list(record.tokens), "tags": list(answer.tags)}
        if self.config.tags == "spans":
            values["spans"] = [
                {
                    "start": span.start,
                    "end": span.end,
                    "label": span.label,
                    "text": " ".join(record.tokens[span.start : span.end]),
                }
                for span in answer.spans
            ]
        return values

    def to_lines(self, record: TaggedSentence, answer: Tagging) -> str:
        """Token, the gold tag where it is known, and the predicted tag, as conlleval reads them."""
        tags: list[str] = list(answer.tags)
        scheme: Scheme = "bio" if self.config.scheme == "auto" else self.config.scheme
        if self.config.tags == "spans":
            tags = write_tags(answer.spans, len(tags), scheme)
        columns: list[Sequence[str]] = [record.tokens, tags]
        if record.tags is not None:
            gold = list(record.tags)
            columns.insert(1, write_tags(read_spans(gold), len(gold), scheme) if self.config.tags == "spans" else gold)
        return "".join("\t".join(fields) + "\n" for fields in zip(*columns, strict=True)) + "\n"
