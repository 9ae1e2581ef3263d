"""The engine equals the model: every architecture, every option, in every precision, in whatever portions."""

import dataclasses
from collections import OrderedDict

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from polyseme import ElmoEmbedding
from polyseme.batching import encode, warm_state
from polyseme.characters import ByteScheme, LexiconScheme, WordReader, Words, distinct
from polyseme.config import BiLMConfig, CharacterConfig, WordConfig
from polyseme.elmo import Elmo
from polyseme.engine import Engine, _batches
from polyseme.kernels import available, sweep, training
from polyseme.kernels.recent import RecentVectors
from polyseme.kernels.spelling import Speller
from polyseme.kernels.sweep import LayerSweep, Packing
from polyseme.lstm import LSTMState
from polyseme.model import BiLM
from polyseme.vocabulary import Vocabulary
from tiny import WORDS, random_model, tiny_config

# The largest difference from the float32 model that an entry may have, and the smallest cosine of a token's vectors.
TOLERANCES = {"float32": (2e-5, 1 - 1e-6), "bfloat16": (0.1, 0.9995)}

BASE = tiny_config()
CHARACTERS = BASE.characters
assert CHARACTERS is not None


def characters(**changes) -> BiLMConfig:
    return dataclasses.replace(BASE, characters=dataclasses.replace(CHARACTERS, **changes))


def lstm(**changes) -> BiLMConfig:
    return dataclasses.replace(BASE, lstm=dataclasses.replace(BASE.lstm, **changes))


ARCHITECTURES = {
    "usual": BASE,
    "tanh": characters(activation="tanh"),
    "no highway": characters(highways=0),
    "two highways": characters(highways=2),
    "one wide filter": characters(filters=((7, 20),)),
    "few characters": characters(max_characters=9, filters=((1, 4), (9, 8), (4, 8))),
    "no token projection": dataclasses.replace(BASE, projection=None),
    "no LSTM projection": lstm(projection=None),
    "one layer": lstm(layers=1),
    "four layers": lstm(layers=4),
    "one direction": lstm(bidirectional=False),
    "not residual": lstm(residual=False),
    "no clips": lstm(cell_clip=None, projection_clip=None),
    "strong clips": lstm(cell_clip=0.05, projection_clip=0.02),
    "cell clip alone": lstm(cell_clip=0.05, projection_clip=None),
    "no forget bias": lstm(forget_bias=0.0),
    "words alone": dataclasses.replace(BASE, characters=None, words=WordConfig(size=len(WORDS), dim=8), projection=None),
    "words and characters": dataclasses.replace(BASE, words=WordConfig(size=len(WORDS), dim=6)),
}
SENTENCES = [
    ["the", "cat", "sat", "on", "a", "mat", "."], [], ["he", "ran"], ["it"] * 19, ["she", "saw", "it", "."], ["a"],
    ["an-unusually-long-word-of-more-than-fifty-characters-" + "x" * n for n in range(4)], ["home", "."] * 4,
]  # fmt: skip


def reader(config: BiLMConfig) -> WordReader:
    scheme = None if config.characters is None else ByteScheme(max_characters=config.characters.max_characters)
    return WordReader(scheme=scheme, lexicon=None if config.words is None else Vocabulary(WORDS))


def indexed(config: BiLMConfig, sentences=SENTENCES) -> tuple[list[str], list[list[int]]]:
    read = reader(config)
    return distinct([[read.begin, *sentence, read.end] for sentence in sentences])


def some_state(config: BiLMConfig, rows: int) -> LSTMState:
    state = LSTMState.zeros(config.lstm, rows)
    generator = torch.Generator().manual_seed(5)
    state.h.uniform_(-0.5, 0.5, generator=generator)
    state.c.uniform_(-0.5, 0.5, generator=generator)
    return state


def compare(found: torch.Tensor, wanted: torch.Tensor, precision: str) -> None:
    most, cosine = TOLERANCES[precision]
    wanted = wanted.detach()
    assert found.dtype == torch.float32
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= most
    lengths = wanted.norm(dim=-1)
    near = torch.cosine_similarity(found, wanted, dim=-1)[lengths > 1e-3]
    assert near.numel() == 0 or float(near.min()) >= cosine


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("layers", "carry", "batch_tokens", "few", "kernel"),
    [
        ("all", False, 1000, 0, available()[0]),
        ("all", True, 1000, 4, available()[0]),
        ("all", True, 4, 32, available()[0]),
        ("all", False, 25, 32, available()[0]),
        ("top", False, 25, 32, available()[-1]),
        ("first", True, 25, 0, available()[0]),
        ("token", False, 7, 32, available()[0]),
    ],
)  # fmt: skip
def test_engine_equals_model(name, precision, layers, carry, batch_tokens, few, kernel, monkeypatch):
    """`few`: up to how many rows the steps are computed in C, all of a layer in one call."""
    config = ARCHITECTURES[name]
    model = random_model(config)
    monkeypatch.setattr(sweep, "_FEW_ROWS", few)
    monkeypatch.setattr(sweep, "in_use", lambda: kernel)
    monkeypatch.setattr(training, "in_use", lambda: kernel)
    chosen = {"all": tuple(range(len(config.layer_names))), "top": (config.lstm.layers,), "first": (1,), "token": (0,)}[layers]
    names, index = indexed(config)
    one, other = some_state(config, len(index) if carry else 1), some_state(config, len(index) if carry else 1)
    wanted = dict(encode(model, reader(config).read(names), index, one, layers=chosen, batch_tokens=1000, carry=carry))
    engine = Engine(model, precision=precision)
    vectors = engine.vectors(names, reader(config).read)
    found = dict(engine.encode(vectors, index, other, layers=chosen, batch_tokens=batch_tokens, carry=carry))
    assert sorted(found) == sorted(wanted) == list(range(len(index)))
    for row, expected in wanted.items():
        for mine, theirs in zip(found[row], expected, strict=True):
            compare(mine, theirs, precision)
    for mine, theirs in ((other.h, one.h.detach()), (other.c, one.c.detach())):
        assert float((mine - theirs).abs().max()) <= TOLERANCES[precision][0]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("precision", TOLERANCES)
def test_short_sentences_equal_the_model(name, precision):
    """A few sentences, again and again: from the second time on the caller's thread reads one of the directions itself."""
    config = ARCHITECTURES[name]
    model = random_model(config)
    engine = Engine(model, precision=precision)
    names, index = indexed(config, [["the", "cat", "sat"], ["he"], ["she", "saw", "it", "."]])
    layers = tuple(range(len(config.layer_names)))
    wanted = dict(encode(model, reader(config).read(names), index, some_state(config, 1), layers=layers, batch_tokens=1000))
    vectors = engine.vectors(names, reader(config).read)
    for _ in range(3):
        for rows in ([0, 1, 2], [2], [0], [1]):
            some = [index[row] for row in rows]
            for place, found in engine.encode(vectors, some, some_state(config, 1), layers=layers, batch_tokens=1000):
                for mine, theirs in zip(found, wanted[rows[place]], strict=True):
                    compare(mine, theirs, precision)


def test_the_lexicon_scheme():
    """ELMoForManyLangs: characters looked up, the padding has a number like any other."""
    lexicon = Vocabulary(
        ("a", "b", "<bos>", "<pad>", "<eos>", "<oov>", "<bow>", "<eow>", "c"), markers=("<bos>", "<eos>", "<oov>")
    )
    config = characters(scheme="lexicon", size=len(lexicon), max_characters=12)
    model = random_model(config)
    words = WordReader(scheme=LexiconScheme(lexicon, max_characters=12), lexicon=None).read(["abc", "", "b" * 30, "<bos>", "caz"])
    compare(Speller(model.token_encoder, config, precision="float32")(words), model.token_encoder(words), "float32")


# The same sentence has the same bits


WIDE = dataclasses.replace(
    BASE,
    characters=CharacterConfig(dim=8, filters=((1, 16), (3, 48), (5, 64)), highways=1),
    projection=48,
    lstm=dataclasses.replace(BASE.lstm, dim=192, projection=48),
)


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_sentence_has_the_same_bits(precision, threads):
    """Whatever else is in the call, in whatever portions, and whether its words were seen before."""
    model = random_model(WIDE)
    sentence = ["the", "cat", "sat", "by", "the", "unmistakable", "mat", "."]
    others = [[WORDS[(row * column) % len(WORDS)] + "x" * (row % 9) for column in range(2 + row % 30)] for row in range(70)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (alone,) = elmo_over(model).embed([sentence], precision=precision)
        elmo = elmo_over(model)
        for batch_tokens in (None, 64, 3):
            for _ in range(2):
                found = elmo.embed([*others[:31], sentence, *others[31:]], precision=precision, batch_tokens=batch_tokens)
                np.testing.assert_array_equal(found[31], alone)
    finally:
        torch.set_num_threads(before)


def elmo_over(model: BiLM) -> Elmo:
    return Elmo(model, reader(model.config))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_warm_state_is_the_models(name):
    model = random_model(ARCHITECTURES[name])
    words = reader(model.config)
    markers = words.read([words.begin, words.end])
    found, wanted = Engine(model).warm_state(markers), warm_state(model, markers)
    compare(found.h, wanted.h, "float32")
    compare(found.c, wanted.c, "float32")


@pytest.mark.parametrize("inference", [True, False])
def test_the_callers_mode_does_not_matter(inference):
    """What is kept from a call in inference mode serves one outside it, and the other way round; gradients flow all the same."""
    elmo = elmo_over(random_model(WIDE))
    state = elmo.state(rows=1)
    with torch.inference_mode(inference):
        (first,) = elmo.embed([["the", "cat"]])
        elmo.embed([["the", "dog"]], state=state)
    with torch.inference_mode(not inference):
        (second,) = elmo.embed([["the", "cat"]])
        elmo.embed([["a", "dog", "sat"]], state=state)
    np.testing.assert_array_equal(first, second)
    module = ElmoEmbedding(elmo, dropout=0.0)
    (vectors,), _ = module(elmo.characters([["the", "zebra"]]))
    vectors.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters() if parameter.requires_grad)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=12, unique=True), st.integers(0, 11))
def test_a_words_vector_does_not_depend_on_the_others(words, number):
    """In layers of widths that fill the processor's vectors, as those of all published models do."""
    config = dataclasses.replace(characters(max_characters=24, filters=((1, 16), (2, 16), (4, 32))), projection=16)
    model = random_model(config)
    speller = Speller(model.token_encoder, config, precision="float32")
    read = reader(config).read
    together = speller(read(words))
    with torch.no_grad():
        compare(together, model.token_encoder(read(words)), "float32")
    number %= len(words)
    torch.testing.assert_close(speller(read(words[number : number + 1]))[0], together[number], rtol=0, atol=0)


# Packing


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_packing_keeps_no_room_for_padding(lengths):
    lengths = sorted(lengths, reverse=True)
    packing = Packing.of(lengths)
    assert packing.tokens == sum(lengths)
    assert packing.counts == [sum(length > step for length in lengths) for step in range(lengths[0])]
    for reverse in (False, True):
        places = packing.places(reverse=reverse).tolist()
        assert sorted(places) == list(range(sum(lengths)))
        wanted = [
            packing.starts[length - 1 - step if reverse else step] + row
            for row, length in enumerate(lengths)
            for step in range(length)
        ]
        assert places == wanted


def test_no_work_is_done_on_padding(monkeypatch):
    seen = []
    original = LayerSweep.__call__

    def watched(self, x, packing, h, c):
        seen.append(packing.tokens)
        return original(self, x, packing, h, c)

    elmo = elmo_over(random_model(BASE))
    elmo.warm()
    monkeypatch.setattr(LayerSweep, "__call__", watched)
    elmo.embed([["a"] * 50, *[["a"]] * 40])
    assert sum(seen) == 4 * (52 + 40 * 3)


# Memory


def test_batches_have_a_bound_of_sentences_too():
    lengths = [3] * 1100 + [40]
    batches = list(_batches(lengths, 1000))
    assert [len(batch) for batch in batches] == [321, 333, 333, 114]
    assert [len(batch) for batch in _batches(lengths, 10_000)] == [512, 512, 77]
    assert sorted(row for batch in _batches(lengths, 10_000) for row in batch) == list(range(1101))


def test_batches_that_memory_does_not_suffice_for_are_halved(monkeypatch):
    model = random_model(BASE)
    wanted = elmo_over(model).embed(SENTENCES)
    elmo, state, other = elmo_over(model), elmo_over(model).state(0), elmo_over(model).state(0)
    carried = elmo.embed(SENTENCES, state=state)
    original = LayerSweep.__call__
    seen: list[int] = []

    def small(self, x, packing, h, c):
        if packing.tokens > 16:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12")
        seen.append(packing.tokens)
        return original(self, x, packing, h, c)

    monkeypatch.setattr(LayerSweep, "__call__", small)
    for one, two in zip(elmo.embed(SENTENCES), wanted, strict=True):
        np.testing.assert_array_equal(one, two)
    for one, two in zip(elmo.embed(SENTENCES, state=other), carried, strict=True):
        np.testing.assert_array_equal(one, two)
    assert torch.equal(state.h, other.h)
    assert torch.equal(state.c, other.c)
    assert max(seen) > 4

    def never(self, x, packing, h, c):
        raise MemoryError

    monkeypatch.setattr(LayerSweep, "__call__", never)
    with pytest.raises(MemoryError):
        elmo.embed(SENTENCES)

    def broken(self, x, packing, h, c):
        raise RuntimeError("something else")

    monkeypatch.setattr(LayerSweep, "__call__", broken)
    with pytest.raises(RuntimeError, match="something else"):
        elmo.embed(SENTENCES)


@given(st.lists(st.lists(st.integers(0, 12), unique=True, max_size=6), max_size=12), st.integers(1, 8))
def test_recent_vectors_are_those_seen_last(calls, capacity):
    recent = RecentVectors(2, capacity)
    model: OrderedDict[int, None] = OrderedDict()
    for keys in calls:
        vectors, missing = recent.find(keys)
        assert missing == [number for number, key in enumerate(keys) if key not in model]
        for number, key in enumerate(keys):
            if key in model:
                model.move_to_end(key)
                assert vectors[number].tolist() == [key, -key]
        new = [keys[number] for number in missing]
        recent.keep(new, torch.tensor([[key, -key] for key in new], dtype=torch.float32).reshape(len(new), 2))
        for key in new:
            model[key] = None
            if len(model) > capacity:
                model.popitem(last=False)
        assert len(recent) == len(model)


def test_words_are_spelled_once(monkeypatch):
    spelled: list[int] = []
    original = Speller.__call__

    def watched(self, words: Words):
        spelled.append(len(words))
        return original(self, words)

    elmo = elmo_over(random_model(BASE))
    elmo.warm()
    monkeypatch.setattr(Speller, "__call__", watched)
    first = elmo.embed([["the", "cat", "the"], ["cat"]])
    assert spelled == [4]
    again = elmo.embed([["the", "cat", "the"], ["dog"]])
    assert spelled == [4, 1]
    np.testing.assert_array_equal(first[0], again[0])
    module = ElmoEmbedding(elmo)
    ids = elmo.characters([["the", "cat", "ran"]])
    module(ids)
    module(ids)
    assert spelled == [4, 1, 5]


# ElmoEmbedding


def test_a_frozen_module_reads_through_the_engine(monkeypatch):
    elmo = elmo_over(random_model(BASE))
    ids = elmo.characters(SENTENCES)
    module = ElmoEmbedding(elmo, dropout=0.0, state="zero")
    state = some_state(BASE, len(SENTENCES))
    wanted, after = module.bilm(Words(characters=ids.characters, ids=ids.words), ids.index, ids.lengths, state)
    ids.index[1, 2:] = 99  # what stands past a sentence's end is not read

    def never(self, *arguments):
        raise AssertionError("the reference model was run")

    monkeypatch.setattr(BiLM, "forward", never)
    found, end = module.read(ids, state)
    for mine, theirs in zip(found, wanted, strict=True):
        compare(mine, theirs, "float32")
        assert not mine[theirs == 0].any()
    compare(end.h, after.h, "float32")
    compare(end.c, after.c, "float32")
    outputs, _ = module(ids)
    outputs[0].sum().backward()
    module.unfreeze("lstm2")
    with pytest.raises(AssertionError, match="the reference model was run"):
        module(ids)


def test_a_sentence_of_no_tokens_keeps_its_state():
    model = random_model(BASE)
    words = reader(BASE).read(["the", "cat"])
    state = some_state(BASE, 2)
    lengths = torch.tensor([0, 2])
    layers, after = Engine(model).forward(words, torch.tensor([[0, 0], [0, 1]]), lengths, state)
    assert not any(layer[0].any() for layer in layers)
    assert torch.equal(after.h[:, 0], state.h[:, 0])
    assert not torch.equal(after.h[:, 1], state.h[:, 1])
