"""Elmo: same sentence, same vectors; every option; every error."""

import copy
import dataclasses
import pickle
import threading
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from polyseme import Elmo, InputError, LSTMState
from polyseme.batching import WARM_TOLERANCE
from polyseme.characters import ByteScheme, WordReader
from polyseme.config import WordConfig
from polyseme.kernels.sweep import LayerSweep
from polyseme.mix import Mix
from polyseme.vocabulary import Vocabulary
from tiny import WORDS, random_model, seed_shaped, tiny_config, tiny_elmo

ELMO = tiny_elmo()
LANGUAGE_MODEL = tiny_elmo(tiny_config(softmax=True))
SENTENCE = ["the", "cat", "sat", "on", "a", "mat", "."]

tokens = st.one_of(st.sampled_from(WORDS), st.text(max_size=60), st.just(""), st.just("\ud800"), st.just("\0"))
sentences = st.lists(st.lists(tokens, max_size=12), max_size=6)


def close(one: np.ndarray, other: np.ndarray, tolerance: float = 1e-5) -> bool:
    return one.shape == other.shape and (not one.size or float(np.abs(one - other).max()) < tolerance)


# The same sentence has the same vectors


@settings(max_examples=25)
@given(sentences, st.lists(tokens, max_size=9), sentences, st.integers(1, 40), st.sampled_from(["warm", "zero"]), st.booleans())
def test_same_sentence_same_vectors(before, sentence, after, batch_tokens, state, boundaries):
    """Whatever stands beside it, in whatever order, computed in whatever portions, after whatever calls."""
    (alone,) = ELMO.embed([sentence], state=state, boundaries=boundaries)
    together = ELMO.embed([*before, sentence, *after], state=state, boundaries=boundaries, batch_tokens=batch_tokens)
    assert len(together) == len(before) + 1 + len(after)
    assert close(together[len(before)], alone)
    turned = ELMO.embed([*after[::-1], [], sentence, [], *before], state=state, boundaries=boundaries)
    assert close(turned[len(after) + 1], alone)
    streamed = list(ELMO.embed_iter(iter([*before, sentence]), state=state, boundaries=boundaries, batch_tokens=batch_tokens))
    assert close(streamed[-1], alone)


@settings(max_examples=15)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=5), st.integers(1, 30))
def test_a_carried_state_does_not_depend_on_the_portions(rows, batch_tokens):
    one, other = ELMO.state(0), ELMO.state(0)
    for batch in (rows, rows[:-1], rows[::-1]):
        for left, right in zip(
            ELMO.embed(batch, state=one), ELMO.embed(batch, state=other, batch_tokens=batch_tokens), strict=True
        ):
            assert close(left, right)
    assert close(one.h.numpy(), other.h.numpy())
    assert close(one.c.numpy(), other.c.numpy())


def test_a_long_sentence_in_pieces_ends_in_the_same_state():
    one, other = ELMO.state(2), ELMO.state(2)
    batch = [SENTENCE * 30, SENTENCE]
    whole, pieces = ELMO.embed(batch, state=one), ELMO.embed(batch, state=other, batch_tokens=16)
    assert all(close(left, right) for left, right in zip(whole, pieces, strict=True))
    assert close(one.h.numpy(), other.h.numpy())
    assert close(one.c.numpy(), other.c.numpy())


def test_later_words_never_change_forward_vectors_and_earlier_ones_never_backward_vectors():
    (base,) = ELMO.embed([SENTENCE], boundaries=True)
    half = ELMO.dim // 2
    for position in range(len(SENTENCE)):
        changed = list(SENTENCE)
        changed[position] = "elephant"
        (other,) = ELMO.embed([changed], boundaries=True)
        moved = np.abs(other - base) > 1e-7
        at = position + 1
        assert not moved[:, :at, :half].any()
        assert not moved[:, at + 1 :, half:].any()
        assert moved[1:, at:, :half].any(axis=2).all()
        assert moved[1:, : at + 1, half:].any(axis=2).all()
        assert moved[0].any(axis=1).tolist() == [row == at for row in range(len(SENTENCE) + 2)]


def test_several_threads_at_once():
    """A fresh model, so that the threads also race for its warm state and its low-precision copy."""
    elmo = tiny_elmo(seed=3)
    batches = [[SENTENCE[: 1 + (number + row) % 7] for row in range(6)] for number in range(4)]
    wanted = [[array.copy() for array in tiny_elmo(seed=3).embed(batch)] for batch in batches]
    found: dict[int, list[np.ndarray]] = {}
    gate = threading.Barrier(len(batches))

    def work(number: int) -> None:
        gate.wait()
        for _ in range(2):
            found[number] = elmo.embed(batches[number], batch_tokens=11)
            elmo.embed(batches[number], precision="bfloat16")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(len(batches)))
    for number, arrays in found.items():
        assert all(close(one, other) for one, other in zip(arrays, wanted[number], strict=True))


def test_what_surrounds_a_call_does_not_matter():
    wanted, scores = LANGUAGE_MODEL.embed([SENTENCE] * 2), LANGUAGE_MODEL.score([SENTENCE])
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(True):
            found, found_scores = LANGUAGE_MODEL.embed([SENTENCE] * 2), LANGUAGE_MODEL.score([SENTENCE])
            pieces = LANGUAGE_MODEL.embed([SENTENCE] * 2, batch_tokens=3)
            state = LANGUAGE_MODEL.state(1)
            LANGUAGE_MODEL.embed([SENTENCE], state=state)
    finally:
        torch.set_default_dtype(torch.float32)
    assert state.h.dtype == torch.float32
    for array, piece, other in zip(found, pieces, wanted, strict=True):
        assert array.dtype == piece.dtype == np.float32
        assert close(array, other, 1e-6)
        assert close(piece, other)
    assert close(found_scores[0].forward, scores[0].forward, 1e-6)


# Length and memory


@pytest.mark.parametrize(
    ("length", "batch_tokens"), [(1_500, 200), pytest.param(50_000, None, marks=pytest.mark.slow, id="fifty thousand")]
)
def test_a_sentence_of_any_length_in_bounded_memory(length, batch_tokens, monkeypatch):
    """Nothing but the result grows with the sentence: no more than a portion of it goes through the network at once."""
    sentence = [WORDS[number * 7 % len(WORDS)] for number in range(length)]
    seen: list[int] = []
    original = LayerSweep.__call__

    def watched(self, x, packing, h, c):
        seen.append(packing.tokens)
        return original(self, x, packing, h, c)

    monkeypatch.setattr(LayerSweep, "__call__", watched)
    (array,) = ELMO.embed([sentence], batch_tokens=batch_tokens)
    assert array.shape == (3, length, ELMO.dim)
    assert max(seen) == (batch_tokens or ELMO.engine().batch_tokens)
    assert sum(seen) == 4 * (length + 2)
    # Far from either end the neighbourhood decides.
    middle = length // 2
    (part,) = ELMO.embed([sentence[middle - 100 : middle + 100]])
    assert close(part[:, 100:102], array[:, middle : middle + 2], 1e-4)


def test_a_stream_is_read_as_it_is_used():
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield SENTENCE

    arrays = ELMO.embed_iter(endless(), layers="top", batch_tokens=64)
    for _ in range(100):
        assert next(arrays).shape == (len(SENTENCE), ELMO.dim)
    assert taken < 100 + 64
    assert not torch.is_inference_mode_enabled()


def test_nothing_stays_behind_after_a_call():
    for _ in range(3):
        ELMO.embed([SENTENCE] * 4)
    tracemalloc.start()
    ELMO.embed([SENTENCE] * 4)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(20):
        ELMO.embed([SENTENCE] * 4)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000


def test_token_vectors_alone_need_no_lstm(monkeypatch):
    def never(self, x, packing, h, c):
        raise AssertionError("the LSTM was run")

    elmo = tiny_elmo(seed=2)
    wanted = elmo.embed([SENTENCE * 5, SENTENCE])
    monkeypatch.setattr(LayerSweep, "__call__", never)
    for batch_tokens in (None, 4):
        found = elmo.embed([SENTENCE * 5, SENTENCE], layers="token", batch_tokens=batch_tokens)
        assert all(close(one, other[0]) for one, other in zip(found, wanted, strict=True))
    with pytest.raises(AssertionError, match="the LSTM was run"):
        elmo.embed([SENTENCE], layers="lstm1")


def test_arrays_own_their_memory():
    """A view would keep its whole batch alive."""
    for layers in ("all", "top", "mean", 0):
        for array in ELMO.embed([SENTENCE, SENTENCE[:2]], layers=layers):
            base = torch.from_numpy(array)
            assert base.untyped_storage().nbytes() == array.nbytes


# The warm state


def test_warm_is_where_empty_sentences_lead():
    state = ELMO.state(1)
    for _ in range(1000):
        before = state.clone()
        ELMO.embed([[]], state=state)
        if max(float((state.h - before.h).abs().max()), float((state.c - before.c).abs().max())) <= WARM_TOLERANCE:
            break
    warm = ELMO.warm()
    assert close(warm.h.numpy(), state.h.numpy(), 1e-5)
    assert close(warm.c.numpy(), state.c.numpy(), 1e-5)
    assert float(warm.c.abs().max()) > 0.01
    assert close(ELMO.embed([SENTENCE], state=warm)[0], ELMO.embed([SENTENCE])[0])
    assert not close(ELMO.embed([SENTENCE], state="zero")[0], ELMO.embed([SENTENCE])[0])


def test_a_model_may_say_that_its_warm_state_is_zero():
    elmo = tiny_elmo(dataclasses.replace(tiny_config(), warm="zero"))
    assert not elmo.warm().c.any()
    assert close(elmo.embed([SENTENCE])[0], elmo.embed([SENTENCE], state="zero")[0], 1e-12)


def test_the_warm_state_handed_out_is_a_copy():
    ELMO.warm().h.fill_(9)
    assert float(ELMO.warm().h.abs().max()) < 9


# Carried states


def test_unused_rows_keep_their_state_and_new_rows_begin_at_zero():
    state = ELMO.state(0)
    ELMO.embed([SENTENCE, ["a", "dog"], ["home"]], state=state)
    assert state.rows == 3
    third = state.h[:, 2].clone()
    ELMO.embed([["he", "ran"]], state=state)
    assert torch.equal(state.h[:, 2], third)
    found = ELMO.embed([[], [], [], SENTENCE], state=state)
    assert close(found[3], ELMO.embed([SENTENCE], state="zero")[0])


def test_a_failed_call_leaves_the_state_alone():
    state = ELMO.state(0)
    ELMO.embed([SENTENCE], state=state)
    before = state.clone()
    with pytest.raises(InputError):
        ELMO.embed([SENTENCE, ["a", 3]], state=state)
    assert torch.equal(state.h, before.h)


def test_a_state_of_another_model():
    with pytest.raises(InputError, match=r"shape \(1, 2, 16\), this model's is \(2, rows, 16\)"):
        ELMO.embed([SENTENCE], state=tiny_elmo(tiny_config(layers=1)).state(2))


# Layers, pooling, context


def test_layers_by_every_name():
    (every,) = ELMO.embed([SENTENCE], layers="all")
    assert every.shape == (3, len(SENTENCE), ELMO.dim)
    assert every.dtype == np.float32
    for name, wanted in {
        "token": every[0], "lstm1": every[1], "lstm2": every[2], "top": every[2], "mean": every.mean(axis=0),
        0: every[0], -1: every[2], np.int64(1): every[1],
    }.items():  # fmt: skip
        assert close(ELMO.embed([SENTENCE], layers=name)[0], wanted)
    weights = np.array([0.5, 0.0, -2.0])
    for given_weights in (weights, weights.tolist(), tuple(weights)):
        assert close(ELMO.embed([SENTENCE], layers=given_weights)[0], np.einsum("l,ltd->td", weights, every))
    shares = np.exp([0.3, -1.0, 0.2]) / np.exp([0.3, -1.0, 0.2]).sum()
    mix = Mix(weights=(0.3, -1.0, 0.2), gamma=1.7)
    assert close(ELMO.embed([SENTENCE], layers=mix)[0], 1.7 * np.einsum("l,ltd->td", shares, every))


@pytest.mark.parametrize(
    "layers", ["lstm3", 3, -4, True, [1.0, 2.0], ["token"], None, 1.5, [1.0, np.nan, 1.0], [1.0, np.inf, 1.0]]
)
def test_layers_that_do_not_exist(layers):
    with pytest.raises(InputError, match=r"token|layer weights"):
        ELMO.embed([SENTENCE], layers=layers)


@pytest.mark.parametrize("batch_tokens", [None, 3])
def test_pooling_is_over_the_sentence_itself(batch_tokens):
    batch = [SENTENCE, ["dog"], SENTENCE[:3]]
    arrays = ELMO.embed(batch)
    half = ELMO.dim // 2
    wanted = {
        "mean": [array.mean(axis=1) for array in arrays],
        "max": [array.max(axis=1) for array in arrays],
        "first_last": [np.concatenate([array[:, -1, :half], array[:, 0, half:]], axis=1) for array in arrays],
    }
    for pool, vectors in wanted.items():
        found = ELMO.embed(batch, pool=pool, batch_tokens=batch_tokens)
        assert all(close(one, other) for one, other in zip(found, vectors, strict=True))
        tops = ELMO.embed(batch, pool=pool, layers="top")
        assert all(close(one, other[2]) for one, other in zip(tops, vectors, strict=True))
    with pytest.raises(InputError, match="'first_last'"):
        ELMO.embed([], pool="sum")


def test_nothing_and_empty_sentences():
    assert ELMO.embed([]) == []
    assert list(ELMO.embed_iter([])) == []
    assert ELMO.embed([[], SENTENCE, []])[0].shape == (3, 0, ELMO.dim)
    assert ELMO.embed([[]], layers="top")[0].shape == (0, ELMO.dim)
    assert ELMO.embed([[]], boundaries=True)[0].shape == (3, 2, ELMO.dim)
    assert ELMO.embed([""])[0].shape == (3, 0, ELMO.dim)
    for pool in ("mean", "max", "first_last"):
        np.testing.assert_array_equal(ELMO.embed([[]], pool=pool)[0], np.zeros((3, ELMO.dim)))
    for context in ("document", 2):
        assert [array.shape[1] for array in ELMO.embed([[], ["a"], []], context=context)] == [0, 1, 0]
        assert ELMO.embed([], context=context) == []


def test_context():
    document = [["the", "cat", "sat", "."], [], ["it", "ran"], ["he", "saw", "it", "."]]
    (whole,) = ELMO.embed([[word for sentence in document for word in sentence]])
    found = ELMO.embed(document, context="document")
    assert close(np.concatenate(found, axis=1), whole)
    assert all(close(one, two) for one, two in zip(ELMO.embed(document, context=99), found, strict=True))
    (window,) = ELMO.embed([["sat", ".", "it", "ran", "he", "saw"]])
    assert close(ELMO.embed(document, context=2)[2], window[:, 2:4])
    assert all(close(one, two) for one, two in zip(ELMO.embed(document, context=0), ELMO.embed(document), strict=True))
    state = ELMO.state(1)
    ELMO.embed(document, context="document", state=state)
    assert state.rows == 1


@pytest.mark.parametrize("context", ["paragraph", -1, 1.5, True, None])
def test_unknown_context(context):
    with pytest.raises(InputError, match="context is"):
        ELMO.embed([SENTENCE], context=context)


def test_markers_stand_elsewhere_in_a_context():
    with pytest.raises(InputError, match="boundaries=True goes with context='sentence'"):
        ELMO.embed([SENTENCE], boundaries=True, context="document")


def test_bfloat16_is_near():
    (exact,), (near,) = ELMO.embed([SENTENCE]), ELMO.embed([SENTENCE], precision="bfloat16")
    assert near.dtype == np.float32
    assert close(near, exact, 0.1)
    assert not close(near, exact, 1e-5)
    state = ELMO.state(1)
    ELMO.embed([SENTENCE], precision="bfloat16", state=state)
    assert state.h.dtype == torch.float32


def test_layers_of_unequal_width():
    elmo = seed_shaped()
    assert elmo.config.layer_dims == (600, 128, 128)
    assert elmo.dim == 128
    sentence = ["the", "cat", "."]
    assert elmo.embed([sentence], layers="token")[0].shape == (3, 600)
    assert elmo.embed([sentence], layers="lstm1")[0].shape == (3, 128)
    assert elmo.embed([sentence], layers="top", pool="mean")[0].shape == (128,)
    first, top = (elmo.embed([sentence], layers=layer)[0] for layer in (1, 2))
    assert close(elmo.embed([sentence], layers=[0.0, 0.25, 0.75])[0], 0.25 * first + 0.75 * top)
    for layers in ("all", "mean", [1.0, 1.0, 1.0]):
        with pytest.raises(InputError, match=r"token 600, lstm1 128, lstm2 128.*'top'.*ElmoEmbedding"):
            elmo.embed([sentence], layers=layers)
    assert "(tokens, 128)" in repr(elmo)


def test_one_direction():
    elmo = tiny_elmo(tiny_config(bidirectional=False, softmax=True))
    (array,) = elmo.embed([SENTENCE])
    assert array.shape == (3, 7, 8)
    assert close(elmo.embed([SENTENCE], pool="first_last")[0], array[:, -1])
    (found,) = elmo.score([SENTENCE])
    assert found.backward is None
    assert found.total == pytest.approx(float(found.forward.sum()))
    with pytest.raises(InputError, match="forward only"):
        elmo.expect(SENTENCE, 1, direction="backward")


# Input


def test_text_goes_through_the_models_tokenizer():
    found = ELMO.embed(["The cat sat.", "Nobody saw it."])
    wanted = ELMO.embed([["The", "cat", "sat", "."], ["Nobody", "saw", "it", "."]])
    assert all(close(one, other) for one, other in zip(found, wanted, strict=True))


def test_strings_without_white_space_are_probably_tokens():
    with pytest.raises(InputError, match=r"give \[\[\.\.\.\]\].*raw=True"):
        ELMO.embed(["the", "cat"])
    assert len(ELMO.embed(["the", "cat"], raw=True)) == 2
    assert len(ELMO.embed(["the"])) == 1
    assert len(ELMO.embed(["the cat", "sat"])) == 2
    proteins = tiny_elmo(dataclasses.replace(tiny_config(), tokenization="characters"))
    assert [array.shape[1] for array in proteins.embed(["MKTAYI", "AKQR"])] == [6, 4]
    for method in (ELMO.characters, LANGUAGE_MODEL.score, lambda given: list(ELMO.embed_iter(given))):
        with pytest.raises(InputError, match="raw=True"):
            method(["the", "cat"])


def test_a_stream_is_asked_once_whether_it_is_a_list_of_tokens():
    """Which strings meet in a later window is chance, so it must not decide on an error."""
    lines = ["the cat sat .", *["yes"] * 100]
    assert sum(1 for _ in ELMO.embed_iter(lines, layers="token", batch_tokens=8)) == 101


@pytest.mark.parametrize(
    ("given_sentences", "message"),
    [
        ("the cat sat", r"one string was given.*\['the cat sat'\]"),
        (b"the cat", "one string"),
        ([["the", "cat"], "sat down"], "sentence 1 is 'sat down' .str.; give strings or lists of tokens throughout"),
        (["sat down", ["the", "cat"]], "sentence 1 is .*list.*throughout"),
        ([[["the", "cat"]]], "token 0 of sentence 0 .*list.*not deeper"),
        ([["the", 3]], "token 1 of sentence 0 is 3 .int.; tokens are strings"),
        ([["the", None]], "NoneType"),
        ([["the", b"cat"]], "bytes"),
        ([3], "sentence 0 is 3 .int.; wanted a list"),
        ([{"the", "cat"}], "set"),
        ([{"the": 1}], "dict"),
        ({"the cat": 1}, "sentences is .*dict"),
        (np.array("the cat"), "sentences is .*ndarray.; wanted a list"),
        (None, "NoneType"),
        (7, "int"),
    ],
)
def test_wrong_nesting_and_types(given_sentences, message):
    for method in (ELMO.embed, ELMO.characters, LANGUAGE_MODEL.score):
        with pytest.raises(InputError, match=message):
            method(given_sentences)


def test_words_outside_a_word_list():
    """Defect 6: bilm-tf reads them as padding, and gives the last listed word the end marker's characters."""
    config = dataclasses.replace(tiny_config(), characters=None, words=WordConfig(size=3, dim=8), projection=None)
    for words in (("<S>", "</S>", "cat"), ("cat", "dog", "ran")):
        elmo = Elmo(random_model(config), WordReader(scheme=None, lexicon=Vocabulary(words)))
        with pytest.raises(InputError, match=r"'(xylophone|<S>)' is not in the vocabulary, which has no <UNK> line"):
            elmo.embed([["xylophone"]])
    spelled = Elmo(random_model(tiny_config()), WordReader(scheme=ByteScheme(), lexicon=None))
    assert close(spelled.embed([["ran"]])[0], ELMO.embed([["ran"]])[0])


def test_list_like_sentences():
    wanted = ELMO.embed([["the", "cat"]])[0]
    for sentence in (("the", "cat"), np.array(["the", "cat"]), iter(["the", "cat"])):
        assert close(ELMO.embed(iter([sentence]))[0], wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "cold"}, "'warm', 'zero' or a state"),
        ({"state": None}, "NoneType"),
        ({"precision": "int4"}, "'float32' or 'bfloat16'"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"batch_tokens": True}, "batch_tokens is True"),
        ({"pool": "sum"}, "pool is 'sum'"),
    ],
)
def test_unknown_options(options, message):
    for batch in ([SENTENCE], []):
        with pytest.raises(InputError, match=message):
            ELMO.embed(batch, **options)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(InputError, match=f"device '{device}' cannot be used .*; give cpu"):
        ELMO.to(device)


def test_a_stream_cannot_carry_a_state():
    with pytest.raises(InputError, match="use embed to carry a state"):
        list(ELMO.embed_iter([SENTENCE], state=ELMO.state(1)))


# Probabilities


def test_scores_are_probabilities():
    """At every position the probabilities of all words add up to one, in both directions."""
    vocabulary = LANGUAGE_MODEL.vocabulary
    for position in range(len(SENTENCE)):
        for direction in ("forward", "backward", "both"):
            expected = LANGUAGE_MODEL.expect(SENTENCE, position, top=len(vocabulary), direction=direction)
            assert sum(np.exp(word.log_probability) for word in expected) == pytest.approx(1, abs=1e-5)
            assert sorted(word.word for word in expected) == sorted(vocabulary.words)
            assert [word.log_probability for word in expected] == sorted(
                (word.log_probability for word in expected), reverse=True
            )


def test_score_and_expect_agree():
    (found,) = LANGUAGE_MODEL.score([SENTENCE])
    assert len(found.forward) == len(found.backward) == len(SENTENCE) + 1
    assert found.total == pytest.approx((found.forward.sum() + found.backward.sum()) / 2)
    for position, word in enumerate(SENTENCE):
        for direction, value in (("forward", found.forward[position]), ("backward", found.backward[position + 1])):
            expected = LANGUAGE_MODEL.expect(SENTENCE, position, top=99, direction=direction)
            assert {one.word: one.log_probability for one in expected}[word] == pytest.approx(float(value), abs=1e-5)
    after = LANGUAGE_MODEL.expect(SENTENCE, len(SENTENCE), top=99, direction="forward")
    assert {one.word: one.log_probability for one in after}["</S>"] == pytest.approx(float(found.forward[-1]), abs=1e-5)


def test_the_word_that_stands_there_does_not_matter_to_what_is_expected():
    changed = [*SENTENCE[:2], "xylophone", *SENTENCE[3:]]
    assert LANGUAGE_MODEL.expect(SENTENCE, 2) == LANGUAGE_MODEL.expect(changed, 2)


def test_unknown_words_score_as_the_unknown_word():
    one, other = LANGUAGE_MODEL.score([["the", "xylophone"], ["the", "<UNK>"]])
    assert one.forward[1] == other.forward[1]
    assert one.forward[2] != other.forward[2]


def test_substitutes_make_the_sentence_more_probable_by_their_gain():
    found = LANGUAGE_MODEL.substitutes(SENTENCE, 1, top=5)
    assert len(found) == 5
    assert [one.gain for one in found] == sorted((one.gain for one in found), reverse=True)
    assert not {one.word for one in found} & {"cat", "<S>", "</S>", "<UNK>"}
    base, changed = LANGUAGE_MODEL.score([SENTENCE, [SENTENCE[0], found[0].word, *SENTENCE[2:]]])
    assert found[0].gain == pytest.approx(changed.total - base.total, abs=1e-4)
    assert LANGUAGE_MODEL.substitutes("the cat sat on a mat .", 1, top=5) == found


@pytest.mark.parametrize("position", [-1, 7, True, "1", 1.0])
def test_a_position_outside_the_sentence(position):
    with pytest.raises(InputError, match="the sentence has 7 tokens, wanted 0 to 6"):
        LANGUAGE_MODEL.expect(SENTENCE, position)
    with pytest.raises(InputError, match="wanted 0 to 6"):
        LANGUAGE_MODEL.substitutes(SENTENCE, position)


def test_wrong_ways_to_ask_for_words():
    with pytest.raises(InputError, match="top is 0"):
        LANGUAGE_MODEL.expect(SENTENCE, 1, top=0)
    with pytest.raises(InputError, match="'both', 'forward' or 'backward'"):
        LANGUAGE_MODEL.expect(SENTENCE, 1, direction="left")


def test_a_model_without_softmax_says_so():
    for call in (lambda: ELMO.score([SENTENCE]), lambda: ELMO.expect(SENTENCE, 1), lambda: ELMO.substitutes(SENTENCE, 1)):
        with pytest.raises(InputError, match="no softmax"):
            call()
    config = tiny_config(softmax=True)
    wordless = Elmo(random_model(config), WordReader(scheme=ByteScheme(), lexicon=None))
    with pytest.raises(InputError, match="vocabulary="):
        wordless.score([SENTENCE])
    without_markers = Vocabulary([f"w{number}" for number in range(len(WORDS))])
    with pytest.raises(InputError, match="<UNK>"):
        Elmo(random_model(config), wordless.reader, vocabulary=without_markers).score([SENTENCE])


# The object itself


def test_shapes_are_in_its_face():
    assert repr(ELMO) == (
        "Elmo('tiny': layers token 16, lstm1 16, lstm2 16; embed() gives (3, tokens, 16) for each sentence; no softmax; on cpu)"
    )
    assert f"softmax over {len(WORDS)} words" in repr(LANGUAGE_MODEL)
    assert (ELMO.layers, ELMO.dim, ELMO.mixes, ELMO.config) == (("token", "lstm1", "lstm2"), 16, (), tiny_config())
    assert ELMO.device == torch.device("cpu")


def test_a_copy_and_a_pickle_give_the_same_vectors():
    elmo = tiny_elmo(seed=5)
    wanted = elmo.embed([SENTENCE])[0]
    assert copy.deepcopy(elmo) is elmo
    back = pickle.loads(pickle.dumps(elmo))
    assert close(back.embed([SENTENCE])[0], wanted, 1e-12)
    assert back.hash == elmo.hash != tiny_elmo(seed=6).hash
    assert elmo.to("cpu").hash == elmo.hash


def test_the_model_given_stays_as_it_is():
    model = random_model(tiny_config())
    elmo = Elmo(model, WordReader(scheme=ByteScheme(), lexicon=None))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in elmo.model.parameters())
    assert elmo.model.lstm.stack("forward")[0].bias.data_ptr() == model.lstm.stack("forward")[0].bias.data_ptr()
    model.half()
    assert elmo.embed([SENTENCE])[0].dtype == np.float32


def test_characters_are_distinct_words_and_where_they_stand():
    ids = ELMO.characters([["the", "cat", "the"], [], ["cat"]])
    assert ids.words is None
    assert ids.characters.shape == (4, 50)
    assert ids.lengths.tolist() == [5, 2, 3]
    assert ids.index.shape == (3, 5)
    begin, the, cat, end = ids.index[0, 0], ids.index[0, 1], ids.index[0, 2], ids.index[0, 4]
    assert ids.index[0].tolist() == [begin, the, cat, the, end]
    assert ids.index[2, :3].tolist() == [begin, cat, end]
    assert seed_shaped().characters([["the"]]).words.shape == (3,)
    assert ids.to("cpu").lengths.tolist() == [5, 2, 3]


def test_a_state_has_rows():
    assert isinstance(ELMO.state(4), LSTMState)
    assert ELMO.state(4).h.shape == (2, 4, 16)
    assert ELMO.state(4).c.shape == (2, 4, 24)
    with pytest.raises(InputError, match="rows is -1"):
        ELMO.state(-1)
