from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.bulk.settings import bulk_settings
from polyseme.errors import FormatError
from polyseme.tasks.layers import cached_layers, embed_texts
from polyseme.vectors import read_vectors
from tiny import tiny_elmo

TEXTS = [("the", "cat", "sat"), (), ("``", "dog", "''"), ("the", "cat", "sat"), ("a",)]


def gathered(layers, chosen):
    lengths = np.array([len(TEXTS[n]) for n in chosen])
    return layers.gather(np.array(chosen), lengths, int(lengths.max(initial=1)))


def test_layers_equal_the_bilms_own():
    elmo = tiny_elmo()
    layers = embed_texts(elmo, TEXTS)
    wanted = elmo.embed([["the", "cat", "sat"], ['"', "dog", '"']])
    found = gathered(layers, [3, 2, 1])
    assert found.shape == (3, 3, 3, elmo.dim)
    torch.testing.assert_close(found[:, 0], torch.from_numpy(wanted[0]), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(found[:, 1], torch.from_numpy(wanted[1]), atol=2e-3, rtol=1e-3)
    assert not found[:, 2].any()
    assert len(layers.vectors) == 7  # the repeated sentence is kept once


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_the_cache_is_computed_once_and_belongs_to_model_and_text(tmp_path, monkeypatch, context):
    elmo = tiny_elmo()
    calls = []
    original = type(elmo).embed

    def counting(self, *arguments, **options):
        calls.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(elmo), "embed", counting)
    options = {"context": context, "documents": [0, 0, 2, 3, 3]}
    first = cached_layers(tmp_path, elmo, TEXTS, **options)
    once = len(calls)
    again = cached_layers(tmp_path, elmo, TEXTS, **options)
    assert len(calls) == once
    chosen = [4, 1, 3, 0, 2]
    torch.testing.assert_close(gathered(first, chosen), gathered(again, chosen), atol=0, rtol=0)
    torch.testing.assert_close(
        gathered(first, chosen), gathered(embed_texts(elmo, TEXTS, **options), chosen), atol=2e-3, rtol=1e-3
    )
    assert not gathered(again, [1]).any()
    cached_layers(tmp_path, elmo, TEXTS[:2])
    cached_layers(tmp_path, tiny_elmo(seed=1), TEXTS, **options)
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == 3
    (entry,) = [path for path in folders if read_vectors(path).rows == 3]
    next(entry.glob("part-*")).write_bytes(b"damaged")
    with pytest.raises(FormatError, match="delete the folder"):
        cached_layers(tmp_path, elmo, TEXTS[:2])


def test_texts_that_go_over_the_groups_and_parts_of_a_cache(tmp_path, monkeypatch):
    elmo = tiny_elmo()
    small = bulk_settings(elmo, container="arrow", tokenized=True)
    monkeypatch.setattr("polyseme.tasks.layers.bulk_settings", lambda *a, **k: replace(small, portion=40, rows=3))
    texts = [("the", "cat", "sat", "on", "the", "mat", "."), (), *((word,) * 5 for word in ("he", "saw", "it")), ("home",) * 8]
    stored, held = cached_layers(tmp_path, elmo, texts), embed_texts(elmo, texts)
    assert len(stored.pieces) > 10
    chosen = np.array([5, 1, 0, 3, 4, 2, 0])
    lengths = np.array([len(texts[n]) for n in chosen])
    found, wanted = stored.gather(chosen, lengths, 8), held.gather(chosen, lengths, 8)
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-3)


def test_an_interrupted_computation_goes_on(tmp_path, monkeypatch):
    elmo = tiny_elmo()
    original = type(elmo).embed

    def fails(self, *arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(elmo), "embed", fails)
    with pytest.raises(KeyboardInterrupt):
        cached_layers(tmp_path, elmo, TEXTS)
    monkeypatch.setattr(type(elmo), "embed", original)
    steps = []
    cached_layers(tmp_path, elmo, TEXTS, report=lambda done, total=None, *, note="": steps.append((done, total, note)))
    assert steps[-1] == (7, 7, "embedding")


def test_document_context_sees_the_neighbours():
    elmo = tiny_elmo()
    texts = [("the", "cat"), ("sat",), ("the", "cat")]
    documents = [0, 0, 1]
    layers = embed_texts(elmo, texts, context="document", documents=documents)
    whole = elmo.embed([["the", "cat"], ["sat"]], context="document")
    found = layers.vectors.astype(np.float32)
    np.testing.assert_allclose(found[:2], whole[0].transpose(1, 0, 2), atol=2e-3)
    np.testing.assert_allclose(found[2:3], whole[1].transpose(1, 0, 2), atol=2e-3)
    assert abs(found[:2] - found[3:5]).max() > 1e-2


def test_a_document_met_again_is_kept_once():
    elmo = tiny_elmo()
    texts = [("he", "ran"), ("the", "cat"), ("sat",), ("she",), (), ("the", "cat"), ("sat",)]
    layers = embed_texts(elmo, texts, context="document", documents=[0, 1, 1, 2, 2, 5, 5])
    assert len(layers.vectors) == 6
    assert layers.starts.tolist() == [0, 2, 4, 5, 6, 2, 4]
    alone = embed_texts(elmo, texts[1:3], context="document", documents=[0, 0])
    np.testing.assert_allclose(layers.vectors[2:5], alone.vectors, atol=2e-3)
