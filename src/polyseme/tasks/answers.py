"""Question answering: the stretch of a given text that answers a question. Bidirectional attention flow and self-attention."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from polyseme.config import Checked
from polyseme.errors import InputError
from polyseme.tasks.answer_scores import answer_scores
from polyseme.tasks.attention import masked_softmax
from polyseme.tasks.encoders import BidirectionalLSTM, SharedDropout
from polyseme.tasks.inputs import Inputs
from polyseme.tasks.questions import Context, Question, read_squad
from polyseme.tasks.task import Batch, Inventory, Task, TaskModel
from polyseme.text import PennTokenizer

_NOTHING = -1e4
_GROUPS = 6  # of sentences of like length, in a batch


@dataclass(frozen=True, kw_only=True)
class AnswersConfig(Checked):
    """A model that answers questions. `longest` is how many tokens an answer may have."""

    kind: Literal["answers"] = "answers"
    hidden: int = 90
    dense: int = 180
    dropout: float = 0.2
    longest: int = 17

    def validate(self) -> None:
        """Sizes must be possible."""
        self.positive("hidden", "dense", "longest")


@dataclass(frozen=True)
class Answer:
    """The answer as it stands in the text, its tokens `start` to `end` (not included), and how probable the model finds it."""

    text: str
    start: int = 0
    end: int = 0
    probability: float = 0.0


class Trilinear(nn.Module):
    """The similarity of each of ours to each of theirs: a·x + b·y + c·(x∘y) + d."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ours = nn.Linear(width, 1)
        self.theirs = nn.Linear(width, 1, bias=False)
        self.product = nn.Parameter(torch.empty(width).uniform_(-1, 1) / width**0.5)

    def forward(
        self, ours: Float[Tensor, "rows ours width"], theirs: Float[Tensor, "rows theirs width"]
    ) -> Float[Tensor, "rows ours theirs"]:
        """All similarities."""
        return self.ours(ours) + self.theirs(theirs).transpose(1, 2) + (ours * self.product) @ theirs.transpose(1, 2)


class AnswersModel(TaskModel[Question, Answer]):
    """One biLSTM reads question and text; the text attends to the question, then to itself; two more find start and end."""

    def __init__(self, config: AnswersConfig, inputs: Inputs) -> None:
        super().__init__()
        self.config = config
        self.inputs = inputs
        self.dropout = SharedDropout(config.dropout)
        self.encoder = BidirectionalLSTM(inputs.width, config.hidden)
        width = self.encoder.width + inputs.output_width
        self.question = Trilinear(width)
        self.merge = nn.Linear(4 * width, config.dense)
        self.reader = BidirectionalLSTM(config.dense, config.hidden)
        self.itself = Trilinear(self.reader.width)
        self.residual = nn.Linear(3 * self.reader.width, config.dense)
        self.start_reader = BidirectionalLSTM(config.dense, config.hidden)
        self.end_reader = BidirectionalLSTM(config.dense + self.start_reader.width, config.hidden)
        self.start = nn.Linear(self.start_reader.width, 1)
        self.end = nn.Linear(self.end_reader.width, 1)

    def bounds(
        self, batch: Batch[Question]
    ) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
        """Log-probabilities of the answer's first and last token, and the mask of the texts."""
        sizes = [size for record in batch.records for size in (len(record.tokens), len(record.context.places))]
        tokens, beside = self._tokens(batch)
        lengths = torch.tensor(sizes, device=tokens.device)
        questions, contexts = _side_by_side(tokens, sizes)
        output = None if beside is None else _side_by_side(beside, sizes)
        encoded = []
        for side, x in enumerate((questions, contexts)):
            read = self.encoder(self.dropout(x), lengths[side::2])
            encoded.append(self.dropout(read if output is None else torch.cat([read, output[side]], dim=2)))
        own = _mask(lengths[1::2], contexts.shape[1])
        x = self._attend(encoded[0], encoded[1], _mask(lengths[::2], questions.shape[1]), own)
        x = self.dropout(x + self._attend_itself(x, own, lengths[1::2]))
        first = self.start_reader(x, lengths[1::2])
        last = self.end_reader(torch.cat([x, first], dim=2), lengths[1::2])
        logits = self.start(self.dropout(first)).squeeze(2), self.end(self.dropout(last)).squeeze(2)
        starts, ends = (scores.masked_fill(~own, _NOTHING).log_softmax(dim=1) for scores in logits)
        return starts, ends, own

    def _tokens(self, batch: Batch[Question]) -> tuple[Float[Tensor, "tokens width"], Float[Tensor, "tokens _"] | None]:
        """The vectors of all tokens in order, at the input and at the output.

        The sentences of a batch have very different lengths: they are worked off in groups of like ones, with little padding.
        """
        numbers = np.array([text for place in batch.places for text in place])
        lengths = batch.texts.lengths[numbers]
        order = np.argsort(lengths, kind="stable")
        inputs, outputs = [], []
        for group in np.array_split(order, min(_GROUPS, len(order))):
            texts = batch.texts.batch(numbers[group].tolist())
            vectors = self.inputs(texts)
            inputs.append(vectors.input[texts.mask])
            if vectors.output is not None:
                outputs.append(vectors.output[texts.mask])
        begins = np.empty(len(order), dtype=np.int64)
        begins[order] = np.cumsum(lengths[order]) - lengths[order]
        places = torch.from_numpy(np.repeat(begins, lengths) + _count_up(lengths)).to(inputs[0].device)
        return torch.cat(inputs)[places], torch.cat(outputs)[places] if outputs else None

    def _attend(
        self,
        question: Float[Tensor, "rows theirs width"],
        context: Float[Tensor, "rows ours width"],
        theirs: Bool[Tensor, "rows theirs"],
        ours: Bool[Tensor, "rows ours"],
    ) -> Float[Tensor, "rows ours dense"]:
        """Each token of the text with what it attends to in the question, and with what of the text the question is about."""
        scores = self.question(context, question)
        asked = masked_softmax(scores, theirs[:, None].expand_as(scores)) @ question
        best = scores.masked_fill(~theirs[:, None], _NOTHING).amax(dim=2)
        about = masked_softmax(best, ours)[:, None] @ context
        merged = torch.cat([context, asked, context * asked, context * about], dim=2)
        return torch.relu(self.merge(merged)) * ours[:, :, None]

    def _attend_itself(
        self, x: Float[Tensor, "rows tokens dense"], mask: Bool[Tensor, "rows tokens"], lengths: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows tokens dense"]:
        """The text read again, each token with what it attends to elsewhere in the text."""
        read = self.dropout(self.reader(self.dropout(x), lengths))
        scores = self.itself(read, read)
        elsewhere = ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device) & mask[:, None]
        found = masked_softmax(scores, elsewhere) @ read
        return torch.relu(self.residual(torch.cat([read, found, read * found], dim=2))) * mask[:, :, None]

    def loss(self, batch: Batch[Question]) -> Float[Tensor, ""]:
        """Minus the log-probability of any of the answers given; the mean over questions."""
        starts, ends, _ = self.bounds(batch)
        losses = []
        for row, record in enumerate(batch.records):
            if not record.spans:
                raise InputError(f"the question {record.id!r} has no answers; training needs questions with answers.")
            first, last = torch.tensor(record.spans, device=starts.device).unbind(1)
            losses.append(-(starts[row, first] + ends[row, last - 1]).logsumexp(dim=0))
        return torch.stack(losses).mean()

    @torch.no_grad()
    def answer(self, batch: Batch[Question]) -> list[Answer]:
        """The most probable answers of at most `longest` tokens."""
        starts, ends, mask = self.bounds(batch)
        found = []
        places = best_spans(starts, ends, mask, self.config.longest)
        for record, (start, end, score) in zip(batch.records, places, strict=True):
            if record.context.places:
                found.append(Answer(record.context.part(start, end), start, end, score))
            else:
                found.append(Answer(""))
        return found


def best_spans(
    starts: Float[Tensor, "rows tokens"], ends: Float[Tensor, "rows tokens"], mask: Bool[Tensor, "rows tokens"], longest: int
) -> list[tuple[int, int, float]]:
    """For each row the tokens (from, up to and without) with the largest sum of scores, and e to its power."""
    last = F.pad(ends.masked_fill(~mask, -torch.inf), (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)
    scores = starts.masked_fill(~mask, -torch.inf)[:, :, None] + last
    best, places = scores.flatten(1).max(dim=1)
    rows = zip(places.tolist(), best.exp().tolist(), strict=True)
    return [(place // longest, place // longest + place % longest + 1, share) for place, share in rows]


def _count_up(lengths: Int[np.ndarray, "texts"]) -> Int[np.ndarray, "tokens"]:
    """0, 1, ... for each text."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _side_by_side(tokens: Float[Tensor, "tokens width"], sizes: Sequence[int]) -> list[Float[Tensor, "rows _ width"]]:
    """The tokens of all questions, and those of all texts, one row a record, zero past each one's end."""
    parts = tokens.split(list(sizes))
    padded = (pad_sequence(list(parts[side::2]), batch_first=True) for side in (0, 1))
    return [F.pad(x, (0, 0, 0, max(0, 1 - x.shape[1]))) for x in padded]  # at least one column


def _mask(lengths: Int[Tensor, "rows"], longest: int) -> Bool[Tensor, "rows tokens"]:
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


class AnswersTask(Task[Question, Answer]):
    """Questions in SQuAD v1.1's JSON."""

    metric: ClassVar[str] = "f1"

    def __init__(self, config: AnswersConfig) -> None:
        self.config = config

    def read(self, path: str | Path, *, training: bool = False) -> list[Question]:
        """Questions with their answers."""
        return read_squad(path)

    def read_unlabelled(self, path: str | Path) -> list[Question]:
        """Questions without their answers."""
        return read_squad(path, labelled=False)

    def items(self, lines: Iterable[str], *, tokenized: bool) -> Iterable[str | Sequence[Any]]:
        """A line is a question, a tab, and a text."""
        return (([part.split() for part in _parts(line)] if tokenized else line) for line in lines)

    def from_item(self, item: str | Sequence[Any], cut: Callable[[str], list[str]]) -> Question:
        """A line `question<TAB>text`, or a pair of question and text, each raw or a list of tokens.

        Raw ones are cut into sentences and Penn-like tokens, as in files, so that the answer is found as the text writes it.
        """
        parts = _parts(item) if isinstance(item, str) else item
        if len(parts) != 2:
            raise InputError(f"{len(parts)} parts in {str(item)[:60]!r}; give two: a question, and the text that answers it.")
        question, text = parts
        context = Context.from_text(text) if isinstance(text, str) else Context.from_tokens([text])
        return Question("", tuple(PennTokenizer().tokenize(question) if isinstance(question, str) else question), context)

    def from_tokens(self, tokens: Sequence[str]) -> Question:
        """A list of tokens alone holds no question."""
        raise InputError("a question needs a text; give pairs of question and text.")

    def texts(self, record: Question) -> Sequence[tuple[str, ...]]:
        """The question, and the sentences of the text."""
        return (record.tokens, *record.context.sentences)

    def documents(self, record: Question, place: int) -> Sequence[int]:
        """In document context the biLM reads the question by itself, and the text as a whole."""
        return [2 * place, *[2 * place + 1] * len(record.context.sentences)]

    def inventory(self, records: Sequence[Question]) -> dict[str, list[str]]:
        """There are no labels."""
        return {}

    def check(self, records: Sequence[Question], inventory: Inventory, path: str | Path) -> None:
        """Any question will do."""

    def model(self, inputs: Inputs, inventory: Inventory) -> AnswersModel:
        """A new network."""
        return AnswersModel(self.config, inputs)

    def score(self, records: Sequence[Question], answers: Sequence[Answer]) -> dict[str, float]:
        """F1 and exact match as the official script for SQuAD v1.1 gives them."""
        return answer_scores([answer.text for answer in answers], [record.answers or () for record in records])

    def to_json(self, record: Question, answer: Answer) -> dict[str, Any]:
        """The answer, where it stands in the text, and its probability."""
        values: dict[str, Any] = {"question": " ".join(record.tokens), "answer": answer.text}
        if record.id:
            values = {"id": record.id, **values}
        if answer.end:
            characters = [record.context.places[answer.start][0], record.context.places[answer.end - 1][1]]
            values |= {"characters": characters, "probability": round(answer.probability, 6)}
        return values

    def to_lines(self, record: Question, answer: Answer) -> str:
        """One JSON object a line, with the question's id and the answer."""
        return json.dumps({"id": record.id, "answer": answer.text}, ensure_ascii=False) + "\n"

    def to_file(self, records: Sequence[Question], answers: Sequence[Answer]) -> str:
        """One JSON object of ids and answers, as the official script reads it."""
        found = {record.id: answer.text for record, answer in zip(records, answers, strict=True)}
        return json.dumps(found, ensure_ascii=False) + "\n"


def _parts(line: str) -> list[str]:
    """The question and the text of a line; tabs in the text count as blanks."""
    question, tab, text = line.partition("\t")
    if not tab:
        raise InputError(f"{line[:60]!r} has no tab; give a question, a tab, and the text that answers it.")
    return [question, text]
