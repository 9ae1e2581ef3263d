"""Mixes trained over stored layers are those trained over the frozen biLM."""

import pytest
import torch
from corpora import corpus

from polyseme import ElmoEmbedding
from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import bulk_settings
from polyseme.errors import InputError, WeightsError
from polyseme.sources import Reader
from tiny import tiny_elmo


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The layers of a corpus with and without markers, as float32; and its sentences."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "corpus.txt").write_text(corpus(40))
    elmo = tiny_elmo()
    for name, boundaries in (("plain", False), ("marked", True)):
        settings = bulk_settings(elmo, tokenized=True, dtype="float32", boundaries=boundaries, part_tokens=200)
        embed_corpus(Reader([folder / "corpus.txt"]), folder / name, elmo, settings)
    settings = bulk_settings(elmo, tokenized=True, layers="top")
    embed_corpus(Reader([folder / "corpus.txt"]), folder / "top", elmo, settings)
    return folder, elmo, [line.split() for line in (folder / "corpus.txt").read_text().splitlines()]


def trained(module, inputs) -> list[float]:
    """Losses of some steps on made-up targets."""
    torch.manual_seed(0)
    targets = torch.randn(2, 16)
    optimizer = torch.optim.SGD([parameter for parameter in module.parameters() if parameter.requires_grad], lr=0.5)
    losses = []
    for batch in inputs:
        outputs, mask = module(batch)
        loss = sum(((output - target)[mask] ** 2).mean() for output, target in zip(outputs, targets, strict=True))
        loss = loss + module.penalty(0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {}),
        ("plain", {"layer_norm": "token", "token_layer": "drop"}),
        ("plain", {"layer_norm": "bilm_tf"}),
        ("marked", {"layer_norm": "allennlp"}),
        ("marked", {"boundaries": True}),
    ],
)
def test_training_over_stored_layers_is_training_over_the_frozen_bilm(stored, name, options):
    folder, elmo, sentences = stored
    batches = [list(range(first, first + 8)) for first in range(0, 40, 8)] * 2
    live = ElmoEmbedding(elmo, outputs=2, dropout=0.0, **options)
    over_stored = ElmoEmbedding.from_vectors(folder / name, outputs=2, dropout=0.0, **options)
    assert over_stored.dim == live.dim
    live_losses = trained(live, [elmo.characters([sentences[number] for number in batch]) for batch in batches])
    losses = trained(over_stored, [torch.tensor(batch) for batch in batches])
    assert losses[0] != losses[-1]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(live_losses), rtol=1e-5, atol=1e-6)
    for first, second in zip(live.mixes.parameters(), over_stored.mixes.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    # What was learned over stored layers is used over the biLM, for new text.
    anew = ElmoEmbedding(elmo, outputs=2, dropout=0.0, **options)
    anew.load_state_dict(over_stored.state_dict())
    (mixed, _), _ = anew(elmo.characters([sentences[5]]))
    (wanted, _), mask = over_stored([5])
    torch.testing.assert_close(mixed, wanted, rtol=1e-5, atol=1e-6)
    assert mask.shape == wanted.shape[:2]
    over_stored.load_state_dict(live.state_dict())


def test_no_sentences_and_empty_ones(stored):
    module = ElmoEmbedding.from_vectors(stored[0] / "plain")
    (outputs,), mask = module([])
    assert (outputs.shape, mask.shape) == ((0, 0, 16), (0, 0))
    (outputs,), mask = module([0])  # a blank line
    assert (outputs.shape, mask.shape) == ((1, 0, 16), (1, 0))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("top", {}, "does not hold all layers"),
        ("plain", {"layer_norm": "allennlp"}, "--boundaries"),
        ("plain", {"boundaries": True}, "--boundaries"),
        ("plain", {"trainable": True}, "cannot be trained"),
        ("plain", {"token_layer": "project"}, "wanted 'keep' or 'drop'"),
        ("plain", {"outputs": 0}, "at least 1"),
        ("plain", {"mixes": []}, "0 mixes were given for 1 outputs"),
    ],
)
def test_what_cannot_be(stored, name, options, message):
    with pytest.raises(InputError, match=message):
        ElmoEmbedding.from_vectors(stored[0] / name, **options)


def test_another_model(stored):
    module = ElmoEmbedding.from_vectors(stored[0] / "plain")
    with pytest.raises(WeightsError, match="store those of the former"):
        module.load_state_dict(ElmoEmbedding(tiny_elmo(seed=1)).state_dict())
