"""Text → corpus folder: counts, order, ids, reports, atomicity; and the folder opened again."""

import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.characters import ByteScheme, LexiconScheme, WordReader
from polyseme.errors import FormatError, InputError
from polyseme.pretraining.corpus import Corpus, CorpusWords
from polyseme.pretraining.prepare import prepare
from polyseme.vocabulary import Vocabulary

WORDS = ["the", "of", "ein", "Élan", "“", "語言", "a" * 48, "b" * 49, "é" * 30, "<S>", "<UNK>", "!!!MAXTERMID", "x", "🙂"]


@pytest.fixture(scope="module")
def lines() -> list[list[str]]:
    choose = random.Random(5)
    weights = [1 / rank for rank in range(1, len(WORDS) + 1)]
    return [choose.choices(WORDS, weights, k=choose.randint(1, 12)) for _ in range(400)]


@pytest.fixture(scope="module")
def folder(lines: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("prepare")
    half = len(lines) // 2
    for name, part in (("a.txt", lines[:half]), ("b.txt", lines[half:])):
        (base / name).write_text("".join(" ".join(line) + "\n\n" for line in part), encoding="utf-8")
    prepare([base / "*.txt"], base / "corpus", vocabulary_size=9, shard_tokens=500)
    return base / "corpus"


def _text(corpus: Corpus) -> list[list[str]]:
    words = corpus.lexicon.words(0, len(corpus.lexicon))
    ids = corpus.tokens.take(np.arange(len(corpus.tokens))).tolist()
    return [[words[i] for i in ids[a:b]] for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]


def test_the_text_comes_back(folder: Path, lines: list[list[str]]):
    corpus = Corpus.open(folder)
    assert _text(corpus) == lines
    assert len(corpus.tokens.shards) > 3
    assert all(len(shard) <= 500 for shard in corpus.tokens.shards)
    counts = Counter(word for line in lines for word in line)
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    assert corpus.lexicon.words(0, 99) == expected
    assert corpus.lexicon.counts.tolist() == [counts[word] for word in expected]
    assert not any(isinstance(array, np.memmap) for array in (corpus.offsets, corpus.lexicon.blob))


def test_a_corpus_in_memory_is_the_same(folder: Path, lines: list[list[str]]):
    opened, made = Corpus.open(folder), Corpus.from_sentences(lines)
    assert _text(made) == lines
    assert made.markers == opened.markers
    assert made.lexicon.words(0, 99) == opened.lexicon.words(0, 99)


def test_the_report(folder: Path, lines: list[list[str]], tmp_path: Path):
    meta = json.loads((folder / "meta.json").read_text())
    tokens = [word for line in lines for word in line]
    assert (meta["tokens"], meta["sentences"], meta["blank"]) == (len(tokens), len(lines), len(lines))
    assert meta["distinct"] == len(set(tokens))
    assert meta["cut"] == pytest.approx(sum(len(word.encode()) > 48 for word in tokens) / len(tokens))
    assert 0 < meta["cut"] < 0.2
    inside = set(Vocabulary.read(folder / "vocab.txt").words)
    outside = sum(word not in inside or word in ("<S>", "<UNK>") for word in tokens) / len(tokens)
    assert meta["unknown"]["9"] == pytest.approx(outside)
    assert sum(shard["tokens"] for shard in meta["shards"]) == len(tokens)


def test_the_vocabulary(folder: Path):
    corpus = Corpus.open(folder)
    vocabulary = corpus.vocabulary()
    assert vocabulary == Vocabulary.read(folder / "vocab.txt")
    assert len(vocabulary) == 9
    assert vocabulary.words[:3] == ("<S>", "</S>", "<UNK>")
    assert vocabulary.counts is not None
    assert vocabulary.counts.sum() == corpus.positions
    assert vocabulary.counts[3:].tolist() == sorted(vocabulary.counts[3:], reverse=True)
    assert len(corpus.vocabulary(5)) == 5
    # What a vocabulary file cannot hold as a word of its own is left out of any.
    everything = corpus.vocabulary(1000)
    assert len(everything) == len(corpus.lexicon) - 3 + 3
    table = corpus.table(everything)
    words = corpus.lexicon.words(0, 99)
    assert [everything.words[i] for i in table[:-2]] == [word if word != "!!!MAXTERMID" else "<UNK>" for word in words]
    assert table[-2:].tolist() == [0, 1]


def test_characters_equal_those_of_the_strings(folder: Path):
    corpus = Corpus.open(folder)
    words = corpus.lexicon.words(0, 99)
    for scheme in (ByteScheme(), ByteScheme(max_characters=12), _lexicon()):
        ids = np.array([*range(len(words)), corpus.begin, corpus.end, 2, 0])
        strings = [*words, scheme.begin, scheme.end, words[2], words[0]]
        found = CorpusWords(corpus, WordReader(scheme, None)).read(ids)
        assert found.ids is None
        assert found.characters is not None
        assert torch.equal(found.characters, torch.from_numpy(scheme.encode(strings)))


def test_word_ids_equal_those_of_the_strings(folder: Path):
    corpus = Corpus.open(folder)
    words = corpus.lexicon.words(0, 99)
    lexicon = Vocabulary(["<oov>", "<bos>", "<eos>", "the", "b" * 48, "x"], markers=("<bos>", "<eos>", "<oov>"))
    found = CorpusWords(corpus, WordReader(None, lexicon, limit=48)).read(np.arange(len(words) + 2))
    assert found.characters is None
    assert found.ids is not None
    assert found.ids.tolist() == [*lexicon.ids([word[:48] for word in words]), 1, 2]


def _lexicon() -> LexiconScheme:
    characters = ["<bos>", "<eos>", "<bow>", "<eow>", "<oov>", "<pad>", *"theofinÉl“語a"]
    return LexiconScheme(Vocabulary(characters, markers=("<bos>", "<eos>", "<oov>")), max_characters=20)


def test_raw_text_is_split_into_sentences_and_tokens(tmp_path: Path):
    (tmp_path / "a.txt").write_text("He didn't go. She  stayed!\nNew line\n")
    prepare([tmp_path / "a.txt"], tmp_path / "c", tokenizer="penn")
    assert _text(Corpus.open(tmp_path / "c")) == [["He", "did", "n't", "go", "."], ["She", "stayed", "!"], ["New", "line"]]
    prepare([tmp_path / "a.txt"], tmp_path / "d", tokenizer="characters")
    assert _text(Corpus.open(tmp_path / "d"))[1] == list("Newline")


def test_every_form_gives_the_same_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["a b", "b c d", "é"]
    (tmp_path / "1.txt").write_text("a b\n", encoding="utf-8")
    (tmp_path / "2.txt").write_text("b c d\n\né\n", encoding="utf-8")
    with gzip.open(tmp_path / "all.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in texts)
    parquet.write_table(pyarrow.table({"body": texts}), tmp_path / "all.parquet")
    data = io.BytesIO("\n".join(texts).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="utf-8"))
    inputs = {
        "glob": [tmp_path / "*.txt"],
        "jsonl": [tmp_path / "all.jsonl.gz"],
        "parquet": [tmp_path / "all.parquet"],
        "stdin": ["-"],
    }
    digests = set()
    for name, given in inputs.items():
        report = prepare(given, tmp_path / name, field="body")
        assert (report.tokens, report.sentences, report.distinct) == (6, 3, 5)
        digests.add(Corpus.open(tmp_path / name).digest)
    assert len(digests) == 1


def test_damaged_lines_are_errors_or_counted_and_nothing_is_left(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"good line\nbad \xff line\nempty  token\n")
    with pytest.raises(FormatError, match=r"a\.txt, line 2"):
        prepare([tmp_path / "a.txt"], tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]
    report = prepare([tmp_path / "a.txt"], tmp_path / "c", damaged="skip")
    assert (report.skipped, report.tokens) == (2, 2)
    assert "line 2" in report.first_skipped[0]


def test_a_folder_that_is_there_is_not_overwritten_unasked(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a b\n")
    (tmp_path / "b.txt").write_text("c c c\n")
    prepare([tmp_path / "a.txt"], tmp_path / "c")
    with pytest.raises(InputError, match="exists"):
        prepare([tmp_path / "b.txt"], tmp_path / "c")
    prepare([tmp_path / "b.txt"], tmp_path / "c", overwrite=True)
    assert _text(Corpus.open(tmp_path / "c")) == [["c", "c", "c"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "c"]


def test_no_text_is_an_error(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no tokens were found"):
        prepare([tmp_path / "a.txt"], tmp_path / "c")
    with pytest.raises(InputError, match="at least 4"):
        prepare([tmp_path / "a.txt"], tmp_path / "c", vocabulary_size=3)


def test_damaged_folders_are_errors(folder: Path, tmp_path: Path):
    import shutil

    with pytest.raises(InputError, match="not a prepared corpus"):
        Corpus.open(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    with open(broken / "lexicon.txt", "ab") as file:
        file.write(b"more\n")
    with pytest.raises(FormatError, match="do not have the sizes"):
        Corpus.open(broken)
    (broken / "tokens-00000.npy").write_bytes(b"")
    with pytest.raises(FormatError, match="damaged"):
        Corpus.open(broken)
    meta = json.loads((broken / "meta.json").read_text())
    (broken / "meta.json").write_text(json.dumps({**meta, "version": 2}))
    with pytest.raises(FormatError, match="version 2"):
        Corpus.open(broken)


def test_a_killed_preparation_leaves_no_folder(tmp_path: Path):
    code = (
        "import os, sys\n"
        "from polyseme.pretraining.prepare import prepare\n"
        "def stop(done, total=None, *, note=''):\n    os.kill(os.getpid(), 9)\n"
        "prepare([sys.argv[1]], sys.argv[2], report=stop)\n"
    )
    (tmp_path / "a.txt").write_text("a b c\n")
    process = subprocess.run([sys.executable, "-c", code, tmp_path / "a.txt", tmp_path / "c"], check=False)
    assert process.returncode == -9
    assert not (tmp_path / "c").exists()
    assert any(path.name.endswith(".partial") for path in tmp_path.iterdir())
    prepare([tmp_path / "a.txt"], tmp_path / "c")
    assert os.listdir(tmp_path / "c")
