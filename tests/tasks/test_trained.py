import pytest
import torch

from polyseme.errors import FormatError, InputError, WeightsError
from polyseme.tasks.config import with_elmo
from polyseme.tasks.fit import fit
from polyseme.tasks.inputs import ElmoConfig
from polyseme.tasks.layers import embed_texts
from polyseme.tasks.readers import read_columns
from polyseme.tasks.trained import TrainedTask
from tasks.examples import classifier, tagger, write_entities
from tiny import tiny_elmo


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A tagger of names, fitted; its folder is in its configuration."""
    return fit(tagger(tmp_path_factory.mktemp("tagger"))).trained


def test_a_saved_tagger_predicts_the_same(fitted):
    loaded = TrainedTask.load(fitted.config.folder)
    sentences = ["she met Bob Miller .", ["from", "Rome"], []]
    answers = loaded.predict(sentences)
    assert answers == fitted.predict(sentences)
    assert [span.label for span in answers[0].spans] == ["person"]
    assert answers[1].tags == ("O", "B-place")
    assert answers[2].tags == ()
    records = list(loaded.records(sentences))
    assert loaded.task.to_json(records[0], answers[0])["spans"] == [
        {"start": 2, "end": 4, "label": "person", "text": "Bob Miller"}
    ]


def test_predictions_do_not_depend_on_their_neighbours(tmp_path):
    trained = fit(classifier(tmp_path, epochs=2)).trained
    texts = [["the", "film", "was", "great"], ["dull"], ["the", "play", "was", "awful", "indeed", "."]]
    together = trained.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        alone = trained.predict([text])[0]
        assert alone.label == answer.label
        assert alone.probabilities == pytest.approx(answer.probabilities, abs=1e-5)


def test_predictions_are_written_as_the_official_scorer_reads_them(fitted, tmp_path):
    trained = fitted
    path = write_entities(tmp_path / "test.conll", seed=3, count=5)
    scores, records, answers = trained.evaluate(path)
    lines = "".join(trained.task.to_lines(*pair) for pair in zip(records, answers, strict=True))
    (tmp_path / "out.conll").write_text(lines)
    assert [s.tags for s in read_columns(tmp_path / "out.conll", tag=1)] == [record.tags for record in records]
    assert [s.tags for s in read_columns(tmp_path / "out.conll", tag=2)] == [answer.tags for answer in answers]
    assert trained.task.score(records, answers) == scores
    assert trained.task.read_unlabelled(path)[0].tags is None


def test_the_folder_names_its_bilm(tmp_path):
    elmo = tiny_elmo()
    config = with_elmo(classifier(tmp_path, epochs=1), "tiny")
    fitted = fit(config, elmo=elmo).trained
    loaded = TrainedTask.load(tmp_path / "run", elmo=elmo)
    text = ["the", "film", "was", "great"]
    assert loaded.predict([text])[0].probabilities == pytest.approx(fitted.predict([text])[0].probabilities)
    with pytest.raises(WeightsError, match="was fitted with the biLM 'tiny'"):
        TrainedTask.load(tmp_path / "run", elmo=tiny_elmo(seed=3))
    loaded.elmo = None
    with pytest.raises(InputError, match="fitted with ELMo but is used without"):
        loaded.predict([text])


def test_a_fine_tuned_bilm_travels_with_the_task_model(tmp_path):
    elmo = tiny_elmo()
    before = [parameter.clone() for parameter in elmo.model.parameters()]
    config = with_elmo(classifier(tmp_path, epochs=2), "tiny", place=ElmoConfig(trainable="all"))
    fitted = fit(config, elmo=elmo).trained
    assert all(map(torch.equal, before, elmo.model.parameters()))
    tuned = fitted.model.inputs.embedding.bilm
    assert any(not torch.equal(a, b) for a, b in zip(elmo.model.parameters(), tuned.parameters(), strict=True))
    loaded = TrainedTask.load(tmp_path / "run", elmo=elmo)
    text = ["the", "film", "was", "great"]
    assert loaded.predict([text])[0].probabilities == pytest.approx(fitted.predict([text])[0].probabilities)


def test_a_document_is_read_whole_however_many_records_are_taken_at_a_time(tmp_path, monkeypatch):
    elmo = tiny_elmo()
    config = with_elmo(tagger(tmp_path, epochs=1), "tiny", place=ElmoConfig(context="document"))
    fitted = fit(config, elmo=elmo).trained
    path = tmp_path / "documents.conll"
    sentence = "she\tO\nmet\tO\nBob\tB-person\n\n"
    path.write_text("-DOCSTART-\tO\n\n" + 3 * sentence + "-DOCSTART-\tO\n\n" + sentence)
    seen = []
    monkeypatch.setattr("polyseme.tasks.trained.embed_texts", lambda *a, **k: seen.append(len(a[1])) or embed_texts(*a, **k))
    wanted = list(fitted.answer(fitted.task.read(path)))
    monkeypatch.setattr("polyseme.tasks.trained._BLOCK", 2)
    assert list(fitted.answer(fitted.task.read(path))) == wanted
    assert seen == [4, 3, 1]


def test_damaged_folders(tmp_path):
    with pytest.raises(WeightsError, match="is no task model"):
        TrainedTask.load(tmp_path)
    fit(tagger(tmp_path, epochs=1))
    config = (tmp_path / "run/config.json").read_text()
    (tmp_path / "run/config.json").write_text(config[: len(config) // 2])
    with pytest.raises(WeightsError, match="the task model is damaged"):
        TrainedTask.load(tmp_path / "run")
    (tmp_path / "run/config.json").write_text(config)
    (tmp_path / "run/model.safetensors").write_bytes(b"x" * 30)
    with pytest.raises(WeightsError, match="the task model is damaged"):
        TrainedTask.load(tmp_path / "run")


def test_unknown_labels_at_evaluation(fitted, tmp_path):
    (tmp_path / "test.conll").write_text("a\tO\nb\tB-thing\n")
    with pytest.raises(FormatError, match="line 2"):
        fitted.evaluate(tmp_path / "test.conll")
