import json
import math
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyseme.cli.ngram import command
from polyseme.errors import FormatError, InputError
from polyseme.pretraining import ngram_counts
from polyseme.pretraining.ngram import FALLBACK, Discounts, NgramModel, train
from polyseme.vocabulary import Vocabulary

MARKERS = ["<S>", "</S>", "<UNK>"]
LMPLZ = json.loads((Path(__file__).parent.parent / "golden" / "ngram_lmplz.json").read_text(encoding="utf-8"))


def vocabulary_of(sentences, *more):
    return Vocabulary([*MARKERS, *sorted({word for sentence in sentences for word in sentence}), *more])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The recorded text, counted at order 5."""
    text = [line.split() for line in LMPLZ["train"]]
    folder = tmp_path_factory.mktemp("reference") / "counts"
    train(text, vocabulary_of(text), folder)
    return folder


class Textbook:
    """Modified Kneser-Ney as the papers write it, from dictionaries: slow and obvious."""

    def __init__(self, sentences, vocabulary, order):
        self.order, self.vocabulary = order, vocabulary
        text = [["<S>", *[w if w in vocabulary else "<UNK>" for w in sentence], "</S>"] for sentence in sentences]
        raw = [Counter(tuple(s[i : i + n]) for s in text for i in range(len(s) - n + 1)) for n in range(1, order + 1)]
        del raw[0][("<S>",)]
        self.counts = []
        for n in range(1, order + 1):
            if n == order:
                self.counts.append(raw[n - 1])
                continue
            before = defaultdict(set)
            for gram in raw[n]:
                before[gram[1:]].add(gram[0])
            adjusted = {gram: len(words) for gram, words in before.items()}
            adjusted.update({gram: count for gram, count in raw[n - 1].items() if gram[0] == "<S>"})
            self.counts.append(adjusted)
        self.discounts = []
        for counts in self.counts:
            of = Counter(counts.values())
            values = FALLBACK
            if of[1] and of[2] and of[3]:
                y = Fraction(of[1], of[1] + 2 * of[2])
                found = [k - (k + 1) * y * of[k + 1] / of[k] for k in (1, 2, 3)]
                values = found if all(0 < d <= k for k, d in enumerate(found, 1)) else FALLBACK
            self.discounts.append([0.0, *map(float, values)])
        self.following = [defaultdict(dict) for _ in self.counts]
        for following, counts in zip(self.following, self.counts, strict=True):
            for gram, count in counts.items():
                following[gram[:-1]][gram[-1]] = count

    def probability(self, word, context):
        if len(context) >= self.order:
            context = context[len(context) - self.order + 1 :]
        if len(context) == 0:
            lower = 1 / (len(self.vocabulary) - 1)
        else:
            lower = self.probability(word, context[1:])
        following, discount = self.following[len(context)].get(context, {}), self.discounts[len(context)]
        if not following:
            return lower
        total = sum(following.values())
        taken = sum(discount[min(count, 3)] for count in following.values())
        own = following.get(word, 0)
        return (own - discount[min(own, 3)] + taken * lower) / total

    def log_probabilities(self, sentence):
        tokens = ["<S>", *[w if w in self.vocabulary else "<UNK>" for w in sentence], "</S>"]
        return [math.log(self.probability(tokens[i], tuple(tokens[:i]))) for i in range(1, len(tokens))]


words = st.sampled_from(["a", "b", "c", "d", "e", "ä", "\U0001f600"])
texts = st.lists(st.lists(words, min_size=1, max_size=7), min_size=1, max_size=25)


@settings(max_examples=60)
@example(text=[["a"] * 4, ["a", "a", "b", "a", "a", "a"]], test=[["a"]], order=4, listed={"a"})  # a discount of exactly 0
@given(text=texts, test=texts, order=st.integers(1, 6), listed=st.sets(words))
def test_equals_the_textbook(tmp_path_factory, text, test, order, listed):
    vocabulary = Vocabulary([*MARKERS, *sorted(listed)])
    folder = tmp_path_factory.mktemp("counts") / "counts"
    model = train(text, vocabulary, folder, order=order)
    for asked in range(1, order + 1):
        model, slow = NgramModel(folder, order=asked), Textbook(text, vocabulary, asked)
        for found, sentence in zip(model.log_probabilities(test), test, strict=True):
            np.testing.assert_allclose(found, slow.log_probabilities(sentence), rtol=1e-9)
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_equals_lmplz(reference, order):
    """KenLM's own numbers; its `<unk>`, a word never seen, is our `<UNK>` here, since every training word is listed."""
    model = NgramModel(reference, order=order)
    found = model.log_probabilities([line.split() for line in LMPLZ["test"]])
    for ours, theirs in zip(found, LMPLZ["log10"][str(order)], strict=True):
        np.testing.assert_allclose(ours / math.log(10), theirs, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_of_every_context_sum_to_one(reference, order):
    """All words, `<UNK>` and `</S>` after contexts that are known, half known, and unknown."""
    model = NgramModel(reference, order=order)
    events = [word for word in model.vocabulary.words if word not in ("<S>", "</S>")]
    text = [line.split() for line in LMPLZ["train"][:40]]
    contexts = [sentence[:length] for sentence in text for length in range(len(sentence))]
    contexts += [["mill", "saw"], ["never", "seen"], ["the", "never", "the"], [".", "."]]
    for context in contexts[::7]:
        found = model.log_probabilities([[*context, word] for word in events])
        total = sum(math.exp(values[len(context)]) for values in found)
        if context:
            total += math.exp(model.log_probabilities([context])[0][-1])
            assert total == pytest.approx(1, abs=1e-10)
        else:  # the end of an empty sentence cannot be asked for; it keeps the rest
            assert total < 1


def test_parts_change_nothing(tmp_path):
    """Sorted in one piece and in many, the files are the same byte by byte."""
    generator = np.random.default_rng(1)
    ranks = generator.zipf(1.3, size=60_000) % 900
    text = [[f"w{rank}" for rank in part] for part in np.split(ranks, np.sort(generator.integers(0, len(ranks), 5000)))]
    vocabulary = Vocabulary([*MARKERS, *(f"w{rank}" for rank in range(700))])
    ngram_counts.count(text, vocabulary, tmp_path / "whole", order=4)
    ngram_counts.count(text, vocabulary, tmp_path / "parts", order=4, memory=1 << 20)
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "parts").iterdir())
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name


def test_ids_that_need_more_than_one_number(tmp_path, monkeypatch):
    """A vocabulary of over 65,536 words: three words fill a number of 64 bits, and ids take four bytes."""
    text = [line.split() for line in LMPLZ["train"][:100]]
    padded = [*MARKERS, *(f"\x01{number}" for number in range(70_000)), *sorted({w for s in text for w in s})]
    model = train(text, Vocabulary(padded), tmp_path / "counts", order=5)
    slow = Textbook(text, model.vocabulary, 5)
    for found, sentence in zip(model.log_probabilities(text[:10]), text[:10], strict=True):
        np.testing.assert_allclose(found, slow.log_probabilities(sentence), rtol=1e-9)


def test_evaluate_sums_what_log_probabilities_says(reference):
    model = NgramModel(reference)
    test = [line.split() for line in LMPLZ["test"]]
    result = model.evaluate(iter([*test, []]))
    found = np.concatenate(model.log_probabilities(test))
    assert result.forward == pytest.approx(-found.sum())
    assert (result.sentences, result.words) == (len(test), sum(map(len, test)))
    assert result.unknown == sum(word not in model.vocabulary for sentence in test for word in sentence) > 0
    assert result.characters == sum(len(" ".join(sentence)) + 1 for sentence in test)
    assert result.perplexity() == pytest.approx(math.exp(-found.mean()))
    assert result.backward is None
    without = [
        p for p, w in zip(found, (w for s in test for w in [*s, "</S>"]), strict=True) if w == "</S>" or w in model.vocabulary
    ]
    assert result.perplexity(unknown=False) == pytest.approx(math.exp(-np.mean(without)))


def test_a_marker_typed_as_a_word_is_unknown(reference):
    model = NgramModel(reference)
    typed, unknown = model.log_probabilities([["the", "</S>", "mill", "<S>"], ["the", "unheard", "mill", "of"]])
    np.testing.assert_array_equal(typed, unknown)


def test_discounts():
    assert Discounts.estimate([10, 5, 3, 2]).values == pytest.approx((0.5, 2 - 3 * 0.5 * 3 / 5, 3 - 4 * 0.5 * 2 / 3))
    assert Discounts.estimate([10, 5, 3, 2]).estimated
    assert Discounts.estimate([0, 5, 3, 2]) == Discounts(FALLBACK, False)
    assert Discounts.estimate([10, 1, 50, 2]) == Discounts(FALLBACK, False)  # out of range
    assert Discounts.estimate([4, 1, 1, 0]) == Discounts(FALLBACK, False)  # 2 - 3 · 4/6 · 1/1: nothing left for what was not seen
    with pytest.raises(InputError, match="no discounts can be estimated from 0, 5, 3 and 2"):
        Discounts.estimate([0, 5, 3, 2], fallback=None)


def test_an_interrupted_count_leaves_nothing(tmp_path):
    def sentences():
        yield ["a"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ngram_counts.count(sentences(), Vocabulary([*MARKERS, "a"]), tmp_path / "counts")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used(tmp_path, reference):
    listed = Vocabulary([*MARKERS, "a"])
    with pytest.raises(InputError, match="order is 9; wanted 1 to 8"):
        train([["a"]], listed, tmp_path / "counts", order=9)
    with pytest.raises(InputError, match="no words were found"):
        train([[], []], listed, tmp_path / "counts")
    with pytest.raises(InputError, match="no line <UNK>"):
        train([["a"]], Vocabulary(["<S>", "</S>", "a"]), tmp_path / "counts")
    with pytest.raises(InputError, match="twice"):
        train([["a"]], Vocabulary([*MARKERS, "a", "a"]), tmp_path / "counts")
    with pytest.raises(InputError, match="exists"):
        train([["a"]], listed, reference)
    with pytest.raises(InputError, match="orders 1 to 5"):
        NgramModel(reference, order=6)
    with pytest.raises(InputError, match="holds no n-gram counts"):
        NgramModel(tmp_path)
    with pytest.raises(InputError, match="sentence 1 has no words"):
        NgramModel(reference).log_probabilities([["a"], []])
    copy = shutil.copytree(reference, tmp_path / "copy")
    (copy / "3.raw").write_bytes((copy / "3.raw").read_bytes()[:-4])
    with pytest.raises(FormatError, match=r"3\.raw has"):
        NgramModel(copy)


@pytest.fixture
def files(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).write_text("\n".join([*LMPLZ[name], ""]) + "\n", encoding="utf-8")
    vocabulary_of([line.split() for line in LMPLZ["train"]]).write(tmp_path / "vocab.txt")
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command(files, reference):
    """The number of the table is that of the library; counts that were kept give it again, at any order."""
    test = [line.split() for line in LMPLZ["test"]]
    whole = ["--vocabulary", files / "vocab.txt", "--test", files / "test", "--test", files / "train"]
    shown = run(files / "train", *whole, "--order", 3, "--output", files / "counts")
    expected = NgramModel(reference, order=3).evaluate(test)
    lines = shown.splitlines()
    assert lines[0].startswith("order 3: 3,817 words, 86 in the vocabulary; n-grams 86, 616, 1,684")
    assert f"{expected.words:,}" in lines[2]
    assert f" {expected.perplexity():.2f} " in lines[2]
    assert lines[-1].startswith("together")
    (answer,) = map(json.loads, run("--counts", files / "counts", "--order", 2, "--test", files / "test", "--json").splitlines())
    assert answer["texts"][0]["perplexity_forward"] == NgramModel(reference, order=2).evaluate(test).perplexity()
    assert answer["discounts_estimated"] == [True, True]
    each = run("--counts", files / "counts", "--each-order", "--test", files / "test", "--json").splitlines()
    assert [json.loads(line)["order"] for line in each] == [1, 2, 3]
    assert json.loads(each[1])["together"] == answer["together"]


def test_command_makes_a_vocabulary(files):
    answer = json.loads(run(files / "train", "--vocabulary-size", 20, "--order", 2, "--test", files / "test", "--json"))
    text = [line.split() for line in LMPLZ["train"]]
    counts = Counter(word for sentence in text for word in sentence)
    listed = Vocabulary([*MARKERS, *sorted(counts, key=lambda word: (-counts[word], word))[:17]])
    assert answer["vocabulary"] == 20
    model = train(text, listed, files / "here", order=2)
    assert answer["together"]["perplexity_forward"] == model.evaluate(line.split() for line in LMPLZ["test"]).perplexity()
    assert not (files / "counts").exists()


def test_command_line_mistakes(files):
    for arguments, what in (
        ([], "give TEXT to count, or --counts"),
        ([files / "train", "--counts", "x"], "one of them"),
        ([files / "train"], "nothing to do"),
        (["--counts", "x", "--output", "y"], "--counts goes with neither"),
        (["-", "--test", files / "test"], "standard input can be read once"),
    ):
        result = CliRunner().invoke(command, list(map(str, arguments)))
        assert result.exit_code == 2
        assert what in " ".join(result.output.split())


def kenlm_program(name):
    """A program of KenLM: in the folder POLYSEME_KENLM names, or on the path."""
    return shutil.which(name, path=os.environ.get("POLYSEME_KENLM")) or shutil.which(name)


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3, 5])
def test_equals_a_fresh_lmplz(tmp_path, shared, order):
    """A closed vocabulary with `<UNK>` among the words, on real text: the same perplexity to 5 digits.

    lmplz rejects `<unk>` in its input and adds one of its own: to it our `<UNK>` is spelled @UNK@, and to us its `<unk>` is
    a word that never occurs.
    """
    lmplz, query = kenlm_program("lmplz"), kenlm_program("query")
    if lmplz is None or query is None:
        pytest.skip("KenLM's lmplz and query are not here; set POLYSEME_KENLM to the folder that holds them")
    from polyseme.sources import Reader

    folder = shared / "data" / "corpus"
    text = [s for block in Reader([folder / "medquad.txt.xz"]).sentences() for s in block.sentences][:30_000]
    test = [s for block in Reader([folder / "heldout" / "medquad.txt.xz"]).sentences() for s in block.sentences]
    frequent = [word for word, _ in Counter(word for s in text for word in s).most_common(8000)]
    vocabulary = Vocabulary([*MARKERS, *frequent, "\x01never"])
    for name, sentences in (("text", text), ("test", test)):
        lines = (" ".join(word if word in vocabulary else "@UNK@" for word in sentence) for sentence in sentences)
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    arpa = tmp_path / "arpa"
    subprocess.run(
        [lmplz, "-o", str(order), "--discount_fallback", "-S", "1G", "-T", tmp_path, "--text", tmp_path / "text", "--arpa", arpa],
        check=True,
        capture_output=True,
    )
    with open(tmp_path / "test", "rb") as lines:
        said = subprocess.run([query, "-v", "summary", arpa], stdin=lines, check=True, capture_output=True, text=True).stdout
    theirs = float(next(line for line in said.splitlines() if line.startswith("Perplexity including OOVs")).split()[-1])
    ours = train(text, vocabulary, tmp_path / "counts", order=order).evaluate(test).perplexity()
    assert ours == pytest.approx(theirs, rel=1e-5)
