"""read, write, convert: one way in and one way out for every layout, told apart by content."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from polyseme.errors import InputError, WeightsError
from polyseme.weights import allennlp, bilm_tf, hub, huggingface, many_langs, native, nlpl, torch_state
from polyseme.weights.checkpoint import Checkpoint, verify
from polyseme.weights.files import Folder

#: Every layout by its name, in the order in which they are tried, with what it looks like.
LAYOUTS = {
    "native": "a folder with config.json and model.safetensors",
    "bilm_tf": "a TensorFlow checkpoint (NAME.index, NAME.data-...) with options.json",
    "hub": "a TF-Hub elmo module (a folder with variables/)",
    "many_langs": "an ELMoForManyLangs folder (encoder.pkl, token_embedder.pkl)",
    "allennlp": "an HDF5 file with options.json",
    "torch_state": "an AllenNLP state dict (.th) with options.json",
    "nlpl": "a zip of the NLPL repository",
}


#: What goes with a layout beside its path; the others hold everything themselves.
_TAKES = {
    "bilm_tf": ("options", "vocabulary"),
    "allennlp": ("options", "vocabulary", "token_embeddings"),
    "torch_state": ("options",),
    "nlpl": ("options", "vocabulary"),
}


@dataclass(frozen=True)
class _Request:
    """What was asked for; the paths beside the first are None where nothing was given."""

    path: Path
    options: Path | None
    vocabulary: Path | None
    token_embeddings: Path | None


def read(
    path: str | Path,
    *,
    options: str | Path | None = None,
    vocabulary: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    layout: str | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """The checkpoint at a path, whatever its layout, checked: names, shapes, and every value a finite number.

    Args:
        path: a folder, a weight file, a zip, the name of a model that comes with the package, or OWNER/NAME on the Hugging
            Face hub. What is there under this path wins. Where a folder holds several layouts, native goes before checkpoint
            before HDF5.
        options: options.json of the layouts that have one; by default paired with the weights by its name, or the only one there.
        vocabulary: words in the order of their ids, one a line; by default found like the options.
        token_embeddings: an HDF5 file with one vector per vocabulary word, to use instead of the characters.
        layout: one of LAYOUTS, where it is not to be told from the content.
        revision: branch, tag or commit on the Hugging Face hub.
    """
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"layout is {layout!r}; wanted one of {', '.join(LAYOUTS)}.")
    request = _Request(
        path=_locate(path, revision),
        options=_given(options, "options"),
        vocabulary=_given(vocabulary, "vocabulary"),
        token_embeddings=_given(token_embeddings, "token_embeddings"),
    )
    try:
        checkpoint = _read(request, layout)
    except OSError as error:
        raise WeightsError(f"{error.filename or path} cannot be read ({error.strerror or error}).") from error
    verify(checkpoint, name=str(request.path))
    return checkpoint


def _given(path: str | Path | None, name: str) -> Path | None:
    if path is not None and not Path(path).is_file():
        raise WeightsError(f"{name} is {str(path)!r}, which is no file.")
    return None if path is None else Path(path)


def _locate(path: str | Path, revision: str | None) -> Path:
    """The local path, after fetching it if it names a model elsewhere."""
    if not isinstance(path, (str, os.PathLike)) or str(path) == "":
        raise InputError(f"path is {path!r}; wanted {_wanted()}, or OWNER/NAME on the Hugging Face hub.")
    local = Path(path)
    if local.exists() or bilm_tf.find_prefix(local) is not None:
        if revision is not None:
            raise InputError(f"revision is {revision!r}, but {path} is a local path; rename that, or leave revision out.")
        return local
    bundled = Path(__file__).parent.parent / "models" / str(path)
    if isinstance(path, str) and bundled.is_dir() and "/" not in path and path not in ("", ".", ".."):
        return bundled
    if isinstance(path, str) and huggingface.is_hub_id(path):
        return huggingface.fetch(path, revision=revision)
    raise WeightsError(f"{path} is not there. Wanted {_wanted()}, or OWNER/NAME on the Hugging Face hub.")


def _wanted() -> str:
    return "; ".join(f"{look} ({name})" for name, look in LAYOUTS.items())


def _read(request: _Request, layout: str | None) -> Checkpoint:
    layout = layout or _recognise(request.path)
    given = [name for name in ("options", "vocabulary", "token_embeddings") if getattr(request, name) is not None]
    surplus = [name for name in given if name not in _TAKES.get(layout, ())]
    if surplus:
        raise InputError(f"{request.path} is {LAYOUTS[layout]}, which takes no {' and no '.join(surplus)}; leave it out.")
    path, options, vocabulary = request.path, request.options, request.vocabulary
    if layout == "native":
        return native.read_native(path if path.is_dir() else path.parent)
    if layout == "bilm_tf":
        prefix = bilm_tf.find_prefix(path)
        if prefix is None:
            raise WeightsError(f"{path} is no TensorFlow checkpoint: no .index file is there.")
        return bilm_tf.read_checkpoint(prefix, options=options, vocabulary=vocabulary)
    if layout == "hub":
        return hub.read_hub(path)
    if layout == "many_langs":
        return many_langs.read_many_langs(Folder(path) if path.is_dir() else nlpl.Zip(path))
    if layout == "torch_state":
        return torch_state.read_state_dict(_only(path, (".th",)), options=options)
    if layout == "nlpl":
        return nlpl.read_zip(path, options=options, vocabulary=vocabulary)
    weights = _only(path, (".hdf5", ".h5"))
    return allennlp.read_file(weights, options=options, vocabulary=vocabulary, token_embeddings=request.token_embeddings)


def _recognise(path: Path) -> str:
    """The name of the layout at a path that exists."""
    found = _recognise_folder(path) if path.is_dir() else _recognise_file(path)
    if found is None:
        raise WeightsError(f"{path} is no model of a known layout. Tried: {_wanted()}.")
    return found


def _recognise_folder(path: Path) -> str | None:
    if native.is_native(path):
        return "native"
    if bilm_tf.find_prefix(path) is not None:
        return "bilm_tf"
    if hub.is_hub(path):
        return "hub"
    if many_langs.is_many_langs(Folder(path)):
        return "many_langs"
    suffixes = {entry.suffix for entry in path.iterdir()}
    if suffixes & {".hdf5", ".h5"}:
        return "allennlp"
    return "torch_state" if ".th" in suffixes else None


def _recognise_file(path: Path) -> str | None:
    if bilm_tf.find_prefix(path) is not None:
        return "bilm_tf"
    if path.name in ("config.json", "model.safetensors") and native.is_native(path.parent):
        return "native"
    with path.open("rb") as file:
        start = file.read(8)
    if start == allennlp.MAGIC or path.suffix in (".hdf5", ".h5"):
        return "allennlp"
    if start.startswith(b"PK"):
        return "torch_state" if _is_torch_zip(path) else "nlpl"
    if path.suffix == ".zip":
        return "nlpl"
    return "torch_state" if path.suffix in (".th", ".pt", ".pth", ".bin") else None


def _is_torch_zip(path: Path) -> bool:
    """torch saves a zip too, whose members lie in one folder and are data.pkl and data/*."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return path.suffix != ".zip"


def _only(path: Path, suffixes: tuple[str, ...]) -> Path:
    """The one weight file in a folder; a file is itself."""
    if path.is_file():
        return path
    found = sorted(entry for entry in path.iterdir() if entry.suffix in suffixes)
    models = [entry for entry in found if allennlp.is_model(entry)] if ".hdf5" in suffixes else found
    if len(models) == 1:
        return models[0]
    names = ", ".join(entry.name for entry in found)
    if not found:
        raise WeightsError(f"{path} holds no file whose name ends in {' or '.join(suffixes)}.")
    if not models:
        raise WeightsError(f"{path} holds {names}, none of which can be read as the weights of a biLM.")
    raise WeightsError(f"{path} holds {len(models)} models ({names}); give the path of one of them.")


def write(checkpoint: Checkpoint, path: str | Path) -> None:
    """Writes a checkpoint in the layout the target's name asks for: NAME.hdf5 with options beside it, else a native folder."""
    path = Path(path)
    if path.suffix in (".hdf5", ".h5"):
        allennlp.write_hdf5(checkpoint, path)
    elif path.suffix in (".th", ".pkl", ".zip", ".safetensors", ".index", ".json", ".bin", ".pt"):
        raise InputError(f"{path} cannot be written: models are written as a folder, or as NAME.hdf5 for AllenNLP and bilm-tf.")
    else:
        native.write_native(checkpoint, path)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    options: str | Path | None = None,
    vocabulary: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    layout: str | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """Reads a model in any layout, writes it in the layout the target's name asks for, and returns it; arguments as in `read`."""
    checkpoint = read(
        source,
        options=options,
        vocabulary=vocabulary,
        token_embeddings=token_embeddings,
        layout=layout,
        revision=revision,
    )
    write(checkpoint, target)
    return checkpoint
