"""bilm-tf's own training function, block by block; started by bench_pretrain.py in an environment of its own.

    python bilm_tf_train.py FOLDER

The environment holds tensorflow-cpu, tf-keras, h5py, and bilm installed without its dependencies. FOLDER holds text.txt (one
tokenized sentence a line), vocab.txt and options.json. For every line "N" on standard input N steps are run, reading included;
"seconds S" on standard output says how long they took.
"""

import json
import os
import sys
import time


class Blocks:
    """The data set, timed: bilm-tf comes back for a batch when the step before is done."""

    def __init__(self, data):
        self.data = data

    def iter_batches(self, rows, unroll):
        left, began = 0, 0.0
        for batch in self.data.iter_batches(rows, unroll):
            if not left:
                line = sys.stdin.readline()
                if not line.strip():
                    return
                left, began = int(line), time.perf_counter()
            yield batch
            left -= 1
            if not left:
                print("seconds", time.perf_counter() - began, flush=True)


def main():
    os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    sys.modules["tensorflow"] = tf  # what bilm imports by this name is TensorFlow 1
    from bilm.data import BidirectionalLMDataset, UnicodeCharsVocabulary
    from bilm.training import train

    folder = sys.argv[1]
    with open(os.path.join(folder, "options.json"), encoding="utf-8") as file:
        options = json.load(file)
    vocabulary = UnicodeCharsVocabulary(os.path.join(folder, "vocab.txt"), options["char_cnn"]["max_characters_per_token"])
    options["n_tokens_vocab"] = vocabulary.size
    data = BidirectionalLMDataset(os.path.join(folder, "text.txt"), vocabulary, shuffle_on_load=True)
    print("versions", json.dumps({"tensorflow": tf.__version__, "python": sys.version.split()[0]}), flush=True)
    train(options, Blocks(data), 1, folder, folder)


if __name__ == "__main__":
    main()
