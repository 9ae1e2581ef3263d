import json
import lzma
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from polyseme.cli import main
from polyseme.errors import FormatError, InputError
from polyseme.tasks.config import PRESETS, make_task, with_elmo
from polyseme.tasks.fit import fit
from polyseme.tasks.inputs import ElmoConfig
from polyseme.tasks.pair_readers import Pair, read_choices, read_pairs
from polyseme.tasks.task import Batch
from tasks.examples import choices, entailment, write_choices
from tiny import tiny_elmo


@pytest.fixture
def write(tmp_path):
    def _write(*values):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
        return path

    return _write


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return fit(entailment(tmp_path_factory.mktemp("entailment")))


@pytest.fixture(scope="module")
def chooser(tmp_path_factory):
    return fit(choices(tmp_path_factory.mktemp("choices")))


def test_pairs_are_learned_and_raw_pairs_answered(fitted):
    assert fitted.dev["accuracy"] > 95
    folder = fitted.trained.config.folder
    found = CliRunner().invoke(
        main, ["predict", folder], input="The dog sits here.\tBob sits.\nAnn sings here\tAnn never sings\n"
    )
    assert found.exit_code == 0, found.output
    neutral, contradiction = map(json.loads, found.stdout.splitlines())
    assert (neutral["premise"], neutral["label"]) == (["The", "dog", "sits", "here", "."], "neutral")
    assert contradiction["label"] == "contradiction"
    assert sum(contradiction["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    (answer,) = fitted.trained.predict([("Ann runs here", ["Ann", "runs"])])
    assert answer.label == "entailment"
    alone = CliRunner().invoke(main, ["predict", folder], input="A single text.\n")
    assert alone.exit_code != 0
    assert "holds 1 texts; wanted premise and hypothesis" in alone.output


def test_a_choice_is_learned_and_raw_questions_answered(chooser):
    assert chooser.dev["accuracy"] > 95
    folder = chooser.trained.config.folder
    found = CliRunner().invoke(main, ["predict", folder], input="where is the cat ?\tit is the sun\tit is the cat\n")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["label"] == 1
    assert sum(json.loads(found.stdout)["probabilities"]) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match="holds 2 texts; wanted a question and two or more answers"):
        chooser.trained.predict(["where ?\there"])
    with pytest.raises(InputError, match="must be a string or a list of tokens"):
        chooser.trained.predict([("where ?", [1], "here")])


def test_the_order_and_the_number_of_other_answers_do_not_matter(chooser):
    """Probabilities follow the answers; a question of two answers may stand beside one of four."""
    items = [("where is the sea ?", "it is the sea", "it is the car"), ("where ?", "it is the sun", "the sea", "cat", "tree")]
    together = chooser.trained.predict(items)
    apart = [chooser.trained.predict([item])[0] for item in items]
    (turned,) = chooser.trained.predict([(items[0][0], *items[0][:0:-1])])
    for one, other in zip(together, apart, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    assert turned.probabilities == pytest.approx(apart[0].probabilities[::-1], abs=1e-5)
    assert len(together[0].probabilities) == 2


@pytest.mark.parametrize("place", ["input", "both"])
@pytest.mark.parametrize("task", [entailment, choices])
def test_with_elmo_the_mix_is_learned(tmp_path, task, place):
    config = with_elmo(task(tmp_path, epochs=2), "tiny", place=ElmoConfig(place=place))
    result = fit(config, elmo=tiny_elmo())
    assert all(gamma != 1 for *_, gamma in result.layer_weights.values())


def test_padding_changes_nothing(fitted):
    """A pair's scores do not depend on the pairs beside it, empty texts among them."""
    task, model = fitted.trained.task, fitted.trained.model.eval()
    pairs = [Pair(("Ann", "runs"), ("Bob",), None), Pair((), ("a", "man", "sits", "here", "."), None), Pair((), (), None)]
    texts = model.inputs.read([text for pair in pairs for text in task.texts(pair)])
    with torch.no_grad():
        together = model.logits(Batch(pairs, [range(2), range(2, 4), range(4, 6)], texts))
        alone = model.logits(Batch(pairs[:1], [range(2)], texts))
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-5)


def test_both_forms_of_pairs_are_read(write):
    published = {
        "gold_label": "neutral",
        "sentence1": "It's (not) so.",
        "sentence1_binary_parse": "( ( It 's ) ( ( -LRB- not -RRB- ) ( so . ) ) )",
        "sentence2": "He's in.",
    }
    pairs = read_pairs(
        write(published, {"label": "x", "premise": ["A"], "hypothesis": "I can't."}, {**published, "gold_label": "-"})
    )
    assert pairs == [
        Pair(("It", "'s", "-LRB-", "not", "-RRB-", "so", "."), ("He", "'s", "in", "."), "neutral", 1),
        Pair(("A",), ("I", "ca", "n't", "."), "x", 2),
    ]
    path = write({"premise": ["A"], "hypothesis": ["B"]}, {**published, "gold_label": "-"})
    assert [pair.label for pair in read_pairs(path, labelled=False)] == [None, None]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "the file is empty; wanted JSON lines"),
        ([{"premise": ["A"], "hypothesis": ["B"]}], "line 1: label is missing; wanted a label"),
        ([{"label": "x", "premise": ["A"]}], "line 1: hypothesis is missing; wanted a text"),
        ([{"label": "x", "premise": [], "hypothesis": ["B"]}], r"line 1: premise is \[\]"),
        ([{"gold_label": 1, "sentence1": "A", "sentence2": "B"}], "line 1: gold_label is 1"),
        ([{"gold_label": "x", "sentence1": "A"}], "line 1: sentence2 is missing"),
        ([["A", "B"]], "line 1: .* is no JSON object"),
    ],
)
def test_bad_pairs_name_the_line(write, values, message):
    path = write(*values)
    with pytest.raises(FormatError, match=message) as error:
        read_pairs(path)
    assert str(path) in str(error.value)


def test_labels_not_trained_on_and_files_of_nothing_but_doubt(write, tmp_path, fitted):
    with pytest.raises(
        FormatError, match=r"line 1: the label 'perhaps' does not occur .* one of contradiction, entailment, neutral"
    ):
        fitted.trained.evaluate(write({"label": "perhaps", "premise": ["A"], "hypothesis": ["B"]}))
    with pytest.raises(FormatError, match="every label is '-'"):
        fitted.trained.task.read(write({"label": "-", "premise": ["A"], "hypothesis": ["B"]}))


def test_both_forms_of_choices_are_read(write, tmp_path):
    stem = {"question": {"stem": "Why?", "choices": [{"label": "A", "text": "So."}, {"label": "B", "text": "No."}]}}
    one, other = read_choices(
        write({**stem, "answerKey": "B"}, {"question": ["Why"], "answers": [["So"], "It isn't"], "label": 0})
    )
    assert (one.question, one.answers, one.label) == (("Why", "?"), (("So", "."), ("No", ".")), 1)
    assert (other.answers, other.label) == ((("So",), ("It", "is", "n't")), 0)
    assert read_choices(write(stem), labelled=False)[0].label is None
    task = make_task(PRESETS["choices"]().model)
    records = task.read(write_choices(tmp_path / "x.jsonl", count=5))
    answers = [type("Answer", (), {"answer": record.label}) for record in records]
    (tmp_path / "x.jsonl").write_text("".join(task.to_lines(*pair) for pair in zip(records, answers, strict=True)))
    assert task.read(tmp_path / "x.jsonl") == records


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"question": "Why?", "answers": ["So."], "label": 0}, r"line 1: answers is \['So.'\]; wanted two or more"),
        ({"question": "Why?", "answers": ["So.", "No."], "label": 2}, "label is 2; wanted the number of the right answer"),
        ({"question": "Why?", "answers": ["So.", 5], "label": 0}, "line 1: answer 1 is 5; wanted a text"),
        ({"answers": ["So.", "No."], "label": 0}, "line 1: question is missing"),
        ({"question": {"stem": "Why?", "choices": "A"}}, "line 1: choices is 'A'; wanted a list of objects"),
        ({"question": {"stem": "Why?", "choices": [{"label": "A"}]}, "answerKey": "C"}, "line 1: answerKey is 'C'; wanted one"),
    ],
)  # fmt: skip
def test_bad_choices_name_the_line(write, value, message):
    with pytest.raises(FormatError, match=message):
        read_choices(write(value))


@pytest.mark.parametrize(("part", "pairs"), [("dev", 9842), ("test", 9824)])
def test_snli(shared, part, pairs):
    assert len(read_pairs(shared / f"data/entailment/snli/{part}.jsonl.xz")) == pairs


@pytest.mark.slow
def test_200_records_are_learned(shared, tmp_path):
    """Without dropout 200 pairs are learned by heart, in well under two minutes."""
    with lzma.open(shared / "data/entailment/snli/dev.jsonl.xz", "rt", encoding="utf-8") as stream:
        (tmp_path / "train.jsonl").write_text("".join(next(stream) for _ in range(200)), encoding="utf-8")
    config = with_elmo(PRESETS["snli"](), None)
    files = {"train": str(tmp_path / "train.jsonl"), "dev": str(tmp_path / "train.jsonl"), "folder": str(tmp_path / "run")}
    config = replace(config, model=replace(config.model, hidden=100, dropout=0.0), **files)
    assert (
        fit(replace(config, fit=replace(config.fit, epochs=40, patience=40, batch=20, learning_rate=0.002, decay=None))).dev[
            "accuracy"
        ]
        >= 99
    )
