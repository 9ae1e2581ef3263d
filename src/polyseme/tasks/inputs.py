"""What a task model reads of each token: word vector, characters, ELMo's mixed layers; and ELMo again at its output."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.characters import BYTE_CHARACTERS, PADDING, ByteScheme
from polyseme.config import Checked
from polyseme.elmo import Elmo, TokenIds
from polyseme.embedding import ElmoEmbedding
from polyseme.errors import FormatError, InputError
from polyseme.mix import LayerNorm, ScalarMix
from polyseme.tasks.layers import Layers
from polyseme.tasks.readers import bilm_form, read_lines


@dataclass(frozen=True, kw_only=True)
class WordConfig(Checked):
    """Word vectors. Pretrained ones stay as they are; `trainable` learns an offset for each word of the training text.

    A word is looked up as it stands, then in lower case. Of the `unknown` words those that the training text holds twice
    learn a vector "each" and the rest share one; or all of them have none ("zero"). Without pretrained vectors all words
    are unknown, and `dim` says how wide they are.
    """

    dim: int = 100
    trainable: bool = False
    unknown: Literal["each", "zero"] = "each"

    def validate(self) -> None:
        """The width must be possible."""
        self.positive("dim")


@dataclass(frozen=True, kw_only=True)
class SpellingConfig(Checked):
    """A character CNN over the bytes of each word: (width, number) filters, relu, maximum."""

    dim: int = 16
    filters: tuple[tuple[int, int], ...] = ((3, 128),)
    max_characters: int = 30


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(Checked):
    """Where ELMo goes in and how its layers are weighed.

    place      beside the word vectors ("input"), beside the encoder's outputs ("output"), or "both", each with its own mix
    mix        "learned" weights; "fixed": `weights`, given before the softmax (equal ones by default); "top": the last layer
    l2         penalty on the learned weights before the softmax; gamma is free
    trainable  "mix": the biLM is frozen and its vectors are computed once; "all": it is fine-tuned with the task
    context    vectors of each "sentence" by itself, or of whole documents
    """

    place: Literal["input", "output", "both"] = "input"
    mix: Literal["learned", "fixed", "top"] = "learned"
    weights: tuple[float, ...] | None = None
    layer_norm: Literal["token"] | None = None
    dropout: float = 0.5
    l2: float = 0.001
    trainable: Literal["mix", "all"] = "mix"
    context: Literal["sentence", "document"] = "sentence"

    def validate(self) -> None:
        """A biLM that is trained reads sentences, and its mixes are trained with it."""
        if self.trainable == "all" and (self.context != "sentence" or self.mix != "learned" or self.weights is not None):
            raise InputError("ElmoConfig.trainable is 'all'; it goes with context 'sentence', mix 'learned' and no weights.")


@dataclass(frozen=True, kw_only=True)
class InputsConfig(Checked):
    """What the token vectors are made of; `dropout` falls on the whole concatenation."""

    words: WordConfig | None = WordConfig()
    spelling: SpellingConfig | None = SpellingConfig()
    elmo: ElmoConfig | None = None
    dropout: float = 0.0

    def validate(self) -> None:
        """Something must be left."""
        if self.words is None and self.spelling is None and (self.elmo is None or self.elmo.place == "output"):
            raise InputError("the inputs hold neither words, spelling nor ELMo; wanted at least one of them at the input.")


@dataclass(frozen=True)
class WordVectors:
    """Words and their pretrained vectors, most frequent first."""

    words: tuple[str, ...]
    vectors: Float[np.ndarray, "words dim"]

    @classmethod
    def read(cls, path: str | Path) -> "WordVectors":
        """Reads an .npz with `words` and `vectors`, or GloVe's text: a word and its numbers on each line."""
        path = Path(path)
        if path.suffix == ".npz":
            if not path.is_file():
                raise FormatError(f"{path}: no such file; give word vectors as .npz or GloVe text.")
            with np.load(path, allow_pickle=False) as file:
                if not {"words", "vectors"} <= set(file.files):
                    raise FormatError(f"{path} holds {', '.join(file.files)}; wanted the arrays words and vectors.")
                words, vectors = file["words"].tolist(), file["vectors"]
            if vectors.ndim != 2 or len(words) != len(vectors):
                raise FormatError(
                    f"{path}: {len(words)} words but vectors of shape {vectors.shape}; wanted one row for each word."
                )
            return cls(tuple(words), vectors.astype(np.float16))
        words, rows = [], []
        for number, line in read_lines(path):
            word, *numbers = line.split(" ")
            try:
                rows.append(np.array(numbers, dtype=np.float16))
            except ValueError as error:
                raise FormatError(f"{path}, line {number}: {line[:40]!r}; wanted a word and its numbers.") from error
            if len(rows[-1]) != len(rows[0]) or not numbers:
                raise FormatError(f"{path}, line {number}: {len(numbers)} numbers; wanted {len(rows[0]) or 'some'} as on line 1.")
            words.append(word)
        return cls(tuple(words), np.stack(rows))


@dataclass(frozen=True)
class TextBatch:
    """Some texts side by side, ready for `Inputs`: ids are 0 and layers zero past each text's end."""

    lengths: Int[Tensor, "rows"]
    words: Int[Tensor, "rows tokens"]
    spelling: Int[Tensor, "rows tokens"]
    characters: Int[Tensor, "distinct characters"]
    layers: Float[Tensor, "layers rows tokens width"] | None
    ids: TokenIds | None = None  # for a biLM that is trained

    @property
    def mask(self) -> Bool[Tensor, "rows tokens"]:
        """True at tokens."""
        return torch.arange(self.words.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "TextBatch":
        """The same batch on another device."""
        return TextBatch(
            lengths=self.lengths.to(device),
            words=self.words.to(device),
            spelling=self.spelling.to(device),
            characters=self.characters.to(device),
            layers=None if self.layers is None else self.layers.to(device),
            ids=None if self.ids is None else self.ids.to(device),
        )


@dataclass(frozen=True)
class TokenVectors:
    """What the inputs make of a batch: vectors for the encoder to read, and ELMo's for beside its outputs."""

    input: Float[Tensor, "rows tokens width"]
    output: Float[Tensor, "rows tokens _"] | None

    def beside(self, encoded: Float[Tensor, "rows tokens _"]) -> Float[Tensor, "rows tokens _"]:
        """The encoder's outputs with ELMo beside them, where it is wanted there."""
        return encoded if self.output is None else torch.cat([encoded, self.output], dim=2)


class Texts:
    """Numbered texts as ids, read once; `batch` puts any of them side by side."""

    def __init__(
        self,
        lengths: Int[np.ndarray, "texts"],
        words: Int[np.ndarray, "tokens"],
        spelling: Int[np.ndarray, "tokens"],
        characters: Int[np.ndarray, "distinct characters"],
        layers: Layers | None,
        *,
        tokens: Sequence[Sequence[str]] = (),
        elmo: Elmo | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.lengths, self.device = lengths, device
        self.tokens, self.elmo = tokens, elmo
        self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.words, self.spelling = np.append(words, 0), np.append(spelling, 0)
        self.characters, self.layers = characters, layers

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, texts: Sequence[int]) -> TextBatch:
        """These texts, in this order."""
        chosen = np.asarray(texts, dtype=np.int64)
        lengths = self.lengths[chosen]
        positions = np.arange(int(lengths.max(initial=1)))  # at least one column, empty texts too
        mask = positions < lengths[:, None]
        rows = np.where(mask, self.starts[chosen][:, None] + positions, -1)  # the last entry stands for padding
        spelling, words = self.spelling[rows], self.words[rows]
        distinct, index = np.unique(spelling, return_inverse=True)
        characters = self.characters[distinct].astype(np.int64)
        longest = int((characters != PADDING).sum(axis=1).max(initial=1))
        layers = None if self.layers is None else self.layers.gather(chosen, lengths, mask.shape[1])
        ids = None
        if self.elmo is not None:
            ids = self.elmo.characters([[bilm_form(token) for token in self.tokens[text]] for text in texts])
        return TextBatch(
            lengths=torch.from_numpy(lengths),
            words=torch.from_numpy(words),
            spelling=torch.from_numpy(index.reshape(spelling.shape)),
            characters=torch.from_numpy(characters[:, :longest]),
            layers=layers,
            ids=ids,
        ).to(self.device)


class Spelling(nn.Module):
    """Character CNN: the maximum over the windows that begin inside the word, so that padding never counts."""

    def __init__(self, config: SpellingConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTE_CHARACTERS, config.dim, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(nn.Conv1d(config.dim, count, size) for size, count in config.filters)
        self.width = sum(count for _, count in config.filters)

    def forward(self, characters: Int[Tensor, "words characters"]) -> Float[Tensor, "words width"]:
        """One vector per distinct word."""
        inside = (characters != PADDING)[:, None]
        embedded = self.embedding(characters).transpose(1, 2)
        parts = []
        for convolution in self.convolutions:
            windows = convolution(F.pad(embedded, (0, convolution.kernel_size[0] - 1)))  # pyrefly: ignore
            parts.append(torch.relu(windows.masked_fill(~inside, -1e4).amax(dim=2)))
        return torch.cat(parts, dim=1)


class Words(nn.Module):
    """Rows: 0 unknown, then the training words that learn something, then the other pretrained words."""

    def __init__(self, config: WordConfig, words: Sequence[str], learned: int, dim: int) -> None:
        super().__init__()
        self.config, self.words, self.learned, self.width = config, tuple(words), learned, dim
        self.rows = {word: row for row, word in enumerate(self.words, 1)}
        self.register_buffer("vectors", torch.zeros(len(self.words) + 1, dim, dtype=torch.float16))
        self.offsets = nn.Parameter(torch.zeros(learned + 1, dim), requires_grad=learned > 0 or config.unknown == "each")

    @classmethod
    def build(cls, config: WordConfig, vectors: WordVectors | None, known: Iterable[Sequence[str]]) -> "Words":
        """From pretrained vectors, if any, and the training text."""
        counts = Counter(token for sentence in known for token in sentence)
        vectors = vectors or WordVectors((), np.zeros((0, config.dim), np.float16))
        place = {word: row for row, word in enumerate(vectors.words)}
        own = [word for word, count in counts.most_common() if count > 1 and word not in place and word.lower() not in place]
        own = own if config.unknown == "each" else []
        met = {found: 0 for word in counts for found in (word, word.lower()) if found in place} if config.trainable else {}
        words = [*own, *met, *(word for word in vectors.words if word not in met)]
        module = cls(config, words, len(own) + len(met), vectors.vectors.shape[1])
        rows = [place[word] for word in words[len(own) :]]
        module.vectors[len(own) + 1 :] = torch.from_numpy(vectors.vectors[rows])  # pyrefly: ignore
        nn.init.normal_(module.offsets.data[1 : len(own) + 1], std=0.1)
        return module

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The row of each token: as it stands, else in lower case, else 0."""
        rows = self.rows
        return [rows.get(token) or rows.get(token.lower(), 0) for token in tokens]

    def forward(self, ids: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens width"]:
        """The vectors; rows that have nothing learned are read from the pretrained ones alone."""
        fixed = F.embedding(ids, self.vectors).float()  # pyrefly: ignore
        if not self.offsets.requires_grad:
            return fixed
        # Row 0 of the offsets is the unknown word; rows past the learned ones take a zero.
        offsets = self.offsets if self.config.unknown == "each" else torch.cat([self.offsets[:1] * 0, self.offsets[1:]])
        learned = F.embedding(ids.clamp(max=self.learned), offsets) * (ids <= self.learned)[:, :, None]
        return fixed + learned


class Inputs(nn.Module):
    """Token ids and frozen layers → token vectors. Widths follow from the parts and are never given."""

    def __init__(self, config: InputsConfig, words: Words | None, *, elmo: Elmo | tuple[int, int] | None) -> None:
        """For a frozen biLM `elmo` is its (number of layers, width); one that is trained stands here itself."""
        super().__init__()
        if (config.elmo is None) != (elmo is None):
            raise InputError("the inputs' configuration and the biLM do not go together: give both or neither of them.")
        self.config = config
        self.words = words
        self.spelling = None if config.spelling is None else Spelling(config.spelling)
        self.dropout = nn.Dropout(config.dropout)
        self.places: tuple[str, ...] = ()
        self.mixes = nn.ModuleList()
        self.embedding = None
        elmo_width = 0
        if config.elmo is not None and elmo is not None:
            self.places = ("input", "output") if config.elmo.place == "both" else (config.elmo.place,)
            self.elmo_dropout = nn.Dropout(config.elmo.dropout)
            if config.elmo.trainable == "all":
                if not isinstance(elmo, Elmo):
                    raise InputError("the biLM is to be fine-tuned with the task: give the biLM itself, not its shape.")
                elmo_width = elmo.dim
                self.embedding = ElmoEmbedding(
                    elmo, outputs=len(self.places), dropout=0.0, layer_norm=config.elmo.layer_norm, trainable=True
                )
            else:
                layers, elmo_width = (len(elmo.layers), elmo.dim) if isinstance(elmo, Elmo) else elmo
                self.mixes.extend(_mix(config.elmo, layers) for _ in self.places)
        width = (0 if words is None else words.width) + (0 if self.spelling is None else self.spelling.width)
        self.width = width + (elmo_width if "input" in self.places else 0)
        self.output_width = elmo_width if "output" in self.places else 0

    def read(self, texts: Sequence[Sequence[str]], layers: Layers | None = None) -> Texts:
        """The texts as ids; `layers` are the frozen biLM's for the same texts in the same order."""
        if (layers is None) != (len(self.mixes) == 0):
            raise InputError("the layers of the biLM must be given exactly when the model has a frozen ELMo in its inputs.")
        tokens = [token for text in texts for token in text]
        distinct: dict[str, int] = {}
        spelling = np.fromiter((distinct.setdefault(token, len(distinct)) for token in tokens), np.int64, len(tokens))
        words = np.zeros(len(tokens), np.int64)
        if self.words is not None:
            words = np.array(self.words.ids(distinct), np.int64)[spelling] if tokens else words
        limit = 3 if self.config.spelling is None else self.config.spelling.max_characters
        characters = ByteScheme(max_characters=limit).encode(list(distinct) or [""]).astype(np.int16)
        lengths = np.array([len(text) for text in texts], np.int64)
        device = next(self.parameters(), torch.zeros(())).device
        live = None if self.embedding is None else self.embedding.elmo
        return Texts(lengths, words, spelling, characters, layers, tokens=texts, elmo=live, device=device)

    def forward(self, batch: TextBatch) -> TokenVectors:
        """The token vectors, zero past each text's end."""
        parts = []
        if self.words is not None:
            parts.append(self.words(batch.words))
        if self.spelling is not None:
            parts.append(self.spelling(batch.characters)[batch.spelling])
        mixed = dict(zip(self.places, self._mixed(batch), strict=True))
        if "input" in mixed:
            parts.append(mixed["input"])
        vectors = self.dropout(torch.cat(parts, dim=2)) * batch.mask[:, :, None]
        return TokenVectors(input=vectors, output=mixed.get("output"))

    def penalty(self) -> Float[Tensor, ""]:
        """The L2 penalty on the mixes' weights."""
        elmo = self.config.elmo
        if elmo is None or elmo.mix != "learned":
            return torch.zeros(())
        return torch.stack([mix.l2(elmo.l2) for mix in self.scalar_mixes()]).sum()

    def layer_weights(self) -> dict[str, list[float]]:
        """The share of each layer in each mix, and gamma after them."""
        return {
            place: [*mix.weights.detach().softmax(0).tolist(), mix.gamma.item()]
            for place, mix in zip(self.places, self.scalar_mixes(), strict=True)
        }

    def scalar_mixes(self) -> list[ScalarMix]:
        """The mixes, one for each place."""
        mixes = self.mixes if self.embedding is None else self.embedding.mixes
        return [mix for mix in mixes if isinstance(mix, ScalarMix)]

    def _mixed(self, batch: TextBatch) -> list[Float[Tensor, "rows tokens _"]]:
        if not self.places:
            return []
        if self.embedding is not None:
            found, _ = self.embedding(batch.ids)
        else:
            layers: Sequence[Tensor] = () if batch.layers is None else batch.layers.unbind(0)
            if self.config.elmo is not None and self.config.elmo.mix == "top":
                layers = layers[-1:]
            found = [mix(layers, batch.mask) for mix in self.mixes]
        # A batch of empty texts alone has one column still.
        return [self.elmo_dropout(F.pad(vectors, (0, 0, 0, batch.words.shape[1] - vectors.shape[1]))) for vectors in found]


def _mix(config: ElmoConfig, layers: int) -> ScalarMix:
    layer_norm: LayerNorm | None = config.layer_norm
    if config.mix == "top":
        return ScalarMix(1, layer_norm=layer_norm)
    if config.mix == "fixed":
        return ScalarMix(layers, layer_norm=layer_norm, weights=config.weights, trainable=False)
    return ScalarMix(layers, layer_norm=layer_norm, weights=config.weights)
