"""The native layout: one folder with config.json, model.safetensors, and the word lists and softmax where the model has them."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from polyseme.config import BiLMConfig
from polyseme.errors import InputError, WeightsError
from polyseme.vocabulary import BILM_MARKERS, MANY_LANGS_MARKERS, Vocabulary
from polyseme.weights.checkpoint import Checkpoint, Mix, compare_keys, expected_shapes, is_finite, reader, verify
from polyseme.weights.files import read_json, replacing_folder

Dtype = Literal["float32", "float16", "bfloat16"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_STORED = ("F32", "F16", "BF16")

FORMAT, VERSION = "polyseme", 1
_KEYS = ("format", "version", "model", "mixes", "metadata", "vocabulary_markers")
#: The files of a model folder. training.json and training/ belong to whoever trained it.
FILES = frozenset(
    ("config.json", "model.safetensors", "softmax.safetensors", "vocab.txt", "lexicon.txt", "characters.txt", "README.md")
)


def is_native(folder: Path) -> bool:
    """Whether a folder's config.json says that it is ours."""
    config = folder / "config.json"
    if not config.is_file():
        return False
    try:
        return read_json(config.read_bytes(), name=str(config)).get("format") == FORMAT
    except WeightsError:
        # A damaged configuration beside our weights is a damaged model of ours, and is to be reported as that.
        return (folder / "model.safetensors").is_file()


def read_native(folder: Path) -> Checkpoint:
    """A checkpoint from a model folder. Without softmax.safetensors the model has no softmax, whatever its configuration says."""
    name = str(folder / "config.json")
    values = read_json((folder / "config.json").read_bytes(), name=name)
    unknown = sorted(set(values) - set(_KEYS))
    if values.get("format") != FORMAT or values.get("version") != VERSION or unknown:
        raise WeightsError(
            f"{name}: wanted format {FORMAT!r}, version {VERSION} and of other keys only {', '.join(_KEYS[2:])}; "
            f"got {values.get('format')!r}, {values.get('version')!r}{' and ' + ', '.join(unknown) if unknown else ''}."
        )
    try:
        config = BiLMConfig.from_dict(_typed(values.get("model"), dict, f"{name}: model"))
        mixes = tuple(Mix(tuple(map(float, mix["weights"])), float(mix["gamma"])) for mix in values.get("mixes", []))
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{name} cannot be used: {error}") from error
    metadata = {key: str(value) for key, value in _typed(values.get("metadata", {}), dict, f"{name}: metadata").items()}
    softmax = folder / "softmax.safetensors"
    if not softmax.is_file():
        config = replace(config, vocabulary_size=None, tied_softmax=False)
    wanted = expected_shapes(config)
    tensors = _read_tensors(folder / "model.safetensors", {key: s for key, s in wanted.items() if not key.startswith("softmax.")})
    if softmax.is_file():
        tensors |= _read_tensors(softmax, {key: s for key, s in wanted.items() if key.startswith("softmax.")})
    markers = values.get("vocabulary_markers", BILM_MARKERS)
    return Checkpoint(
        config=config,
        tensors={key: tensors[key] for key in wanted},
        vocabulary=_read_words(folder / "vocab.txt", markers),
        lexicon=_read_words(folder / "lexicon.txt", BILM_MARKERS if config.words is None else config.words.markers),
        characters=_read_words(folder / "characters.txt", MANY_LANGS_MARKERS),
        mixes=mixes,
        layout="native",
        metadata=metadata,
    )


def _typed(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise WeightsError(f"{name} is {value!r}; wanted a JSON object.")
    return value


def _read_tensors(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise WeightsError(f"{path} is missing; the folder is incomplete, fetch it again.")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}
            compare_keys(wanted, {key: tuple(part.get_shape()) for key, part in slices.items()}, name=str(path))
            kinds = {key: part.get_dtype() for key, part in slices.items() if part.get_dtype() not in _STORED}
            if kinds:
                key, kind = next(iter(kinds.items()))
                raise WeightsError(f"{path}: {key} is stored as {kind}; wanted {', '.join(_STORED)}.")
            # Copied, not mapped: what happens to the file later must not change a model, or end the process.
            return {key: file.get_tensor(key).to(torch.float32, copy=True) for key in wanted}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file ({error}); it is damaged or incomplete.") from error


def _read_words(path: Path, markers: Sequence[str]) -> Vocabulary | None:
    """One word per line, exactly as written: nothing is stripped, so that a word may be a space."""
    if not path.is_file():
        return None
    if len(markers) != 3:
        raise WeightsError(f"vocabulary_markers are {markers!r}; wanted three words.")
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{path} is not valid UTF-8 ({error.reason} at byte {error.start}).") from error
    if lines[-1] == "":
        lines.pop()
    first, second, third = markers
    return Vocabulary(lines, markers=(first, second, third))


def write_native(checkpoint: Checkpoint, folder: str | Path, *, dtype: Dtype = "float32", card: str | None = None) -> None:
    """Writes a model folder: the whole of it, or nothing.

    Args:
        checkpoint: what to write.
        folder: its name; a model that stands there is replaced, a folder with other files in it is an error.
        dtype: how numbers are stored. They are read back as float32; float16 and bfloat16 halve the size and round.
        card: the model card (README.md); without one a short card is written from the configuration.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if dtype not in _DTYPES:
        raise InputError(f"dtype is {dtype!r}; wanted one of {', '.join(_DTYPES)}.")
    folder = Path(folder)
    verify(checkpoint)
    reader(checkpoint)  # A folder whose words nobody can look up would be worth nothing.
    with replacing_folder(folder, known=FILES) as work:
        (work / "config.json").write_text(_config_json(checkpoint), encoding="utf-8")
        (work / "README.md").write_text(model_card(checkpoint) if card is None else card, encoding="utf-8")
        lists = {"vocab": checkpoint.vocabulary, "lexicon": checkpoint.lexicon, "characters": checkpoint.characters}
        for name, words in lists.items():
            if words is not None:
                _write_words(words, work / f"{name}.txt")
        for name, tensors in _parts(checkpoint):
            stored = {key: tensor.detach().to("cpu", _DTYPES[dtype]).contiguous() for key, tensor in tensors.items()}
            for key, tensor in stored.items():
                if not is_finite(tensor):
                    raise WeightsError(f"{key} holds values too large for {dtype}; write float32.")
            try:
                save_file(stored, work / name, metadata={"format": "pt"})
            except SafetensorError as error:
                raise WeightsError(f"{folder} could not be written ({error}); nothing was left there.") from error


def _parts(checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, Tensor]]]:
    tensors = checkpoint.tensors
    yield "model.safetensors", {key: tensor for key, tensor in tensors.items() if not key.startswith("softmax.")}
    softmax = {key: tensor for key, tensor in tensors.items() if key.startswith("softmax.")}
    if softmax:
        yield "softmax.safetensors", softmax


def _config_json(checkpoint: Checkpoint) -> str:
    values: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": checkpoint.config.to_dict()}
    if checkpoint.mixes:
        values["mixes"] = [{"weights": list(mix.weights), "gamma": mix.gamma} for mix in checkpoint.mixes]
    if checkpoint.vocabulary is not None:
        values["vocabulary_markers"] = list(checkpoint.vocabulary.markers)
    values["metadata"] = checkpoint.metadata
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _write_words(words: Vocabulary, path: Path) -> None:
    broken = [word for word in words.words if "\n" in word]
    if broken:
        raise WeightsError(f"the word {broken[0]!r} contains a line break, so it cannot stand in a list of one word per line.")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        try:
            file.writelines(word + "\n" for word in words.words)
        except UnicodeEncodeError as error:
            raise WeightsError(f"the word {error.object!r} is not valid Unicode, so it cannot be written.") from error


def model_card(checkpoint: Checkpoint) -> str:
    """A short model card from what the checkpoint itself knows."""
    config = checkpoint.config
    parameters = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    units = "bytes of words" if config.characters is not None and config.characters.scheme == "bytes" else "characters of words"
    inputs = [units] * (config.characters is not None) + ["whole words"] * (config.words is not None)
    lines = [
        "---",
        "library_name: polyseme",
        "tags: [elmo, bilm, contextual-embeddings]",
        "---",
        "",
        "# A bidirectional language model (ELMo)",
        "",
        f"* Reads {' and '.join(inputs)}; tokenization: {config.tokenization}.",
        f"* {config.lstm.layers} LSTM layers of {config.lstm.dim} cells, {config.lstm.width} outputs per direction; "
        f"vectors of {config.dim} numbers.",
        f"* {parameters:,} parameters, "
        + ("no softmax." if config.vocabulary_size is None else f"softmax over {config.vocabulary_size:,} words."),
    ]
    lines += [f"* {key}: {value}" for key, value in checkpoint.metadata.items()]
    lines += ["", "Data, licence and perplexity are not recorded in the files this folder was made from.", ""]
    lines += ["```python", "import polyseme", "", 'elmo = polyseme.load("this-folder")', "```", ""]
    return "\n".join(lines)
