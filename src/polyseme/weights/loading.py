"""load and save: an Elmo out of files of any layout, and into a native folder."""

from pathlib import Path

from polyseme.characters import LexiconScheme
from polyseme.elmo import Elmo
from polyseme.weights.checkpoint import Checkpoint, build, reader
from polyseme.weights.native import write_native
from polyseme.weights.read import read


def load(
    path: str | Path,
    *,
    options: str | Path | None = None,
    vocabulary: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    layout: str | None = None,
    revision: str | None = None,
) -> Elmo:
    """An Elmo from any published form of its weights, told apart by content.

    Args:
        path: a folder, a weight file, a zip, a bundled model's name, or a hub id.
        options: the options.json that belongs to a weight file, where its name or place does not tell.
        vocabulary: the words of the softmax or of the word embedding, one a line.
        token_embeddings: precomputed token vectors, one for each word of the vocabulary, to read instead of characters.
        layout: read the files as this layout, where they could be more than one.
        revision: the version of a hub id.

    Raises:
        WeightsError: nothing readable is there; the message names every layout that was tried.
    """
    checkpoint = read(
        path, options=options, vocabulary=vocabulary, token_embeddings=token_embeddings, layout=layout, revision=revision
    )
    return elmo(checkpoint, name=Path(path).name)


def elmo(checkpoint: Checkpoint, *, name: str = "") -> Elmo:
    """The Elmo of a checkpoint; they share their memory."""
    return Elmo(build(checkpoint), reader(checkpoint), vocabulary=checkpoint.vocabulary, mixes=checkpoint.mixes, name=name)


def save(elmo: Elmo, path: str | Path) -> None:
    """Writes a native folder, which `load` reads back bit for bit."""
    write_native(checkpoint_of(elmo), Path(path))


def checkpoint_of(elmo: Elmo) -> Checkpoint:
    """The checkpoint of an Elmo; they share their memory."""
    scheme = elmo.reader.scheme
    return Checkpoint(
        config=elmo.config,
        tensors={name: parameter.detach().cpu() for name, parameter in elmo.model.named_parameters()},
        vocabulary=elmo.vocabulary,
        lexicon=elmo.reader.lexicon,
        characters=scheme.characters if isinstance(scheme, LexiconScheme) else None,
        mixes=elmo.mixes,
    )
