"""Models on the Hugging Face hub, fetched or found in the local cache by the `hub` extra's library."""

import re
from pathlib import Path

from polyseme.errors import WeightsError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = (".hdf5", ".h5", ".zip", ".th", ".json", ".index", ".safetensors", ".pkl", ".txt")
#: Enough for every layout read here, and not the other formats a repository may hold.
_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.txt.gz", "*.hdf5", "*.h5", "*.pkl", "*.dic", "*.th", "README.md"]


def is_hub_id(name: str) -> bool:
    """Whether a string could name a model on the hub: OWNER/NAME, and no weight file's name, which is a mistyped path."""
    return _ID.fullmatch(name) is not None and not name.endswith(_FILES)


def fetch(name: str, *, revision: str | None = None) -> Path:
    """The folder of a model's files in the local cache, fetched there if need be.

    Args:
        name: OWNER/NAME.
        revision: a branch, tag or commit; a commit's files never change.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise WeightsError(
            f"{name} is no local path; to fetch it from the Hugging Face hub: pip install 'polyseme[hub]'."
        ) from error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_PATTERNS))
    except LocalEntryNotFoundError as error:
        version = "" if revision is None else f" at revision {revision}"
        raise WeightsError(
            f"{name} is no local path, is not in the local cache{version}, and the "
            "Hugging Face hub cannot be reached; go online once, or copy the model's folder here and give its path."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise WeightsError(f"{name} is no local path and could not be fetched from the Hugging Face hub ({error}).") from error
