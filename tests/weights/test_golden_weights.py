"""Every weight file of the reference data, through read and build, gives the vectors recorded from the original programs."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from parity import Reference, largest_difference
from polyseme.characters import ByteScheme
from polyseme.mix import ScalarMix
from polyseme.weights import read

FIXTURES = Path(__file__).resolve().parent.parent / "golden" / "public_fixtures"
AMPLIFIED = {"clip2": 5e-5, "no_lstm_projection": 5e-5}  # rounding is amplified there, says the data's README
ALLENNLP = ("relu2", "tanh3", "clip2")
BILM_TF_CARRIED = ("noskip", "skip", "no_lstm_projection", "clip", "one_layer", "token_cached", "token_only")
BILM_TF = (
    *BILM_TF_CARRIED, "no_highway", "no_token_projection", "no_token_projection_no_highway", "max_characters_24", "no_clip",
)  # fmt: skip


def _json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def _recorded(path: Path, count: int) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [arrays[f"s{number:03d}"] for number in range(count)]


def _cut(layers: list[np.ndarray]) -> list[np.ndarray]:
    return [layer[:, 1:-1] for layer in layers]


def _bilm_tf(golden: Path, case: str) -> Reference:
    folder = golden / "bilm_tf" / case
    token = case.startswith("token")
    return Reference(
        read(
            folder / "weights.hdf5",
            vocabulary=folder.parent / "vocab.txt" if token else None,
            token_embeddings=folder / "token_embeddings.hdf5" if case == "token_cached" else None,
        )
    )


@pytest.mark.parametrize("case", ALLENNLP)
def test_allennlp_from_zero(golden: Path, case: str):
    folder, sentences = golden / "allennlp" / case, _json(golden / "allennlp" / "sentences.json")
    reference = Reference(read(folder))
    ours = [reference.zero(sentence) for sentence in sentences]
    tolerance = AMPLIFIED.get(case, 1e-5)
    assert largest_difference(ours, _recorded(folder / "zero_with_boundaries.npz", len(sentences))) < tolerance
    assert largest_difference(_cut(ours), _recorded(folder / "zero_without_boundaries.npz", len(sentences))) < tolerance


@pytest.mark.parametrize("case", ALLENNLP)
def test_allennlp_carried(golden: Path, case: str):
    folder, sentences = golden / "allennlp" / case, _json(golden / "allennlp" / "sentences.json")
    batches = [[sentences[number] for number in batch] for batch in _json(golden / "allennlp" / "batches.json")]
    results, state = Reference(read(folder)).carry(batches)
    ours = {f"b{b:02d}_r{r:02d}": layers for b, batch in enumerate(results) for r, layers in enumerate(batch)}
    tolerance = AMPLIFIED.get(case, 1e-5)
    with np.load(folder / "carry_with_boundaries.npz") as recorded:
        assert set(recorded) == set(ours)
        assert largest_difference(list(ours.values()), [recorded[key] for key in ours]) < tolerance
    with np.load(folder / "carry_final_state.npz") as recorded:
        assert largest_difference([state.h.numpy(), state.c.numpy()], [recorded["h"], recorded["c"]]) < tolerance


def test_allennlp_odd_tokens(golden: Path):
    folder, sentences = golden / "allennlp" / "odd", _json(golden / "allennlp" / "odd" / "sentences.json")
    reference = Reference(read(golden / "allennlp" / "relu2"))
    ours = [reference.zero(sentence) for sentence in sentences]
    assert largest_difference(ours, _recorded(folder / "zero_with_boundaries.npz", len(sentences))) < 1e-5


@pytest.mark.parametrize("case", BILM_TF)
def test_bilm_tf_from_zero(golden: Path, case: str):
    sentences = _json(golden / "bilm_tf" / "sentences.json")
    reference = _bilm_tf(golden, case)
    ours = _cut([reference.zero(sentence) for sentence in sentences])
    recorded = _recorded(golden / "bilm_tf" / case / "zero_without_boundaries.npz", len(sentences))
    assert largest_difference(ours, recorded) < AMPLIFIED.get(case, 1e-5)


@pytest.mark.parametrize("case", BILM_TF_CARRIED)
def test_bilm_tf_carried(golden: Path, case: str):
    path = golden / "bilm_tf" / case / "carry_without_boundaries.npz"
    sentences = _json(golden / "bilm_tf" / "sentences.json")
    batches = [[sentences[number] for number in batch] for batch in _json(golden / "bilm_tf" / "batches.json")]
    results, _ = _bilm_tf(golden, case).carry(batches)
    ours = {f"b{b:02d}_r{r:02d}": layers[:, 1:-1] for b, batch in enumerate(results) for r, layers in enumerate(batch)}
    with np.load(path) as recorded:
        assert set(recorded) == set(ours)
        assert largest_difference(list(ours.values()), [recorded[key] for key in ours]) < AMPLIFIED.get(case, 1e-5)


def test_a_unidirectional_dump_loads(golden: Path):
    checkpoint = read(golden / "bilm_tf" / "unidirectional_dump")
    assert not checkpoint.config.lstm.bidirectional
    assert Reference(checkpoint).zero(["a", "b"]).shape == (3, 4, checkpoint.config.lstm.width)


@pytest.mark.parametrize("case", ["sampled", "full"])
def test_tensorflow_checkpoint(golden: Path, case: str):
    folder = golden / "tf_checkpoint" / case
    sentences = _json(golden / "tf_checkpoint" / "probe_sentences.json")
    checkpoint = read(folder, vocabulary=golden / "tf_checkpoint" / "vocab.txt")
    assert checkpoint.layout == "bilm_tf"
    reference = Reference(checkpoint)
    ours = [reference.zero(sentence) for sentence in sentences]
    assert largest_difference(_cut(ours), _recorded(folder / "zero_without_boundaries.npz", len(sentences))) < 1e-5
    dumped = read(folder / "dumped_weights.hdf5", options=folder / "options_inference.json")
    assert all(torch.equal(tensor, checkpoint.tensors[name]) for name, tensor in dumped.tensors.items())
    softmax, vocabulary, width = reference.model.softmax, checkpoint.vocabulary, checkpoint.config.lstm.width
    assert softmax is not None
    assert vocabulary is not None
    with np.load(folder / "log_probabilities.npz") as recorded, torch.no_grad():
        for number, (sentence, layers) in enumerate(zip(sentences, ours, strict=True)):
            ids = torch.from_numpy(vocabulary.ids(["<S>", *sentence, "</S>"]))
            top = torch.from_numpy(layers[-1])
            assert ids.tolist() == recorded[f"s{number:03d}_target_ids"].tolist()
            forward = softmax(top[:-1, :width].contiguous(), ids[1:]).numpy()
            backward = softmax(top[1:, width:].contiguous(), ids[:-1]).numpy()
            assert np.abs(forward - recorded[f"s{number:03d}_forward"]).max() < 1e-5
            assert np.abs(backward - recorded[f"s{number:03d}_backward"]).max() < 1e-5


@pytest.mark.parametrize("case", ["full", "word_dim_0", "char_dim_0", "clipping"])
def test_many_langs(golden: Path, case: str):
    folder, sentences = golden / "many_langs" / case, _json(golden / "many_langs" / "sentences.json")
    checkpoint = read(folder)
    assert checkpoint.layout == "many_langs"
    _compare_many_langs(Reference(checkpoint), sentences, folder / "outputs.npz")


def _compare_many_langs(reference: Reference, sentences: list[list[str]], path: Path) -> None:
    with np.load(path) as recorded:
        for number, sentence in enumerate(sentences):
            ours = reference.zero(sentence)[:, 1:-1]
            key = f"s{number:03d}_layer"
            pairs = {"-2": ours, "-1": ours.mean(axis=0), **{str(layer): ours[layer] for layer in range(3)}}
            assert largest_difference(list(pairs.values()), [recorded[key + layer] for layer in pairs]) < 1e-5


@pytest.mark.parametrize("case", ["bilm", "bilm_plain_vocab", "bilm_no_vocab_in_folder"])
def test_nlpl_zip(golden: Path, case: str):
    sentences = _json(golden / "nlpl" / "sentences.json")
    checkpoint = read(golden / "nlpl" / f"{case}.zip")
    assert checkpoint.layout == "nlpl"
    assert (checkpoint.vocabulary is None) == (case == "bilm_no_vocab_in_folder")
    reference = Reference(checkpoint)
    ours = _cut([reference.zero(sentence) for sentence in sentences])
    assert largest_difference(ours, _recorded(golden / "nlpl" / "bilm_zero_without_boundaries.npz", len(sentences))) < 1e-5


def test_nlpl_zip_of_many_langs(golden: Path):
    checkpoint = read(golden / "nlpl" / "many_langs.zip")
    assert checkpoint.layout == "many_langs"
    sentences = _json(golden / "many_langs" / "sentences.json")
    _compare_many_langs(Reference(checkpoint), sentences, golden / "many_langs" / "full" / "outputs.npz")


@pytest.mark.parametrize("name", ["elmo.th", "weights_in_task_model.th"])
def test_state_dict(golden: Path, name: str):
    folder = golden / "allennlp_th"
    sentences = _json(folder / "sentences.json")
    checkpoint = read(folder / name)
    assert checkpoint.layout == "torch_state"
    reference = Reference(checkpoint)
    ours = [reference.zero(sentence) for sentence in sentences]
    assert largest_difference(ours, _recorded(folder / "zero_with_boundaries.npz", len(sentences))) < 1e-5
    with np.load(folder / "representations.npz") as recorded, torch.no_grad():
        for number, stored in enumerate(checkpoint.mixes):
            mix = ScalarMix(3, weights=stored.weights, gamma=stored.gamma)
            for sentence, layers in enumerate(ours):
                inner = torch.from_numpy(layers[:, None, 1:-1])
                mixed = mix(list(inner), torch.ones(inner.shape[1:3], dtype=torch.bool))[0]
                assert largest_difference([mixed.numpy()], [recorded[f"s{sentence:03d}_rep{number}"]]) < 1e-5
    assert len(checkpoint.mixes) == 2


@pytest.mark.parametrize(("name", "sentences"), [("bilm_tf", "lm_embeddings_sentences.json"), ("allennlp", "sentences.json")])
def test_public_fixtures(name: str, sentences: str):
    folder = FIXTURES / name
    rows = _json(folder / sentences)
    batches = [[sentence.split() for sentence in batch] for batch in zip(*rows, strict=True)]
    results, _ = Reference(read(folder)).carry(batches)
    differences = []
    for row in range(len(rows)):
        with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as recorded:
            for number, batch in enumerate(results):
                top = batch[row][-1, 1:-1]
                ours = np.stack(np.split(top, 2, axis=1))
                differences.append(largest_difference([ours], [recorded[str(number)][...]]))
    assert len(differences) == 30
    assert max(differences) < 5e-6


def test_public_token_embeddings():
    """The token vectors recorded for a vocabulary are what the characters give."""
    folder = FIXTURES / "allennlp"
    vocabulary = (folder / "vocab_test.txt").read_text(encoding="utf-8").split()
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        recorded = file["embedding"][...]
    reference = Reference(read(folder))
    with torch.no_grad():
        ours = reference.model.token_encoder(reference.reader.read(vocabulary)).numpy()
    assert isinstance(reference.reader.scheme, ByteScheme)
    assert largest_difference([ours], [recorded]) < 1e-5
