"""polyseme embed: the vectors of sentences, of a corpus, or of one word in several sentences."""

import glob
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from polyseme.cli.options import ModelFiles, examples, json_option, model_option, text_options
from polyseme.cli.reading import SentenceSource
from polyseme.cli.store import refuse_store_options, store, store_options
from polyseme.cli.vector_files import FOLDERS, FORMATS, Format, format_of, printable, shortest, vector_writer
from polyseme.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from polyseme.elmo import Elmo

_Vectors = tuple[list[str], "np.ndarray"]


@click.command(
    epilog=examples(
        'polyseme embed "He broke the stick." "Labels stick to glass." -o vectors.npz',
        'polyseme embed --word stick "He broke the stick." "Labels stick to glass."',
        "polyseme embed 'corpus/*.txt.xz' --tokenized --layers top -o vectors",
        "polyseme embed --tokenized -i corpus.txt.gz --layers mean -o corpus.hdf5",
        "echo MKTAYIAKQR | polyseme embed --model seqvec --layers mean --pool mean",
    )
)
@text_options
@model_option
@click.option("--layers", default="all", show_default=True, help="all, mean, top, a name or number, weights W,W,W, or mixN.")
@click.option("--mix", metavar="W,W,W", help="The same as --layers W,W,W or --layers mixN.")
@click.option("--pool", type=click.Choice(["mean", "max", "first_last"]), help="One vector for each sentence.")
@click.option("--state", type=click.Choice(["warm", "zero"]), default="warm", show_default=True, help="Where the LSTMs start.")
@click.option(
    "--context", default="sentence", show_default=True, help="sentence; document: each input is one; or N words around."
)
@click.option("--boundaries", is_flag=True, help="Keep the vectors of the sentence markers.")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--batch-tokens", type=click.IntRange(min=1), help="How many tokens are computed at a time.")
@click.option("--word", metavar="WORD", help="Only this word's vectors, side by side, and their cosines.")
@click.option(
    "-o",
    "--output",
    metavar="DIR|FILE",
    help="Store in the folder DIR, or write FILE.jsonl, FILE.npz or FILE.hdf5, instead of JSON lines to stdout.",
)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="What to write, where the name does not tell; DIR: parquet.")
@store_options
@json_option("With --word: one JSON object with the complete vectors.")
def command(
    texts: tuple[str, ...],
    inputs: tuple[str, ...],
    tokenized: bool,
    split: bool,
    model: str,
    options: str | None,
    vocabulary: str | None,
    token_embeddings: str | None,
    layout: str | None,
    revision: str | None,
    device: str,
    layers: str,
    mix: str | None,
    pool: Literal["mean", "max", "first_last"] | None,
    state: Literal["warm", "zero"],
    context: str,
    boundaries: bool,
    precision: Literal["float32", "bfloat16"],
    batch_tokens: int | None,
    word: str | None,
    output: str | None,
    kind: Format | None,
    as_json: bool,
) -> None:
    """Vectors of sentences, of a corpus, or of a word in its sentences.

    Sentences are arguments, the lines of files, or the lines of the standard input; arguments that name files are files.
    With -o DIR vectors are stored in parts as large as a corpus makes them, and the same command goes on where it was ended:
    the folder is what polyseme.read_vectors opens. JSON lines hold "sentence", "tokens"
    and "vectors": layers × tokens × numbers, or without the layers where one is chosen or they are mixed, or without the
    tokens where they are pooled. In .npz and HDF5 files sentence n is the array "n"; HDF5 is as AllenNLP wrote it.
    """
    if word is not None and (pool or output or boundaries):
        raise click.UsageError("--word goes with none of --pool, --output, --boundaries: it prints the vectors of one word.")
    if as_json and word is None:
        raise click.UsageError("--json goes with --word; without it, the output on stdout is JSON lines already.")
    if mix is not None and layers != "all":
        raise click.UsageError("--mix and --layers exclude each other.")
    layers = mix or layers
    texts, inputs = _files_apart(texts, inputs)
    kind = format_of(output, kind)
    files = ModelFiles(
        path=model,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    elmo = files.open(device=device)
    settings: dict[str, Any] = {
        "layers": _layers(layers, elmo),
        "pool": pool,
        "state": state,
        "boundaries": boundaries,
        "precision": precision,
        "batch_tokens": batch_tokens,
    }
    if output is not None and (kind in FOLDERS or (kind == "hdf5" and not texts and context == "sentence")):
        if context != "sentence":
            raise click.UsageError("--context goes with sentences on the command line, .jsonl and .npz, not with stored parts.")
        store(elmo, (*inputs, *texts), output, kind, tokenized=tokenized, split=split, settings=settings)
        return
    refuse_store_options(kind)
    source = SentenceSource(texts, inputs, elmo, tokenized=tokenized, split=split)
    vectors = _embedded(elmo, source, _context(context), settings)
    if word is not None:
        names = elmo.layers if layers == "all" else (layers,)
        _show_word(word, names, vectors, as_json=as_json)
        return
    with source.progress("embed") as progress, vector_writer(output, kind) as write:
        for number, (tokens, array) in enumerate(vectors):
            write(number, tokens, array)
            if output is not None:
                source.report(progress)


def _files_apart(texts: tuple[str, ...], inputs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arguments are files where every one of them names some, else sentences."""
    if texts and all(text == "-" or "://" in text or Path(text).is_file() or glob.glob(text, recursive=True) for text in texts):
        return (), (*texts, *inputs)
    return texts, inputs


def _layers(text: str, elmo: "Elmo") -> Any:
    """What `elmo.embed` takes as layers."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    if text.startswith("mix") and text[3:].isdecimal():
        if int(text[3:]) >= len(elmo.mixes):
            raise InputError(f"--layers is {text!r}, but the model has {len(elmo.mixes)} mixes; see `polyseme info`.")
        return elmo.mixes[int(text[3:])]
    if "," in text:
        try:
            return [float(part) for part in text.split(",")]
        except ValueError as error:
            raise InputError(f"--layers is {text!r}; wanted one number for each layer, separated by commas.") from error
    return text


def _context(text: str) -> int | Literal["sentence", "document"]:
    if text == "sentence" or text == "document":
        return text
    if text.isdecimal():
        return int(text)
    raise click.BadParameter(f"{text!r}; wanted sentence, document, or a number of words.", param_hint="--context")


def _embedded(
    elmo: "Elmo", source: SentenceSource, context: int | Literal["sentence", "document"], settings: dict[str, Any]
) -> Iterator[_Vectors]:
    """Each sentence's tokens and vectors: as a stream, or document by document where sentences see their neighbours."""
    if context != "sentence":
        for document in source.documents():
            sentences = list(document)
            yield from zip(sentences, elmo.embed(sentences, context=context, **settings), strict=True)
        return
    waiting: deque[list[str]] = deque()

    def passing() -> Iterator[list[str]]:
        for tokens in source:
            waiting.append(tokens)
            yield tokens

    for array in elmo.embed_iter(passing(), **settings):
        yield waiting.popleft(), array


def _show_word(word: str, names: tuple[str, ...], vectors: Iterator[_Vectors], *, as_json: bool) -> None:
    """The word's vectors in each place where it stands, and the cosines between them, layer by layer."""
    import numpy as np

    places: list[tuple[int, int, list[str]]] = []
    found: list[np.ndarray] = []
    others: set[str] = set()
    for number, (tokens, array) in enumerate(vectors):
        for position, token in enumerate(tokens):
            if token == word:
                places.append((number, position, tokens))
                found.append(array[..., position, :].reshape(len(names), -1))
        if len(others) < 20:
            others.update(tokens)
    if not found:
        raise InputError(f"{word!r} is no token of these sentences; their tokens are {', '.join(sorted(others)[:20]) or 'none'}.")
    stacked = np.stack(found, axis=1).astype(np.float64)  # layers × places × numbers
    lengths = np.linalg.norm(stacked, axis=2, keepdims=True)
    unit = stacked / np.where(lengths == 0, 1, lengths)
    cosines = unit @ unit.transpose(0, 2, 1)
    if as_json:
        occurrences = [
            {
                "sentence": number,
                "position": position,
                "tokens": printable(tokens),
                "vectors": dict(zip(names, shortest(array), strict=True)),
            }
            for (number, position, tokens), array in zip(places, found, strict=True)
        ]
        table = dict(zip(names, cosines.round(6).tolist(), strict=True))
        click.echo(json.dumps({"word": word, "occurrences": occurrences, "cosines": table}, ensure_ascii=False))
        return
    width = len(str(len(places)))
    for row, (_, position, tokens) in enumerate(places, 1):
        marked = [*tokens[:position], f"[{word}]", *tokens[position + 1 :]]
        click.echo(f"{row:>{width}}  {' '.join(printable(marked))}")
    for name, layer, table in zip(names, stacked, cosines, strict=True):
        columns = "".join(f"{number:>7}" for number in range(1, len(places) + 1))
        click.echo(f"\n{name}\n{' ' * width}{columns}   vector ({layer.shape[1]:,} numbers)")
        for row, (vector, values) in enumerate(zip(layer, table, strict=True), 1):
            numbers = " ".join(f"{value:7.3f}" for value in vector[:5])
            click.echo(
                f"{row:>{width}}{''.join(f'{value:7.3f}' for value in values)}   {numbers}{' ...' if len(vector) > 5 else ''}"
            )
