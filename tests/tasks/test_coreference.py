import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.errors import FormatError, InputError
from polyseme.tasks.config import FitConfig, TaskConfig, coreference, with_elmo
from polyseme.tasks.coreference import CoreferenceConfig, Coreferences, CoreferenceTask, read_clusters
from polyseme.tasks.documents import Mention, read_e2e
from polyseme.tasks.fit import fit
from polyseme.tasks.inputs import WordConfig
from polyseme.tasks.span_ranking import NOTHING, Ranking, SpanRanker, distance_bucket, marginal_loss, mention_loss
from polyseme.tasks.trained import TrainedTask
from tasks.examples import SMALL
from tiny import tiny_elmo

SMALL_MODEL = CoreferenceConfig(
    hidden=8,
    layers=1,
    dense=12,
    features=4,
    max_width=3,
    antecedents=4,
    input_dropout=0.0,
    encoder_dropout=0.0,
    dense_dropout=0.0,
)


def write_stories(path, *, seed=0, count=10):
    """Documents of made-up sentences in which a pronoun takes up the name before it, and a name comes back."""
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for number in range(count):
            sentences, clusters, place = [], {}, 0
            for name, pronoun in rng.permutation([["Ann", "she"], ["Bob", "he"], ["Rome", "it"]])[: rng.integers(2, 4)].tolist():
                sentences += [[name, "was", "there", "."], ["then", pronoun, "and", name, "ran"]]
                clusters[name] = [[place, place], [place + 5, place + 5], [place + 7, place + 7]]
                place += 9
            values = {"doc_key": f"st_{number}", "genre": "story", "sentences": sentences, "clusters": list(clusters.values())}
            stream.write(json.dumps(values) + "\n")
    return path


def stories(tmp_path, *, model=SMALL_MODEL, epochs=6, **changes):
    config = TaskConfig(
        model=model,
        inputs=SMALL,
        fit=FitConfig(epochs=epochs, batch=1, learning_rate=0.01),
        train=str(write_stories(tmp_path / "train.jsonl")),
        dev=str(write_stories(tmp_path / "dev.jsonl", seed=1, count=4)),
        folder=str(tmp_path / "run"),
    )
    return replace(config, **changes)


class Naive:
    """Everything a SpanRanker does, span by span and pair by pair."""

    def __init__(self, ranker, tokens, heads, sentences, genre, speakers):
        self.ranker, self.tokens, self.heads, self.sentences = ranker, tokens, heads, sentences
        self.genre, self.speakers = genre, speakers

    @staticmethod
    def feedforward(scorer, x):
        x = torch.relu(scorer.first.weight @ x + scorer.first.bias)
        x = torch.relu(scorer.second.weight @ x + scorer.second.bias)
        return (scorer.score.weight @ x + scorer.score.bias).squeeze()

    def vector(self, start, end):
        attention = torch.stack([self.ranker.attention(self.tokens[t]).squeeze() for t in range(start, end)]).softmax(0)
        head = sum(share * self.heads[t] for share, t in zip(attention, range(start, end), strict=True))
        return torch.cat([self.tokens[start], self.tokens[end - 1], self.ranker.widths.weight[end - start - 1], head])

    def spans(self):
        config = self.ranker.config
        found = [
            (start, end)
            for start in range(len(self.tokens))
            for end in range(start + 1, min(len(self.tokens), start + config.max_width) + 1)
            if self.sentences[start] == self.sentences[end - 1]
        ]
        return {span: self.feedforward(self.ranker.mention, self.vector(*span)) for span in found}

    def kept(self, scores):
        wanted = max(1, int(self.ranker.config.spans_per_token * len(self.tokens)))
        kept = []
        for a, b in sorted(scores, key=lambda span: -scores[span].item()):
            if len(kept) < wanted and not any(a < c < b < d or c < a < d < b for c, d in kept):
                kept.append((a, b))
        return sorted(kept)

    def antecedent_score(self, kept, vectors, i, j):
        ranker = self.ranker
        known = [ranker.distances.weight[next(n for n, edge in enumerate((1, 2, 3, 4, 5, 8, 16, 32, 64, 1e9)) if i - j < edge)]]
        if ranker.genres is not None:
            ours, theirs = (int(self.speakers[kept[n][0]]) for n in (i, j))
            known.append(ranker.genres.weight[self.genre])
            both = ours and theirs
            known.append(ranker.speakers.weight[1 if ours == theirs else 2] if both else torch.zeros_like(known[0]))
        pair = torch.cat([vectors[i], vectors[j], vectors[i] * vectors[j], *known])
        return self.feedforward(ranker.antecedent, pair)

    def ranking(self):
        """The kept spans, and for each its antecedents with their scores."""
        mention = self.spans()
        kept = self.kept(mention)
        vectors = [self.vector(*span) for span in kept]
        coarse = self.ranker.coarse
        fast, chosen = {}, []
        for i, span in enumerate(kept):
            for j in range(i):
                bilinear = (coarse.weight @ vectors[i] + coarse.bias) @ vectors[j] / self.ranker.width**0.5
                fast[i, j] = mention[span] + mention[kept[j]] + bilinear
            chosen.append(sorted(range(i), key=lambda j, i=i: -fast[i, j].item())[: self.ranker.config.antecedents])
        for step in range(self.ranker.config.depth):
            scores = [{j: fast[i, j] + self.antecedent_score(kept, vectors, i, j) for j in chosen[i]} for i in range(len(kept))]
            if step + 1 < self.ranker.config.depth:
                refined = []
                for i, own in enumerate(vectors):
                    shares = torch.stack([torch.zeros(()), *scores[i].values()]).softmax(0)
                    expected = shares[0] * own + sum(s * vectors[j] for s, j in zip(shares[1:], scores[i], strict=True))
                    gate = torch.sigmoid(self.ranker.gate(torch.cat([own, expected])))
                    refined.append(gate * expected + (1 - gate) * own)
                vectors = refined
        return kept, scores

    def loss(self, kept, scores, clusters):
        total = 0
        for i, span in enumerate(kept):
            everything = torch.stack([torch.zeros(()), *scores[i].values()]).exp().sum()
            right = [s.exp() for j, s in scores[i].items() if clusters.get(span, -1) == clusters.get(kept[j], -2)]
            total = total - torch.log((sum(right) if right else torch.ones(())) / everything)
        return total


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_ranking_pruning_and_loss_equal_a_naive_twin(depth, seed):
    torch.manual_seed(seed)
    config = replace(SMALL_MODEL, depth=depth, metadata=seed != 2, spans_per_token=0.6)
    ranker = SpanRanker(config, 10, 7, 2)
    for parameter in ranker.parameters():
        parameter.data.normal_(0, 0.4)
    if ranker.speakers is not None:
        ranker.speakers.weight.data[0] = 0
    tokens, heads = torch.randn(14, 10), torch.randn(14, 7)
    sentences = torch.tensor([0] * 5 + [2] + [3] * 6 + [4] * 2)
    speakers = torch.tensor([0, 1, 1, 2, 2, 0, 1, 1, 1, 1, 2, 2, 2, 1])
    ranking = ranker(tokens, heads, sentences, 1, speakers)
    twin = Naive(ranker, tokens, heads, sentences, 1, speakers)
    kept, scores = twin.ranking()
    assert list(zip(ranking.starts.tolist(), ranking.ends.tolist(), strict=True)) == kept
    assert len(kept) == 8
    starts, ends, mention = (values.tolist() for values in ranking.candidates)
    assert dict(zip(zip(starts, ends, strict=True), mention, strict=True)) == pytest.approx(
        {span: score.item() for span, score in twin.spans().items()}, abs=1e-4
    )
    for i in range(len(kept)):
        found = dict(zip(ranking.antecedents[i].tolist(), ranking.scores[i, 1:], strict=True))
        found = {j: score for j, score in found.items() if score > NOTHING}
        assert found.keys() == scores[i].keys()
        for j, score in found.items():
            torch.testing.assert_close(score, scores[i][j], atol=1e-4, rtol=1e-4)
    clusters = {kept[0]: 1, kept[2]: 1, kept[3]: 2, kept[6]: 1, kept[7]: 2, (90, 91): 2}
    numbers = torch.tensor([clusters.get(span, 0) for span in kept])
    loss, wanted = marginal_loss(ranking, numbers), twin.loss(kept, scores, clusters)
    torch.testing.assert_close(loss, wanted, atol=1e-3, rtol=1e-4)
    names, parameters = zip(*ranker.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    theirs = torch.autograd.grad(wanted, parameters, allow_unused=True)
    for name, a, b in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, atol=1e-3, rtol=1e-3, msg=name)


def test_distances_fall_into_their_ranges():
    wanted = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 7: 5, 8: 6, 15: 6, 16: 7, 31: 7, 32: 8, 63: 8, 64: 9, 500: 9}
    assert distance_bucket(torch.tensor(list(wanted))).tolist() == list(wanted.values())


def test_the_loss_of_mentions_is_that_of_two_classes():
    scores, right = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([True, False, False])
    wanted = -torch.log(torch.sigmoid(torch.tensor([2.0, 1.0, -0.5]))).sum()
    torch.testing.assert_close(mention_loss(scores, right), wanted)


def test_clusters_follow_the_best_antecedents():
    starts = torch.tensor([0, 2, 4, 6, 8])
    antecedents = torch.tensor([[0, 1], [0, 1], [1, 0], [2, 1], [3, 0]])
    scores = torch.tensor([[0, NOTHING, NOTHING], [0, -1.0, NOTHING], [0, 2.0, 1.0], [0, 3.0, 0.5], [0, -2.0, 0.1]])
    everything = starts, starts + 1, torch.zeros(5)
    ranking = Ranking(everything, starts, starts + 1, antecedents, scores[:, 1:] > NOTHING, scores)
    assert read_clusters(ranking) == (((0, 1), (8, 9)), ((2, 3), (4, 5), (6, 7)))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model of stories, fitted."""
    return fit(stories(tmp_path_factory.mktemp("stories"), epochs=10))


def test_stories_are_learned_and_saved(fitted, tmp_path):
    assert fitted.dev["mean_f1"] > 95
    assert set(fitted.dev) >= {"muc:f1", "b_cubed:recall", "ceaf:precision", "mentions:f1"}
    loaded = TrainedTask.load(fitted.trained.config.folder)
    path = write_stories(tmp_path / "test.jsonl", seed=5, count=3)
    scores, records, answers = loaded.evaluate(path)
    (tmp_path / "out.jsonl").write_text(loaded.task.to_file(records, answers))
    written = read_e2e(tmp_path / "out.jsonl")
    assert [document.clusters for document in written] == [answer.clusters for answer in answers]
    assert loaded.task.score(records, [Coreferences(document.clusters) for document in written]) == scores
    unlabelled = loaded.task.read_unlabelled(path)
    assert unlabelled[0].clusters is None
    assert [answer for _, answer in loaded.answer(unlabelled)] == answers


def test_raw_text_comes_back_with_its_clusters_marked(fitted):
    text = "Ann was there.\nThen she\nand Ann ran away. Rome was there. Then it and Rome ran."
    (record,) = fitted.trained.records(fitted.trained.task.items(text.split("\n"), tokenized=False))
    assert record.text == text
    (answer,) = fitted.trained.predict([text])
    values = fitted.trained.task.to_json(record, answer)
    assert values["marked"].replace("[1 ", "").replace("[2 ", "").replace("]", "") == text
    assert values["marked"].startswith("[1 Ann] was there.\nThen [1 she]\nand [1 Ann] ran")
    assert values["clusters"][0][1] == {"start": 5, "end": 6, "text": "she", "characters": [20, 23]}
    assert fitted.trained.predict(["", [], [[], ["Ann"]], "Hm."]) == [Coreferences(())] * 4
    sentences = [["Ann", "was", "there"], ["then", "she", "ran"]]
    (record,) = fitted.trained.records(fitted.trained.task.items(map(" ".join, sentences), tokenized=True), cut=str.split)
    assert record.sentences == tuple(map(tuple, sentences))
    assert fitted.trained.task.from_item(["one", "sentence"], str.split).sentences == (("one", "sentence"),)


@pytest.mark.parametrize("place", ["input", "both"])
def test_with_elmo_and_sampled_sentences(tmp_path, place):
    config = stories(tmp_path, epochs=2, model=replace(SMALL_MODEL, sentences=3))
    config = with_elmo(config, "tiny")
    config = replace(config, inputs=replace(config.inputs, elmo=replace(config.inputs.elmo, place=place, context="document")))
    result = fit(replace(config, fit=replace(config.fit, learning_rate=0.002)), elmo=tiny_elmo())
    assert result.history[1].loss < result.history[0].loss
    assert "input" in result.layer_weights
    documents = result.trained.task.read(config.dev)
    first = next(result.trained.answer(documents[1:2]))[1]
    assert [answer for _, answer in result.trained.answer(documents)][1] == first  # neighbours do not matter


def test_conll_columns_are_read_and_written(tmp_path, fitted):
    task = CoreferenceTask(replace(SMALL_MODEL, file="conll"))
    document = read_e2e(write_stories(tmp_path / "a.jsonl", count=1))[0]
    answer = Coreferences((*document.clusters, (Mention(0, 3), Mention(10, 12))))
    (tmp_path / "out.conll").write_text(task.to_lines(document, answer))
    (again,) = task.read(tmp_path / "out.conll")
    assert again.sentences == document.sentences
    assert set(again.clusters) == set(answer.clusters)


def test_what_cannot_be_fitted(tmp_path):
    config = stories(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"sentences": [["a"]]}\n')
    with pytest.raises(FormatError, match=r"train.jsonl, document 1 \('1'\): no clusters; wanted them"):
        fit(config)
    with pytest.raises(InputError, match="spans_per_token is 0"):
        CoreferenceConfig(spans_per_token=0.0)
    with pytest.raises(InputError, match="at least 1"):
        CoreferenceConfig(depth=0)


@pytest.mark.slow
def test_five_documents_are_learned(shared, tmp_path):
    """Without dropout five real documents are learned by heart, where every kept span may be an antecedent."""
    lines = (shared / "data/coreference/ontogum/dev.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(sorted(lines, key=len)[:5]) + "\n", encoding="utf-8")
    model = replace(SMALL_MODEL, hidden=50, dense=100, features=20, max_width=30, antecedents=200, depth=1, sentences=None)
    model = replace(model, spans_per_token=0.25)
    config = replace(coreference(), model=model, train=str(path), dev=str(path), folder=str(tmp_path / "run"))
    config = replace(config, inputs=replace(config.inputs, words=WordConfig()))
    result = fit(replace(config, fit=replace(config.fit, epochs=120, patience=40, learning_rate=0.002, decay=0.7, decay_after=6)))
    assert result.dev["mean_f1"] >= 99
