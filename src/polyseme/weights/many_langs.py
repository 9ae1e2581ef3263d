"""ELMoForManyLangs: folders and zips of two torch pickles, two word lists and a configuration."""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig, WordConfig
from polyseme.errors import InputError, WeightsError
from polyseme.vocabulary import MANY_LANGS_MARKERS, Vocabulary
from polyseme.weights.checkpoint import Checkpoint
from polyseme.weights.files import Files, Folder, read_json
from polyseme.weights.torch_state import load_tensors, to_native

#: The one architecture every published model has; used where its file was left behind.
_PUBLISHED: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
_EMBEDDER_NAMES = (
    (re.compile(r"word_emb_layer\.embedding\.weight"), "words"),
    (re.compile(r"char_emb_layer\.embedding\.weight"), "characters"),
    (re.compile(r"(convolutions\.\d+\.(?:weight|bias))"), r"\1"),
    (re.compile(r"highways\._layers\.(\d+)\.(weight|bias)"), r"highways.\1.\2"),
    (re.compile(r"(projection\.(?:weight|bias))"), r"\1"),
)
# U+3000 is white space, so its line is stripped to the bare id.
_IDEOGRAPHIC_SPACE = "\u3000"


def is_many_langs(files: Files) -> bool:
    """Whether the files are those of an ELMoForManyLangs model."""
    return {"encoder.pkl", "token_embedder.pkl"} <= set(files.names())


def read_many_langs(files: Files) -> Checkpoint:
    """A checkpoint from a model's folder or zip. The path inside config.json is used for its last part only."""
    name = files.name
    config_name, architecture = _architecture(files)
    present = set(files.names())
    words = _read_dic(files, "word.dic") if "word.dic" in present else None
    characters = _read_dic(files, "char.dic") if "char.dic" in present else None
    stored: dict[str, Tensor] = {}
    for key, tensor in _load(files, "token_embedder.pkl").items():
        renamed = next((pattern.sub(new, key) for pattern, new in _EMBEDDER_NAMES if pattern.fullmatch(key)), None)
        if renamed is None:
            raise WeightsError(f"token_embedder.pkl in {name} holds {key}, which is no tensor of the character CNN.")
        stored[renamed] = tensor
    stored |= _load(files, "encoder.pkl")
    if "classifier.pkl" in present:
        stored |= _softmax(_load(files, "classifier.pkl"), architecture, name)
    try:
        config = _config(architecture, words, characters, stored)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{config_name} in {name} cannot be used: {error!r}") from error
    return Checkpoint(
        config=config,
        tensors=to_native(config, stored, name=f"{name} with {config_name}"),
        vocabulary=words if config.vocabulary_size is not None else None,
        lexicon=words if config.words is not None else None,
        characters=characters if config.characters is not None else None,
        layout="many_langs",
        metadata={"source": Path(name).name, "architecture": config_name},
    )


def _architecture(files: Files) -> tuple[str, dict[str, Any]]:
    """The architecture file's name and content, or the published architecture where it is absent."""
    if "config.json" not in files.names():
        return "the published architecture", _PUBLISHED
    config = read_json(files.read("config.json"), name=f"config.json in {files.name}")
    path = config.get("config_path")
    beside = re.split(r"[/\\]", path)[-1] if isinstance(path, str) else ""
    places: list[Files] = [files]
    if isinstance(files, Folder) and (files.path / "configs").is_dir():
        places.append(Folder(files.path / "configs"))
    for place in places:
        if beside in place.names():
            return beside, read_json(place.read(beside), name=f"{beside} in {place.name}")
    if "encoder" in config and "token_embedder" in config:
        return "config.json", config
    return "the published architecture", _PUBLISHED


def _config(
    architecture: dict[str, Any], words: Vocabulary | None, characters: Vocabulary | None, stored: dict[str, Tensor]
) -> BiLMConfig:
    encoder, embedder = architecture["encoder"], architecture["token_embedder"]
    if encoder["name"] != "elmo" or embedder["name"] != "cnn":
        raise InputError(f"the encoder is {encoder['name']!r} over {embedder['name']!r}; wanted 'elmo' over 'cnn'")
    limit = embedder["max_characters_per_token"]
    character_config = word_config = None
    if embedder["char_dim"] > 0:
        if characters is None:
            raise InputError("the model spells words in characters, but char.dic is not there")
        character_config = CharacterConfig(
            scheme="lexicon",
            size=len(characters),
            dim=embedder["char_dim"],
            filters=tuple((width, n) for width, n in embedder["filters"]),
            activation=embedder["activation"],
            highways=embedder["n_highway"],
            max_characters=limit,
        )
    if embedder["word_dim"] > 0:
        if words is None:
            raise InputError("the model looks words up, but word.dic is not there")
        # Words are cut before the lookup too: a longer one in word.dic is never found, its cut form is.
        word_config = WordConfig(size=len(words), dim=embedder["word_dim"], limit=limit - 2, markers=MANY_LANGS_MARKERS)
    return BiLMConfig(
        characters=character_config,
        words=word_config,
        projection=encoder["projection_dim"],
        lstm=LSTMConfig(
            dim=encoder["dim"],
            projection=encoder["projection_dim"],
            layers=encoder["n_layers"],
            cell_clip=encoder["cell_clip"],
            projection_clip=encoder["proj_clip"],
            forget_bias=0.0,
        ),
        vocabulary_size=stored["softmax.bias"].shape[0] if "softmax.bias" in stored else None,
    )


def _softmax(tensors: dict[str, Tensor], architecture: dict[str, Any], name: str) -> dict[str, Tensor]:
    """The classifier as a full softmax over word.dic.

    "softmax" is one linear layer. "sampled_softmax" scores word k by row k of column_emb plus column_bias, and never reads
    its oov_column. The others compute their columns from the token encoder, which is no softmax of ours: left out.
    """
    kind = architecture.get("classifier", {}).get("name", "sampled_softmax")
    if kind == "softmax":
        wanted = {"hidden2tag.weight": "softmax.weight", "hidden2tag.bias": "softmax.bias"}
    elif kind == "sampled_softmax":
        wanted = {"column_emb.weight": "softmax.weight", "column_bias.weight": "softmax.bias"}
    else:
        return {}
    missing = [key for key in wanted if key not in tensors]
    if missing:
        raise WeightsError(f"classifier.pkl in {name} lacks {', '.join(missing)}; it holds {', '.join(tensors)}.")
    return {new: tensors[old].reshape(-1) if new == "softmax.bias" else tensors[old] for old, new in wanted.items()}


def _load(files: Files, name: str) -> dict[str, Tensor]:
    with files.open(name) as file:
        return load_tensors(file, name=f"{name} in {files.name}")


def _read_dic(files: Files, name: str) -> Vocabulary:
    """One `token TAB id` a line, as the original reads it: stripped first, so that white space becomes U+3000."""
    where = f"{name} in {files.name}"
    found: dict[int, str] = {}
    for number, line in enumerate(files.read(name).split(b"\n"), 1):
        try:
            fields = line.decode("utf-8").strip().split("\t")
            if fields == [""]:
                continue
            token, position = (_IDEOGRAPHIC_SPACE, fields[0]) if len(fields) == 1 else (fields[0], fields[1])
            position = int(position)
        except ValueError as error:
            raise WeightsError(f"{where}, line {number}: wanted a token, a tab and a number in UTF-8, got {line!r}.") from error
        if position in found:
            raise WeightsError(f"{where}, line {number}: the id {position} was given to {found[position]!r} before.")
        found[position] = token
    if sorted(found) != list(range(len(found))):
        raise WeightsError(f"{where}: {len(found)} ids were given, but not 0 to {len(found) - 1}; lines are missing.")
    return Vocabulary((found[position] for position in range(len(found))), markers=MANY_LANGS_MARKERS)
