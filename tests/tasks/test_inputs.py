from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.errors import FormatError, InputError
from polyseme.tasks.inputs import ElmoConfig, Inputs, InputsConfig, SpellingConfig, WordConfig, Words, WordVectors
from polyseme.tasks.layers import Layers, embed_texts
from tiny import tiny_elmo

VECTORS = WordVectors(("the", "cat", "sat"), np.arange(12, dtype=np.float16).reshape(3, 4))
TEXTS = [("The", "cat"), ("dog",), (), ("a", "very", "long", "internationalization")]


def layers_of(texts, *, count=3, width=6):
    tokens = sum(map(len, texts))
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    vectors = np.random.default_rng(0).normal(size=(tokens, count, width)).astype(np.float16)
    return Layers(vectors, starts.astype(np.int64))


def test_pretrained_words_are_found_as_they_stand_or_in_lower_case():
    words = Words.build(WordConfig(), VECTORS, TEXTS)
    ids = torch.tensor([words.ids(["cat", "The", "dog"])])
    found = words(ids)[0]
    assert found[0].tolist() == [4, 5, 6, 7]
    assert found[1].tolist() == [0, 1, 2, 3]
    assert ids[0, 2] == 0
    words.offsets.data[0] = 9.0
    assert words(ids)[0, 2].tolist() == [9, 9, 9, 9]
    own = Words.build(WordConfig(), VECTORS, [*TEXTS, ("dog",)])
    assert (own.words[0], own.learned) == ("dog", 1)
    own(torch.tensor([own.ids(["dog", "cat"])])).sum().backward()
    assert own.offsets.grad.tolist() == [[0] * 4, [1] * 4]
    zero = Words.build(WordConfig(unknown="zero", trainable=True), VECTORS, TEXTS)
    zero.offsets.data[0] = 9.0
    assert not zero(torch.zeros(1, 1, dtype=torch.int64)).any()


def test_offsets_are_learned_for_words_of_the_training_text_only():
    words = Words.build(WordConfig(trainable=True), VECTORS, TEXTS)
    assert words.learned == 2
    ids = torch.tensor([words.ids(["the", "cat", "sat", "dog"])])
    words(ids).sum().backward()
    gradient = words.offsets.grad.abs().sum(1)
    assert (gradient > 0).tolist() == [True, True, True]
    before = words(ids)
    words.offsets.data += 1
    assert (words(ids) - before)[0].tolist() == [[1] * 4, [1] * 4, [0] * 4, [1] * 4]
    fixed = Words.build(WordConfig(unknown="zero"), VECTORS, TEXTS)
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_without_pretrained_vectors_words_seen_twice_are_learned():
    words = Words.build(WordConfig(dim=5), None, [("a", "b", "a")])
    assert (words.words, words.width) == (("a",), 5)
    assert words.ids(["a", "b", "A"]) == [1, 0, 1]


@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_widths_follow_from_the_parts(place):
    config = InputsConfig(spelling=SpellingConfig(filters=((2, 3), (3, 4))), elmo=ElmoConfig(place=place))
    inputs = Inputs(config, Words.build(WordConfig(), VECTORS, TEXTS), elmo=(3, 6))
    assert inputs.width == 4 + 7 + (0 if place == "output" else 6)
    assert inputs.output_width == (0 if place == "input" else 6)
    batch = inputs.read(TEXTS, layers_of(TEXTS)).batch([3, 0])
    vectors = inputs(batch)
    assert vectors.input.shape == (2, 4, inputs.width)
    assert vectors.beside(torch.zeros(2, 4, 5)).shape == (2, 4, 5 + inputs.output_width)
    assert set(inputs.layer_weights()) == ({"input", "output"} if place == "both" else {place})


def test_vectors_do_not_depend_on_the_batch():
    torch.manual_seed(0)
    config = InputsConfig(spelling=SpellingConfig(filters=((2, 3), (5, 4))), elmo=ElmoConfig())
    inputs = Inputs(config, Words.build(WordConfig(), VECTORS, TEXTS), elmo=(3, 6)).eval()
    texts = inputs.read(TEXTS, layers_of(TEXTS))
    together = inputs(texts.batch([0, 1, 2, 3])).input
    for number, text in enumerate(TEXTS):
        alone = inputs(texts.batch([number])).input[0, : len(text)]
        torch.testing.assert_close(together[number, : len(text)], alone)
        assert not together[number, len(text) :].any()


def test_mixes():
    layers = layers_of(TEXTS)
    raw = torch.from_numpy(layers.vectors[:2].astype(np.float32))

    def mixed(**changes):
        config = InputsConfig(words=None, spelling=None, elmo=replace(ElmoConfig(), **changes))
        inputs = Inputs(config, None, elmo=(3, 6)).eval()
        return inputs, inputs(inputs.read(TEXTS, layers).batch([0])).input[0]

    torch.testing.assert_close(mixed(mix="learned")[1], raw.mean(1))
    torch.testing.assert_close(mixed(mix="top")[1], raw[:, 2])
    torch.testing.assert_close(mixed(mix="fixed", weights=(-1e4, 0.0, -1e4))[1], raw[:, 1])
    normed = mixed(mix="fixed", weights=(0.0, -1e4, -1e4), layer_norm="token")[1]
    torch.testing.assert_close(normed.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
    fixed, _ = mixed(mix="fixed")
    assert not any(parameter.requires_grad for parameter in fixed.parameters())
    learned, _ = mixed(mix="learned", l2=0.5)
    learned.mixes[0].weights.data = torch.tensor([1.0, 2.0, 0.0])
    assert learned.penalty().item() == pytest.approx(2.5)
    assert fixed.penalty().item() == 0


def test_what_does_not_go_together_is_an_error():
    with pytest.raises(InputError, match="neither words, spelling nor ELMo"):
        InputsConfig(words=None, spelling=None, elmo=ElmoConfig(place="output"))
    with pytest.raises(InputError, match="give both or neither"):
        Inputs(InputsConfig(), None, elmo=(3, 6))
    inputs = Inputs(InputsConfig(words=None, elmo=ElmoConfig()), None, elmo=(3, 6))
    with pytest.raises(InputError, match="exactly when the model has a frozen ELMo"):
        inputs.read(TEXTS)


def test_a_biLM_that_is_trained_gives_what_the_frozen_one_gives():
    elmo = tiny_elmo()
    frozen = Inputs(InputsConfig(words=None, spelling=None, elmo=ElmoConfig(place="both")), None, elmo=elmo).eval()
    live_config = InputsConfig(words=None, spelling=None, elmo=ElmoConfig(place="both", trainable="all"))
    live = Inputs(live_config, None, elmo=elmo).eval()
    assert (live.width, live.output_width) == (frozen.width, frozen.output_width)
    wanted = frozen(frozen.read(TEXTS, embed_texts(elmo, TEXTS)).batch([3, 2, 0]))
    found = live(live.read(TEXTS).batch([3, 2, 0]))
    torch.testing.assert_close(found.input, wanted.input, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(found.output, wanted.output, atol=2e-3, rtol=1e-3)
    found.input.sum().backward()
    assert all(parameter.grad is not None for name, parameter in live.named_parameters() if "lstm" in name)
    assert live(live.read(TEXTS).batch([2])).input.shape == (1, 1, elmo.dim)
    with pytest.raises(InputError, match="give the biLM itself"):
        Inputs(live_config, None, elmo=(3, 6))
    with pytest.raises(InputError, match="trainable is 'all'"):
        ElmoConfig(trainable="all", mix="top")


def test_word_vector_files(tmp_path):
    np.savez(tmp_path / "v.npz", words=np.array(["a", "b"]), vectors=np.ones((2, 3), np.float16))
    assert WordVectors.read(tmp_path / "v.npz").words == ("a", "b")
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4.5\n")
    found = WordVectors.read(tmp_path / "v.txt")
    assert found.words == ("a", "b")
    assert found.vectors.tolist() == [[1, 2], [3, 4.5]]
    for text, message in {
        "a 1 2\nb 3\n": "line 2: 1 numbers; wanted 2",
        "a 1 x\n": "line 1: 'a 1 x'",
        "a\n": "line 1: 0 numbers",
    }.items():
        (tmp_path / "v.txt").write_text(text)
        with pytest.raises(FormatError, match=message):
            WordVectors.read(tmp_path / "v.txt")
    np.savez(tmp_path / "w.npz", other=np.zeros(1))
    with pytest.raises(FormatError, match="wanted the arrays words and vectors"):
        WordVectors.read(tmp_path / "w.npz")
    with pytest.raises(FormatError, match="no such file"):
        WordVectors.read(tmp_path / "none.npz")
