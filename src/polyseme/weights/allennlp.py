"""options.json + HDF5: the layout of AllenNLP, bilm-tf, NLPL and SeqVec, read and written."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from polyseme.config import WordConfig
from polyseme.errors import WeightsError
from polyseme.vocabulary import Vocabulary
from polyseme.weights.checkpoint import Checkpoint
from polyseme.weights.files import check_ratio, read_json, read_vocabulary, replacing_file
from polyseme.weights.tensorflow import canonical_name, config_from_options, from_native, options_from_config, to_native

MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class _Dataset:
    """One dataset of an open HDF5 file."""

    dataset: Any
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.shape)

    def read(self) -> np.ndarray:
        if self.dataset.external or self.dataset.is_virtual:
            raise WeightsError(f"{self.name} lies in another file, to which nothing here is allowed to point; it is not read.")
        check_ratio(self.dataset.nbytes, self.dataset.id.get_storage_size(), name=self.name)
        return self.dataset[...]


@contextlib.contextmanager
def _datasets(source: Path | BinaryIO, name: str) -> Iterator[dict[str, _Dataset]]:
    """Every dataset of a file by its full name."""
    import h5py

    try:
        with h5py.File(source, "r") as file:
            found: dict[str, _Dataset] = {}

            def collect(key: str, item: object) -> None:
                if isinstance(item, h5py.Dataset):
                    found[key] = _Dataset(item, f"{key} in {name}")

            file.visititems(collect)
            yield found
    except (OSError, RuntimeError, KeyError) as error:
        raise WeightsError(f"{name} is not a readable HDF5 file ({error}); it is damaged or incomplete.") from error


def is_model(path: Path) -> bool:
    """Whether an HDF5 file holds LSTM weights, rather than embeddings or token vectors."""
    try:
        with _datasets(path, str(path)) as datasets:
            return any((canonical_name(key) or "").startswith("RNN_") for key in datasets)
    except WeightsError:
        return False


def read_hdf5(
    weights: Path | BinaryIO,
    options: dict[str, Any],
    *,
    name: str,
    options_name: str,
    vocabulary: Vocabulary | None = None,
    token_embeddings: Path | None = None,
) -> Checkpoint:
    """A checkpoint from an HDF5 file and its options.

    Args:
        weights: the file, or its bytes as a seekable stream.
        options: the content of options.json.
        name: the weights file, for messages.
        options_name: the options file, for messages.
        vocabulary: the words in the order of their ids.
        token_embeddings: an HDF5 file of one vector per vocabulary word; with it the characters are left out.
    """
    with contextlib.ExitStack() as stack:
        datasets = stack.enter_context(_datasets(weights, name))
        stored = {}
        for key, dataset in datasets.items():
            canonical = canonical_name(key)
            if canonical is None or canonical in stored:
                raise WeightsError(f"{name} holds {key}, which is no weight of a biLM; wanted char_embed, CNN..., RNN_... only.")
            stored[canonical] = dataset
        if token_embeddings is not None:
            cached = stack.enter_context(_datasets(token_embeddings, str(token_embeddings)))
            if list(cached) != ["embedding"] or len(cached["embedding"].shape) != 2:
                held = ", ".join(cached) or "nothing"
                raise WeightsError(f"{token_embeddings} holds {held}; wanted one matrix named embedding.")
            # Token mode was asked for: the character part is known and left out.
            stored = {key: array for key, array in stored.items() if key.startswith("RNN_")} | cached
            options = {key: value for key, value in options.items() if key != "char_cnn"}
        config = config_from_options(options, {key: array.shape for key, array in stored.items()}, name=options_name)
        tensors = to_native(config, stored, name=name)
    if config.words is not None and vocabulary is not None:
        config = replace(config, words=WordConfig(size=config.words.size, dim=config.words.dim, markers=vocabulary.markers))
    return Checkpoint(
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        lexicon=vocabulary if config.words is not None else None,
        layout="allennlp",
    )


def _partners(path: Path, kind: str) -> list[str]:
    """The names a file that belongs to a weights file may have, the likeliest first.

    X_weights goes with X_options, X_weights_Y with X_options_Y or X_options, any other X with X_options; "options" with all.
    """
    head, found, tail = path.stem.rpartition("weights")
    names = (f"{head}{kind}{tail}", f"{head}{kind}", kind) if found else (f"{path.stem}_{kind}", kind)
    return list(dict.fromkeys(names))


def options_beside(path: Path) -> Path:
    """The options file paired with a weights file by its stem, or by being the only one in the folder."""
    candidates = [path.with_name(f"{name}.json") for name in _partners(path, "options")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    others = sorted(path.parent.glob("*options*.json"))
    if len(others) == 1:
        return others[0]
    found = f"the folder holds {', '.join(other.name for other in others)}" if others else "the folder holds no options file"
    raise WeightsError(f'{path} needs its options, {candidates[0].name}, and {found}; give it: options="options.json".')


def vocabulary_beside(path: Path) -> Path | None:
    """The vocabulary paired with a weights file by its stem, or by being the only one in the folder; None where there is none."""
    candidates = [path.with_name(f"{name}{suffix}") for name in _partners(path, "vocab") for suffix in (".txt", ".txt.gz")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    others = [*path.parent.glob("*vocab*.txt"), *path.parent.glob("*vocab*.txt.gz")]
    return others[0] if len(others) == 1 else None


def read_file(
    path: Path, *, options: Path | None = None, vocabulary: Path | None = None, token_embeddings: Path | None = None
) -> Checkpoint:
    """A checkpoint from an HDF5 file on disk, its options and perhaps its vocabulary beside it."""
    options = options_beside(path) if options is None else options
    beside = vocabulary_beside(path) if vocabulary is None else vocabulary
    values = read_json(options.read_bytes(), name=str(options))
    checkpoint = read_hdf5(
        path,
        values,
        name=str(path),
        options_name=str(options),
        vocabulary=None if beside is None else read_vocabulary(beside),
        token_embeddings=token_embeddings,
    )
    return replace(checkpoint, metadata={"source": path.name})


def write_hdf5(checkpoint: Checkpoint, path: Path) -> Path:
    """Writes an HDF5 file that AllenNLP and bilm-tf read, and its options beside it; returns the options' path.

    The layout has no place for a softmax and for mixes: they are left out. A model that looks words up gets its word list as
    STEM_vocab.txt too.
    """
    import h5py

    config = replace(checkpoint.config, vocabulary_size=None, tied_softmax=False)
    options = options_from_config(config)
    stem = path.stem.removesuffix("weights") if path.stem.endswith("weights") else f"{path.stem}_"
    options_path = path.with_name(f"{stem}options.json")
    with contextlib.ExitStack() as stack:
        # Entered last, renamed first: the weights appear after what belongs to them is complete, and before it is seen.
        beside = stack.enter_context(replacing_file(path))
        options_beside_it = stack.enter_context(replacing_file(options_path))
        options_beside_it.write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")
        if checkpoint.lexicon is not None:
            _write_lexicon(checkpoint.lexicon, stack.enter_context(replacing_file(path.with_name(f"{stem}vocab.txt"))))
        # Made in memory: where the disk is full, the HDF5 library ends the whole process instead of raising an error.
        content = BytesIO()
        with h5py.File(content, "w") as file:
            for name, array in from_native(config, checkpoint.tensors):
                file.create_dataset(name, data=array)
        beside.write_bytes(content.getbuffer())
    return options_path


def _write_lexicon(lexicon: Vocabulary, path: Path) -> None:
    """One word per line, as bilm-tf reads it: stripped, so that not every word can be held."""
    lines = "".join(word + "\n" for word in lexicon.words).encode("utf-8", errors="replace")
    if Vocabulary.parse(lines, name=str(path)).words != lexicon.words:
        raise WeightsError(
            "the model's words hold white space or invalid Unicode, which a bilm-tf vocabulary cannot; write a folder instead."
        )
    path.write_bytes(lines)
