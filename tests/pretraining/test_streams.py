"""How text is dealt to steps: bilm-tf's recorded batches, a plain re-implementation, resuming, shuffling."""

from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.characters import ByteScheme, WordReader
from polyseme.errors import InputError
from polyseme.pretraining.corpus import Corpus, CorpusWords
from polyseme.pretraining.streams import Streams, Window, permutation
from polyseme.vocabulary import Vocabulary

SENTENCES = [f"w{i % 7} x{i} y{i % 3} z z".split()[: 1 + i % 5] for i in range(57)]


def _equal(left: Window, right: Window) -> bool:
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("forward_inputs", "forward_targets", "backward_inputs", "backward_targets")
    )


@pytest.mark.parametrize("case", ["char_full", "char_clipping", "char_noskip", "char_sampled", "word_shared_softmax"])
def test_the_recorded_batches_follow_from_the_text(golden: Path, case: str):
    folder = golden / "training"
    vocabulary = Vocabulary.read(folder / "vocab.txt")
    lines = (folder / "train.txt").read_text(encoding="utf-8").splitlines()
    corpus = Corpus.from_sentences([line.split() for line in lines])
    table = corpus.table(vocabulary)
    recorded = np.load(folder / case / "batches.npz")
    words = CorpusWords(corpus, WordReader(ByteScheme(), None))
    steps = 1 + max(int(key[4:6]) for key in recorded.files)
    rows, unroll = recorded["step00_token_ids"].shape
    streams = Streams(corpus, table, rows=rows, unroll=unroll, shuffle=False)
    assert steps == 10
    for step, window in enumerate(islice(streams, steps)):
        for suffix, inputs, targets in (
            ("", window.forward_inputs, window.forward_targets),
            ("_reverse", window.backward_inputs, window.backward_targets),
        ):
            assert np.array_equal(table[inputs], recorded[f"step{step:02d}_token_ids{suffix}"])
            assert np.array_equal(targets, recorded[f"step{step:02d}_next_token_id{suffix}"])
            if f"step{step:02d}_tokens_characters{suffix}" in recorded:
                characters = words.read(inputs.reshape(-1)).characters
                assert characters is not None
                expected = recorded[f"step{step:02d}_tokens_characters{suffix}"]
                assert np.array_equal(characters.numpy().reshape(expected.shape), expected)


def _plain(sentences: Iterator[list[str]], rows: int, unroll: int, *, backward: bool) -> Iterator[tuple[list, list]]:
    """The dealing as one would write it down: a list per row that is refilled when it is empty."""
    left: list[list[tuple[str, str]]] = [[] for _ in range(rows)]
    while True:
        inputs, targets = [], []
        for row in range(rows):
            window = []
            while len(window) < unroll:
                if not left[row]:
                    words = next(sentences)
                    chain = ["</S>", *reversed(words), "<S>"] if backward else ["<S>", *words, "</S>"]
                    left[row] = list(pairwise(chain))
                window.append(left[row].pop(0))
            inputs.append([pair[0] for pair in window])
            targets.append([pair[1] for pair in window])
        yield inputs, targets


@given(
    st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_dealing_equals_the_plain_way(sentences: list[list[str]], rows: int, unroll: int):
    corpus = Corpus.from_sentences(sentences)
    vocabulary = corpus.vocabulary(100)
    names = [*corpus.lexicon.words(0, len(corpus.lexicon)), "<S>", "</S>"]
    streams = Streams(corpus, corpus.table(vocabulary), rows=rows, unroll=unroll, shuffle=False)
    plain = [_plain(cycle(sentences), rows, unroll, backward=backward) for backward in (False, True)]
    for window in islice(streams, 12):
        for way, inputs, targets in (
            (plain[0], window.forward_inputs, window.forward_targets),
            (plain[1], window.backward_inputs, window.backward_targets),
        ):
            expected_inputs, expected_targets = next(way)
            assert [[names[i] for i in row] for row in inputs] == expected_inputs
            assert [[vocabulary.words[i] for i in row] for row in targets] == expected_targets


def test_words_outside_the_vocabulary_are_predicted_as_unknown_and_read_as_themselves():
    corpus = Corpus.from_sentences([["a", "a", "rare"]])
    vocabulary = corpus.vocabulary(4)
    assert vocabulary.words == ("<S>", "</S>", "<UNK>", "a")
    assert vocabulary.counts is not None
    assert vocabulary.counts.tolist() == [0, 1, 1, 2]
    window = next(Streams(corpus, corpus.table(vocabulary), rows=1, unroll=4, shuffle=False))
    assert window.forward_targets.tolist() == [[3, 3, 2, 1]]
    assert window.forward_inputs.tolist() == [[corpus.begin, 0, 0, 1]]


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 1000, 4097])
def test_the_permutation_is_one(size: int):
    found = permutation(np.arange(size), size, (3, 0, 1))
    assert sorted(found.tolist()) == list(range(size))
    assert np.array_equal(found, permutation(np.arange(size), size, (3, 0, 1)))


def test_the_permutation_mixes():
    size = 200_000
    found = permutation(np.arange(size), size, (1, 0, 0)).astype(np.float64)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 0.01
    # Neighbours end up near each other no more often than chance has it: 2 * 100 / size of the pairs, a hundred times.
    near = (np.abs(np.diff(found)) <= 100).sum()
    assert 120 < near < 280
    other = permutation(np.arange(size), size, (1, 0, 1))
    assert (other == found).sum() < 10


@pytest.mark.parametrize("streams", ["shared", "independent"])
def test_every_pass_reads_every_sentence_once_in_a_new_order(streams: str):
    corpus = Corpus.from_sentences(SENTENCES)
    dealt = Streams(corpus, corpus.table(corpus.vocabulary()), rows=1, unroll=corpus.positions, streams=streams)  # type: ignore[arg-type]
    first, second = next(dealt), next(dealt)
    texts = []
    for window in (first, second):
        for inputs in (window.forward_inputs, window.backward_inputs):
            flat = inputs[0].tolist()
            assert sorted(flat)[: len(corpus.tokens)] == sorted(corpus.tokens.take(np.arange(len(corpus.tokens))).tolist())
            texts.append(flat)
    assert texts[0] != texts[2]
    assert texts[1] != texts[3]
    # Shared: backward reads the forward sentences, each reversed, in the same order.
    splits = [_sentences(texts[0], corpus.begin), [list(reversed(part)) for part in _sentences(texts[1], corpus.end)]]
    assert (splits[0] == splits[1]) == (streams == "shared")


def _sentences(ids: list[int], marker: int) -> list[list[int]]:
    found: list[list[int]] = []
    for one in ids:
        if one == marker:
            found.append([])
        else:
            found[-1].append(one)
    return found


@pytest.mark.parametrize("streams", ["shared", "independent"])
def test_resuming_goes_on_exactly(streams: str):
    corpus = Corpus.from_sentences(SENTENCES)
    table = corpus.table(corpus.vocabulary())
    whole = Streams(corpus, table, rows=3, unroll=4, streams=streams)  # type: ignore[arg-type]
    for stop in (0, 1, 7, 40):
        state = whole.state_dict()
        again = Streams(corpus, table, rows=3, unroll=4, streams=streams)  # type: ignore[arg-type]
        again.load_state_dict(state)
        for _ in range(stop):
            assert _equal(next(whole), next(again))
    assert whole.passes > 2


def test_resuming_refuses_another_corpus():
    corpus, other = Corpus.from_sentences(SENTENCES), Corpus.from_sentences(SENTENCES[1:])
    state = Streams(corpus, corpus.table(corpus.vocabulary()), rows=3, unroll=4).state_dict()
    with pytest.raises(InputError, match="same corpus"):
        Streams(other, other.table(other.vocabulary()), rows=3, unroll=4).load_state_dict(state)


def test_each_process_keeps_its_rows_of_the_global_batch():
    corpus = Corpus.from_sentences(SENTENCES)
    table = corpus.table(corpus.vocabulary())
    whole = Streams(corpus, table, rows=6, unroll=5)
    parts = [Streams(corpus, table, rows=6, unroll=5, keep=keep) for keep in ((0, 2), (2, 6))]
    for window in islice(whole, 20):
        for part, (first, last) in zip(parts, ((0, 2), (2, 6)), strict=True):
            assert _equal(next(part), window.rows(first, last))


def test_shards_make_no_difference():
    from polyseme.pretraining.corpus import Tokens

    corpus = Corpus.from_sentences(SENTENCES)
    ids = corpus.tokens.shards[0]
    cuts = [0, int(corpus.offsets[11]), int(corpus.offsets[12]), len(ids)]
    tokens = Tokens([ids[a:b] for a, b in pairwise(cuts)])
    split = Corpus(corpus.lexicon, tokens, corpus.offsets, {}, corpus.digest, corpus.vocabulary_size)
    table = corpus.table(corpus.vocabulary())
    for left, right in islice(zip(*(Streams(one, table, rows=4, unroll=6) for one in (corpus, split)), strict=True), 30):
        assert _equal(left, right)
