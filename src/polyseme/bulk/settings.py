"""What decides the numbers and the form of stored vectors: the same settings, model and input give the same files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from polyseme.config import Checked
from polyseme.errors import InputError
from polyseme.selection import Layers, Pool, select
from polyseme.vectors import Container, Dtype

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

#: The size of a part and of a group of its rows, in bytes of vectors; a killed run loses less than two parts.
PART_BYTES, GROUP_BYTES = 32 << 20, 2 << 20
#: No part is smaller: sentences are sorted by length inside a part, and more of them pad less.
_PART_TOKENS = 1 << 14
_LETTERS = 5  # of a token and the blank after it, by and large
_ITEM = {"float32": 4, "float16": 2, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class BulkSettings(Checked):
    """Everything but model and input that the files depend on; `bulk_settings` fills it in for a model.

    layers, weights  "all", or the name of what is stored: a layer, "mean" or "mix", with the layers' weights where mixed
    columns, widths  of the vectors
    pool, state, boundaries, precision, batch_tokens  as `Elmo.embed` takes them
    dtype            how numbers are stored; int8 with one scale for each row
    container        "parquet" or "arrow"
    tokenization     how texts are cut; None: they are tokenized
    split            texts are split into sentences first
    portion, rows    letters of a part, rows of a group
    """

    layers: str
    weights: tuple[float, ...] | None
    columns: tuple[str, ...]
    widths: tuple[int, ...]
    pool: Literal["mean", "max", "first_last"] | None = None
    state: Literal["warm", "zero"] = "warm"
    boundaries: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int | None = None
    dtype: Dtype = "float16"
    container: Container = "parquet"
    tokenization: Literal["penn", "whitespace", "characters"] | None = None
    split: bool = False
    portion: int = 1 << 18
    rows: int = 1 << 10

    def validate(self) -> None:
        """Pooled vectors have no markers; tokenized text is not split."""
        self.positive("batch_tokens", "portion", "rows")
        if self.pool is not None and self.boundaries:
            raise InputError("boundaries goes with vectors of tokens, not with pool: markers are never pooled.")
        if self.split and self.tokenization is None:
            raise InputError("split goes with raw text: a tokenized line is one sentence.")

    @property
    def embed_layers(self) -> str | list[float]:
        """What `Elmo.embed` is asked for."""
        return self.layers if self.weights is None else list(self.weights)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's vectors."""
        return sum(self.widths) * _ITEM[self.dtype] + (4 * len(self.widths) if self.dtype == "int8" else 0)


def bulk_settings(
    elmo: "Elmo",
    *,
    layers: Layers = "all",
    pool: Pool | None = None,
    state: Literal["warm", "zero"] = "warm",
    boundaries: bool = False,
    precision: Literal["float32", "bfloat16"] = "float32",
    batch_tokens: int | None = None,
    dtype: Dtype = "float16",
    container: Container = "parquet",
    tokenized: bool = False,
    split: bool = False,
    part_tokens: int | None = None,
) -> BulkSettings:
    """The settings for a model; `part_tokens` is about how many tokens a part holds, None chooses."""
    selection = select(layers, elmo.config)
    names = tuple(elmo.layers[number] for number in selection.numbers)
    weights = None
    if selection.stacked:
        stored = "all"
    elif selection.weights is None:
        (stored,) = names
    else:
        stored = "mean" if isinstance(layers, str) else "mix"
        placed = dict(zip(selection.numbers, selection.weights, strict=True))
        weights = tuple(placed.get(number, 0.0) for number in range(len(elmo.layers)))
    widths = tuple(elmo.config.layer_dims[number] for number in selection.numbers)
    values: dict[str, Any] = {
        "layers": stored,
        "weights": weights,
        "columns": names if selection.stacked else (stored,),
        "widths": widths if selection.stacked else widths[:1],
        "pool": pool,
        "state": state,
        "boundaries": boundaries,
        "precision": precision,
        "batch_tokens": batch_tokens,
        "dtype": dtype,
        "container": container,
        "tokenization": None if tokenized else elmo.config.tokenization,
        "split": split,
    }
    row_bytes = BulkSettings(**values).row_bytes
    if part_tokens is None:
        part_tokens = max(PART_BYTES // row_bytes, _PART_TOKENS)
    elif part_tokens < 1:
        raise InputError(f"part_tokens is {part_tokens}; wanted at least 1.")
    letters = 1 if elmo.config.tokenization == "characters" and not tokenized else _LETTERS
    rows = 1 << max(6, min(13, (GROUP_BYTES // row_bytes).bit_length() - 1))
    return BulkSettings(**values, portion=part_tokens * letters, rows=rows)
