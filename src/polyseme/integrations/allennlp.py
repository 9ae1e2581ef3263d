"""The way back for old scripts: ElmoEmbedder, Elmo and batch_to_ids with AllenNLP's names, arguments and results.

Like AllenNLP's, these objects carry the LSTM state from batch to batch, row by row, so a sentence's vectors depend on what
was embedded before it. `polyseme.Elmo` and `polyseme.ElmoEmbedding` do not; new code should use them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Literal, TypedDict

import h5py
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme import elmo as core
from polyseme.characters import ByteScheme
from polyseme.embedding import ElmoEmbedding
from polyseme.errors import InputError
from polyseme.lstm import LSTMState
from polyseme.mix import Mix
from polyseme.sentences import read_sentences
from polyseme.weights.files import replacing_file
from polyseme.weights.loading import load


class ElmoOutput(TypedDict):
    """What AllenNLP's Elmo returns."""

    elmo_representations: list[Float[Tensor, "... tokens width"]]
    mask: Bool[Tensor, "... tokens"]


# The names, the defaults and that arguments may be given by place are AllenNLP's.


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Int[Tensor, "sentences tokens characters"]:
    """Character ids of tokenized sentences, 50 for each token, shifted by one so that 0 is padding."""
    tokens = _tokens(batch)
    ids = torch.zeros(len(tokens), max(map(len, tokens), default=0), 50, dtype=torch.int64)
    scheme = ByteScheme()
    for row, sentence in enumerate(tokens):
        ids[row, : len(sentence)] = torch.from_numpy(scheme.encode(sentence) + 1)
    return ids


class ElmoEmbedder:
    """Vectors for tokenized sentences, as AllenNLP's `allennlp.commands.elmo.ElmoEmbedder` gave them.

    Args:
        options_file: the model's options.json, or None where the weights need none (a folder, a zip, ...).
        weight_file: the weights, or anything else that `polyseme.load` reads.
        cuda_device: the number of a GPU, or -1 for the CPU.
    """

    def __init__(
        self, options_file: str | Path | None = None, weight_file: str | Path | None = None, cuda_device: int = -1
    ) -> None:
        elmo = _load(options_file, weight_file)
        self.elmo = elmo if cuda_device < 0 else elmo.to(f"cuda:{cuda_device}")
        self.reset_states()

    def reset_states(self) -> None:
        """Forgets what was read so far: the next batch starts from zero."""
        self._state = self.elmo.state(0)

    def batch_to_embeddings(
        self, batch: Sequence[Sequence[str]]
    ) -> tuple[Float[Tensor, "sentences layers tokens width"], Bool[Tensor, "sentences tokens"]]:
        """All layers of a batch, padded with zeros, and the mask of the tokens."""
        arrays = self.elmo.embed(_tokens(batch), state=self._state)
        longest = max((array.shape[1] for array in arrays), default=0)
        vectors = torch.zeros(len(arrays), len(self.elmo.layers), longest, self.elmo.dim)
        mask = torch.zeros(len(arrays), longest, dtype=torch.bool)
        for row, array in enumerate(arrays):
            vectors[row, :, : array.shape[1]] = torch.from_numpy(array)
            mask[row, : array.shape[1]] = True
        return vectors, mask

    def embed_sentence(self, sentence: Sequence[str]) -> Float[np.ndarray, "layers tokens width"]:
        """All layers of one sentence; (layers, 0, width) if it is empty."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Float[np.ndarray, "layers tokens width"]]:
        """All layers of each sentence of a batch."""
        tokens = _tokens(batch)
        # AllenNLP answers a single empty sentence without running the model, so the state stays as it is.
        return self.elmo.embed(tokens, state="zero" if tokens == [[]] else self._state)

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = 64
    ) -> Iterator[Float[np.ndarray, "layers tokens width"]]:
        """All layers of each sentence of a stream, `batch_size` sentences at a time."""
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; wanted at least 1.")
        stream = iter(sentences)
        while batch := list(islice(stream, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | Path,
        output_format: Literal["all", "top", "average"] = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embeds a file of tokenized sentences, one a line, into an HDF5 file with one data set a line.

        An empty line, where AllenNLP gave up, becomes a data set without tokens. The data set `sentence_to_index` maps
        each sentence to its key, as JSON; of equal lines it can hold only the last.

        Args:
            input_file: lines of tokens separated by white space.
            output_file_path: where to write; an existing file is replaced once all is written.
            output_format: "all" layers, the "top" one, or their "average".
            batch_size: how many sentences to embed at a time.
            forget_sentences: leave `sentence_to_index` out.
            use_sentence_keys: the sentence itself is the key of its data set, instead of the line's number from 0.
        """
        if output_format not in ("all", "top", "average"):
            raise InputError(f"output_format is {output_format!r}; wanted 'all', 'top' or 'average'.")
        keys: dict[str, str] = {}
        lines = (line.strip() for line in input_file)
        with replacing_file(Path(output_file_path)) as partial, h5py.File(partial, "w") as file:
            number = 0
            while batch := list(islice(lines, batch_size)):
                for line, array in zip(batch, self.embed_batch([line.split() for line in batch]), strict=True):
                    key = _sentence_key(line, number, file) if use_sentence_keys else str(number)
                    if output_format == "top":
                        array = array[-1]
                    elif output_format == "average":
                        array = array.mean(axis=0)
                    file.create_dataset(key, data=array, dtype="float32")
                    keys[line] = key
                    number += 1
            if not forget_sentences and not use_sentence_keys:
                index = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
                index[0] = json.dumps(keys)


class Elmo(nn.Module):
    """Learned mixes over a biLM, as AllenNLP's `allennlp.modules.elmo.Elmo`.

    Args:
        options_file: the model's options.json, or None where the weights need none.
        weight_file: the weights, or anything else that `polyseme.load` reads.
        num_output_representations: how many mixes.
        requires_grad: train the biLM too.
        do_layer_norm: normalise each layer over the batch before mixing.
        dropout: on each mixed output.
        vocab_to_cache: accepted for old scripts; each distinct word of a batch is encoded once anyway, and the result is
            the same.
        keep_sentence_boundaries: keep the vectors of the sentence markers.
        scalar_mix_parameters: fixed weights of the mixes, before the softmax.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: list[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: list[float] | None = None,
    ) -> None:
        super().__init__()
        elmo = _load(options_file, weight_file)
        if not isinstance(elmo.reader.scheme, ByteScheme) or elmo.reader.lexicon is not None:
            raise InputError("this model does not read bytes, as AllenNLP's Elmo does; use polyseme.ElmoEmbedding.")
        fixed = scalar_mix_parameters
        self.embedding = ElmoEmbedding(
            elmo,
            outputs=num_output_representations,
            dropout=dropout,
            layer_norm="allennlp" if do_layer_norm else None,
            trainable="mix" if fixed is None else False,
            state="zero",
            boundaries=keep_sentence_boundaries,
            mixes=None if fixed is None else [Mix(weights=tuple(fixed), gamma=1.0)] * num_output_representations,
        )
        if requires_grad:
            self.embedding.unfreeze()
        self._markers = torch.from_numpy(elmo.reader.scheme.encode([elmo.reader.begin, elmo.reader.end]))
        self.reset_states()

    def reset_states(self) -> None:
        """Forgets what was read so far: the next batch starts from zero."""
        self._state = self.embedding.elmo.state(0)

    def get_output_dim(self) -> int:
        """The width of a representation."""
        return self.embedding.dim

    def forward(self, inputs: Int[Tensor, "... tokens characters"], word_inputs: Tensor | None = None) -> ElmoOutput:
        """Every mix of a batch of character ids, and the mask.

        Args:
            inputs: what `batch_to_ids` gives; further leading dimensions are allowed.
            word_inputs: accepted for old scripts that pass the ids of cached words; the characters say the same.
        """
        leading = inputs.shape[:-2]
        flat = inputs.reshape(-1, *inputs.shape[-2:])
        ids = self._ids(flat)
        layers, after = self.embedding.read(ids, self._carried(len(flat)))
        self._state.h[:, : len(flat)] = after.h.detach()
        self._state.c[:, : len(flat)] = after.c.detach()
        outputs, mask = self.embedding.mix(layers, ids.lengths)
        return {
            "elmo_representations": [output.reshape(*leading, *output.shape[1:]) for output in outputs],
            "mask": mask.reshape(*leading, mask.shape[1]),
        }

    def _ids(self, inputs: Int[Tensor, "sentences tokens characters"]) -> core.TokenIds:
        device = self.embedding.start_h.device
        inputs = inputs.to(device)
        if inputs.shape[-1] != self._markers.shape[1]:
            raise InputError(f"words of {inputs.shape[-1]} characters were given; this model reads {self._markers.shape[1]}.")
        mask = (inputs > 0).any(dim=-1)
        words, found = torch.unique(inputs[mask], dim=0, return_inverse=True)
        if len(words) and not (1 <= int(words.min()) and int(words.max()) <= 261):
            raise InputError("the character ids of a word are not all from 1 to 261; give what batch_to_ids gives.")
        lengths = mask.sum(dim=1)
        positions = torch.arange(inputs.shape[1] + 2, device=device)
        index = torch.full((len(inputs), inputs.shape[1] + 2), len(words), device=device)  # the begin marker, and padding
        index[(positions > 0) & (positions <= lengths[:, None])] = found
        index[positions == lengths[:, None] + 1] = len(words) + 1
        characters = torch.cat([words - 1, self._markers.to(device)])
        return core.TokenIds(characters=characters, words=None, index=index, lengths=lengths + 2)

    def _carried(self, rows: int) -> LSTMState:
        """The first rows of the state, with rows of zeros where it has too few."""
        device = self.embedding.start_h.device
        grown = LSTMState.zeros(self.embedding.elmo.config.lstm, max(rows, self._state.rows), device=device)
        grown.h[:, : self._state.rows] = self._state.h.to(device)
        grown.c[:, : self._state.rows] = self._state.c.to(device)
        self._state = grown
        return LSTMState(h=grown.h[:, :rows].clone(), c=grown.c[:, :rows].clone())


def _load(options_file: str | Path | None, weight_file: str | Path | None) -> core.Elmo:
    for given in (options_file, weight_file):
        if str(given).startswith(("http://", "https://")):
            raise InputError(f"{given} is an address; download the file and give its path.")
    if weight_file is None:
        raise InputError("no weight_file was given; AllenNLP's default is no longer published, give the path of a model.")
    return load(weight_file, options=options_file)


def _tokens(batch: Iterable[Sequence[str]]) -> list[list[str]]:
    """Lists of tokens only: AllenNLP took a string for a list of letters."""
    sentences = list(batch)
    if isinstance(batch, str) or any(isinstance(sentence, str) for sentence in sentences):
        raise InputError("a string was given where a list of tokens is wanted; split it first: 'the first'.split().")
    return read_sentences(sentences, str.split, raw=True)


def _sentence_key(sentence: str, number: int, file: h5py.File) -> str:
    if "/" in sentence or sentence in ("", ".", "..") or sentence in file:
        raise InputError(
            f"line {number} cannot be a key ({sentence[:40]!r}): it is empty, holds a slash or stands twice; "
            "leave use_sentence_keys out."
        )
    return sentence
