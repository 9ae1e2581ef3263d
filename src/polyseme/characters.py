"""Tokens → character ids of distinct words: markers, padding and cutting are decided here and nowhere else.

Two schemes exist. ELMo spells a token as its UTF-8 bytes; ELMoForManyLangs looks its code points up in a lexicon.
The sentence markers are ordinary strings to the rest of the house: `scheme.begin` and `scheme.end` typed as tokens
are encoded as the markers, as the original systems do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from polyseme.errors import InputError
from polyseme.vocabulary import BILM_MARKERS, MANY_LANGS_MARKERS, Vocabulary

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
BYTE_CHARACTERS = 261


class ByteScheme:
    """ELMo's characters: begin-word, up to `max_characters - 2` UTF-8 bytes, end-word, padding.

    Bytes are cut wherever the limit falls, inside a code point too, and lone surrogates vanish.
    """

    begin, end = BILM_MARKERS[:2]

    def __init__(self, *, max_characters: int = 50) -> None:
        self.max_characters = max_characters

    def encode(self, words: Sequence[str]) -> Int[np.ndarray, "words characters"]:
        """The character ids (0..260) of each word, one row a word."""
        limit = self.max_characters - 2
        spelled = [word.encode("utf-8", errors="ignore")[:limit] for word in words]
        lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(words))
        return self.frame(np.frombuffer(b"".join(spelled), dtype=np.uint8), lengths, self._markers(words))

    def frame(
        self, spelled: np.ndarray, lengths: np.ndarray, markers: Sequence[tuple[int, int]] = ()
    ) -> Int[np.ndarray, "words characters"]:
        """Rows from the words' cut bytes, joined, and their lengths; `markers` are (row, character) pairs."""
        ids = np.full((len(lengths), self.max_characters), PADDING, dtype=np.int64)
        ids[:, 0] = BEGIN_WORD
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.arange(len(spelled)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        ids[row, column] = spelled
        ids[np.arange(len(lengths)), lengths + 1] = END_WORD
        for position, character in markers:
            ids[position] = PADDING
            ids[position, :3] = (BEGIN_WORD, character, END_WORD)
        return ids

    def _markers(self, words: Sequence[str]) -> list[tuple[int, int]]:
        kinds = {self.begin: BEGIN_SENTENCE, self.end: END_SENTENCE}
        return [(position, kinds[word]) for position, word in enumerate(words) if word in kinds]


class LexiconScheme:
    """ELMoForManyLangs' characters: code points looked up in a lexicon.

    Its begin-of-word and end-of-word markers are swapped: slot 0 holds `<eow>` and the closing slot `<bow>`. The published
    models were trained that way.
    """

    begin, end = MANY_LANGS_MARKERS[:2]

    def __init__(self, characters: Vocabulary, *, max_characters: int = 50) -> None:
        missing = [name for name in ("<oov>", "<pad>", "<bow>", "<eow>", self.begin, self.end) if name not in characters]
        if missing:
            raise InputError(f"the character lexicon lacks {', '.join(missing)}; ELMoForManyLangs' char.dic lists all of them.")
        self.characters = characters
        self.max_characters = max_characters

    def encode(self, words: Sequence[str]) -> Int[np.ndarray, "words characters"]:
        """The character ids of each word, one row a word."""
        first, last, padding = (self.characters.ids([name])[0] for name in ("<eow>", "<bow>", "<pad>"))
        ids = np.full((len(words), self.max_characters), padding, dtype=np.int64)
        for row, word in enumerate(words):
            pieces = [word] if word in (self.begin, self.end) else list(word[: self.max_characters - 2])
            ids[row, 0] = first
            ids[row, 1 : len(pieces) + 1] = self.characters.ids(pieces)
            ids[row, len(pieces) + 1] = last
        return ids


@dataclass(frozen=True)
class Words:
    """Distinct words as the token encoder reads them; either part may be absent."""

    characters: Int[Tensor, "words characters"] | None
    ids: Int[Tensor, "words"] | None

    def __len__(self) -> int:
        part = self.characters if self.characters is not None else self.ids
        return 0 if part is None else part.shape[0]

    def to(self, device: torch.device | str) -> "Words":
        """The same words on another device."""
        return Words(
            characters=None if self.characters is None else self.characters.to(device),
            ids=None if self.ids is None else self.ids.to(device),
        )


@dataclass(frozen=True)
class WordReader:
    """Everything needed to turn strings into `Words`: a character scheme, a word lexicon, or both.

    `limit` cuts a word before it is looked up in the lexicon, as ELMoForManyLangs does: a listed word longer than that is
    never found, its cut form is.
    """

    scheme: ByteScheme | LexiconScheme | None
    lexicon: Vocabulary | None
    limit: int | None = None

    @property
    def begin(self) -> str:
        """The string that stands for the beginning of a sentence."""
        return self._markers[0]

    @property
    def end(self) -> str:
        """The string that stands for the end of a sentence."""
        return self._markers[1]

    @property
    def _markers(self) -> tuple[str, str]:
        if self.scheme is not None:
            return self.scheme.begin, self.scheme.end
        if self.lexicon is None:
            raise InputError("the model has neither characters nor a word list, so words cannot be read; give vocabulary=.")
        return self.lexicon.markers[0], self.lexicon.markers[1]

    def read(self, words: Sequence[str]) -> Words:
        """The distinct words' ids, on the CPU."""
        characters = None if self.scheme is None else torch.from_numpy(self.scheme.encode(words))
        ids = None
        if self.lexicon is not None:
            words = [word[: self.limit] for word in words]
            ids = torch.from_numpy(self.lexicon.ids(words))
        return Words(characters=characters, ids=ids)


def used_characters(ids: Int[Tensor, "words characters"]) -> Int[Tensor, "words"]:
    """How many characters of each word come before its padding."""
    places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ((ids != ids[:, -1:]) * places).amax(dim=1)


def distinct(sentences: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """The distinct words in order of first appearance, and each sentence as positions in that list."""
    seen: dict[str, int] = {}
    index = [[seen.setdefault(word, len(seen)) for word in sentence] for sentence in sentences]
    return list(seen), index
