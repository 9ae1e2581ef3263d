"""Elmo reproduces the vectors recorded from the original programs."""

import h5py
import numpy as np
import pytest
import torch

import polyseme
from tiny import golden_elmo, read_json

ALLENNLP = ("relu2", "tanh3", "clip2")
BILM_TF = (
    "noskip", "skip", "no_highway", "no_token_projection", "no_token_projection_no_highway", "no_lstm_projection",
    "max_characters_24", "no_clip", "clip", "one_layer", "token_cached", "token_only",
)  # fmt: skip
CARRIED = ("noskip", "skip", "no_lstm_projection", "clip", "one_layer", "token_cached", "token_only")
AMPLIFIED = {"clip2", "no_lstm_projection"}


def tolerance(name: str) -> float:
    return 5e-5 if name in AMPLIFIED else 1e-5


def worst(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    assert [array.shape for array in found] == [array.shape for array in wanted]
    return max((float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True) if one.size), default=0.0)


def keyed(archive, count: int, pattern: str = "s{:03d}") -> list[np.ndarray]:
    return [archive[pattern.format(number)] for number in range(count)]


@pytest.mark.parametrize("name", ALLENNLP)
@pytest.mark.parametrize("boundaries", [True, False])
def test_allennlp_from_zero(golden, name, boundaries):
    elmo = golden_elmo(golden / "allennlp" / name)
    sentences = read_json(golden / "allennlp/sentences.json")
    kept = "with" if boundaries else "without"
    wanted = keyed(np.load(golden / f"allennlp/{name}/zero_{kept}_boundaries.npz"), len(sentences))
    assert worst(elmo.embed(sentences, state="zero", boundaries=boundaries), wanted) < tolerance(name)


def carried(elmo, sentences, batches, archive, *, boundaries, **options):
    """The worst difference over batches that carry their state, and the state after the last."""
    state = elmo.state(0)
    differences = []
    for number, batch in enumerate(batches):
        found = elmo.embed([sentences[row] for row in batch], state=state, boundaries=boundaries, **options)
        wanted = [archive[f"b{number:02d}_r{row:02d}"] for row in range(len(batch))]
        differences.append(worst(found, wanted))
    return max(differences), state


@pytest.mark.parametrize("name", ALLENNLP)
@pytest.mark.parametrize(("boundaries", "batch_tokens"), [(True, None), (False, None), (True, 5)])
def test_allennlp_carried(golden, name, boundaries, batch_tokens):
    elmo = golden_elmo(golden / "allennlp" / name)
    kept = "with" if boundaries else "without"
    difference, state = carried(
        elmo,
        read_json(golden / "allennlp/sentences.json"),
        read_json(golden / "allennlp/batches.json"),
        np.load(golden / f"allennlp/{name}/carry_{kept}_boundaries.npz"),
        boundaries=boundaries,
        batch_tokens=batch_tokens,
    )
    assert difference < tolerance(name)
    final = np.load(golden / f"allennlp/{name}/carry_final_state.npz")
    assert worst([state.h.numpy(), state.c.numpy()], [final["h"], final["c"]]) < tolerance(name)


def test_odd_tokens(golden):
    elmo = golden_elmo(golden / "allennlp/relu2")
    sentences = read_json(golden / "allennlp/odd/sentences.json")
    wanted = keyed(np.load(golden / "allennlp/odd/zero_with_boundaries.npz"), len(sentences))
    assert worst(elmo.embed(sentences, state="zero", boundaries=True), wanted) < 1e-5


def test_an_empty_sentence_moves_the_state_of_its_row(golden):
    elmo = golden_elmo(golden / "allennlp/relu2")
    batches = read_json(golden / "allennlp/odd/empty_sentence_batches.json")
    sentences = [sentence for batch in batches for sentence in batch]
    numbers = iter(range(len(sentences)))
    rows = [[next(numbers) for _ in batch] for batch in batches]
    archive = np.load(golden / "allennlp/odd/empty_sentence_carry_with_boundaries.npz")
    assert carried(elmo, sentences, rows, archive, boundaries=True)[0] < 1e-5


@pytest.mark.parametrize("name", BILM_TF)
def test_bilm_tf_from_zero(golden, name):
    elmo = golden_elmo(golden / "bilm_tf" / name)
    sentences = read_json(golden / "bilm_tf/sentences.json")
    wanted = keyed(np.load(golden / f"bilm_tf/{name}/zero_without_boundaries.npz"), len(sentences))
    assert worst(elmo.embed(sentences, state="zero"), wanted) < tolerance(name)


@pytest.mark.parametrize("name", CARRIED)
def test_bilm_tf_carried(golden, name):
    folder = golden / "bilm_tf"
    sentences, batches = read_json(folder / "sentences.json"), read_json(folder / "batches.json")
    archive = np.load(folder / name / "carry_without_boundaries.npz")
    assert carried(golden_elmo(folder / name), sentences, batches, archive, boundaries=False)[0] < tolerance(name)


def test_bilm_tf_padding_is_not_handed_out(golden):
    """bilm-tf's layer 0 is not zero at padding (defect 2): its raw batch agrees within the lengths, and we end there."""
    elmo = golden_elmo(golden / "bilm_tf/noskip")
    sentences, batches = read_json(golden / "bilm_tf/sentences.json"), read_json(golden / "bilm_tf/batches.json")
    raw = np.load(golden / "bilm_tf/noskip/raw_padded_batch.npz")
    found = elmo.embed([sentences[row] for row in batches[1]], state="zero")
    lengths = raw["lengths"]
    longest = raw["lm_embeddings"].shape[2]
    assert any(
        np.abs(row[0, length:]).max() > 0.1 for row, length in zip(raw["lm_embeddings"], lengths, strict=True) if length < longest
    )
    assert (
        worst(found, [row[:, : len(sentences[number])] for row, number in zip(raw["lm_embeddings"], batches[1], strict=True)])
        < 1e-5
    )


@pytest.mark.parametrize(("name", "sentences"), [("allennlp", "sentences.json"), ("bilm_tf", "lm_embeddings_sentences.json")])
def test_public_fixtures_carried_over_ten_batches(golden, name, sentences):
    folder = golden / "public_fixtures" / name
    elmo = polyseme.load(folder / "lm_weights.hdf5", options=folder / "options.json")
    rows = [[line.split() for line in lines] for lines in read_json(folder / sentences)]
    state = elmo.state(3)
    files = [h5py.File(folder / f"lm_embeddings_{row}.hdf5") for row in range(3)]
    for number in range(10):
        found = elmo.embed([row[number] for row in rows], layers="top", state=state)
        assert worst(found, [np.concatenate(file[str(number)][...], axis=1) for file in files]) < 5e-6
    for file in files:
        file.close()


def test_public_token_vectors(golden):
    """Each word's token vector, halves equal, is the row recorded for its line of the vocabulary."""
    folder = golden / "public_fixtures/allennlp"
    elmo = polyseme.load(folder / "lm_weights.hdf5", options=folder / "options.json")
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        wanted = file["embedding"][...]
    words = words[: len(wanted)]
    (found,) = elmo.embed([words], layers="token")
    half = found.shape[1] // 2
    np.testing.assert_array_equal(found[:, :half], found[:, half:])
    assert np.abs(found[:, :half] - wanted).max() < 5e-6


@pytest.mark.parametrize("name", ["full", "word_dim_0", "char_dim_0", "clipping"])
def test_many_langs_each_sentence_alone(golden, name):
    elmo = polyseme.load(golden / "many_langs" / name)
    sentences = read_json(golden / "many_langs/sentences.json")
    outputs = np.load(golden / f"many_langs/{name}/outputs.npz")
    for key, layers in {"-1": "mean", "-2": "all", "0": "token", "1": 1, "2": "lstm2"}.items():
        wanted = keyed(outputs, len(sentences), "s{:03d}_layer" + key)
        assert worst(elmo.embed(sentences, layers=layers, state="zero"), wanted) < 1e-5


def test_allennlp_module_with_its_mixes(golden):
    folder = golden / "allennlp_th"
    sentences = read_json(folder / "sentences.json")
    for file in ("elmo.th", "weights_in_task_model.th"):
        elmo = polyseme.load(folder / file, options=folder / "options.json")
        layers = keyed(np.load(folder / "zero_with_boundaries.npz"), len(sentences))
        assert worst(elmo.embed(sentences, state="zero", boundaries=True), layers) < 1e-5
        assert len(elmo.mixes) == 2
        representations = np.load(folder / "representations.npz")
        for number, mix in enumerate(elmo.mixes):
            wanted = keyed(representations, len(sentences), "s{:03d}_rep" + str(number))
            assert worst(elmo.embed(sentences, layers=mix, state="zero"), wanted) < 1e-5


@pytest.mark.parametrize("name", ["full", "sampled"])
def test_checkpoint_log_probabilities(golden, name):
    folder = golden / "tf_checkpoint"
    elmo = polyseme.load(folder / name, vocabulary=folder / "vocab.txt")
    sentences = read_json(folder / "probe_sentences.json")
    archive = np.load(folder / name / "log_probabilities.npz")
    for number, found in enumerate(elmo.score(sentences, state="zero")):
        assert found.tokens == sentences[number]
        assert np.abs(found.forward - archive[f"s{number:03d}_forward"]).max() < 1e-5
        assert np.abs(found.backward - archive[f"s{number:03d}_backward"]).max() < 1e-5
    vectors = keyed(np.load(folder / name / "zero_without_boundaries.npz"), len(sentences))
    assert worst(elmo.embed(sentences, state="zero"), vectors) < 1e-5


def test_averages_are_over_the_sentence(golden):
    """Defect 3 of the peers: a sentence vector divided by the padded length depends on its batch. Ours is the mean."""
    elmo = golden_elmo(golden / "allennlp/relu2")
    sentences = read_json(golden / "allennlp/sentences.json")
    layers = keyed(np.load(golden / "allennlp/relu2/zero_without_boundaries.npz"), len(sentences))
    found = elmo.embed(sentences, state="zero", pool="mean")
    wanted = [array.mean(axis=1) if array.shape[1] else np.zeros_like(array[:, :0].sum(axis=1)) for array in layers]
    assert worst(found, wanted) < 1e-5


def test_a_module_over_the_reference_state_counts_markers_as_allennlp(golden):
    """Layer norm over the batch: AllenNLP counts the sentence markers in mean and variance."""
    cases = read_json(golden / "allennlp/scalar_mix.json")
    sentences = [read_json(golden / "allennlp/sentences.json")[row] for row in cases["batch"]]
    for name in ("relu2", "tanh3"):
        elmo = golden_elmo(golden / "allennlp" / name)
        archive = np.load(golden / f"allennlp/{name}/scalar_mix.npz")
        mixes = [polyseme_mix(values) for values in cases["mixes"][name]]
        for norm in (0, 1):
            for kept in (0, 1):
                module = polyseme.ElmoEmbedding(
                    elmo,
                    dropout=0.0,
                    layer_norm="allennlp" if norm else None,
                    state="zero",
                    boundaries=bool(kept),
                    mixes=mixes[:1],
                )
                (output,), mask = module(elmo.characters(sentences))
                compare(output, mask, archive, f"mix_ln{norm}_keep{kept}")
            module = polyseme.ElmoEmbedding(
                elmo, outputs=2, dropout=0.0, layer_norm="allennlp" if norm else None, state="zero", mixes=mixes
            )
            outputs, _ = module(elmo.characters(sentences))
            for number, output in enumerate(outputs):
                assert np.abs(output.detach().numpy() - archive[f"two_ln{norm}_rep{number}"]).max() < 1e-5


def test_a_module_as_bilm_tf_weights_layers(golden):
    folder = golden / "bilm_tf/noskip"
    cases = read_json(folder / "scalar_mix.json")
    sentences = [read_json(golden / "bilm_tf/sentences.json")[row] for row in cases["batch"]]
    elmo = golden_elmo(folder)
    archive = np.load(folder / "scalar_mix.npz")
    for variant, values in cases["variants"].items():
        top = variant.endswith("top1")
        module = polyseme.ElmoEmbedding(
            elmo,
            dropout=0.0,
            layer_norm="bilm_tf" if "ln1" in variant else None,
            state="zero",
            mixes=[polyseme_mix({"w": [-9e10, -9e10, 1.0], "gamma": values["gamma"]} if top else values)],
        )
        (output,), mask = module(elmo.characters(sentences))
        compare(output, mask, archive, variant)
        if not top:
            assert module.penalty(values["l2_coef"]).item() == pytest.approx(values["regularization"], rel=1e-5)


def polyseme_mix(values):
    from polyseme.mix import Mix

    return Mix(weights=tuple(values["w"]), gamma=values["gamma"])


def compare(output: torch.Tensor, mask: torch.Tensor, archive, key: str) -> None:
    """Under the mask: what the peers leave at padding is no result; ours is zero."""
    wanted, wanted_mask = archive[key], archive[f"{key}_mask"].astype(bool)
    np.testing.assert_array_equal(mask.numpy(), wanted_mask)
    assert np.abs(output.detach().numpy() - wanted)[wanted_mask].max() < 1e-5
    assert not output[~mask].any()
