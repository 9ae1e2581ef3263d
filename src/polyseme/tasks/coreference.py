"""End-to-end coreference: which stretches of a document speak of the same thing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.config import Checked
from polyseme.errors import FormatError, InputError
from polyseme.tasks.coreference_scores import coreference_scores
from polyseme.tasks.documents import (
    Cluster,
    Document,
    Mention,
    from_text,
    mark,
    read_conll2012,
    read_e2e,
    write_conll2012,
    write_e2e,
)
from polyseme.tasks.encoders import BidirectionalLSTM
from polyseme.tasks.inputs import Inputs
from polyseme.tasks.span_ranking import Ranking, SpanRanker, marginal_loss, mention_loss
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class CoreferenceConfig(Checked):
    """A coreference model and the files it reads.

    file             "e2e": e2e-coref's JSON lines; "conll": CoNLL-2012 columns
    hidden, layers   of the biLSTM over each sentence
    max_width        tokens a mention may have
    spans_per_token  so many spans are kept for each token of the document
    antecedents      earlier spans, the best by a cheap score, from which each span picks
    depth            1, or more: spans' vectors are refined by their expected antecedents' before they pick again
    mention_weight   of a loss that tells mentions from all other spans. Without it a mention is learned only once it is kept
                     together with its antecedent, by chance at first; the original has none, and far more documents
    metadata         use genre and speakers where the files have them
    sentences        train on so many sentences of a document in a row, others each time; None: on all
    """

    kind: Literal["coreference"] = "coreference"
    file: Literal["e2e", "conll"] = "e2e"
    hidden: int = 200
    layers: int = 3
    dense: int = 150
    features: int = 20
    max_width: int = 30
    spans_per_token: float = 0.4
    antecedents: int = 50
    depth: int = 2
    mention_weight: float = 1.0
    metadata: bool = True
    sentences: int | None = 50
    input_dropout: float = 0.5
    encoder_dropout: float = 0.4
    dense_dropout: float = 0.2

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden", "layers", "dense", "features", "max_width", "antecedents", "depth", "sentences")
        if self.spans_per_token <= 0:
            raise InputError(f"CoreferenceConfig.spans_per_token is {self.spans_per_token}; wanted more than 0.")


@dataclass(frozen=True)
class Coreferences:
    """Clusters of two or more mentions, in the order of their first ones."""

    clusters: tuple[Cluster, ...]


class CoreferenceModel(TaskModel[Document, Coreferences]):
    """Inputs, a biLSTM over each sentence, and the ranking of spans over the whole document."""

    def __init__(self, config: CoreferenceConfig, inputs: Inputs, inventory: Inventory) -> None:
        super().__init__()
        self.config = config
        self.inputs = inputs
        self.genres = {genre: number for number, genre in enumerate(inventory["genres"], 1)}
        self.encoder = BidirectionalLSTM(inputs.width, config.hidden, layers=config.layers, dropout=config.encoder_dropout)
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.encoder_dropout = nn.Dropout(config.encoder_dropout)
        self.ranker = SpanRanker(config, self.encoder.width + inputs.output_width, inputs.width, len(self.genres))

    def rank(self, batch: Batch[Document], number: int, sentences: range) -> Ranking:
        """The ranking of some sentences in a row of one document of the batch; they must have a token."""
        document = batch.records[number]
        texts = batch.texts.batch(batch.places[number][sentences.start : sentences.stop])
        vectors = self.inputs(texts)
        read = self.input_dropout(vectors.input)
        encoded = vectors.beside(self.encoder_dropout(self.encoder(read, texts.lengths)))
        mask = texts.mask
        rows = mask.nonzero()[:, 0]
        first, last = _token_range(document, sentences)
        names = {speaker: place for place, speaker in enumerate(dict.fromkeys(filter(None, document.speakers)), 1)}
        speakers = [names.get(speaker, 0) for speaker in document.speakers[first:last]] or [0] * (last - first)
        genre = self.genres.get(document.genre, 0)
        return self.ranker(encoded[mask], read[mask], rows, genre, torch.tensor(speakers, device=rows.device))

    def loss(self, batch: Batch[Document]) -> Float[Tensor, ""]:
        """Minus the log-likelihood of right antecedents, summed over a document's spans; the mean over documents."""
        losses = []
        for number, document in enumerate(batch.records):
            if document.clusters is None:
                raise InputError(f"the document {document.name!r} has no clusters; training needs documents with clusters.")
            sentences = self._sample(len(document.sentences))
            first, last = _token_range(document, sentences)
            if first == last:
                continue
            ranking = self.rank(batch, number, sentences)
            clusters = {mention: place for place, cluster in enumerate(document.clusters, 1) for mention in cluster}
            loss = marginal_loss(ranking, _cluster_numbers(clusters, ranking.starts, ranking.ends, first))
            if self.config.mention_weight:
                starts, ends, scores = ranking.candidates
                mentions = _cluster_numbers(clusters, starts, ends, first) > 0
                loss = loss + self.config.mention_weight * mention_loss(scores, mentions)
            losses.append(loss)
        if not losses:  # nothing but sentences without tokens was drawn
            return sum((parameter.sum() for parameter in self.parameters()), torch.zeros(())) * 0
        return torch.stack(losses).mean()

    @torch.no_grad()
    def answer(self, batch: Batch[Document]) -> list[Coreferences]:
        """Each span with its best antecedent, where one scores above none, makes the clusters."""
        answers = []
        for number, document in enumerate(batch.records):
            sentences = range(len(document.sentences))
            empty = not any(document.sentences)
            answers.append(Coreferences(() if empty else read_clusters(self.rank(batch, number, sentences))))
        return answers

    def _sample(self, count: int) -> range:
        wanted = self.config.sentences
        if not self.training or wanted is None or count <= wanted:
            return range(count)
        first = int(torch.randint(count - wanted + 1, ()))
        return range(first, first + wanted)


def _token_range(document: Document, sentences: range) -> tuple[int, int]:
    first = sum(map(len, document.sentences[: sentences.start]))
    return first, first + sum(map(len, document.sentences[sentences.start : sentences.stop]))


def _cluster_numbers(
    clusters: Mapping[Mention, int], starts: Int[Tensor, "spans"], ends: Int[Tensor, "spans"], first: int
) -> Int[Tensor, "spans"]:
    """The number of each span's cluster, 0 where it has none; token 0 of the spans is token `first` of the document."""
    spans = zip((starts + first).tolist(), (ends + first).tolist(), strict=True)
    return torch.tensor([clusters.get(Mention(*span), 0) for span in spans], device=starts.device)


def read_clusters(ranking: Ranking) -> tuple[Cluster, ...]:
    """The clusters that the best antecedents join."""
    best = ranking.scores.argmax(dim=1).tolist()
    antecedents = ranking.antecedents.tolist()
    spans = [Mention(*span) for span in zip(ranking.starts.tolist(), ranking.ends.tolist(), strict=True)]
    clusters: list[list[Mention]] = []
    places: dict[int, int] = {}
    for number, choice in enumerate(best):
        if choice:
            antecedent = antecedents[number][choice - 1]
            if antecedent not in places:
                places[antecedent] = len(clusters)
                clusters.append([spans[antecedent]])
            places[number] = places[antecedent]
            clusters[places[number]].append(spans[number])
    return tuple(sorted(tuple(sorted(cluster)) for cluster in clusters))


class CoreferenceTask(Task[Document, Coreferences]):
    """Documents in e2e-coref's JSON lines or CoNLL-2012 columns."""

    metric: ClassVar[str] = "mean_f1"

    def __init__(self, config: CoreferenceConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[Document]:
        """Documents, all with clusters."""
        documents = self._read(path)
        for number, document in enumerate(documents, 1):
            if document.clusters is None:
                raise FormatError(
                    f"{path}, document {number} ({document.name!r}): no clusters; wanted them, an empty list if none."
                )
        return documents

    def read_unlabelled(self, path: str | Path) -> list[Document]:
        """Documents without their clusters."""
        return [replace(document, clusters=None) for document in self._read(path)]

    def _read(self, path: str | Path) -> list[Document]:
        return read_e2e(path) if self.config.file == "e2e" else read_conll2012(path)

    def items(self, lines: Iterable[str], *, tokenized: bool) -> Iterable[str | Sequence[Any]]:
        """One document: raw text as a whole, or a sentence of tokens a line."""
        return [[line.split() for line in lines] if tokenized else "\n".join(lines)]

    def from_item(self, item: str | Sequence[Any], cut: Callable[[str], list[str]]) -> Document:
        """A raw text, cut into sentences and Penn-like tokens whose places are kept; or sentences of tokens."""
        if isinstance(item, str):
            return from_text(item)
        if item and isinstance(item[0], str):
            return self.from_tokens(item)
        return Document("", tuple(map(tuple, item)))

    def from_tokens(self, tokens: Sequence[str]) -> Document:
        """A document of one sentence."""
        return Document("", (tuple(tokens),))

    def texts(self, record: Document) -> Sequence[tuple[str, ...]]:
        """The sentences."""
        return record.sentences

    def documents(self, record: Document, place: int) -> Sequence[int]:
        """Each record is a document."""
        return [place] * len(record.sentences)

    def inventory(self, records: Sequence[Document]) -> dict[str, list[str]]:
        """The genres."""
        return {"genres": sorted({record.genre for record in records if record.genre}) if self.config.metadata else []}

    def check(self, records: Sequence[Document], inventory: Inventory, path: str | Path) -> None:
        """Any document will do: a genre not met in training counts as not known."""

    def model(self, inputs: Inputs, inventory: Inventory) -> CoreferenceModel:
        """A new network."""
        return CoreferenceModel(self.config, inputs, inventory)

    def score(self, records: Sequence[Document], answers: Sequence[Coreferences]) -> dict[str, float]:
        """The official scorer's F1 of MUC, B³ and CEAFφ4, their mean, recall and precision of each, F1 of the mentions."""
        scores = coreference_scores([record.clusters or () for record in records], [answer.clusters for answer in answers])
        result = {"mean_f1": scores.mean_f1}
        for name, ratio in (
            ("muc", scores.muc),
            ("b_cubed", scores.b_cubed),
            ("ceaf", scores.ceaf),
            ("mentions", scores.mentions),
        ):
            result |= {f"{name}:f1": ratio.f1, f"{name}:recall": ratio.recall, f"{name}:precision": ratio.precision}
        return result

    def to_json(self, record: Document, answer: Coreferences) -> dict[str, Any]:
        """The text with the clusters marked in it, its sentences, and each cluster's mentions."""
        tokens = record.tokens
        clusters = []
        for cluster in answer.clusters:
            mentions = []
            for start, end in cluster:
                values: dict[str, Any] = {"start": start, "end": end, "text": " ".join(tokens[start:end])}
                if record.text is not None:
                    begin, stop = record.places[start][0], record.places[end - 1][1]
                    values |= {"text": record.text[begin:stop], "characters": [begin, stop]}
                mentions.append(values)
            clusters.append(mentions)
        sentences = [list(sentence) for sentence in record.sentences]
        return {"marked": mark(record, answer.clusters), "clusters": clusters, "sentences": sentences}

    def to_lines(self, record: Document, answer: Coreferences) -> str:
        """The document in the format it was read from, with the predicted clusters."""
        write = write_e2e if self.config.file == "e2e" else write_conll2012
        return write(record, answer.clusters)
