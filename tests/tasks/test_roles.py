import json
import lzma
from dataclasses import replace

import pytest
from click.testing import CliRunner

from polyseme.cli import main
from polyseme.errors import FormatError, InputError
from polyseme.tasks.config import PRESETS, make_task, with_elmo
from polyseme.tasks.fit import fit
from polyseme.tasks.inputs import ElmoConfig
from polyseme.tasks.role_readers import read_role_columns
from polyseme.tasks.roles import Roles, RolesConfig
from polyseme.tasks.spans import first_illegal
from polyseme.tasks.trained import TrainedTask
from tasks.examples import roles, write_roles
from tiny import tiny_elmo


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A role labeller, fitted without ELMo; its folder is in its configuration."""
    return fit(roles(tmp_path_factory.mktemp("roles")))


def test_roles_and_predicates_are_learned(fitted):
    assert fitted.dev["f1"] > 95
    assert fitted.dev["predicates:f1"] > 95
    assert fitted.dev["perfect"] > 80


def test_raw_text_gets_predicates_and_roles(fitted):
    folder = fitted.trained.config.folder
    found = CliRunner().invoke(main, ["predict", folder], input="the dog saw Bob and Ann ate a fine cake\n\nBob\n")
    assert found.exit_code == 0, found.output
    first, empty, nothing = map(json.loads, found.stdout.splitlines())
    assert [predicate["word"] for predicate in first["predicates"]] == ["saw", "ate"]
    assert first["predicates"][1]["roles"] == [
        {"role": "ARG0", "spans": [[5, 6]], "text": "Ann"},
        {"role": "ARG1", "spans": [[7, 10]], "text": "a fine cake"},
    ]
    assert (empty["tokens"], empty["predicates"], nothing["predicates"]) == ([], [], [])


def test_given_predicates_are_kept_and_columns_are_written_for_columns(fitted, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"tokens": ["Ann", "saw", "Bob"], "predicates": [{"index": 0}, {"index": 1}]}\n')
    folder = fitted.trained.config.folder
    found = CliRunner().invoke(main, ["predict", folder, str(tmp_path / "in.jsonl"), "--input", "task", "--output", "task"])
    assert found.exit_code == 0, found.output
    (values,) = map(json.loads, found.stdout.splitlines())
    assert [predicate["index"] for predicate in values["predicates"]] == [0, 1]
    for predicate in values["predicates"]:
        assert first_illegal(predicate["tags"], "bio") is None
    # The same model, told that its files are columns.
    trained = TrainedTask.load(folder)
    (tmp_path / "in.props").write_text("Ann\t-\nsaw\tsee\nBob\t-\n")
    columns = make_task(RolesConfig(file="conll2005"))
    answers = list(trained.answer(columns.read_unlabelled(tmp_path / "in.props")))
    text = "".join(columns.to_lines(*pair) for pair in answers)
    assert text == "Ann\t-\t(ARG0*)\nsaw\tsee\t(V*)\nBob\t-\t(ARG1*)\n\n"
    (tmp_path / "out.props").write_text(text)
    assert read_role_columns(tmp_path / "out.props")[0].propositions == answers[0][1].propositions


@pytest.mark.parametrize("place", ["input", "both"])
def test_with_elmo_the_mix_is_learned(tmp_path, place):
    config = with_elmo(roles(tmp_path, epochs=2), "tiny", place=ElmoConfig(place=place))
    result = fit(config, elmo=tiny_elmo())
    assert all(gamma != 1 for *_, gamma in result.layer_weights.values())
    context = with_elmo(roles(tmp_path, folder=str(tmp_path / "other")), "tiny", place=ElmoConfig(context="document"))
    with pytest.raises(InputError, match="give ELMo the context 'sentence'"):
        fit(context, elmo=tiny_elmo())


def test_a_training_record_is_one_predicate_and_a_share_takes_whole_sentences(tmp_path):
    path = write_roles(tmp_path / "x.jsonl", count=20)
    task = make_task(RolesConfig())
    whole, parts = task.read(path), task.read(path, training=True)
    assert len(parts) == sum(len(sentence.propositions) for sentence in whole) > len(whole) == 20
    assert len({task.unit(record) for record in parts}) == 20
    (tmp_path / "x.jsonl").write_text('{"tokens": ["no", "verb"], "predicates": []}\n')
    assert task.read(path, training=True) == task.read(path)


def test_verbs_alone(tmp_path):
    line = {"tokens": ["a", "b"], "pos": ["NN", "VBD"], "predicates": [{"index": n, "tags": ["B-V", "O"]} for n in (0, 1)]}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    task = make_task(RolesConfig(predicates="verbs"))
    assert [found.index for found in task.read(tmp_path / "x.jsonl")[0].propositions] == [1]
    del line["pos"]
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    with pytest.raises(FormatError, match="line 1: no parts of speech"):
        task.read(tmp_path / "x.jsonl")


def test_roles_outside_the_training_data_are_missed_but_another_label_set_is_refused(tmp_path):
    config = roles(tmp_path)
    task = make_task(config.model)
    inventory = task.inventory(task.read(config.train, training=True))
    assert inventory["labels"][:3] == ["O", "B-ARG0", "I-ARG0"]
    records = task.read(config.dev)
    rare = replace(
        records[0], propositions=(replace(records[0].propositions[0], tags=("B-ARG9", *["O"] * (len(records[0].tokens) - 1))),)
    )
    task.check([*records, rare], inventory, "dev.jsonl")
    assert task.score([rare], [Roles(rare.propositions)])["f1:ARG9"] == 100
    with pytest.raises(
        FormatError,
        match=r"dev.jsonl, line 1 \('\w+'\): the role 'ARG9' does not occur .* as 1 of the 1 roles .* wanted one of A",
    ):
        task.check([rare], inventory, "dev.jsonl")
    with pytest.raises(InputError, match="has no roles; training needs labelled"):
        task.inventory([task.from_tokens(["a"])])


@pytest.mark.slow
def test_200_records_are_learned(shared, tmp_path):
    """Four layers, no dropout: the roles of 200 predicates by heart, in well under two minutes."""
    with lzma.open(shared / "data/roles/propbank-ewt/dev.jsonl.xz", "rt", encoding="utf-8") as stream:
        kept, count = [], 0
        for line in stream:
            if count < 200:
                kept.append(line)
                count += len(json.loads(line)["predicates"])
    (tmp_path / "train.jsonl").write_text("".join(kept), encoding="utf-8")
    config = PRESETS["roles"]()
    files = {"train": str(tmp_path / "train.jsonl"), "dev": str(tmp_path / "train.jsonl"), "folder": str(tmp_path / "run")}
    schedule = replace(config.fit, epochs=60, patience=60, batch=20, optimizer="adam", learning_rate=0.002)
    config = replace(config, model=replace(config.model, layers=4, hidden=150, dropout=0.0), fit=schedule, **files)
    assert fit(config).dev["f1"] >= 99
