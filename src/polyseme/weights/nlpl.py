"""Zips of the NLPL repository: a bilm-tf model, or one of ELMoForManyLangs, told apart by content and read where they lie."""

from dataclasses import replace
from pathlib import Path

from polyseme.errors import InputError, WeightsError
from polyseme.vocabulary import Vocabulary
from polyseme.weights.allennlp import read_hdf5
from polyseme.weights.checkpoint import Checkpoint
from polyseme.weights.files import Zip, read_json, read_vocabulary
from polyseme.weights.many_langs import is_many_langs, read_many_langs


def read_zip(path: Path, *, options: Path | None = None, vocabulary: Path | None = None) -> Checkpoint:
    """A checkpoint from a zip; options and vocabulary are those inside unless they are given."""
    files = Zip(path)
    if is_many_langs(files):
        if options is not None or vocabulary is not None:
            raise InputError(f"{path} is an ELMoForManyLangs model, which takes no options and no vocabulary; leave them out.")
        return read_many_langs(files)
    names = files.names()
    weights = [name for name in names if name.endswith((".hdf5", ".h5"))]
    inside = [name for name in names if name.endswith("options.json")]
    if len(weights) != 1 or (len(inside) != 1 and options is None):
        raise WeightsError(
            f"{path} holds {', '.join(names) or 'no files'}; wanted model.hdf5 and options.json (bilm-tf), or encoder.pkl and "
            "token_embedder.pkl (ELMoForManyLangs)."
        )
    options_name = f"{inside[0]} in {path}" if options is None else str(options)
    values = read_json(files.read(inside[0]) if options is None else options.read_bytes(), name=options_name)
    with files.open(weights[0]) as stream:
        checkpoint = read_hdf5(
            stream,
            values,
            name=f"{weights[0]} in {path}",
            options_name=options_name,
            vocabulary=_vocabulary(files) if vocabulary is None else read_vocabulary(vocabulary),
        )
    return replace(checkpoint, layout="nlpl", metadata={"source": path.name})


def _vocabulary(files: Zip) -> Vocabulary | None:
    names = [name for name in files.names() if name in ("vocab.txt", "vocab.txt.gz")]
    if not names:
        return None
    return read_vocabulary(Path(names[0]), files=files)
