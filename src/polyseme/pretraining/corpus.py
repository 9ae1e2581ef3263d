"""A prepared corpus, opened: words and text stay on disk, memory-mapped.

A word is known by its lexicon id, its frequency rank. Two more ids stand for the sentence markers: `begin` and `end`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Integer
from numpy.lib.format import open_memmap

from polyseme.characters import BEGIN_SENTENCE, END_SENTENCE, ByteScheme, LexiconScheme, WordReader, Words
from polyseme.errors import FormatError, InputError
from polyseme.vocabulary import BILM_MARKERS, MANY_LANGS_MARKERS, Vocabulary

FORMAT = "polyseme corpus"
_CHARACTER_MARKS = ("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>")
_PIECE = 1 << 16


@dataclass(frozen=True)
class Lexicon:
    """Every distinct word of a corpus, most frequent first: UTF-8 bytes, each word followed by a newline, and counts."""

    blob: Integer[np.ndarray, "bytes"]
    offsets: Integer[np.ndarray, "words_plus_one"]
    counts: Integer[np.ndarray, "words"]

    def __len__(self) -> int:
        return len(self.counts)

    def words(self, first: int, last: int) -> list[str]:
        """The words with ids from `first` up to `last`, not included."""
        last = min(last, len(self))
        if first >= last:
            return []
        text = self.blob[self.offsets[first] : self.offsets[last]].tobytes().decode("utf-8")
        return text.split("\n")[:-1]

    def spelled(
        self, ids: Integer[np.ndarray, "some"], limit: int | None = None
    ) -> tuple[Integer[np.ndarray, "bytes"], Integer[np.ndarray, "some"]]:
        """The bytes of these words, joined, each cut at `limit` bytes, and their lengths."""
        starts = self.offsets[ids]
        lengths = self.offsets[ids + 1] - starts - 1
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        return self.blob[_spans(starts, lengths)], lengths

    @classmethod
    def from_words(cls, words: Sequence[str], counts: Sequence[int]) -> "Lexicon":
        """A lexicon in memory."""
        spelled = [word.encode("utf-8") + b"\n" for word in words]
        offsets = np.zeros(len(words) + 1, dtype=np.int64)
        np.cumsum([len(word) for word in spelled], out=offsets[1:])
        return cls(np.frombuffer(b"".join(spelled), dtype=np.uint8), offsets, np.asarray(counts, dtype=np.int64))


class Tokens:
    """The text as lexicon ids, in shards."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self.shards = tuple(shards)
        self.starts = np.cumsum([0, *map(len, shards)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, positions: Integer[np.ndarray, "some"]) -> Integer[np.ndarray, "some"]:
        """The ids at these positions of the whole text, int64."""
        if len(self.shards) == 1:
            return self.shards[0][positions].astype(np.int64)
        found = np.empty(len(positions), dtype=np.int64)
        shard = np.searchsorted(self.starts, positions, side="right") - 1
        for number in np.unique(shard).tolist():
            here = shard == number
            found[here] = self.shards[number][positions[here] - self.starts[number]]
        return found


@dataclass(frozen=True)
class Corpus:
    """Text as word ids.

    offsets    where each sentence begins in `tokens`, and the end
    markers    special strings (such as "<S>") that were typed as words in the text, and their ids
    digest     identifies words and text; a resumed run must find the same
    """

    lexicon: Lexicon
    tokens: Tokens
    offsets: Integer[np.ndarray, "sentences_plus_one"]
    markers: dict[str, int]
    digest: str
    vocabulary_size: int

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return len(self.offsets) - 1

    @property
    def positions(self) -> int:
        """Predictions per direction in one pass: every sentence's words and its end."""
        return len(self.tokens) + self.sentences

    @property
    def begin(self) -> int:
        """The id of the begin-of-sentence marker, one past the words."""
        return len(self.lexicon)

    @property
    def end(self) -> int:
        """The id of the end-of-sentence marker."""
        return len(self.lexicon) + 1

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Opens what `polyseme prepare` wrote."""
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            way_out = f"make one: polyseme prepare TEXT -o {folder}"
            raise InputError(f"{folder} is not a prepared corpus ({error}); {way_out}.") from error
        if meta.get("format") != FORMAT or meta.get("version") != 1:
            raise FormatError(
                f"{folder}/meta.json: format {meta.get('format')!r}, version {meta.get('version')!r}; wanted {FORMAT!r}, "
                "version 1; prepare the text again."
            )
        try:
            lexicon = Lexicon(
                np.asarray(np.memmap(folder / "lexicon.txt", dtype=np.uint8, mode="r")),
                _mapped(folder / "lexicon_offsets.npy"),
                _mapped(folder / "lexicon_counts.npy"),
            )
            tokens = Tokens([_mapped(folder / Path(shard["file"]).name) for shard in meta["shards"]])
            offsets = _mapped(folder / "sentences.npy")
        except (OSError, ValueError) as error:
            raise FormatError(f"{folder}: the corpus is damaged ({error}); prepare the text again.") from error
        whole = len(tokens) == meta["tokens"] == int(offsets[-1]) and len(lexicon) == meta["distinct"]
        if not whole or len(offsets) != meta["sentences"] + 1 or int(lexicon.offsets[-1]) != len(lexicon.blob):
            raise FormatError(f"{folder}: the files do not have the sizes that meta.json gives; prepare the text again.")
        return cls(lexicon, tokens, offsets, dict(meta["markers"]), str(meta["sha256"]), int(meta["vocabulary_size"]))

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[str]]) -> "Corpus":
        """A corpus in memory, for small texts; empty sentences are left out."""
        import hashlib

        kept = [list(sentence) for sentence in sentences if len(sentence)]
        counts = Counter(chain.from_iterable(kept))
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if not words:
            raise InputError("the text holds no words.")
        ids = {word: position for position, word in enumerate(words)}
        tokens = np.fromiter((ids[word] for word in chain.from_iterable(kept)), dtype=np.uint32)
        offsets = np.cumsum([0, *map(len, kept)], dtype=np.int64)
        lexicon = Lexicon.from_words(words, [counts[word] for word in words])
        digest = hashlib.sha256(lexicon.blob.tobytes() + tokens.tobytes() + offsets.tobytes()).hexdigest()
        markers = {word: ids[word] for word in ("<S>", "</S>", "<UNK>", "<bos>", "<eos>", "<oov>") if word in ids}
        return cls(lexicon, Tokens([tokens]), offsets, markers, digest, len(words) + 3)

    def vocabulary(self, size: int | None = None) -> Vocabulary:
        """<S>, </S>, <UNK> and the most frequent words: at most `size` lines (None: as prepared), with counts.

        <S> counts nothing, </S> the sentences, <UNK> the tokens left out.
        """
        size = self.vocabulary_size if size is None else size
        if size < 4:
            raise InputError(f"a vocabulary of {size} was asked for; wanted at least 4 (three markers and a word).")
        left_out = {*BILM_MARKERS, "!!!MAXTERMID"}
        words = [word for word in self.lexicon.words(0, size + 1) if word not in left_out][: size - 3]
        counts = [self.lexicon.counts[position] for position in range(min(size + 1, len(self.lexicon)))]
        typed = {position for word, position in self.markers.items() if word in left_out}
        chosen = [int(count) for position, count in enumerate(counts) if position not in typed][: len(words)]
        return Vocabulary((*BILM_MARKERS, *words), counts=[0, self.sentences, len(self.tokens) - sum(chosen), *chosen])

    def characters(self, size: int) -> Vocabulary:
        """A character lexicon of at most `size` lines: ELMoForManyLangs' marks, then the most frequent code points."""
        found: Counter[str] = Counter()
        for first in range(0, len(self.lexicon), _PIECE):
            words = self.lexicon.words(first, first + _PIECE)
            for word, count in zip(words, self.lexicon.counts[first : first + _PIECE].tolist(), strict=True):
                for character in word:
                    found[character] += count
        frequent = sorted(found, key=lambda character: (-found[character], character))
        return Vocabulary([*_CHARACTER_MARKS, *frequent[: size - len(_CHARACTER_MARKS)]], markers=MANY_LANGS_MARKERS)

    def counted(self, vocabulary: Vocabulary) -> Vocabulary:
        """The same words with their counts here: the end has that of the sentences, the unknown word that of all others."""
        spoken = np.bincount(self.table(vocabulary)[:-2], weights=self.lexicon.counts, minlength=len(vocabulary)).astype(np.int64)
        begin, end = (vocabulary.get(marker) for marker in vocabulary.markers[:2])
        spoken[begin], spoken[end] = 0, self.sentences
        return Vocabulary(vocabulary.words, markers=vocabulary.markers, counts=spoken.tolist())

    def table(self, vocabulary: Vocabulary, *, limit: int | None = None) -> Integer[np.ndarray, "words_plus_two"]:
        """Lexicon id → id in `vocabulary`, words it lacks becoming its unknown word; the last two are the markers.

        `limit` cuts words before they are looked up.
        """
        begin, end = (vocabulary.get(marker) for marker in vocabulary.markers[:2])
        unknown = vocabulary.unknown
        if begin is None or end is None or unknown is None:
            markers = ", ".join(vocabulary.markers)
            raise InputError(f"the vocabulary must list {markers} to be trained with; add the missing lines.")
        table = np.empty(len(self.lexicon) + 2, dtype=np.int32)
        for first in range(0, len(self.lexicon), _PIECE):
            words = self.lexicon.words(first, first + _PIECE)
            found = (vocabulary.get(word[:limit]) for word in words)
            table[first : first + len(words)] = [unknown if position is None else position for position in found]
        table[self.begin], table[self.end] = begin, end
        return table


class CorpusWords:
    """Lexicon ids of a corpus → `Words`, as `reader` would read the strings, but straight from the bytes."""

    def __init__(self, corpus: Corpus, reader: WordReader) -> None:
        self.corpus = corpus
        self.scheme = reader.scheme
        self._table = None if reader.lexicon is None else corpus.table(reader.lexicon, limit=reader.limit)
        self._spell = _Lexicon(reader.scheme) if isinstance(reader.scheme, LexiconScheme) else None
        self._begin_ids = [corpus.begin]
        self._end_ids = [corpus.end]
        if self.scheme is not None:
            # The markers typed as words are read as the markers.
            self._begin_ids += [corpus.markers[self.scheme.begin]] if self.scheme.begin in corpus.markers else []
            self._end_ids += [corpus.markers[self.scheme.end]] if self.scheme.end in corpus.markers else []

    def read(self, ids: Integer[np.ndarray, "words"]) -> Words:
        """The words, on the CPU."""
        characters = None
        if self.scheme is not None:
            begins = _rows_of(ids, self._begin_ids)
            ends = _rows_of(ids, self._end_ids)
            plain = np.minimum(ids, len(self.corpus.lexicon) - 1)
            if isinstance(self.scheme, ByteScheme):
                spelled, lengths = self.corpus.lexicon.spelled(plain, self.scheme.max_characters - 2)
                markers = [(row, BEGIN_SENTENCE) for row in begins] + [(row, END_SENTENCE) for row in ends]
                characters = torch.from_numpy(self.scheme.frame(spelled, lengths, markers))
            else:
                assert self._spell is not None
                spelled, lengths = self.corpus.lexicon.spelled(plain)
                characters = torch.from_numpy(self._spell.frame(spelled, lengths, begins, ends))
        word_ids = None if self._table is None else torch.from_numpy(self._table[ids].astype(np.int64))
        return Words(characters=characters, ids=word_ids)


class _Lexicon:
    """The lexicon scheme over UTF-8 bytes: code points through one table."""

    def __init__(self, scheme: LexiconScheme) -> None:
        names = ("<eow>", "<bow>", "<pad>", scheme.begin, scheme.end, "<oov>")
        self.first, self.last, self.padding, self.begin, self.end, unknown = scheme.characters.ids(names).tolist()
        self.slots = scheme.max_characters
        self.table = np.full(0x110000, unknown, dtype=np.int32)
        for position, character in enumerate(scheme.characters.words):
            if len(character) == 1:
                self.table[ord(character)] = position

    def frame(self, spelled: np.ndarray, lengths: np.ndarray, begins: list[int], ends: list[int]) -> np.ndarray:
        points = np.frombuffer(spelled.tobytes().decode("utf-8").encode("utf-32-le"), dtype=np.uint32)
        # Bytes 10xxxxxx go on with a code point that another byte began.
        begun = np.concatenate([[0], np.cumsum((spelled & 0xC0) != 0x80)])
        stops = np.cumsum(lengths)
        starts = begun[stops - lengths]
        sizes = np.minimum(begun[stops] - starts, self.slots - 2)
        ids = np.full((len(lengths), self.slots), self.padding, dtype=np.int64)
        ids[:, 0] = self.first
        row = np.repeat(np.arange(len(sizes)), sizes)
        column = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
        ids[row, column] = self.table[points[_spans(starts, sizes)]]
        ids[np.arange(len(sizes)), sizes + 1] = self.last
        for rows, marker in ((begins, self.begin), (ends, self.end)):
            ids[rows] = self.padding
            ids[rows, :3] = (self.first, marker, self.last)
        return ids


def _rows_of(ids: np.ndarray, wanted: list[int]) -> list[int]:
    return [row for one in wanted for row in np.flatnonzero(ids == one).tolist()]


def _mapped(path: Path) -> np.ndarray:
    """The array of an .npy file, memory-mapped; a plain view, as the subclass of numpy costs time at each use."""
    return np.asarray(open_memmap(path, mode="r"))


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The positions of several spans, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
