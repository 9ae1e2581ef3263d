"""Checkpoint: what every reader returns; its model, its word reader and its hash."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from polyseme.characters import ByteScheme, LexiconScheme, WordReader
from polyseme.config import BiLMConfig
from polyseme.errors import WeightsError
from polyseme.mix import Mix
from polyseme.model import BiLM, model_hash
from polyseme.vocabulary import Vocabulary

#: Bytes; torch's own allocator keeps to it, files and numpy do not.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Checkpoint:
    """What every reader returns: a configuration, tensors under their native names, and the word lists that belong to them.

    Native names are those of `BiLM.state_dict()`; a tied softmax weight is listed once, as `token_encoder.words`.
    """

    config: BiLMConfig
    tensors: dict[str, Tensor]
    vocabulary: Vocabulary | None = None  # words of the softmax
    lexicon: Vocabulary | None = None  # words of the word embedding
    characters: Vocabulary | None = None  # characters of the lexicon scheme
    mixes: tuple[Mix, ...] = ()
    layout: str = "native"
    metadata: dict[str, str] = field(default_factory=dict)


def expected_shapes(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    """The native name and shape of every tensor a configuration needs; takes no memory."""
    return {name: tuple(parameter.shape) for name, parameter in _empty(config).named_parameters()}


def _empty(config: BiLMConfig) -> BiLM:
    """A model whose tensors have shapes and no memory."""
    try:
        with torch.device("meta"):
            return BiLM(config)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise WeightsError(f"the configuration asks for tensors no machine can hold ({error}); it is damaged.") from error


def compare_keys(
    wanted: Mapping[str, tuple[int, ...]], offered: Mapping[str, tuple[int, ...]], *, name: str, ignore_others: bool = False
) -> None:
    """Raises WeightsError unless exactly the wanted names are offered, in the wanted shapes.

    Args:
        wanted: the names and shapes the configuration asks for.
        offered: the names and shapes the file holds.
        name: the file, for the message.
        ignore_others: whether names that are not wanted are passed over.
    """
    missing = [key for key in wanted if key not in offered]
    if missing:
        raise WeightsError(
            f"{name} lacks {_some(missing)}, which its configuration asks for; it holds {_some(offered)}. The file is incomplete "
            "or the options belong to another model."
        )
    for key, shape in wanted.items():
        if tuple(offered[key]) != tuple(shape):
            raise WeightsError(
                f"{name}: {key} has shape {tuple(offered[key])}, but its configuration asks for {tuple(shape)}; "
                "the options belong to another model, or the file is damaged."
            )
    extra = [key for key in offered if key not in wanted]
    if extra and not ignore_others:
        raise WeightsError(
            f"{name} also holds {_some(extra)}, for which its configuration has no place; give the options that belong to it."
        )


def _some(keys: Mapping[str, object] | list[str]) -> str:
    names = list(keys)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "nothing"


def verify(checkpoint: Checkpoint, *, name: str = "the checkpoint") -> None:
    """Raises WeightsError unless names, shapes, types and values are those of a working model."""
    shapes = {key: tuple(tensor.shape) for key, tensor in checkpoint.tensors.items()}
    compare_keys(expected_shapes(checkpoint.config), shapes, name=name)
    for key, tensor in checkpoint.tensors.items():
        if tensor.dtype != torch.float32:
            raise WeightsError(f"{name}: {key} is {tensor.dtype}; wanted torch.float32.")
        if not is_finite(tensor):
            raise WeightsError(
                f"{name}: {key} holds values that are infinite or no numbers; the training that wrote it had diverged, or the "
                "file is damaged. Use an earlier one."
            )
    _verify_words(checkpoint, name)


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is a finite number; needs no copy of the tensor."""
    # The smallest and the largest value are finite only if all are.
    return tensor.numel() == 0 or bool(torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all())


def _verify_words(checkpoint: Checkpoint, name: str) -> None:
    config = checkpoint.config
    lists = (
        ("vocabulary", checkpoint.vocabulary, config.vocabulary_size, "softmax"),
        ("word list", checkpoint.lexicon, None if config.words is None else config.words.size, "word embedding"),
        (
            "character list",
            checkpoint.characters,
            None if config.characters is None or config.characters.scheme == "bytes" else config.characters.size,
            "character embedding",
        ),
    )
    for kind, words, size, table in lists:
        if words is not None and size is not None and len(words) != size:
            raise WeightsError(
                f"{name}: the {kind} has {len(words)} lines but the {table} has {size} rows; give the list it was trained with."
            )
    for mix in checkpoint.mixes:
        if len(mix.weights) != config.lstm.layers + 1:
            raise WeightsError(f"{name}: a mix has {len(mix.weights)} weights for {config.lstm.layers + 1} layers.")


def build(checkpoint: Checkpoint) -> BiLM:
    """The reference model with the checkpoint's tensors in it: the two share the memory of all that lies at a round address.

    Names wanted by the model, offered by the checkpoint and written into the model are compared, all three.
    """
    verify(checkpoint)
    model = _empty(checkpoint.config)
    written = set()
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        tensor = _aligned(checkpoint.tensors[name])
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=parameter.requires_grad))
        written.add(name)
    if checkpoint.config.tied_softmax and model.softmax is not None and model.token_encoder.words is not None:
        model.softmax.weight = model.token_encoder.words
    unwritten = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if unwritten or written != set(checkpoint.tensors):
        lost = sorted(set(unwritten) | (written ^ set(checkpoint.tensors)))
        raise WeightsError(f"the tensors {_some(lost)} did not reach the model.")
    return model.eval()


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor where torch itself would have put it: products may sum in another order at an odd address.

    Without this the same weights, read from two layouts, would give vectors that differ in their last bits.
    """
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def reader(checkpoint: Checkpoint) -> WordReader:
    """What turns strings into the ids the checkpoint's model reads."""
    config = checkpoint.config
    scheme: ByteScheme | LexiconScheme | None = None
    if config.characters is not None and config.characters.scheme == "bytes":
        scheme = ByteScheme(max_characters=config.characters.max_characters)
    elif config.characters is not None:
        if checkpoint.characters is None:
            raise WeightsError("the model spells words by a character list, which is not there; give the model's whole folder.")
        scheme = LexiconScheme(checkpoint.characters, max_characters=config.characters.max_characters)
    if config.words is None:
        return WordReader(scheme=scheme, lexicon=None)
    if checkpoint.lexicon is None:
        raise WeightsError(
            f"the model looks words up in an embedding of {config.words.size} rows, but the list of these words is not there; "
            'give it: vocabulary="vocab.txt".'
        )
    return WordReader(scheme=scheme, lexicon=checkpoint.lexicon, limit=config.words.limit)


def checkpoint_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 over the configuration and every tensor's name, shape and float32 bytes: the same on every machine."""
    return model_hash(checkpoint.config, checkpoint.tensors)
