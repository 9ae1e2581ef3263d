"""polyseme info: what a model is."""

import json
from typing import TYPE_CHECKING, Any

import click

from polyseme.cli.options import DEFAULT_MODEL, ModelFiles, companion_options, examples, json_option

if TYPE_CHECKING:
    from polyseme.config import BiLMConfig
    from polyseme.weights import Checkpoint


@click.command(
    epilog=examples(
        "polyseme info en-small",
        "polyseme info elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5 --json",
    )
)
@click.argument("model", default=DEFAULT_MODEL)
@companion_options
@json_option("One JSON object, with the complete configuration.")
def command(
    model: str,
    options: str | None,
    vocabulary: str | None,
    token_embeddings: str | None,
    layout: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """Show what a model is: layers, size, words, layout, hash.

    The hash is that of configuration and weights, the same in whatever layout a model is stored.
    """
    files = ModelFiles(
        path=model,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    facts = _facts(model, files.read())
    click.echo(json.dumps(facts, ensure_ascii=False, indent=2) if as_json else _text(facts))


def _facts(name: str, checkpoint: "Checkpoint") -> dict[str, Any]:
    from polyseme import kernels
    from polyseme.weights import LAYOUTS, checkpoint_hash

    config = checkpoint.config
    sizes = {key: tensor.numel() for key, tensor in checkpoint.tensors.items()}
    words = checkpoint.vocabulary or checkpoint.lexicon
    return {
        "model": name,
        "layout": checkpoint.layout,
        "looks_like": LAYOUTS.get(checkpoint.layout, checkpoint.layout),
        "architecture": _architecture(config),
        "parameters": sum(sizes.values()),
        "softmax_parameters": sum(size for key, size in sizes.items() if key.startswith("softmax.")),
        "layers": [{"name": name, "dim": dim} for name, dim in zip(config.layer_names, config.layer_dims, strict=True)],
        "state": config.warm,
        "tokenization": config.tokenization,
        "softmax": config.vocabulary_size is not None,
        "vocabulary_size": config.vocabulary_size if words is None else len(words),
        "vocabulary_listed": words is not None,
        "mixes": [{"weights": mix.weights, "gamma": mix.gamma} for mix in checkpoint.mixes],
        "hash": checkpoint_hash(checkpoint),
        "kernel": kernels.in_use(),
        "metadata": checkpoint.metadata,
        "config": config.to_dict(),
    }


def _architecture(config: "BiLMConfig") -> str:
    """The model in one line: token encoder, LSTMs."""
    parts = []
    if config.words is not None:
        parts.append(f"{config.words.size:,} words of width {config.words.dim}")
    if config.characters is not None:
        characters = config.characters
        kind = "bytes" if characters.scheme == "bytes" else f"{characters.size:,} characters"
        plural = "s" if characters.highways != 1 else ""
        parts.append(
            f"{kind} of width {characters.dim}, CNN {characters.width} ({characters.activation}), "
            f"{characters.highways} highway layer{plural}"
        )
    encoder = " + ".join(parts) + (f", projected to {config.projection}" if config.projection is not None else "")
    lstm = config.lstm
    projected = "" if lstm.projection is None else f" projected to {lstm.projection}"
    clips = [f"{what} at {clip:g}" for what, clip in (("cell", lstm.cell_clip), ("projection", lstm.projection_clip)) if clip]
    return (
        f"{encoder}; {lstm.layers} LSTM layer{'s' if lstm.layers > 1 else ''} of {lstm.dim}{projected}, "
        f"{'both directions' if lstm.bidirectional else 'forward only'}, {'residual' if lstm.residual else 'not residual'}, "
        + (f"clipped ({', '.join(clips)})" if clips else "not clipped")
    )


def _text(facts: dict[str, Any]) -> str:
    size = facts["parameters"]
    states = {"fixed_point": "warm: a constant, the fixed point of the empty sentence", "zero": "zero"}
    if not facts["softmax"]:
        softmax = "no: it gives vectors, not probabilities"
    else:
        softmax = f"yes, over {facts['config']['vocabulary_size']:,} words ({facts['softmax_parameters']:,} parameters)"
    count = facts["vocabulary_size"]
    vocabulary = "none" if count is None else f"{count:,} words" + ("" if facts["vocabulary_listed"] else ", not listed here")
    rows = [
        ("model", facts["model"]),
        ("layout", f"{facts['layout']}: {facts['looks_like']}"),
        ("architecture", facts["architecture"]),
        ("parameters", f"{size:,} ({_bytes(4 * size)} in float32)"),
        ("layers", ", ".join(f"{layer['name']} {layer['dim']}" for layer in facts["layers"])),
        ("start state", states[facts["state"]]),
        ("tokenization", facts["tokenization"]),
        ("softmax", softmax),
        ("vocabulary", vocabulary),
        ("hash", facts["hash"]),
        ("kernel", facts["kernel"]),
    ]
    for number, mix in enumerate(facts["mixes"]):
        rows.append((f"mix {number}", f"weights {', '.join(f'{w:g}' for w in mix['weights'])}; gamma {mix['gamma']:g}"))
    if facts["metadata"]:
        rows.append(("metadata", "; ".join(f"{key}: {value}" for key, value in sorted(facts["metadata"].items()))))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"
