"""Words and their ids, in descending frequency, with counts where they are known."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import InputError, WeightsError

#: (begin of sentence, end of sentence, unknown word) as bilm-tf and as ELMoForManyLangs write them.
BILM_MARKERS = ("<S>", "</S>", "<UNK>")
MANY_LANGS_MARKERS = ("<bos>", "<eos>", "<oov>")


class Vocabulary:
    """An ordered list of distinct words; a word's id is its position.

    Where a list holds a word twice the later position wins, as in bilm-tf; the size counts both.
    """

    def __init__(
        self,
        words: Iterable[str],
        *,
        markers: tuple[str, str, str] = BILM_MARKERS,
        counts: Sequence[int] | None = None,
    ) -> None:
        self.words = tuple(words)
        self.markers = markers
        if counts is not None and len(counts) != len(self.words):
            raise InputError(f"{len(counts)} counts were given for {len(self.words)} words; give one count for each word.")
        self.counts = None if counts is None else np.asarray(counts, dtype=np.int64)
        self._ids = {word: position for position, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words and self.markers == other.markers

    def __hash__(self) -> int:
        return hash((self.words, self.markers))

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.words)} words, markers={self.markers})"

    @property
    def unknown(self) -> int | None:
        """The id of the word that stands for all words not listed, or None where the list has none."""
        return self._ids.get(self.markers[2])

    def get(self, word: str) -> int | None:
        """The id of exactly this word, or None."""
        return self._ids.get(word)

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """The ids of the words, int64; words not listed get the id of the unknown word."""
        unknown = self.unknown
        found = [self._ids.get(word, unknown) for word in words]
        if None in found:
            word = words[found.index(None)]
            raise InputError(
                f"the word {word!r} is not in the vocabulary, which has no {self.markers[2]} line to stand for it; "
                f"add a line {self.markers[2]} (and its vector) or use the model with characters."
            )
        return np.asarray(found, dtype=np.int64)

    @classmethod
    def read(cls, path: str | Path, *, markers: tuple[str, str, str] = BILM_MARKERS) -> "Vocabulary":
        """Reads one word per line (UTF-8, or gzip-compressed when the name ends in .gz)."""
        import gzip

        path = Path(path)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return cls.parse(data, name=str(path), markers=markers)

    @classmethod
    def parse(cls, data: bytes, *, name: str, markers: tuple[str, str, str] = BILM_MARKERS) -> "Vocabulary":
        """Reads one word per line from bytes; `name` is used in error messages.

        Lines are stripped, and the line !!!MAXTERMID is skipped, as bilm-tf does.
        """
        words = []
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                words.append(line.decode("utf-8").strip())
            except UnicodeDecodeError as error:
                raise WeightsError(
                    f"{name}, line {number}: not valid UTF-8 ({error.reason}); save the vocabulary as UTF-8."
                ) from error
        if words and words[-1] == "":
            words.pop()
        return cls((word for word in words if word != "!!!MAXTERMID"), markers=markers)

    def write(self, path: str | Path) -> None:
        """Writes one word per line, UTF-8."""
        Path(path).write_text("".join(word + "\n" for word in self.words), encoding="utf-8", newline="\n")
