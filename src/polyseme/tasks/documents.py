"""Documents and their coreference clusters: e2e-coref's JSON lines, CoNLL-2012 columns, raw text, clusters marked in the text."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.errors import FormatError
from polyseme.tasks.readers import read_lines
from polyseme.text import PennTokenizer, Token, split_sentences


class Mention(NamedTuple):
    """Tokens `start` to `end` of a document, counted over all its sentences, the latter not included."""

    start: int
    end: int


Cluster = tuple[Mention, ...]


@dataclass(frozen=True)
class Document:
    """Sentences and the clusters of mentions in them, None where they are not known.

    speakers      of each token, or nothing
    text, places  the raw text, where there was one, and where each token stands in it
    """

    name: str
    sentences: tuple[tuple[str, ...], ...]
    clusters: tuple[Cluster, ...] | None = None
    part: int = 0
    genre: str = ""
    speakers: tuple[str, ...] = ()
    text: str | None = None
    places: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> list[str]:
        """All tokens in order."""
        return [token for sentence in self.sentences for token in sentence]


def read_e2e(path: str | Path) -> list[Document]:
    """JSON lines as e2e-coref reads them: `sentences` of tokens, `clusters` of inclusive [first, last] token numbers.

    `doc_key` and `genre` are read where they are (without `genre` the first two letters of the key, as in e2e-coref),
    and `speakers` (one for each token). Without `clusters` they are not known.
    """
    documents = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise FormatError(f"{where}: no JSON ({error}); wanted one document a line.") from error
        if not isinstance(values, dict) or "sentences" not in values:
            raise FormatError(f"{where}: no document; wanted an object with sentences and clusters.")
        name = str(values.get("doc_key", number))
        sentences = _lists_of_strings(values["sentences"], f"{where}: sentences")
        size = sum(map(len, sentences))
        if size == 0:
            raise FormatError(f"{where}: the document {name!r} is empty; wanted at least one token, or no such line.")
        speakers = tuple(s for row in _lists_of_strings(values.get("speakers") or [], f"{where}: speakers") for s in row)
        if speakers and len(speakers) != size:
            raise FormatError(f"{where}: {len(speakers)} speakers of {size} tokens; wanted one for each token, or none.")
        found = values.get("clusters")
        clusters = None if found is None else tuple(_cluster(cluster, size, where) for cluster in _list(found, where))
        genre = str(values["genre"]) if "genre" in values else name[:2] if "doc_key" in values else ""
        documents.append(Document(name, sentences, clusters, genre=genre, speakers=speakers))
    if not documents:
        raise FormatError(f"{path}: the file is empty; wanted one JSON document a line.")
    return documents


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: clusters is {value!r}; wanted a list of lists of [first, last] tokens.")
    return value


def _lists_of_strings(value: object, what: str) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not all(
        isinstance(row, list) and all(isinstance(item, str) for item in row) for row in value
    ):
        raise FormatError(f"{what} is no list of lists of strings; wanted one list for each sentence.")
    return tuple(map(tuple, value))


def _cluster(value: object, size: int, where: str) -> Cluster:
    mentions = []
    for pair in _list(value, where):
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(place) is int for place in pair):
            raise FormatError(f"{where}: the mention {pair!r}; wanted [first, last], two token numbers.")
        first, last = pair
        if not 0 <= first <= last < size:
            raise FormatError(f"{where}: the mention {pair} lies outside the document, which has tokens 0 to {size - 1}.")
        mentions.append(Mention(first, last + 1))
    return tuple(mentions)


def write_e2e(document: Document, clusters: Iterable[Cluster]) -> str:
    """The document as one line for `read_e2e`, with these clusters; the ones it had stand as `gold_clusters`."""
    values: dict[str, Any] = {"doc_key": document.name, "genre": document.genre, "sentences": document.sentences}
    if document.speakers:
        speakers = iter(document.speakers)
        values["speakers"] = [[next(speakers) for _ in sentence] for sentence in document.sentences]
    values["clusters"] = _inclusive(clusters)
    if document.clusters is not None:
        values["gold_clusters"] = _inclusive(document.clusters)
    return json.dumps(values, ensure_ascii=False) + "\n"


def _inclusive(clusters: Iterable[Cluster]) -> list[list[list[int]]]:
    return [[[mention.start, mention.end - 1] for mention in cluster] for cluster in clusters]


_BEGIN = re.compile(r"#begin document \((.*)\);(?: part (\d+))?\s*$")
_PIECE = re.compile(r"\((\d+)\)|\((\d+)|(\d+)\)")


def read_conll2012(path: str | Path) -> list[Document]:
    """CoNLL-2012 columns, documents between `#begin document (name); part 000` and `#end document`.

    Words stand in the fourth column, speakers in the tenth where there are so many, and coreference in the last, as in
    `(12|(3)`. The genre is what stands before the first / of the name.
    """
    documents: list[Document] = []
    reading: _Conll | None = None
    number = 0
    for number, line in read_lines(path):
        begin = _BEGIN.match(line)
        if begin:
            if reading is not None:
                raise FormatError(f"{path}, line {number}: a document begins inside another one; wanted #end document before.")
            reading = _Conll(path, number, begin[1], int(begin[2] or 0))
        elif line.startswith("#end document"):
            if reading is None:
                raise FormatError(f"{path}, line {number}: #end document, but no document has begun.")
            documents.append(reading.document(number))
            reading = None
        elif not line.startswith("#"):
            if reading is not None:
                reading.read(line, number)
            elif line.strip():
                raise FormatError(f"{path}, line {number}: {line[:40]!r} stands outside a document; wanted #begin document.")
    if reading is not None:
        raise FormatError(f"{path}, line {number}: the file ends inside the document {reading.name!r}; wanted #end document.")
    if not documents:
        raise FormatError(f"{path}: the file is empty; wanted documents in CoNLL-2012 columns.")
    return documents


class _Conll:
    """What has been read of one document."""

    def __init__(self, path: str | Path, line: int, name: str, part: int) -> None:
        self.path, self.line, self.name, self.part = path, line, name, part
        self.sentences: list[tuple[str, ...]] = []
        self.words: list[str] = []
        self.speakers: list[str] = []
        self.clusters: dict[str, list[Mention]] = {}
        self.open: dict[str, list[tuple[int, int]]] = {}
        self.tokens = self.width = 0

    def read(self, line: str, number: int) -> None:
        """One line: a token, or the end of a sentence."""
        fields = line.split()
        if not fields:
            self._end_sentence()
            return
        where = f"{self.path}, line {number}"
        self.width = self.width or len(fields)
        if len(fields) < 5 or len(fields) != self.width:
            wanted = (
                f"{self.width} as on the lines before" if self.width >= 5 else "at least 5: the 4th a word, the last coreference"
            )
            raise FormatError(f"{where}: {len(fields)} columns; wanted {wanted}.")
        self._mentions(fields[-1], number, where)
        self.words.append(fields[3])
        self.speakers.append(fields[9] if len(fields) > 11 and fields[9] != "-" else "")
        self.tokens += 1

    def _mentions(self, cell: str, number: int, where: str) -> None:
        if cell in ("-", "_"):
            return
        for piece in cell.split("|"):
            match = _PIECE.fullmatch(piece)
            if not match:
                raise FormatError(f"{where}: {cell!r} in the last column; wanted -, or brackets such as (12|(3).")
            alone, begun, ended = match.groups()
            key = alone or begun or ended
            mentions = self.clusters.setdefault(key, [])
            if alone:
                mentions.append(Mention(self.tokens, self.tokens + 1))
            elif begun:
                self.open.setdefault(key, []).append((self.tokens, number))
            elif not self.open.get(key):
                raise FormatError(f"{where}: a mention of cluster {key} ends that has not begun; wanted ({key} before it.")
            else:
                mentions.append(Mention(self.open[key].pop()[0], self.tokens + 1))

    def _end_sentence(self) -> None:
        if self.words:
            self.sentences.append(tuple(self.words))
        self.words = []

    def document(self, number: int) -> Document:
        """The whole document, at its end."""
        self._end_sentence()
        for key, left in self.open.items():
            for _, line in left:
                raise FormatError(f"{self.path}, line {line}: a mention of cluster {key} never ends; wanted {key}) after it.")
        if not self.tokens:
            raise FormatError(f"{self.path}, line {number}: the document {self.name!r} is empty; wanted at least one token.")
        clusters = tuple(tuple(sorted(mentions)) for mentions in self.clusters.values())
        speakers = tuple(self.speakers) if any(self.speakers) else ()
        genre = self.name.split("/")[0] if "/" in self.name else ""
        return Document(self.name, tuple(self.sentences), clusters, self.part, genre, speakers)


def write_conll2012(document: Document, clusters: Sequence[Cluster]) -> str:
    """The document in columns that the official scorer and `read_conll2012` read, with these clusters."""
    cells: list[list[str]] = [[] for _ in document.tokens]
    for mention, number in sorted(
        ((mention, number) for number, cluster in enumerate(clusters) for mention in cluster),
        key=lambda pair: (pair[0].start, -pair[0].end),
    ):
        if mention.end == mention.start + 1:
            cells[mention.start].append(f"({number})")
        else:
            cells[mention.start].append(f"({number}")
            cells[mention.end - 1].append(f"{number})")
    lines = [f"#begin document ({document.name}); part {document.part:03d}"]
    place = 0
    for sentence in document.sentences:
        for position, token in enumerate(sentence):
            speaker = document.speakers[place] if document.speakers and document.speakers[place] else "-"
            word = token.replace(" ", "_") or "_"
            columns = [document.name, document.part, position, word, *"-----", speaker, "-", "|".join(cells[place]) or "-"]
            lines.append("\t".join(map(str, columns)))
            place += 1
        lines.append("")
    return "\n".join([*lines, "#end document", ""])


def from_text(text: str, *, name: str = "") -> Document:
    """Raw text, cut into sentences and these into tokens."""
    sentences = list(text_sentences(text))
    places = tuple((token.start, token.end) for sentence in sentences for token in sentence)
    return Document(name, tuple(tuple(token.text for token in sentence) for sentence in sentences), text=text, places=places)


def text_sentences(text: str) -> Iterator[list[Token]]:
    """The tokens of each sentence of a raw text, with their places in the whole of it."""
    tokenizer = PennTokenizer()
    for begin, end in split_sentences(text):
        tokens = [Token(word, begin + start, begin + stop) for word, start, stop in tokenizer.spans(text[begin:end])]
        if tokens:
            yield tokens


def mark(document: Document, clusters: Sequence[Cluster]) -> str:
    """The text with each mention in brackets that begin with its cluster's number: `[1 Ann] saw [1 [2 her] cat]`."""
    text, places = document.text, document.places
    if text is None:
        text, places = " ".join(document.tokens), _joined(document.tokens)
    events: list[tuple[int, int, int, str]] = []
    for number, cluster in enumerate(clusters, 1):
        for start, end in cluster:
            begin, stop = places[start][0], places[end - 1][1]
            events.append((begin, 1, -stop, f"[{number} "))
            events.append((stop, 0, -begin, "]"))
    parts, done = [], 0
    for place, _, _, bracket in sorted(events):
        parts.extend((text[done:place], bracket))
        done = place
    return "".join([*parts, text[done:]])


def _joined(tokens: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Where tokens stand that are parted by single blanks."""
    places, begin = [], 0
    for token in tokens:
        places.append((begin, begin + len(token)))
        begin += len(token) + 1
    return tuple(places)
