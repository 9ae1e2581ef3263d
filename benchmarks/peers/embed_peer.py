"""The other programs that give vectors; started by bench_engine.py in an environment of their own.

    python embed_peer.py PEER FOLDER THREADS

PEER is allennlp, simple_elmo, bert-base or minilm; FOLDER holds weights.hdf5, options.json, sentences.json and short.json.
Every line on standard input is a JSON object, every answer a line that begins with "answer":
    {"do": "time", "batch": 32, "count": 200}     seconds for that many sentences
    {"do": "latency", "calls": 100}               seconds of each call with one short sentence
    {"do": "vectors", "count": 16, "file": F}     writes the mean of the layers of the first sentences, each from the zero state
"""

import json
import os
import sys
import time
import types

PEER, FOLDER, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", TOKENIZERS_PARALLELISM="false")
os.environ.update(OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS), HF_HUB_OFFLINE="1")

import numpy as np  # noqa: E402


def read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return json.load(file)


class AllenNLP:
    """Elmo with one output, as a user calls it: character ids and all."""

    def __init__(self, batch):
        import huggingface_hub

        for name in ("HfFolder", "Repository"):  # AllenNLP 2.10.1 imports these names, which are gone
            setattr(huggingface_hub, name, getattr(huggingface_hub, name, type(name, (), {})))
        import torch
        from transformers.utils import is_torchvision_available

        if not is_torchvision_available():  # AllenNLP's image models, never used here, import it
            for name in ("torchvision", "torchvision.ops", "torchvision.ops.boxes"):
                sys.modules[name] = types.ModuleType(name)
        from allennlp.modules.elmo import Elmo, batch_to_ids

        torch.set_num_threads(THREADS)
        self.torch, self.ids = torch, batch_to_ids
        files = os.path.join(FOLDER, "options.json"), os.path.join(FOLDER, "weights.hdf5")
        self.elmo = Elmo(*files, num_output_representations=1, dropout=0.0, requires_grad=False).eval()
        self.batch = batch

    def __call__(self, sentences):
        vectors = []
        with self.torch.no_grad():
            for start in range(0, len(sentences), self.batch):
                batch = sentences[start : start + self.batch]
                found = self.elmo(self.ids(batch))["elmo_representations"][0].numpy()
                vectors += [row[: len(sentence)] for row, sentence in zip(found, batch, strict=True)]
        return vectors

    def from_zero(self):
        self.elmo._elmo_lstm._elmo_lstm._states = None

    def version(self):
        import allennlp.version

        return f"AllenNLP {allennlp.version.VERSION}, torch {self.torch.__version__}"


class SimpleElmo:
    """ElmoModel.get_elmo_vectors with the mean of the layers, in one session that is kept."""

    def __init__(self, batch):
        import logging

        import tensorflow as tf

        self.tf, v1 = tf, tf.compat.v1
        from simple_elmo import ElmoModel
        from simple_elmo.elmo import weight_layers

        logging.disable(logging.INFO)
        v1.reset_default_graph()
        self.model = ElmoModel()
        self.model.load(FOLDER, max_batch_size=batch, limit=10**6)
        self.model.elmo_sentence_input = weight_layers("input", self.model.sentence_embeddings_op, use_layers="average")
        config = v1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS)
        self.session = v1.Session(config=config)
        self.from_zero()

    def __call__(self, sentences):
        found = self.model.get_elmo_vectors(sentences, warmup=False, layers="average", session=self.session)
        return [row[: len(sentence)] for row, sentence in zip(found, sentences, strict=True)]

    def from_zero(self):
        self.session.run(self.tf.compat.v1.global_variables_initializer())

    def version(self):
        import importlib.metadata

        return f"simple_elmo {importlib.metadata.version('simple_elmo')}, tensorflow {self.tf.__version__}"


#: Width, layers, heads, inner width.
SIZES = {"bert-base": (768, 12, 12, 3072), "minilm": (384, 6, 12, 1536)}


class Transformer:
    """An encoder of that size with random weights; the text is cut into pieces by hashing words, 1.3 pieces a word."""

    def __init__(self, batch):
        import torch
        import transformers

        torch.set_num_threads(THREADS)
        self.torch, self.library = torch, transformers
        width, layers, heads, inner = SIZES[PEER]
        config = transformers.BertConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
        )
        self.model = transformers.BertModel(config, add_pooling_layer=False).eval()
        self.batch = batch

    def __call__(self, sentences):
        torch = self.torch
        pieces = [[n % 30000 for w, word in enumerate(s) for n in [hash(word)] * (1 + (w % 10 < 3))] for s in sentences]
        order = sorted(range(len(pieces)), key=lambda row: -len(pieces[row]))
        with torch.inference_mode():
            for start in range(0, len(order), self.batch):
                rows = [pieces[row][:512] for row in order[start : start + self.batch]]
                longest = max(map(len, rows))
                ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
                self.model(input_ids=ids, attention_mask=(ids > 0).long())

    def version(self):
        return f"transformers {self.library.__version__}, torch {self.torch.__version__}"


def main():
    sentences, short = read("sentences.json"), read("short.json")
    kinds = {"allennlp": AllenNLP, "simple_elmo": SimpleElmo}
    peers = {}
    for line in sys.stdin:
        order = json.loads(line)
        batch = order.get("batch", 16)
        if batch not in peers:
            peers = {batch: kinds.get(PEER, Transformer)(batch)}
        peer = peers[batch]
        answer = {"version": peer.version()}
        if order["do"] == "time":
            begun = time.perf_counter()
            peer(sentences[: order["count"]])
            answer["seconds"] = time.perf_counter() - begun
        elif order["do"] == "latency":
            answer["seconds"] = []
            for number in range(order["calls"]):
                begun = time.perf_counter()
                peer([short[number % len(short)]])
                answer["seconds"].append(time.perf_counter() - begun)
        else:
            vectors = []
            for sentence in sentences[: order["count"]]:
                peer.from_zero()
                vectors += peer([sentence])
            np.savez(order["file"], *vectors)
        print("answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
