"""BiLMConfig: everything that decides a model's shapes and arithmetic, as frozen values with a strict JSON round trip."""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from polyseme.errors import InputError

_T = TypeVar("_T")


def _check_type(owner: str, name: str, value: object, hint: object) -> object:
    """The value as the annotation wants it (lists become tuples, dicts dataclasses), or an InputError."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        if option is type(None):
            if value is None:
                return None
        elif dataclasses.is_dataclass(option) and isinstance(option, type):
            if isinstance(value, dict):
                return from_dict(option, value)
            if isinstance(value, option):
                return value
        elif typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif typing.get_origin(option) is tuple:
            parts = typing.get_args(option)
            if isinstance(value, (list, tuple)) and (Ellipsis in parts or len(value) == len(parts)):
                return tuple(_check_type(owner, name, part, parts[0]) for part in value)
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif option is bool or not isinstance(value, bool):
            if isinstance(option, type) and isinstance(value, option):
                return value
    raise InputError(f"{owner}.{name} is {value!r}; wanted {_wanted(hint)}.")


def _wanted(hint: object) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("polyseme.config.", "")


def from_dict(kind: type[_T], values: dict[str, Any]) -> _T:
    """A configuration dataclass from plain JSON values; unknown and missing keys are errors that name the known ones."""
    known = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind))}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InputError(f"{kind.__name__} has no {', '.join(unknown)}; it knows {', '.join(known)}.")
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{kind.__name__} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not given.")
    return kind(**values)


class Checked:
    """Checks and normalises every field of a frozen dataclass against its annotation."""

    __slots__ = ()

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(typing.cast(Any, self)):
            value = _check_type(type(self).__name__, field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        self.validate()

    def validate(self) -> None:
        """Raises InputError where the fields do not go together."""

    def positive(self, *names: str) -> None:
        """Every named field that is set must be at least 1."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{type(self).__name__}.{name} is {value}; wanted at least 1.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(typing.cast(Any, self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of to_dict, strict."""
        return from_dict(cls, values)

    def to_json(self) -> str:
        """JSON with sorted structure as written, indented."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of to_json, strict."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError(f"{cls.__name__}: not valid JSON ({error}).") from error
        if not isinstance(values, dict):
            raise InputError(f"{cls.__name__}: wanted a JSON object, got {type(values).__name__}.")
        return cls.from_dict(values)


@dataclass(frozen=True, kw_only=True)
class CharacterConfig(Checked):
    """The character CNN. `size` is the number of rows of the character table: 261 in the byte scheme."""

    scheme: Literal["bytes", "lexicon"] = "bytes"
    size: int = 261
    dim: int = 16
    filters: tuple[tuple[int, int], ...]
    activation: Literal["relu", "tanh"] = "relu"
    highways: int = 1
    max_characters: int = 50

    def validate(self) -> None:
        """Shapes must be possible."""
        self.positive("size", "dim")
        if not self.filters or any(width < 1 or n < 1 for width, n in self.filters):
            raise InputError(
                f"CharacterConfig.filters is {self.filters}; wanted one or more (width, number) pairs, each at least 1."
            )
        if self.highways < 0:
            raise InputError(f"CharacterConfig.highways is {self.highways}; wanted 0 or more.")
        widest = max(width for width, _ in self.filters)
        if self.max_characters < max(3, widest):
            raise InputError(
                f"CharacterConfig.max_characters is {self.max_characters}; "
                f"wanted at least {max(3, widest)} (the widest filter, or 3)."
            )

    @property
    def width(self) -> int:
        """Number of all filters together."""
        return sum(n for _, n in self.filters)


@dataclass(frozen=True, kw_only=True)
class WordConfig(Checked):
    """The word embedding; `limit` cuts words before the lookup (ELMoForManyLangs)."""

    size: int
    dim: int
    limit: int | None = None
    markers: tuple[str, str, str] = ("<S>", "</S>", "<UNK>")

    def validate(self) -> None:
        """Shapes must be possible."""
        self.positive("size", "dim", "limit")


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(Checked):
    """Both directions' stacks. `forget_bias` is added to the stored bias when the model runs (TensorFlow models: 1)."""

    dim: int
    projection: int | None
    layers: int = 2
    residual: bool = True
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    forget_bias: float = 1.0
    bidirectional: bool = True

    def validate(self) -> None:
        """Shapes must be possible."""
        self.positive("dim", "projection")
        if not 1 <= self.layers <= 8:
            raise InputError(f"LSTMConfig.layers is {self.layers}; wanted 1 to 8.")
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise InputError(f"LSTMConfig.{name} is {clip}; wanted a number above 0, or null for no clipping.")

    @property
    def width(self) -> int:
        """Width of one direction's output."""
        return self.dim if self.projection is None else self.projection

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the directions, in the order in which their outputs are concatenated."""
        return ("forward", "backward") if self.bidirectional else ("forward",)


@dataclass(frozen=True, kw_only=True)
class BiLMConfig(Checked):
    """A bidirectional language model: token encoder, LSTM stacks, and perhaps a softmax over `vocabulary_size` words.

    `projection` is the width to which the token encoder projects, or None where it does not. `warm` names the
    state every sentence starts from by default: the fixed point of the empty sentence, or zero where that measured better.
    """

    characters: CharacterConfig | None
    words: WordConfig | None = None
    projection: int | None
    lstm: LSTMConfig
    vocabulary_size: int | None = None
    tied_softmax: bool = False
    tokenization: Literal["penn", "whitespace", "characters"] = "penn"
    warm: Literal["fixed_point", "zero"] = "fixed_point"

    def validate(self) -> None:
        """The parts must fit together."""
        self.positive("projection", "vocabulary_size")
        if self.characters is None and self.words is None:
            raise InputError("BiLMConfig has neither characters nor words; wanted one of them or both.")
        if self.tied_softmax and (self.words is None or self.vocabulary_size is None or self.characters is not None):
            raise InputError("BiLMConfig.tied_softmax needs a word embedding, no characters, and vocabulary_size.")

    @property
    def token_width(self) -> int:
        """Width of a token vector."""
        if self.projection is not None:
            return self.projection
        return (0 if self.words is None else self.words.dim) + (0 if self.characters is None else self.characters.width)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """("token", "lstm1", ...)."""
        return ("token", *(f"lstm{layer}" for layer in range(1, self.lstm.layers + 1)))

    @property
    def dim(self) -> int:
        """Width of a contextual layer: all directions together."""
        return self.lstm.width * len(self.lstm.directions)

    @property
    def layer_dims(self) -> tuple[int, ...]:
        """Width of every layer. The token vector is repeated once per direction, so that all are equal in usual models."""
        return (self.token_width * len(self.lstm.directions), *[self.dim] * self.lstm.layers)
