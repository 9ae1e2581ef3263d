"""polyseme convert: from any layout into a native folder, or into AllenNLP's and bilm-tf's HDF5."""

import json

import click

from polyseme.cli.options import ModelFiles, companion_options, examples, json_option


@click.command(
    epilog=examples(
        "polyseme convert 193.zip norwegian",
        "polyseme convert en-small en_small_weights.hdf5",
    )
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@companion_options
@json_option("One JSON object about what was written.")
def command(
    source: str,
    target: str,
    options: str | None,
    vocabulary: str | None,
    token_embeddings: str | None,
    layout: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """Write a model in another layout: SRC as DST.

    A DST that ends in .hdf5 is written for AllenNLP and bilm-tf, with its options beside it; any other is a native folder.
    The weights stay bit for bit the same; HDF5 has no place for a softmax and its words, which are left out.
    """
    from polyseme.weights import checkpoint_hash, write

    files = ModelFiles(
        path=source,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    checkpoint = files.read()
    write(checkpoint, target)
    left_out = checkpoint.config.vocabulary_size is not None and target.endswith((".hdf5", ".h5"))
    if as_json:
        facts = {"source": source, "target": target, "layout": checkpoint.layout, "source_hash": checkpoint_hash(checkpoint)}
        click.echo(json.dumps({**facts, "softmax_left_out": left_out}, ensure_ascii=False))
    else:
        note = " The softmax was left out: HDF5 files have no place for it." if left_out else ""
        click.echo(f"{source} ({checkpoint.layout}) is now {target}.{note}")
