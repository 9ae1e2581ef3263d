"""Semantic roles: who did what to whom, by a deep interleaved LSTM that reads a sentence once for each of its predicates."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.config import Checked
from polyseme.errors import FormatError, InputError
from polyseme.tasks.crf import CRF, allowed_transitions
from polyseme.tasks.encoders import BidirectionalLSTM
from polyseme.tasks.highway import InterleavedLSTM
from polyseme.tasks.inputs import Inputs, TokenVectors
from polyseme.tasks.metrics import Counts
from polyseme.tasks.role_readers import (
    Proposition,
    RoleSentence,
    read_role_columns,
    read_role_columns_2012,
    read_role_objects,
    role_object,
    write_role_columns,
)
from polyseme.tasks.role_scores import read_arguments, role_scores
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel

_ROWS = 128  # (sentence, predicate) pairs answered at a time


@dataclass(frozen=True, kw_only=True)
class RolesConfig(Checked):
    """A role labeller and the files it reads.

    file         "jsonl"; "conll2005": a token, anything between, predicates, brackets; "conll2012"
    predicates   "verbs" leaves out those whose part of speech in the file does not begin with VB
    indicator    width of the vectors that say which token is the predicate
    dropout      recurrent, one mask for each row and layer
    finder       LSTM units of the small tagger that finds predicates where none are given
    """

    kind: Literal["roles"] = "roles"
    file: Literal["jsonl", "conll2005", "conll2012"] = "jsonl"
    token_column: int = 0
    predicates: Literal["all", "verbs"] = "all"
    hidden: int = 300
    layers: int = 8
    indicator: int = 100
    dropout: float = 0.1
    finder: int = 100

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden", "layers", "indicator", "finder")


@dataclass(frozen=True)
class Roles:
    """The predicates of a sentence with the BIO tags of their roles; and which tokens the finder takes for predicates."""

    propositions: tuple[Proposition, ...]
    found: tuple[int, ...] = ()


class RoleLabeller(TaskModel[RoleSentence, Roles]):
    """For each predicate: the inputs with its indicator, the interleaved LSTM, one score per tag; decoded to legal BIO.

    Predicates are found by a biLSTM on the same inputs, which it does not change: the roles are learned as without it.
    """

    def __init__(self, config: RolesConfig, inputs: Inputs, inventory: Inventory) -> None:
        super().__init__()
        if inputs.config.elmo is not None and inputs.config.elmo.context != "sentence":
            raise InputError(
                "the role labeller reads sentences apart, once for each predicate; give ELMo the context 'sentence'."
            )
        self.inputs = inputs
        self.labels = tuple(inventory["labels"])
        self.ids = {label: number for number, label in enumerate(self.labels)}
        self.indicator = nn.Embedding(2, config.indicator)
        self.encoder = InterleavedLSTM(
            inputs.width + config.indicator, config.hidden, layers=config.layers, dropout=config.dropout
        )
        self.scores = nn.Linear(config.hidden + inputs.output_width, len(self.labels))
        nn.init.orthogonal_(self.scores.weight)
        self.finder = BidirectionalLSTM(inputs.width, config.finder)
        self.finder_dropout = nn.Dropout(0.3)
        self.finder_score = nn.Linear(self.finder.width, 1)
        # Only its constrained decoding is used: transitions are all alike, and never learned.
        self.decoder = CRF(len(self.labels), allowed=allowed_transitions(self.labels, "bio"))
        self.decoder.requires_grad_(False)
        nn.init.zeros_(self.decoder.transitions)

    def emissions(
        self, vectors: TokenVectors, lengths: Int[Tensor, "sentences"], rows: Int[Tensor, "rows"], predicates: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows tokens labels"]:
        """The scores of all tags, for pairs of a sentence of the batch and its predicate's position."""
        x = vectors.input[rows]
        marks = torch.arange(x.shape[1], device=x.device) == predicates[:, None]
        encoded = self.encoder(torch.cat([x, self.indicator(marks.long())], dim=2), lengths[rows])
        output = None if vectors.output is None else vectors.output[rows]
        return self.scores(TokenVectors(x, output).beside(encoded))

    def predicate_scores(self, vectors: TokenVectors, lengths: Int[Tensor, "sentences"]) -> Float[Tensor, "sentences tokens"]:
        """The log-odds of each token to be a predicate."""
        encoded = self.finder(self.finder_dropout(vectors.input.detach()), lengths)
        return self.finder_score(self.finder_dropout(encoded)).squeeze(2)

    def loss(self, batch: Batch[RoleSentence]) -> Float[Tensor, ""]:
        """Cross-entropy of the roles, the mean over the tokens of all predicates; and of being a predicate, over all tokens."""
        texts = batch.inputs()
        vectors = self.inputs(texts)
        mask, longest = texts.mask, texts.words.shape[1]
        pairs = [(row, found) for row, record in enumerate(batch.records) for found in _parts(record)]
        total = vectors.input.new_zeros(())
        if pairs:
            rows = torch.tensor([row for row, _ in pairs], device=mask.device)
            predicates = torch.tensor([found.index for _, found in pairs], device=mask.device)
            emissions = self.emissions(vectors, texts.lengths, rows, predicates)
            wanted = torch.zeros(len(pairs), longest, dtype=torch.int64)
            for row, (_, found) in enumerate(pairs):
                ids = [self.ids[tag] for tag in found.tags or ()]
                wanted[row, : len(ids)] = torch.tensor(ids)
            total = F.cross_entropy(emissions[mask[rows]], wanted.to(mask.device)[mask[rows]])
        # A sentence that stands once for each predicate is searched once.
        searched = mask & torch.tensor([not record.part for record in batch.records], device=mask.device)[:, None]
        if searched.any():
            marks = torch.zeros(mask.shape, device=mask.device)
            for row, record in enumerate(batch.records):
                marks[row, [found.index for found in _known(record)]] = 1
            scores = self.predicate_scores(vectors, texts.lengths)
            total = total + F.binary_cross_entropy_with_logits(scores[searched], marks[searched])
        return total

    @torch.no_grad()
    def answer(self, batch: Batch[RoleSentence]) -> list[Roles]:
        """The best legal tags for the predicates given, or for those found where none are."""
        texts = batch.inputs()
        vectors = self.inputs(texts)
        marked: Bool[Tensor, "sentences tokens"] = (self.predicate_scores(vectors, texts.lengths) > 0) & texts.mask
        found = [row.nonzero().flatten().tolist() for row in marked]
        chosen = [
            [Proposition(index, None) for index in indices] if record.propositions is None else list(record.propositions)
            for record, indices in zip(batch.records, found, strict=True)
        ]
        pairs = [(row, proposition.index) for row, propositions in enumerate(chosen) for proposition in propositions]
        sequences: list[list[int]] = []
        for first in range(0, len(pairs), _ROWS):
            rows, predicates = torch.tensor(pairs[first : first + _ROWS], device=marked.device).unbind(1)
            emissions = self.emissions(vectors, texts.lengths, rows, predicates)
            sequences += self.decoder.decode(emissions, texts.lengths[rows])
        best = iter(sequences)
        return [
            Roles(
                tuple(replace(own, tags=tuple(self.labels[number] for number in next(best))) for own in propositions),
                tuple(indices),
            )
            for propositions, indices in zip(chosen, found, strict=True)
        ]


def _parts(record: RoleSentence) -> Sequence[Proposition]:
    """The predicates a record stands for: one of them, or all."""
    propositions = _known(record)
    return propositions if record.part is None else propositions[record.part : record.part + 1]


def _known(record: RoleSentence) -> Sequence[Proposition]:
    if record.propositions is None:
        raise InputError(f"the sentence {' '.join(record.tokens)[:60]!r} has no roles; training needs labelled sentences.")
    return record.propositions


class RolesTask(Task[RoleSentence, Roles]):
    """Sentences with predicates and their roles. In training a record is one predicate, else a sentence."""

    metric: ClassVar[str] = "f1"

    def __init__(self, config: RolesConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[RoleSentence]:
        """The sentences; in training each once for every predicate."""
        sentences = self._read(path, labelled=True)
        if not training:
            return sentences
        return [
            replace(sentence, part=part)
            for sentence in sentences
            for part in (range(len(sentence.propositions)) if sentence.propositions else (None,))
        ]

    def read_unlabelled(self, path: str | Path) -> list[RoleSentence]:
        """The sentences, and their predicates where the file has them; roles are not looked at."""
        return self._read(path, labelled=False)

    def _read(self, path: str | Path, *, labelled: bool) -> list[RoleSentence]:
        if self.config.file == "conll2005":
            sentences = read_role_columns(path, token=self.config.token_column, labelled=labelled)
        elif self.config.file == "conll2012":
            sentences = read_role_columns_2012(path, labelled=labelled)
        else:
            sentences = read_role_objects(path, labelled=labelled)
        if self.config.predicates == "all":
            return sentences
        return [_verbs(sentence, path) for sentence in sentences]

    def from_tokens(self, tokens: Sequence[str]) -> RoleSentence:
        """A sentence whose predicates are to be found."""
        return RoleSentence(tuple(tokens), None)

    def texts(self, record: RoleSentence) -> Sequence[tuple[str, ...]]:
        """The sentence."""
        return (record.tokens,)

    def document(self, record: RoleSentence) -> int:
        """As the file numbers them."""
        return record.document

    def inventory(self, records: Sequence[RoleSentence]) -> dict[str, list[str]]:
        """The BIO tags of each role, met or not."""
        roles = {tag[2:] for record in records for found in _known(record) for tag in found.tags or () if tag != "O"}
        return {"labels": ["O", *(f"{letter}-{role}" for role in sorted(roles) for letter in "BI")]}

    def check(self, records: Sequence[RoleSentence], inventory: Inventory, path: str | Path) -> None:
        """Roles that were not seen in training can only be missed; a tenth of them is taken for another set of labels."""
        known = set(inventory["labels"])
        begun = [
            (record, position, tag)
            for record in records
            for found in _known(record)
            for position, tag in enumerate(found.tags or ())
            if tag.startswith("B")
        ]
        unknown = [each for each in begun if each[2] not in known]
        if 10 * len(unknown) > len(begun):
            record, position, tag = unknown[0]
            raise FormatError(
                f"{path}, line {record.line(position)} ({record.tokens[position]!r}): the role {tag[2:]!r} does not occur in the "
                f"training data, as {len(unknown):,} of the {len(begun):,} roles of this file do not; wanted one of "
                f"{', '.join(label[2:] for label in inventory['labels'] if label.startswith('B'))}."
            )

    def model(self, inputs: Inputs, inventory: Inventory) -> RoleLabeller:
        """A new role labeller."""
        return RoleLabeller(self.config, inputs, inventory)

    def score(self, records: Sequence[RoleSentence], answers: Sequence[Roles]) -> dict[str, float]:
        """srl-eval's F1, precision, recall and share of perfect propositions; and how well predicates are found."""
        scores = role_scores(
            [_by_position(_known(record)) for record in records], [_by_position(a.propositions) for a in answers]
        )
        gold = [{found.index for found in _known(record)} for record in records]
        predicates = Counts(
            sum(map(len, gold)),
            sum(len(answer.found) for answer in answers),
            sum(len(indices.intersection(answer.found)) for indices, answer in zip(gold, answers, strict=True)),
        )
        overall = scores.overall
        result = {
            "f1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "perfect": scores.perfect_share,
            "predicates:f1": predicates.f1,
            "predicates:precision": predicates.precision,
            "predicates:recall": predicates.recall,
        }
        return result | {f"f1:{role}": counts.f1 for role, counts in scores.roles.items()}

    def to_json(self, record: RoleSentence, answer: Roles) -> dict[str, Any]:
        """As the JSON lines that are read, and each role with its text; the pieces of one that is interrupted stand together."""
        values = role_object(replace(record, propositions=answer.propositions))
        for predicate, found in zip(values["predicates"], answer.propositions, strict=True):
            predicate["word"] = record.tokens[found.index]
            predicate["roles"] = [
                {
                    "role": role,
                    "spans": [list(piece) for piece in pieces],
                    "text": " ... ".join(" ".join(record.tokens[start:end]) for start, end in pieces),
                }
                for role, pieces in read_arguments(found.tags or ())
                if role != "V"
            ]
        return values

    def to_lines(self, record: RoleSentence, answer: Roles) -> str:
        """A line of JSON, or columns of token, predicates and brackets: from the second on, what srl-eval reads."""
        answered = replace(record, propositions=answer.propositions)
        if self.config.file == "jsonl":
            return json.dumps(role_object(answered), ensure_ascii=False) + "\n"
        return write_role_columns(answered)

    def unit(self, record: RoleSentence) -> object:
        """The sentence, with all of its predicates."""
        return record.line(0)


def _by_position(propositions: Sequence[Proposition]) -> dict[int, tuple[str, ...]]:
    return {proposition.index: proposition.tags or () for proposition in propositions}


def _verbs(sentence: RoleSentence, path: str | Path) -> RoleSentence:
    """The sentence with only those predicates that are verbs."""
    pos = sentence.pos
    if pos is None:
        raise FormatError(f"{path}, line {sentence.line(0)}: no parts of speech; wanted them to tell verbs, or predicates 'all'.")
    propositions = sentence.propositions
    if propositions is not None:
        propositions = tuple(found for found in propositions if pos[found.index].startswith("VB"))
    return replace(sentence, propositions=propositions)
