import json

import numpy as np
import pytest

from polyseme.errors import FormatError
from polyseme.tasks.senses import (
    SenseCentroids,
    SenseIndex,
    SenseInstance,
    SenseSentence,
    first_senses,
    key_word,
    read_evaluation,
    read_semcor,
    sense_f1,
)
from tiny import tiny_elmo

CAT, DOG = "cat%1:05:00::", "cat%1:18:01::"


@pytest.fixture
def index(tmp_path):
    (tmp_path / "index.sense").write_text(f"{DOG} 1 2 1\n{CAT} 2 1 9\nran%5:00:00:x:00 3 1 0\n")
    return SenseIndex.read(tmp_path / "index.sense")


def test_sense_keys(index):
    assert key_word("change_ringing%1:04:00::") == ("change_ringing", "NOUN")
    assert key_word("fast%5:00:00:quick:00") == ("fast", "ADJ")
    assert key_word("nothing") is None
    assert index.first == {("cat", "NOUN"): CAT, ("ran", "ADJ"): "ran%5:00:00:x:00"}


def test_semcor_forms_are_split_at_spaces(tmp_path):
    tokens = [{"form": "The", "pos": "DT"}, {"form": "Fulton County", "sense": ["group%1:03:00::"]}, {"form": "``"}]
    path = tmp_path / "semcor.jsonl"
    path.write_text(json.dumps({"id": "a.b.s1", "tokens": tokens}) + "\n")
    (sentence,) = read_semcor(path)
    assert sentence.tokens == ("The", "Fulton", "County", "``")
    assert sentence.instances == (SenseInstance("a.b.s1.1", "group", "NOUN", 1, 3, ("group%1:03:00::",)),)
    assert sentence.document == "a.b"
    path.write_text('{"id": "x"}\n')
    with pytest.raises(FormatError, match="line 1: KeyError"):
        list(read_semcor(path))


def test_evaluation_sets(tmp_path):
    data, gold = tmp_path / "x.data.xml", tmp_path / "x.gold.key.txt"
    data.write_text(
        '<corpus><text id="d0"><sentence id="s"><wf>The</wf><instance id="i1" lemma="Cat" pos="NOUN">big cat</instance>'
        "</sentence></text></corpus>"
    )
    gold.write_text(f"i1 {CAT} {DOG}\n")
    (sentence,) = read_evaluation(data, gold)
    assert sentence.instances == (SenseInstance("i1", "cat", "NOUN", 1, 3, (CAT, DOG)),)
    gold.write_text(f"i2 {CAT}\n")
    with pytest.raises(FormatError, match="instance 'i1' has no line"):
        read_evaluation(data, gold)
    gold.write_text(f"i1 {CAT}\ni2 {CAT}\n")
    with pytest.raises(FormatError, match="instance 'i2' does not occur"):
        read_evaluation(data, gold)
    data.write_text("<corpus>")
    with pytest.raises(FormatError, match="not the XML"):
        read_evaluation(data, gold)


def sentences(words, sense, document="d"):
    return [
        SenseSentence((*text.split(),), (SenseInstance(f"{document}{n}", "cat", "NOUN", 1, 3, (sense,)),), document)
        for n, text in enumerate(words)
    ]


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_the_nearest_centroid_equals_brute_force(index, context):
    elmo = tiny_elmo()
    train = [
        *sentences(["the cat sat .", "a cat ran away"], CAT, "a"),
        *sentences(["he saw dog home", "she dog sat on"], DOG, "b"),
    ]
    test = sentences(["the cat ran .", "she saw it home", "on dog mat ."], CAT, "c")
    centroids = SenseCentroids(elmo, context=context)
    centroids.add(train)
    answers = centroids.predict(test, index)

    def vectors(group):
        arrays = []
        for name in dict.fromkeys(s.document for s in group):
            texts = [list(s.tokens) for s in group if s.document == name]
            arrays += elmo.embed(texts, context=context)
        return [array[:, 1:3].mean(axis=1) for array in arrays]

    for number, layer in enumerate(elmo.layers):
        found = vectors(train)
        means = {CAT: (found[0] + found[1])[number] / 2, DOG: (found[2] + found[3])[number] / 2}
        for sentence, own in zip(test, vectors(test), strict=True):
            cosines = {k: own[number] @ m / np.linalg.norm(m) / np.linalg.norm(own[number]) for k, m in means.items()}
            assert answers[layer][sentence.instances[0].id] == max(cosines, key=cosines.get)
    assert set(answers) == {"token", "lstm1", "lstm2", "mean"}


def test_words_never_met_take_their_first_sense(index):
    test = sentences(["the cat ran ."], DOG)
    answers = SenseCentroids(tiny_elmo()).predict(test, index)
    assert answers["lstm1"] == first_senses(test, index) == {"d0": CAT}


def test_f1():
    test = sentences(["a b c", "a b c", "a b c"], CAT)
    assert sense_f1(test, {"d0": CAT, "d1": DOG}) == pytest.approx(2 * 0.5 * (1 / 3) / (0.5 + 1 / 3) * 100)
    assert sense_f1(test, dict.fromkeys(["d0", "d1", "d2"], CAT)) == 100
    assert sense_f1(test, {}) == 0


@pytest.fixture(scope="module")
def wordnet(shared):
    return SenseIndex.read(shared / "data/senses/wordnet-3.0-index.sense.xz")


@pytest.mark.parametrize(
    ("name", "count", "baseline"),
    [
        ("senseval2", 2282, 66.8),
        ("senseval3", 1850, 66.2),
        ("semeval2007", 455, 55.2),
        ("semeval2013", 1644, 63.0),
        ("semeval2015", 1022, 67.8),
    ],
)
def test_the_first_sense_baseline_is_the_published_one(shared, wordnet, name, count, baseline):
    folder = shared / "data/senses"
    found = read_evaluation(folder / f"raganato/{name}.data.xml.xz", folder / f"raganato/{name}.gold.key.txt.xz")
    assert sum(len(sentence.instances) for sentence in found) == count
    assert sense_f1(found, first_senses(found, wordnet)) == pytest.approx(baseline, abs=0.2)


def test_a_damaged_index(tmp_path):
    for text, message in {"": "the file is empty", "cat%1:05:00:: 1 2\n": "line 1: .* wanted a sense key"}.items():
        (tmp_path / "index.sense").write_text(text)
        with pytest.raises(FormatError, match=message):
            SenseIndex.read(tmp_path / "index.sense")
