"""Word senses by nearest neighbour: SemCor's sense centroids in each biLM layer, the first sense where a word has none.

An intrinsic test of the layers: nothing is trained. Reads SemCor as JSON lines, the unified evaluation sets of Raganato et
al. (XML and gold keys) and WordNet's index.sense.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float

from polyseme.errors import FormatError
from polyseme.progress import Report
from polyseme.tasks.readers import bilm_form, open_text, read_lines

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

_POS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
_BLOCK = 256  # sentences embedded in one call


@dataclass(frozen=True)
class SenseInstance:
    """A word whose sense is known or wanted: the tokens `start` to `end`, and the WordNet keys that are right."""

    id: str
    lemma: str
    pos: str
    start: int
    end: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class SenseSentence:
    """A sentence with its instances; forms with spaces are split into their parts."""

    tokens: tuple[str, ...]
    instances: tuple[SenseInstance, ...]
    document: str


@dataclass(frozen=True)
class SenseIndex:
    """WordNet's first sense of each (lemma, part of speech)."""

    first: Mapping[tuple[str, str], str]

    @classmethod
    def read(cls, path: str | Path) -> "SenseIndex":
        """Reads index.sense: key, offset, sense number, count."""
        first: dict[tuple[str, str], str] = {}
        for number, line in read_lines(path):
            fields = line.split()
            word = key_word(fields[0]) if fields else None
            if len(fields) != 4 or not fields[2].isdigit() or word is None:
                raise FormatError(f"{path}, line {number}: {line[:60]!r}; wanted a sense key, offset, sense number and count.")
            if fields[2] == "1":
                first[word] = fields[0]
        if not first:
            raise FormatError(f"{path}: the file is empty; wanted WordNet's index.sense.")
        return cls(first)


def key_word(key: str) -> tuple[str, str] | None:
    """("bank", "NOUN") of "bank%1:14:00::"; None where it is no sense key."""
    lemma, percent, rest = key.partition("%")
    return (lemma, _POS[rest[0]]) if percent and lemma and rest and rest[0] in _POS else None


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """SemCor as JSON lines: {"id": ..., "tokens": [{"form": ..., "sense": [key, ...]}, ...]}; read as a stream."""
    for number, line in read_lines(path):
        try:
            values = json.loads(line)
            name, forms = values["id"], values["tokens"]
            tokens: list[str] = []
            instances = []
            for form in forms:
                start = len(tokens)
                tokens += form["form"].split()
                keys = [key for key in form.get("sense", ()) if key_word(key) is not None]
                if keys and len(tokens) > start:
                    lemma, pos = key_word(keys[0]) or ("", "")
                    instances.append(SenseInstance(f"{name}.{start}", lemma, pos, start, len(tokens), tuple(keys)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f'{path}, line {number}: {error!r}; wanted {{"id": ..., "tokens": [{{"form": ...}}]}}.') from error
        yield SenseSentence(tuple(tokens), tuple(instances), name.rpartition(".")[0])


def read_evaluation(data: str | Path, gold: str | Path) -> list[SenseSentence]:
    """One unified evaluation set: its XML and its gold keys; every instance must have its key."""
    keys = {}
    for number, line in read_lines(gold):
        name, *found = line.split()
        if not found:
            raise FormatError(f"{gold}, line {number}: {line!r}; wanted an instance id and its sense keys.")
        keys[name] = tuple(found)
    with open_text(data) as stream:
        try:
            root = ElementTree.fromstring(stream.read().encode())
        except (ElementTree.ParseError, OSError, EOFError) as error:
            raise FormatError(f"{data}: not the XML of an evaluation set ({error}).") from error
    sentences = []
    for text in root.iter("text"):
        for sentence in text.iter("sentence"):
            tokens: list[str] = []
            instances = []
            for word in sentence:
                start = len(tokens)
                tokens += (word.text or "").split()
                if word.tag == "instance":
                    name = word.get("id", "")
                    if name not in keys:
                        raise FormatError(f"{data}: the instance {name!r} has no line in {gold}; wanted one gold line for each.")
                    lemma, pos = word.get("lemma", "").lower(), word.get("pos", "")
                    instances.append(SenseInstance(name, lemma, pos, start, len(tokens), keys.pop(name)))
            sentences.append(SenseSentence(tuple(tokens), tuple(instances), text.get("id", "")))
    if keys:
        raise FormatError(f"{gold}: the instance {next(iter(keys))!r} does not occur in {data}.")
    if not sentences:
        raise FormatError(f"{data}: no sentences; wanted the XML of an evaluation set.")
    return sentences


class SenseCentroids:
    """For each sense met in the training text the mean vector of its words, in every layer; and their nearest neighbours.

    `names` are the biLM's layers, and "mean" of them.
    """

    def __init__(self, elmo: "Elmo", *, context: Literal["sentence", "document"] = "sentence") -> None:
        self.elmo = elmo
        self.context = context
        self.names = (*elmo.layers, "mean")
        self.sums: dict[tuple[str, str], dict[str, np.ndarray]] = {}

    def add(self, sentences: Iterable[SenseSentence], *, report: Report | None = None) -> None:
        """Adds the words of a text with known senses."""
        done = 0
        for sentence, layers in self._embedded(sentences):
            for instance in sentence.instances:
                vector = layers[:, instance.start : instance.end].mean(axis=1)
                for key in instance.keys:
                    word = key_word(key) or (instance.lemma, instance.pos)
                    senses = self.sums.setdefault(word, {})
                    # Cosines are compared, so the sum serves as well as the mean.
                    senses[key] = senses[key] + vector if key in senses else vector
            done += 1
            if report is not None:
                report(done, note="embedding senses")

    def predict(self, sentences: Iterable[SenseSentence], index: SenseIndex) -> dict[str, dict[str, str]]:
        """For each layer the nearest sense of every instance by cosine; WordNet's first sense where none was met."""
        answers: dict[str, dict[str, str]] = {name: {} for name in self.names}
        for sentence, layers in self._embedded(sentences):
            for instance in sentence.instances:
                senses = self.sums.get((instance.lemma, instance.pos), {})
                keys = sorted(senses)
                if not keys or instance.start == instance.end:
                    chosen = [first_sense(instance, index)] * len(self.names)
                else:
                    vector = _unit(layers[:, instance.start : instance.end].mean(axis=1))
                    centroids = _unit(np.stack([senses[key] for key in keys]))
                    nearest = (centroids * vector).sum(axis=2).argmax(axis=0)
                    chosen = [keys[number] for number in nearest.tolist()]
                for name, key in zip(self.names, chosen, strict=True):
                    answers[name][instance.id] = key
        return answers

    def _embedded(
        self, sentences: Iterable[SenseSentence]
    ) -> Iterator[tuple[SenseSentence, Float[np.ndarray, "layers tokens width"]]]:
        """Each sentence and its vectors in every layer, the mean of the layers last; documents are embedded whole."""
        stream = iter(sentences)
        block: list[SenseSentence] = []
        following = next(stream, None)
        while following is not None:
            block, document = [following], following.document
            following = None
            for sentence in islice(stream, None):
                full = len(block) >= _BLOCK if self.context == "sentence" else sentence.document != document
                if full:
                    following = sentence
                    break
                block.append(sentence)
            texts = [[bilm_form(token) for token in sentence.tokens] for sentence in block]
            for sentence, layers in zip(block, self.elmo.embed(texts, layers="all", context=self.context), strict=True):
                yield sentence, np.concatenate([layers, layers.mean(axis=0, keepdims=True)])


def first_sense(instance: SenseInstance, index: SenseIndex) -> str:
    """WordNet's first sense of the word, empty where WordNet does not list it."""
    return index.first.get((instance.lemma, instance.pos), "")


def first_senses(sentences: Iterable[SenseSentence], index: SenseIndex) -> dict[str, str]:
    """The first-sense baseline: an answer for every instance."""
    return {instance.id: first_sense(instance, index) for sentence in sentences for instance in sentence.instances}


def sense_f1(sentences: Sequence[SenseSentence], answers: Mapping[str, str]) -> float:
    """F1 as the unified framework's scorer gives it: an answer is right when it is among the gold keys.

    Instances without an answer lower recall, not precision.
    """
    instances = [instance for sentence in sentences for instance in sentence.instances]
    answered = [instance for instance in instances if answers.get(instance.id)]
    correct = sum(answers[instance.id] in instance.keys for instance in answered)
    return 200 * correct / (len(answered) + len(instances)) if instances else 0.0


def _unit(vectors: Float[np.ndarray, "*shape width"]) -> Float[np.ndarray, "*shape width"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
