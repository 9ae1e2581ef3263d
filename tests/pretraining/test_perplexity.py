import json
import math

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import polyseme
from polyseme import batching
from polyseme.cli.perplexity import command
from polyseme.errors import InputError
from polyseme.lstm import LSTMState
from polyseme.pretraining.perplexity import Likelihood, Scorer
from polyseme.vocabulary import Vocabulary
from tiny import WORDS, tiny_config, tiny_elmo

TEXT = [
    "the cat sat on the mat .".split(),
    "he saw it .".split(),
    "she ran".split(),
    ["unheard"],
    "a dog and a zebra ran away from the home .".split(),
    "the the the the the the the the the the the the the the the".split(),
    ["."],
]


@pytest.fixture(scope="module")
def elmo():
    return tiny_elmo(tiny_config(softmax=True))


def scorer(elmo, **options):
    return Scorer(elmo.model, elmo.reader, elmo.vocabulary, **options)


def enumerated(elmo, documents, state):
    """Sentence by sentence through the reference forward; every probability normalised by hand over the whole vocabulary."""
    model, reader, vocabulary = elmo.model, elmo.reader, elmo.vocabulary
    weight, bias, width = model.softmax.weight.double(), model.softmax.bias.double(), model.config.lstm.width
    markers = reader.read([reader.begin, reader.end])
    losses = {"forward": [], "backward": []}
    targets = {"forward": [], "backward": []}
    with torch.no_grad():
        for document in documents:
            carried = LSTMState.zeros(model.config.lstm, 1)
            for sentence in document:
                tokens = ["<S>", *sentence, "</S>"]
                start = {"zero": LSTMState.zeros(model.config.lstm, 1), "warm": batching.warm_state(model, markers)}.get(
                    state, carried
                )
                layers, carried = model(reader.read(tokens), torch.arange(len(tokens))[None], torch.tensor([len(tokens)]), start)
                top = layers[-1][0].double()
                for position, token in enumerate(tokens):
                    word = token if token in vocabulary else "<UNK>"
                    for direction, from_ in (("forward", position - 1), ("backward", position + 1)):
                        if 0 <= from_ < len(tokens):
                            hidden = top[from_, :width] if direction == "forward" else top[from_, width:]
                            odds = torch.exp(weight @ hidden + bias)
                            losses[direction].append(-math.log(float(odds[vocabulary.get(word)] / odds.sum())))
                            targets[direction].append(word)
    return losses, targets


@pytest.mark.parametrize("state", ["zero", "warm", "carry"])
def test_equals_the_enumeration(elmo, state):
    documents = [TEXT[:3], TEXT[3:], TEXT[1:2]]
    losses, targets = enumerated(elmo, documents, state)
    total = sum(scorer(elmo).evaluate(documents, state=state), Likelihood())
    means = {}
    for direction in ("forward", "backward"):
        known = [loss for loss, word in zip(losses[direction], targets[direction], strict=True) if word != "<UNK>"]
        means[direction] = sum(losses[direction]) / len(losses[direction])
        assert total.perplexity(direction) == pytest.approx(math.exp(means[direction]), rel=1e-6)
        assert total.perplexity(direction, unknown=False) == pytest.approx(math.exp(sum(known) / len(known)), rel=1e-6)
        assert len(losses[direction]) == total.predictions
        characters = sum(len(" ".join(sentence)) + 1 for document in documents for sentence in document)
        bits = sum(losses[direction]) / math.log(2) / characters
        assert total.bits_per_character(direction) == pytest.approx(bits, rel=1e-6)
    assert total.perplexity() == pytest.approx(math.exp((means["forward"] + means["backward"]) / 2), rel=1e-6)
    assert total.perplexity() == pytest.approx(math.sqrt(total.perplexity("forward") * total.perplexity("backward")))
    assert total.unknown_rate == pytest.approx(targets["forward"].count("<UNK>") / total.words)


def close(one, two):
    for name, value in one.to_dict().items():
        assert value == pytest.approx(two.to_dict()[name], rel=2e-6), name
    return True


@pytest.mark.parametrize("state", ["zero", "warm", "carry"])
@settings(max_examples=8)
@given(batch_tokens=st.integers(1, 300), lengths=st.lists(st.integers(0, 12), min_size=3, max_size=30), seed=st.integers(0, 99))
def test_the_batch_size_changes_nothing(elmo, state, batch_tokens, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    known = [*WORDS[3:], "unheard"]
    drawn = [[known[i] for i in torch.randint(len(known), (length,), generator=generator).tolist()] for length in [*lengths, 2]]
    documents = [drawn[::3], drawn[1::3] + drawn[1::3], [*drawn[2::3], ["a"]], [["it"]]]
    for one, two in zip(
        scorer(elmo).evaluate(documents, state=state),
        scorer(elmo, batch_tokens=batch_tokens).evaluate(documents, state=state),
        strict=True,
    ):
        assert (one.words, one.sentences, one.characters) == (two.words, two.sentences, two.characters)
        assert not one.words or close(one, two)


def test_a_stream_is_read_once_and_blank_lines_count_nothing(elmo):
    with_blanks = (sentence for pair in zip([[]] * len(TEXT), TEXT, strict=True) for sentence in pair)
    one, two = scorer(elmo).evaluate([with_blanks, iter(TEXT)])
    assert one.sentences == len(TEXT)
    assert close(one, two)


def test_windows_and_forgotten_words_change_nothing(elmo, monkeypatch):
    """Bounds on memory: sentences sorted in many windows, softmax in small pieces, the table of words emptied often."""
    before = {state: scorer(elmo).evaluate([TEXT * 3, TEXT], state=state) for state in ("warm", "carry")}
    for name, value in (("_WINDOW_TOKENS", 20), ("_SOFTMAX_ROWS", 3), ("_WORDS", 4), ("_STREAM_STEPS", 5)):
        monkeypatch.setattr(f"polyseme.pretraining.perplexity.{name}", value)
    for state, expected in before.items():
        for one, two in zip(scorer(elmo).evaluate([TEXT * 3, TEXT], state=state), expected, strict=True):
            assert close(one, two)


def test_a_model_that_reads_forward_only():
    elmo = tiny_elmo(tiny_config(softmax=True, bidirectional=False))
    for state in ("warm", "carry"):
        (found,) = scorer(elmo).evaluate([TEXT], state=state)
        assert found.backward is None
        assert found.perplexity() == found.perplexity("forward")
        assert "perplexity_average" not in found.to_dict()
        with pytest.raises(InputError, match="reads forward only"):
            found.perplexity("backward")


@pytest.mark.parametrize("kind", ["sampled", "full"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_equals_bilm_tf_in_its_own_way(golden, kind, rows):
    folder = golden / "tf_checkpoint"
    recorded = json.loads((folder / kind / "perplexity.json").read_text())[str(rows)]
    elmo = polyseme.load(folder / kind, vocabulary=folder / "vocab.txt")
    text = [line.split() for line in (folder / "test.txt").read_text(encoding="utf-8").splitlines()]
    perplexity, steps = scorer(elmo).as_bilm_tf(iter(text), rows=rows)
    assert steps == recorded["steps"]
    assert perplexity == pytest.approx(recorded["perplexity"], rel=1e-6)


def test_bilm_tf_gives_no_number_for_few_sentences(golden):
    folder = golden / "tf_checkpoint"
    elmo = polyseme.load(folder / "full", vocabulary=folder / "vocab.txt")
    text = [line.split() for line in (folder / "test.txt").read_text(encoding="utf-8").splitlines()]
    with pytest.raises(InputError, match="too few sentences for 256 rows"):
        scorer(elmo).as_bilm_tf(text, rows=256)


@pytest.mark.parametrize("steps", [1, 3, 32])
def test_windows_change_nothing_in_bilm_tfs_way(elmo, monkeypatch, steps):
    expected = scorer(elmo).as_bilm_tf(TEXT * 4, rows=3)
    monkeypatch.setattr("polyseme.pretraining.perplexity._STREAM_STEPS", steps)
    assert scorer(elmo).as_bilm_tf(TEXT * 4, rows=3) == (pytest.approx(expected[0], rel=1e-6), expected[1])


def test_golden_log_probabilities(golden):
    import numpy as np

    folder = golden / "tf_checkpoint"
    sentences = json.loads((folder / "probe_sentences.json").read_text(encoding="utf-8"))
    elmo = polyseme.load(folder / "sampled", vocabulary=folder / "vocab.txt")
    recorded = np.load(folder / "sampled" / "log_probabilities.npz")
    found = scorer(elmo).evaluate([[sentence] for sentence in sentences], state="zero")
    for number, likelihood in enumerate(found):
        for direction in ("forward", "backward"):
            assert getattr(likelihood, direction) == pytest.approx(-recorded[f"s{number:03}_{direction}"].sum(), rel=1e-5)


def test_what_cannot_be_used(elmo):
    with pytest.raises(InputError, match="no softmax"):
        scorer(tiny_elmo())
    with pytest.raises(InputError, match="words of this model's softmax are not known"):
        Scorer(elmo.model, elmo.reader, None)
    with pytest.raises(InputError, match=r"has 4 words but the model's softmax"):
        Scorer(elmo.model, elmo.reader, Vocabulary([*WORDS[:3], "a"]))
    without = Vocabulary([*WORDS[3:], "x", "y", "z"])
    with pytest.raises(InputError, match="no line <S>, </S>"):
        Scorer(elmo.model, elmo.reader, without)
    with pytest.raises(InputError, match="state is 'hot'"):
        scorer(elmo).evaluate([TEXT], state="hot")
    with pytest.raises(InputError, match="rows is 0"):
        scorer(elmo).as_bilm_tf(TEXT, rows=0)
    with pytest.raises(InputError, match="batch_tokens is 0"):
        scorer(elmo, batch_tokens=0)
    (nothing,) = scorer(elmo).evaluate([[[]]])
    with pytest.raises(InputError, match="no words were found"):
        nothing.perplexity()


@pytest.fixture
def files(tmp_path, elmo):
    polyseme.save(elmo, tmp_path / "model")
    (tmp_path / "one.txt").write_text("\n".join(" ".join(sentence) for sentence in TEXT[:4]) + "\n\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("\n".join(" ".join(sentence) for sentence in TEXT[4:]) + "\n", encoding="utf-8")
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("state", ["warm", "zero", "carry"])
def test_command(files, elmo, state):
    arguments = [files / "one.txt", files / "two.txt", "-m", files / "model", "--tokenized", "--state", state]
    one, two = scorer(elmo).evaluate([TEXT[:4], TEXT[4:]], state=state)
    lines = run(*arguments).splitlines()
    assert len(lines) == 10
    assert lines[1].startswith(str(files / "one.txt"))
    assert lines[7].split()[:2] == ["together", str(sum(map(len, TEXT)))]
    assert lines[9].split()[:2] == ["average", f"{(one + two).perplexity():.2f}"]
    answer = json.loads(run(*arguments, "--json"))
    assert answer["state"] == state
    assert [text["text"] for text in answer["texts"]] == [str(files / "one.txt"), str(files / "two.txt")]
    assert answer["texts"][1]["perplexity_average"] == pytest.approx(two.perplexity(), rel=1e-6)
    assert answer["together"]["bits_per_character_forward"] == pytest.approx((one + two).bits_per_character("forward"), rel=1e-6)


def test_command_in_bilm_tfs_way(files, elmo):
    expected, steps = scorer(elmo).as_bilm_tf(TEXT[4:], rows=2)
    arguments = [files / "two.txt", "-m", files / "model", "--tokenized", "--bilm-tf", "--rows", 2]
    assert run(*arguments) == f"perplexity {expected:.4f} in {steps} steps of 2 rows, as bilm-tf computes it\n"
    answer = json.loads(run(*arguments, "--json"))
    assert (answer["steps"], answer["rows"]) == (steps, 2)
    assert answer["perplexity"] == pytest.approx(expected, rel=1e-6)
