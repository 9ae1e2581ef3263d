"""HDF5 as scripts of AllenNLP's time read it: one file, written from whole parts, beside its place and renamed."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from jaxtyping import Float

from polyseme.bulk.place import Place
from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import BulkSettings
from polyseme.errors import FormatError, InputError
from polyseme.progress import Report
from polyseme.sources import Reader, Sentences
from polyseme.vectors import StoredVectors
from polyseme.weights.files import replacing_file

if TYPE_CHECKING:
    from polyseme.elmo import Elmo


class SentenceWriter(Protocol):
    """Takes the sentences in order."""

    def __call__(self, number: int, tokens: Sequence[str], vectors: Float[np.ndarray, "..."]) -> None:
        """Writes the vectors of one sentence."""
        ...


@contextlib.contextmanager
def allennlp_writer(path: Path, *, dtype: Literal["float32", "float16"] = "float32") -> Iterator[SentenceWriter]:
    """Dataset "n" for sentence n, blank lines and equal sentences included, and `sentence_to_index`.

    That is one string, the JSON of an object from tokens joined by blanks to "n"; of equal sentences it names the last. It
    is held in memory until the end: about as much as the text.
    """
    import h5py

    index: dict[str, str] = {}
    with h5py.File(path, "w") as file:

        def write(number: int, tokens: Sequence[str], vectors: Float[np.ndarray, "..."]) -> None:
            file.create_dataset(str(number), data=vectors, dtype=dtype)
            # Any encoding of Unicode can write this: unpaired surrogates become question marks.
            index[" ".join(tokens).encode("utf-8", errors="replace").decode("utf-8")] = str(number)

        yield write
        texts = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype(encoding="utf-8"))
        texts[0] = json.dumps(index)


class DocumentReader(Reader):
    """Documents as e2e-coref reads them: JSON lines with `doc_key` and `sentences`, a list of lists of tokens."""

    def __init__(self, inputs: Sequence[str | Path]) -> None:
        super().__init__(inputs, form="text")
        #: The key of each document read so far, and how many sentences it has.
        self.documents: dict[str, int] = {}

    def sentences(self, split: Any = None) -> Iterator[Sentences]:
        """The sentences of each document."""
        for block in self.blocks():
            for line, value in zip(block.lines, block.values, strict=True):
                if isinstance(value, str) and value.strip():
                    found = self._document(f"{block.source.name}, line {line}", value)
                    yield Sentences(block.source, [line] * len(found), found)

    def _document(self, where: str, text: str) -> list[list[str]]:
        try:
            record = json.loads(text)
        except ValueError as error:
            raise FormatError(f"{where}: not valid JSON ({error}); wanted one document a line.") from error
        key, sentences = (record.get("doc_key"), record.get("sentences")) if isinstance(record, dict) else (None, None)
        whole = isinstance(sentences, list) and all(
            isinstance(sentence, list) and all(isinstance(token, str) for token in sentence) for sentence in sentences
        )
        if not isinstance(key, str) or not isinstance(sentences, list) or not whole:
            raise FormatError(f"{where}: no document; wanted a string under doc_key and lists of tokens under sentences.")
        key = key.replace("/", ":")  # in HDF5 a slash would make a group
        if key in self.documents:
            raise FormatError(f"{where}: a second document of the key {key!r}; give every document a key of its own.")
        self.documents[key] = len(sentences)
        return sentences


def embed_to_hdf5(
    reader: Reader,
    output: Path,
    elmo: "Elmo",
    settings: BulkSettings,
    *,
    workers: int = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """The vectors of everything the reader reads, as one HDF5 file; of documents (DocumentReader) in e2e-coref's layout.

    What is computed waits as parts in the folder OUTPUT.parts, from which a run that was ended goes on; the folder goes when
    the file is whole. e2e-coref's layout has a group for each document, in it a dataset for each sentence: (tokens, dim,
    layers).
    """
    if settings.dtype == "int8":
        raise InputError("dtype is 'int8'; HDF5 files of this layout hold float32 or float16.")
    if isinstance(reader, DocumentReader) and (settings.layers != "all" or settings.pool or settings.boundaries):
        raise InputError("e2e-coref's layout holds all layers of every token; leave out layers, pool and boundaries.")
    parts = output.with_name(output.name + ".parts")
    manifest = embed_corpus(reader, parts, elmo, settings, workers=workers, overwrite=overwrite, report=report)
    with Place(parts).held():
        vectors = StoredVectors(parts)
        with replacing_file(output) as beside:
            if isinstance(reader, DocumentReader):
                _write_documents(beside, vectors, reader.documents, settings.dtype)
            else:
                with allennlp_writer(beside, dtype=settings.dtype) as write:
                    for number in range(len(vectors)):
                        write(number, *vectors[number])
    shutil.rmtree(parts)
    return manifest


def _write_documents(path: Path, vectors: StoredVectors, documents: dict[str, int], dtype: str) -> None:
    import h5py

    number = 0
    with h5py.File(path, "w") as file:
        for key, count in documents.items():
            group = file.create_group(key)
            for sentence in range(count):
                group.create_dataset(str(sentence), data=vectors[number].vectors.transpose(1, 2, 0), dtype=dtype)
                number += 1
