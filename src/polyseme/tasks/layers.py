"""The biLM's layers for a whole data set, computed once: in memory, or on disk, memory-mapped and keyed by model and text."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import bulk_settings
from polyseme.errors import FormatError
from polyseme.progress import Report
from polyseme.sources import Reader, Sentences
from polyseme.tasks.readers import bilm_form
from polyseme.vectors import MANIFEST, StoredVectors, column_of, read_vectors

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

Context = Literal["sentence", "document"]
_BLOCK, _BLOCK_TOKENS = 512, 32_768  # texts or documents embedded in one call


class Layers:
    """All layers of every token of numbered texts."""

    def __init__(self, vectors: Float[np.ndarray, "tokens layers width"], starts: Int[np.ndarray, "texts"]) -> None:
        self.vectors = vectors
        self.starts = starts

    def gather(
        self, texts: Int[np.ndarray, "rows"], lengths: Int[np.ndarray, "rows"], longest: int
    ) -> Float[Tensor, "layers rows tokens width"]:
        """The layers of some texts side by side, `longest` tokens each, zero past each one's end."""
        positions = np.arange(longest)
        mask = positions < lengths[:, None]
        if not mask.any():
            return torch.zeros(self.vectors.shape[1], *mask.shape, self.vectors.shape[2])
        rows = np.where(mask, self.starts[texts][:, None] + positions, 0)
        found = torch.from_numpy(self.vectors[rows]).float()
        found[torch.from_numpy(~mask)] = 0
        return found.permute(2, 0, 1, 3)


class StoredLayers(Layers):
    """The same from Arrow parts on disk: views of the memory-mapped files, of which only the rows wanted are read."""

    def __init__(self, stored: StoredVectors, starts: Int[np.ndarray, "texts"]) -> None:
        import pyarrow

        self.starts = starts
        self.shape = (len(stored.layers), stored.dims[0])
        self.pieces: list[list[Float[np.ndarray, "rows width"]]] = []  # of each group of rows, layer by layer
        sizes = [0]
        for part in stored.manifest["parts"]:
            file = pyarrow.ipc.open_file(pyarrow.memory_map(str(stored.path / part["file"])))
            for number in range(file.num_record_batches):
                group = file.get_batch(number)
                columns = [group.column(column_of(layer)).flatten().to_numpy() for layer in stored.layers]
                self.pieces.append([column.reshape(-1, self.shape[1]) for column in columns])
                sizes.append(group.num_rows)
        self.borders = np.cumsum(sizes)

    def gather(
        self, texts: Int[np.ndarray, "rows"], lengths: Int[np.ndarray, "rows"], longest: int
    ) -> Float[Tensor, "layers rows tokens width"]:
        """As Layers.gather."""
        layers, width = self.shape
        found = np.zeros((layers, len(texts), longest, width), dtype=np.float32)
        firsts = self.starts[texts]
        groups = np.searchsorted(self.borders, firsts, side="right") - 1
        for row, (first, length, group) in enumerate(zip(firsts.tolist(), lengths.tolist(), groups.tolist(), strict=True)):
            done = 0
            while done < length:
                begin = first + done - int(self.borders[group])
                for layer, piece in enumerate(self.pieces[group]):
                    rows = piece[begin : begin + length - done]
                    found[layer, row, done : done + len(rows)] = rows
                done += len(self.pieces[group][0]) - begin
                group += 1
        return torch.from_numpy(found)


def embed_texts(
    elmo: "Elmo",
    texts: Sequence[tuple[str, ...]],
    *,
    context: Context = "sentence",
    documents: Sequence[int] | None = None,
    report: Report | None = None,
) -> Layers:
    """The layers of the texts, in memory, float16."""
    width, layers = elmo.dim, len(elmo.layers)
    distinct, documents, starts = _distinct(texts, context, documents)
    tokens = sum(map(len, distinct))
    vectors = np.zeros((tokens, layers, width), dtype=np.float16)
    _fill(vectors, elmo, distinct, context, documents, report)
    return Layers(vectors, starts)


def cached_layers(
    folder: str | Path,
    elmo: "Elmo",
    texts: Sequence[tuple[str, ...]],
    *,
    context: Context = "sentence",
    documents: Sequence[int] | None = None,
    report: Report | None = None,
) -> Layers:
    """The layers of the texts from a cache folder, computed and stored there first where they are not yet.

    Stored as `polyseme embed -o` stores vectors, in Arrow parts of float16; an interrupted computation goes on where it
    stopped. The name of an entry is a hash of the model, the texts and the context, so a changed model or a changed text
    never meets old vectors. Of several processes that want the same entry one computes it and the others wait.
    """
    distinct, documents, starts = _distinct(texts, context, documents)
    key = hashlib.sha256(f"{elmo.hash} {context} ".encode())
    key.update(json.dumps(distinct).encode())
    if context != "sentence":
        key.update(json.dumps(list(documents or [])).encode())
    place = Path(folder) / key.hexdigest()[:24]
    parts = [[text] for text in distinct] if context == "sentence" else _documents(distinct, documents)
    with _alone(place.with_suffix(".lock")):
        if not (place / MANIFEST).exists():
            total = sum(map(len, distinct))
            embed_corpus(
                _Parts(parts),
                place,
                elmo,
                bulk_settings(elmo, container="arrow", tokenized=True),
                report=None if report is None else lambda done, *_, **__: report(done, total, note="embedding"),
            )
    try:
        return StoredLayers(read_vectors(place), starts)
    except (FormatError, OSError) as error:
        raise FormatError(
            f"{place}: the cached vectors are damaged ({error}); delete the folder, they are computed anew."
        ) from error


class _Parts(Reader):
    """Texts in memory, those of a part as one sentence in the biLM's spelling, as the bulk writer reads its input."""

    def __init__(self, parts: Sequence[Sequence[tuple[str, ...]]]) -> None:
        super().__init__(["-"], form="text")
        self.parts = parts

    def sentences(self, split: object = None) -> Iterator[Sentences]:
        """The parts, in blocks."""
        done = 0
        for block in _side_by_side(self.parts):
            numbers = range(done, done + len(block))
            yield Sentences(self.sources[0], numbers, [[bilm_form(token) for text in part for token in text] for part in block])
            done += len(block)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process is inside."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _distinct(
    texts: Sequence[tuple[str, ...]], context: Context, documents: Sequence[int] | None
) -> tuple[list[tuple[str, ...]], list[int] | None, Int[np.ndarray, "texts"]]:
    """The texts to embed, their documents, and where each text's vectors start.

    Equal texts have equal vectors, and in document context equal documents have.
    """
    seen: dict[tuple[tuple[str, ...], ...], int] = {}
    distinct: list[tuple[str, ...]] = []
    numbers: list[int] = []
    starts: list[int] = []
    total = 0
    for block in _documents(texts, documents) if context != "sentence" else ((text,) for text in texts):
        key = tuple(block)
        if key not in seen:
            seen[key] = total
            numbers.extend([len(seen)] * len(key))
            distinct.extend(key)
            total += sum(map(len, key))
        starts.extend(accumulate(map(len, key[:-1]), initial=seen[key]))
    return distinct, None if context == "sentence" else numbers, np.array(starts, dtype=np.int64)


def _fill(
    vectors: Float[np.ndarray, "tokens layers width"],
    elmo: "Elmo",
    texts: Sequence[tuple[str, ...]],
    context: Context,
    documents: Sequence[int] | None,
    report: Report | None,
) -> None:
    """Embeds the texts block by block; documents are read as one long sentence each, some of them side by side."""
    start = done = 0
    parts = [[text] for text in texts] if context == "sentence" else _documents(texts, documents)
    for block in _side_by_side(parts):
        sentences = [[bilm_form(token) for text in part for token in text] for part in block]
        for array in elmo.embed(sentences, layers="all", raw=True):
            vectors[start : start + array.shape[1]] = np.asarray(array).transpose(1, 0, 2)
            start += array.shape[1]
        done += sum(map(len, block))
        if report is not None:
            report(done, len(texts), note="embedding")


def _side_by_side(parts: Sequence[Sequence[tuple[str, ...]]]) -> Iterator[list[Sequence[tuple[str, ...]]]]:
    """The parts in blocks of so many tokens and parts at most, one part at least."""
    block: list[Sequence[tuple[str, ...]]] = []
    tokens = 0
    for part in parts:
        size = sum(map(len, part))
        if block and (len(block) == _BLOCK or tokens + size > _BLOCK_TOKENS):
            yield block
            block, tokens = [], 0
        block.append(part)
        tokens += size
    if block:
        yield block


def _documents(texts: Sequence[tuple[str, ...]], documents: Sequence[int] | None) -> list[Sequence[tuple[str, ...]]]:
    """The documents; all texts are one where they are not numbered."""
    if documents is None:
        return [texts] if texts else []
    borders = [0, *(n for n in range(1, len(texts)) if documents[n] != documents[n - 1]), len(texts)]
    return [texts[first:last] for first, last in pairwise(borders) if first < last]
