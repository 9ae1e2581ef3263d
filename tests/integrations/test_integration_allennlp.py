"""Old scripts: AllenNLP's names, arguments and results."""

import io
import json

import h5py
import numpy as np
import pytest
import torch

import polyseme
from polyseme import InputError
from polyseme.integrations.allennlp import Elmo, ElmoEmbedder, batch_to_ids
from tiny import WORDS, read_json, seed_shaped, tiny_elmo

SENTENCES = [["the", "cat", "sat", "."], ["a", "dog"], ["he", "ran", "away"]]


@pytest.fixture(scope="module")
def tiny_weights(tmp_path_factory):
    """options.json and weights.hdf5 of a small random model."""
    folder = tmp_path_factory.mktemp("model")
    polyseme.save(tiny_elmo(), folder / "native")
    polyseme.convert(folder / "native", folder / "weights.hdf5")
    (options,) = folder.glob("*.json")
    return options, folder / "weights.hdf5"


def close(one, other, tolerance=1e-5):
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and (not one.size or float(np.abs(one - other).max()) < tolerance)


def weights_of(golden, name):
    return golden / "allennlp" / name / "options.json", golden / "allennlp" / name / "weights.hdf5"


# Against AllenNLP's own results


def test_character_ids(golden):
    for folder in ("allennlp", "allennlp/odd"):
        sentences = read_json(golden / folder / "sentences.json")
        wanted = np.load(golden / folder / "character_ids.npz")
        ids = batch_to_ids(sentences)
        for row, sentence in enumerate(sentences):
            np.testing.assert_array_equal(ids[row, : len(sentence)].numpy(), wanted[f"s{row:03d}"])
            assert not ids[row, len(sentence) :].any()


@pytest.mark.parametrize("name", ["relu2", "tanh3"])
def test_batches_one_after_another(golden, name):
    embedder = ElmoEmbedder(*weights_of(golden, name))
    sentences = read_json(golden / "allennlp/sentences.json")
    archive = np.load(golden / f"allennlp/{name}/carry_without_boundaries.npz")
    for number, batch in enumerate(read_json(golden / "allennlp/batches.json")):
        for row, array in enumerate(embedder.embed_batch([sentences[sentence] for sentence in batch])):
            assert close(array, archive[f"b{number:02d}_r{row:02d}"])
    embedder.reset_states()
    wanted = np.load(golden / f"allennlp/{name}/zero_without_boundaries.npz")
    assert close(embedder.embed_sentence(sentences[3]), wanted["s003"])


@pytest.mark.parametrize("name", ["relu2", "tanh3"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_the_module_with_carried_state(golden, name, norm, keep):
    cases = read_json(golden / "allennlp/scalar_mix.json")
    sentences = read_json(golden / "allennlp/sentences.json")
    archive = np.load(golden / f"allennlp/{name}/scalar_mix.npz")
    mix = cases["mixes"][name][0]
    module = Elmo(*weights_of(golden, name), 1, do_layer_norm=norm, dropout=0.0, keep_sentence_boundaries=keep)
    set_mixes(module, [mix])
    for batch, suffix in ((cases["batch"], ""), (cases["second_batch"], "_second")):
        output = module(batch_to_ids([sentences[row] for row in batch]))
        (representation,), mask = output["elmo_representations"], output["mask"]
        key = f"mix_ln{int(norm)}_keep{int(keep)}{suffix}"
        np.testing.assert_array_equal(mask.numpy(), archive[f"{key}_mask"].astype(bool))
        difference = np.abs(representation.detach().numpy() - archive[key])
        assert difference[mask.numpy()].max() < 1e-5
        if not (norm and keep):  # where AllenNLP leaves normalised zeros at padding, ours is zero
            assert difference.max() < 1e-5


@pytest.mark.parametrize("norm", [False, True])
def test_two_representations(golden, norm):
    cases = read_json(golden / "allennlp/scalar_mix.json")
    sentences = read_json(golden / "allennlp/sentences.json")
    archive = np.load(golden / "allennlp/relu2/scalar_mix.npz")
    module = Elmo(*weights_of(golden, "relu2"), 2, do_layer_norm=norm, dropout=0.0)
    set_mixes(module, cases["mixes"]["relu2"])
    output = module(batch_to_ids([sentences[row] for row in cases["batch"]]))
    for number, representation in enumerate(output["elmo_representations"]):
        assert close(representation.detach(), archive[f"two_ln{int(norm)}_rep{number}"])


def set_mixes(module, mixes):
    with torch.no_grad():
        for scalar_mix, values in zip(module.embedding.mixes, mixes, strict=True):
            scalar_mix.weights.copy_(torch.tensor(values["w"]))
            scalar_mix.gamma.fill_(values["gamma"])


def test_words_of_another_length(golden):
    """AllenNLP's indexer always makes 50 characters, whatever the model reads (defect 8): an error, or garbage."""
    folder = golden / "bilm_tf/max_characters_24"
    sentences = read_json(golden / "bilm_tf/sentences.json")
    wanted = np.load(folder / "zero_without_boundaries.npz")
    embedder = ElmoEmbedder(folder / "options.json", folder / "weights.hdf5")
    for row, array in enumerate(embedder.embed_batch(sentences)):
        assert close(array, wanted[f"s{row:03d}"])
    with pytest.raises(InputError, match="words of 50 characters were given; this model reads 24"):
        Elmo(folder / "options.json", folder / "weights.hdf5", 1)(batch_to_ids(sentences))


# The rest of the interface


def test_streams_and_batches_agree(tiny_weights):
    streamed = list(ElmoEmbedder(*tiny_weights).embed_sentences(iter(SENTENCES), batch_size=2))
    embedder = ElmoEmbedder(*tiny_weights)
    batched = [*embedder.embed_batch(SENTENCES[:2]), *embedder.embed_batch(SENTENCES[2:])]
    assert all(close(one, two) for one, two in zip(streamed, batched, strict=True))
    vectors, mask = ElmoEmbedder(*tiny_weights).batch_to_embeddings(SENTENCES)
    assert vectors.shape == (3, 3, 4, 16)
    assert mask.sum(dim=1).tolist() == [4, 2, 3]
    for row, array in enumerate(ElmoEmbedder(*tiny_weights).embed_batch(SENTENCES)):
        assert close(vectors[row, :, : array.shape[1]], array)
        assert not vectors[row, :, array.shape[1] :].any()
    with pytest.raises(InputError, match="batch_size is 0"):
        next(embedder.embed_sentences(SENTENCES, batch_size=0))


def test_the_same_sentence_twice_differs_as_it_did(tiny_weights):
    """The state is carried: that is what old results hold. polyseme.Elmo gives the same vectors each time."""
    embedder = ElmoEmbedder(*tiny_weights)
    first, second = embedder.embed_sentence(SENTENCES[0]), embedder.embed_sentence(SENTENCES[0])
    assert not close(first, second)
    embedder.reset_states()
    assert close(embedder.embed_sentence(SENTENCES[0]), first)


def test_an_empty_sentence_has_this_models_width(tiny_weights):
    """AllenNLP's is (3, 0, 1024) for every model (defect 10); alone it is answered without running the model."""
    embedder = ElmoEmbedder(*tiny_weights)
    assert embedder.embed_sentence([]).shape == (3, 0, 16)
    assert close(embedder.embed_sentence(SENTENCES[0]), ElmoEmbedder(*tiny_weights).embed_sentence(SENTENCES[0]))
    assert embedder.embed_batch([]) == []


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_files(tiny_weights, tmp_path, output_format):
    lines = [*(" ".join(sentence) for sentence in SENTENCES), "", "a/b c", "the cat sat ."]
    target = tmp_path / "vectors.hdf5"
    ElmoEmbedder(*tiny_weights).embed_file(io.StringIO("\n".join(lines) + "\n"), target, output_format, batch_size=2)
    wanted = list(ElmoEmbedder(*tiny_weights).embed_sentences([line.split() for line in lines], batch_size=2))
    shape = {"all": lambda array: array, "top": lambda array: array[-1], "average": lambda array: array.mean(axis=0)}[
        output_format
    ]
    with h5py.File(target) as file:
        assert sorted(file) == [*map(str, range(len(lines))), "sentence_to_index"]
        for number, array in enumerate(wanted):
            assert close(file[str(number)][...], shape(array))
            assert file[str(number)].dtype == np.float32
        keys = json.loads(file["sentence_to_index"][0])
    # The peers' layout has room for one key a sentence (defect 10): every line is there, equal ones under their own numbers.
    assert keys == {line: str(number) for number, line in enumerate(lines)}
    assert list(tmp_path.iterdir()) == [target]


def test_files_without_or_by_sentences(tiny_weights, tmp_path):
    text = "the cat\na dog\n"
    ElmoEmbedder(*tiny_weights).embed_file(io.StringIO(text), tmp_path / "a.hdf5", forget_sentences=True)
    ElmoEmbedder(*tiny_weights).embed_file(io.StringIO(text), tmp_path / "b.hdf5", use_sentence_keys=True)
    with h5py.File(tmp_path / "a.hdf5") as numbered, h5py.File(tmp_path / "b.hdf5") as named:
        assert sorted(numbered) == ["0", "1"]
        assert sorted(named) == ["a dog", "the cat"]
        assert close(numbered["1"][...], named["a dog"][...])


@pytest.mark.parametrize("text", ["a/b\n", "the cat\nthe cat\n", "the cat\n\n"])
def test_a_sentence_that_can_be_no_key_leaves_the_old_file(tiny_weights, tmp_path, text):
    target = tmp_path / "vectors.hdf5"
    target.write_bytes(b"old")
    with pytest.raises(InputError, match="cannot be a key"):
        ElmoEmbedder(*tiny_weights).embed_file(io.StringIO(text), target, use_sentence_keys=True)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_unknown_output_format(tiny_weights, tmp_path):
    with pytest.raises(InputError, match="'all', 'top' or 'average'"):
        ElmoEmbedder(*tiny_weights).embed_file(io.StringIO(""), tmp_path / "x.hdf5", "mean")


def test_the_module_learns(tiny_weights):
    frozen = Elmo(*tiny_weights, 2)
    assert sum(parameter.requires_grad for parameter in frozen.parameters()) == 4
    tuned = Elmo(*tiny_weights, 1, requires_grad=True, dropout=0.0)
    for _ in range(2):  # the carried state keeps no graph
        (output,) = tuned(batch_to_ids(SENTENCES))["elmo_representations"]
        output.sum().backward()
    assert all(parameter.grad is not None for parameter in tuned.parameters())
    assert tuned.get_output_dim() == 16


def test_fixed_mixes(tiny_weights):
    module = Elmo(*tiny_weights, 1, dropout=0.0, scalar_mix_parameters=[-9e10, 1, -9e10], vocab_to_cache=["the"])
    assert not any(parameter.requires_grad for parameter in module.parameters())
    (output,) = module(batch_to_ids(SENTENCES), torch.zeros(3, 4))["elmo_representations"]
    wanted = tiny_elmo().embed(SENTENCES, layers="lstm1", state="zero")
    assert all(close(output[row, : len(array)], array) for row, array in enumerate(wanted))


def test_more_dimensions_and_wider_padding(tiny_weights):
    ids = batch_to_ids(SENTENCES)
    wide = torch.cat([ids, torch.zeros(3, 2, 50, dtype=torch.int64)], dim=1)
    flat = Elmo(*tiny_weights, 1, dropout=0.0)(wide)
    assert flat["elmo_representations"][0].shape == (3, 6, 16)
    deep = Elmo(*tiny_weights, 1, dropout=0.0)(wide[:, None])
    assert deep["elmo_representations"][0].shape == (3, 1, 6, 16)
    assert deep["mask"].shape == (3, 1, 6)
    assert close(deep["elmo_representations"][0][:, 0].detach(), flat["elmo_representations"][0].detach())
    empty = Elmo(*tiny_weights, 1, dropout=0.0)(torch.zeros(2, 3, 50, dtype=torch.int64))
    assert not empty["mask"].any()


def test_wrong_ids(tiny_weights):
    module = Elmo(*tiny_weights, 1)
    with pytest.raises(InputError, match="words of 40 characters were given; this model reads 50"):
        module(torch.ones(1, 2, 40, dtype=torch.int64))
    with pytest.raises(InputError, match="1 to 261"):
        module(torch.full((1, 2, 50), 262))
    with pytest.raises(InputError, match="1 to 261"):
        module(torch.tensor([[[1, 0] * 25]]))


@pytest.mark.parametrize("batch", [["the", "cat"], "the cat", ["the cat", ["sat"]]])
def test_a_string_is_no_list_of_letters(tiny_weights, batch):
    """AllenNLP took it for one and gave vectors of letters."""
    for call in (batch_to_ids, ElmoEmbedder(*tiny_weights).embed_batch):
        with pytest.raises(InputError, match="split it first"):
            call(batch)
    with pytest.raises(InputError, match="split it first"):
        ElmoEmbedder(*tiny_weights).embed_sentence("the cat")


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(InputError, match="no weight_file"):
        ElmoEmbedder()
    with pytest.raises(InputError, match="download the file"):
        ElmoEmbedder("https://example.org/options.json", "https://example.org/weights.hdf5")
    elmo = seed_shaped()
    assert elmo.reader.lexicon is not None
    assert len(elmo.reader.lexicon) == len(WORDS)
    polyseme.save(elmo, tmp_path / "words")
    with pytest.raises(InputError, match=r"use polyseme\.ElmoEmbedding"):
        Elmo(None, tmp_path / "words", 1)
