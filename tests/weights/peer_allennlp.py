"""Run by test_peers.py in an environment that has AllenNLP 2.10.1: its loader reads models, its network computes.

    python peer_allennlp.py FOLDER

Every STEM_weights.hdf5 of the folder is read with STEM_options.json, and the sentences of ids.npz, each alone, give STEM.npz.
The exit status is 3 where AllenNLP cannot be imported.
"""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch


def supply_what_is_gone() -> None:
    """Names AllenNLP imports for parts not used here: its command that uploads models, and its models of pictures."""
    import huggingface_hub
    import transformers  # noqa: F401, it looks for torchvision itself and must not find the empty one

    for name in ("HfFolder", "Repository"):
        if not hasattr(huggingface_hub, name):
            setattr(huggingface_hub, name, type(name, (), {}))
    try:
        import torchvision  # noqa: F401, where it is there and fits torch
    except ImportError:
        for name in ("torchvision", "torchvision.ops", "torchvision.ops.boxes"):
            sys.modules[name] = ModuleType(name)


def main() -> None:
    try:
        supply_what_is_gone()
        from allennlp.modules.elmo import _ElmoBiLm
    except ImportError as error:
        print(f"AllenNLP cannot be imported: {error}", file=sys.stderr)
        sys.exit(3)
    folder = Path(sys.argv[1])
    with np.load(folder / "ids.npz") as stored:
        sentences = dict(stored)
    for weights in sorted(folder.glob("*_weights.hdf5")):
        options = weights.with_name(weights.name.replace("_weights.hdf5", "_options.json"))
        results = {}
        for key, ids in sentences.items():
            # It sets the markers itself. A new module for every sentence: it carries its state from call to call.
            module = _ElmoBiLm(str(options), str(weights)).eval()
            with torch.no_grad():
                layers = module(torch.from_numpy(ids[1:-1] + 1)[None])["activations"]
            results[key] = torch.stack(layers)[:, 0].numpy()
        np.savez(weights.with_name(weights.name.replace("_weights.hdf5", ".npz")), **results)


if __name__ == "__main__":
    main()
