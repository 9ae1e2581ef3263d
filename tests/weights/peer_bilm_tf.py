"""Run by test_peers.py in an environment that has bilm-tf and TensorFlow 2: its loader reads models, its network computes.

    python peer_bilm_tf.py FOLDER

Every STEM_weights.hdf5 of the folder is read with STEM_options.json, and the sentences of ids.npz, each alone, give STEM.npz.
The exit status is 3 where bilm-tf cannot be imported.
"""

import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # the old LSTM cell lives there


def main() -> None:
    try:
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()
        sys.modules["tensorflow"] = tf  # bilm-tf was written for TensorFlow 1
        from bilm.model import BidirectionalLanguageModel
    except ImportError as error:
        print(f"bilm-tf cannot be imported: {error}", file=sys.stderr)
        sys.exit(3)
    folder = Path(sys.argv[1])
    with np.load(folder / "ids.npz") as stored:
        sentences = dict(stored)
    for weights in sorted(folder.glob("*_weights.hdf5")):
        options = weights.with_name(weights.name.replace("_weights.hdf5", "_options.json"))
        tf.reset_default_graph()
        model = BidirectionalLanguageModel(str(options), str(weights))
        characters = tf.placeholder("int32", shape=(None, None, next(iter(sentences.values())).shape[1]))
        layers = model(characters)["lm_embeddings"]
        results = {}
        for key, ids in sentences.items():
            with tf.Session() as session:  # a new one for every sentence: it holds the state
                session.run(tf.global_variables_initializer())
                results[key] = session.run(layers, {characters: ids[None] + 1})[0]
        np.savez(weights.with_name(weights.name.replace("_weights.hdf5", ".npz")), **results)


if __name__ == "__main__":
    main()
