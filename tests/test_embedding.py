"""ElmoEmbedding: mixes over a biLM in a user's own network."""

import copy
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from polyseme import ElmoEmbedding, InputError, WeightsError
from polyseme.mix import Mix
from tiny import seed_shaped, tiny_config, tiny_elmo

ELMO = tiny_elmo()
BATCH = [["the", "cat", "sat", "."], ["a", "dog"], [], ["he", "saw", "the", "mat", "at", "home"]]


def ids(elmo=ELMO, batch=BATCH):
    return elmo.characters(batch)


def trained_step(module: ElmoEmbedding, *, lr: float = 0.5) -> None:
    """One step of gradient descent on the squared outputs."""
    optimizer = torch.optim.SGD([parameter for parameter in module.parameters() if parameter.requires_grad], lr=lr)
    outputs, _ = module(ids(module.elmo))
    sum((output**2).sum() for output in outputs).backward()
    optimizer.step()


def names_trained(module: ElmoEmbedding) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def values(elmo) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in elmo.model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What forward gives


def test_untrained_mixes_are_the_mean_of_the_layers():
    module = ElmoEmbedding(ELMO, outputs=2, dropout=0.0)
    outputs, mask = module(ids())
    assert mask.tolist() == [[position < len(sentence) for position in range(6)] for sentence in BATCH]
    wanted = ELMO.embed(BATCH, layers="mean")
    for output in outputs:
        assert output.shape == (4, 6, module.dim)
        assert not output[~mask].any()
        for row, array in enumerate(wanted):
            assert np.abs(output[row, : len(array)].detach().numpy() - array).max(initial=0) < 1e-5


@pytest.mark.parametrize("state", ["warm", "zero"])
def test_boundaries_and_start(state):
    module = ElmoEmbedding(ELMO, dropout=0.0, boundaries=True, state=state)
    (output,), mask = module(ids())
    assert mask.sum(dim=1).tolist() == [len(sentence) + 2 for sentence in BATCH]
    for row, array in enumerate(ELMO.embed(BATCH, layers="mean", boundaries=True, state=state)):
        assert np.abs(output[row, : len(array)].detach().numpy() - array).max() < 1e-5


def test_layer_norms():
    """Each against its definition, in float64."""
    layers = [np.concatenate(arrays).astype(np.float64) for arrays in zip(*ELMO.embed(BATCH), strict=True)]
    with_markers = [np.concatenate(arrays).astype(np.float64) for arrays in zip(*ELMO.embed(BATCH, boundaries=True), strict=True)]

    def normalised(layer, counted, axis):
        return (layer - counted.mean(axis=axis, keepdims=True)) / counted.std(axis=axis, keepdims=True)

    wanted = {
        "token": np.mean([normalised(layer, layer, -1) for layer in layers], axis=0),
        "bilm_tf": np.mean([normalised(layer, layer, None) for layer in layers], axis=0),
        "allennlp": np.mean([normalised(one, two, None) for one, two in zip(layers, with_markers, strict=True)], axis=0),
    }
    for kind, vectors in wanted.items():
        for boundaries in (False, True):
            (output,), mask = ElmoEmbedding(ELMO, dropout=0.0, layer_norm=kind, boundaries=boundaries)(ids())
            rows = [output[row, boundaries : boundaries + len(sentence)] for row, sentence in enumerate(BATCH)]
            assert np.abs(torch.cat(rows).detach().numpy() - vectors).max() < 1e-4
            assert not output[~mask].any()


def test_dropout_only_in_training():
    module = ElmoEmbedding(ELMO, dropout=0.5)
    torch.manual_seed(0)
    (output,), mask = module(ids())
    share = float((output[mask] == 0).float().mean())
    assert 0.3 < share < 0.7
    module.eval()
    assert torch.equal(module(ids())[0][0], module(ids())[0][0])


def test_given_mixes():
    mixes = [Mix(weights=(0.0, 1.0, 2.0), gamma=0.5), Mix(weights=(-9e10, 1.0, -9e10), gamma=1.0)]
    module = ElmoEmbedding(ELMO, outputs=2, dropout=0.0, mixes=mixes)
    outputs, _ = module(ids())
    for mix, output in zip(mixes, outputs, strict=True):
        wanted = ELMO.embed(BATCH, layers=mix)
        assert np.abs(output[3].detach().numpy() - wanted[3]).max() < 1e-5


def test_no_sentences():
    outputs, mask = ElmoEmbedding(ELMO, outputs=2)(ELMO.characters([]))
    assert [output.shape for output in outputs] == [(0, 0, 16), (0, 0, 16)]
    assert mask.shape == (0, 0)
    outputs, mask = ElmoEmbedding(ELMO)(ELMO.characters([[]]))
    assert outputs[0].shape == (1, 0, 16)


def test_layers_of_unequal_width():
    elmo = seed_shaped()
    with pytest.raises(InputError, match=r"600 wide, its LSTM layers 128.*'drop'.*'project'"):
        ElmoEmbedding(elmo)
    dropped = ElmoEmbedding(elmo, dropout=0.0, token_layer="drop")
    (output,), _ = dropped(ids(elmo))
    first, top = (elmo.embed(BATCH, layers=layer)[3] for layer in (1, 2))
    assert np.abs(output[3].detach().numpy() - (first + top) / 2).max() < 1e-5
    projected = ElmoEmbedding(elmo, dropout=0.0, token_layer="project")
    (output,), _ = projected(ids(elmo))
    token = elmo.embed(BATCH, layers="token")[3]
    start = np.concatenate([token[:, :64], token[:, 300:364]], axis=1)
    assert np.abs(output[3].detach().numpy() - (start + first + top) / 3).max() < 1e-5
    assert names_trained(projected) == {"token_projection.weight", "mixes.0.weights", "mixes.0.gamma"}
    before = projected.token_projection.weight.detach().clone()
    trained_step(projected)
    assert not torch.equal(before, projected.token_projection.weight)
    assert "token_projection.weight" in projected.state_dict()


# What is trained


def test_trainable_is_what_learns():
    mixes = {"mixes.0.weights", "mixes.0.gamma"}
    assert names_trained(ElmoEmbedding(ELMO)) == mixes
    assert names_trained(ElmoEmbedding(ELMO, trainable=False)) == set()
    everything = ElmoEmbedding(ELMO, trainable=True)
    assert names_trained(everything) == mixes | {f"bilm.{name}" for name, _ in ELMO.model.named_parameters()}
    before = copy.deepcopy(everything.state_dict())
    trained_step(everything)
    after = everything.state_dict()
    unmoved = {name for name in after if name != "_extra_state" and torch.equal(before[name], after[name])}
    assert unmoved == set()


def test_the_elmo_never_changes():
    for module in (ElmoEmbedding(ELMO, trainable=True), ElmoEmbedding(ELMO).requires_grad_(True)):
        before, vectors = values(ELMO), ELMO.embed(BATCH)
        trained_step(module)
        module.double()
        assert same(before, values(ELMO))
        assert all(np.array_equal(one, two) for one, two in zip(vectors, ELMO.embed(BATCH), strict=True))


def test_a_frozen_bilm_shares_its_memory_and_keeps_no_graph():
    module = ElmoEmbedding(ELMO)
    shared = dict(ELMO.model.named_parameters())
    for name, parameter in module.bilm.named_parameters():
        assert parameter.data_ptr() == shared[name].data_ptr()
    layers, _ = module.read(ids(), ELMO.state(len(BATCH)))
    assert not any(layer.requires_grad for layer in layers)


def test_freezing_by_layer():
    module = ElmoEmbedding(ELMO)
    module.unfreeze("lstm2")
    trained = {name for name in names_trained(module) if name.startswith("bilm")}
    assert trained == {
        f"bilm.lstm.{direction}_layers.1.{part}"
        for direction in ("forward", "backward")
        for part in ("input_weight", "recurrent_weight", "bias", "projection_weight")
    }
    before = values(ELMO)
    trained_step(module)
    moved = {f"bilm.{name}" for name, parameter in module.bilm.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == trained
    module.freeze("lstm2", "mix")
    assert names_trained(module) == set()
    module.unfreeze()
    assert names_trained(module) == {f"bilm.{name}" for name, _ in module.bilm.named_parameters()}
    module.freeze()
    module.unfreeze("token", "mix")
    assert {name.split(".")[1] for name in names_trained(module) if name.startswith("bilm")} == {"token_encoder"}
    with pytest.raises(InputError, match=r"no layer 'lstm3'.*token, lstm1, lstm2 and mix"):
        module.freeze("lstm3")


def test_parameter_groups():
    module = ElmoEmbedding(ELMO, trainable=True)
    mixes, bilm = module.parameter_groups(lr=1e-2, bilm_lr=1e-4)
    assert (mixes["lr"], bilm["lr"], mixes["weight_decay"]) == (1e-2, 1e-4, 0.0)
    assert len(mixes["params"]) + len(bilm["params"]) == len(list(module.parameters()))
    torch.optim.AdamW([mixes, bilm])
    assert [group["lr"] for group in ElmoEmbedding(ELMO).parameter_groups(lr=1e-2, bilm_lr=1e-4)] == [1e-2]
    assert ElmoEmbedding(ELMO, trainable=False).parameter_groups(lr=1e-2, bilm_lr=1e-4) == []


def test_the_penalty_is_on_weights_before_the_softmax():
    mixes = [Mix(weights=(1.0, -2.0, 0.0), gamma=7.0), Mix(weights=(3.0, 0.0, 0.0), gamma=7.0)]
    penalty = ElmoEmbedding(ELMO, outputs=2, mixes=mixes).penalty(0.001)
    assert penalty.item() == pytest.approx(0.014)
    penalty.backward()


# What is kept


def test_the_state_dict_holds_what_was_trained_and_a_reference():
    module = ElmoEmbedding(ELMO, outputs=2)
    mixes = {f"mixes.{number}.{part}" for number in range(2) for part in ("weights", "gamma")}
    assert set(module.state_dict()) == mixes | {"_extra_state"}
    module.unfreeze("lstm1")
    trained_step(module)
    module.freeze("lstm1")  # what was trained stays, whether it goes on or not
    state = module.state_dict()
    assert len(state) == 5 + 8
    assert all(name.startswith(("mixes", "_extra", "bilm.lstm")) for name in state)


@pytest.mark.parametrize("trainable", ["mix", True])
def test_a_state_dict_comes_back(trainable, tmp_path: Path):
    module = ElmoEmbedding(ELMO, outputs=2, dropout=0.0, trainable=True)
    trained_step(module)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    back = ElmoEmbedding(ELMO, outputs=2, dropout=0.0, trainable=trainable)
    before = values(ELMO)
    back.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, two in zip(module(ids())[0], back(ids())[0], strict=True):
        assert torch.equal(one, two)
    assert same(before, values(ELMO))
    assert set(back.state_dict()) == set(module.state_dict())


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_without_a_bilm_puts_the_original_back(assign):
    before = values(ELMO)
    module = ElmoEmbedding(ELMO, dropout=0.0, trainable=True)
    untouched = ElmoEmbedding(ELMO, dropout=0.0)
    wanted = untouched(ids())[0][0]
    trained_step(module)
    module.load_state_dict(untouched.state_dict(), assign=assign)
    # What was once trained is read by the model itself, what never was by the engine.
    torch.testing.assert_close(module(ids())[0][0], wanted, atol=1e-5, rtol=0)
    trained_step(module)
    assert same(before, values(ELMO))


def test_inside_a_users_network():
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = ElmoEmbedding(ELMO, dropout=0.0)
            self.out = nn.Linear(self.embedding.dim, 3)

    one, two = Tagger(), Tagger()
    trained_step(one.embedding)
    assert set(one.state_dict()) == {
        "embedding._extra_state", "embedding.mixes.0.weights", "embedding.mixes.0.gamma", "out.weight", "out.bias",
    }  # fmt: skip
    two.load_state_dict(one.state_dict())
    assert torch.equal(one.embedding(ids())[0][0], two.embedding(ids())[0][0])
    incomplete = {name: value for name, value in one.state_dict().items() if "gamma" not in name}
    with pytest.raises(RuntimeError, match=r"Missing key.*embedding.mixes.0.gamma"):
        two.load_state_dict(incomplete)


def test_weights_trained_over_another_bilm_are_refused():
    state = ElmoEmbedding(tiny_elmo(seed=1)).state_dict()
    with pytest.raises(WeightsError, match=r"trained over the biLM 'tiny' .*stands over 'tiny'.*build it over the former"):
        ElmoEmbedding(ELMO).load_state_dict(state)


def test_a_deep_copy_and_a_pickle_are_independent():
    module = ElmoEmbedding(ELMO, dropout=0.0, trainable=True)
    wanted = module(ids())[0][0].detach().clone()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(ids())[0][0], wanted)
        trained_step(other)
        assert not torch.equal(other(ids())[0][0], wanted)
        assert torch.equal(module(ids())[0][0], wanted)
        assert set(other.state_dict()) == set(module.state_dict())


def test_what_was_tuned_is_an_elmo_again():
    elmo = tiny_elmo(tiny_config(softmax=True))
    module = ElmoEmbedding(elmo, dropout=0.0, state="zero")
    module.unfreeze("lstm2", "token")
    trained_step(module, lr=0.1)
    tuned = module.tuned()
    (output,), _ = module(ids())
    found = tuned.embed(BATCH, layers=tuned.mixes[0], state="zero")
    assert np.abs(output[3].detach().numpy() - found[3]).max() < 1e-5
    assert tuned.hash != elmo.hash
    assert len(tuned.score(BATCH)) == len(BATCH)
    trained_step(module, lr=0.1)
    again = tuned.embed(BATCH, layers=tuned.mixes[0], state="zero")
    assert np.array_equal(found[3], again[3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": 0}, "outputs is 0"),
        ({"trainable": "all"}, "trainable is 'all'"),
        ({"layer_norm": "batch"}, "layer_norm is 'batch'"),
        ({"dropout": 1.5}, "dropout is 1.5; wanted a number from 0 to 1"),
        ({"dropout": "half"}, "dropout is 'half'"),
        ({"state": "cold"}, "state is 'cold'"),
        ({"token_layer": "skip"}, "token_layer is 'skip'"),
        ({"mixes": [Mix(weights=(1.0, 1.0), gamma=1.0)]}, "2 mix weights were given for 3 layers"),
        ({"mixes": []}, "0 mixes were given for 1 outputs"),
    ],
)
def test_options_that_do_not_exist(options, message):
    with pytest.raises(InputError, match=message):
        ElmoEmbedding(ELMO, **options)


def test_only_ids_are_read():
    with pytest.raises(InputError, match=r"ids is of type list; wanted what elmo\.characters\(sentences\) gives"):
        ElmoEmbedding(ELMO)(BATCH)


def test_only_an_elmo_is_embedded():
    with pytest.raises(InputError, match=r"Sequential; wanted what polyseme\.load gives"):
        ElmoEmbedding(nn.Sequential())


# Several processes

TRAINABLE = ("mix", True)
HALVES = [[["the", "cat", "sat"], ["a", "dog", "ran"]], [["he", "saw", "it"], ["away", "she", "ran"]]]


def distributed_worker(rank: int, folder: str) -> None:
    """One of two processes: for each kind of module its gradients on its half of the batch, into a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for trainable in TRAINABLE:
        module = ElmoEmbedding(tiny_elmo(), dropout=0.0, trainable=trainable)
        parallel = nn.parallel.DistributedDataParallel(module)
        for _ in range(2):
            parallel.zero_grad()
            (output,), _ = parallel(module.elmo.characters(HALVES[rank]))
            (output**2).mean().backward()
        torch.save(gradients(module), f"{folder}/{trainable}{rank}.pt")
        assert all(name.startswith("module.") for name in parallel.state_dict())
    torch.distributed.destroy_process_group()


def gradients(module: ElmoEmbedding) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def test_two_processes_have_the_gradient_of_the_whole_batch(tmp_path: Path):
    torch.multiprocessing.spawn(distributed_worker, args=(str(tmp_path),), nprocs=2)
    for trainable in TRAINABLE:
        module = ElmoEmbedding(tiny_elmo(), dropout=0.0, trainable=trainable)
        (output,), _ = module(module.elmo.characters(HALVES[0] + HALVES[1]))
        (output**2).mean().backward()
        wanted = gradients(module)
        for rank in range(2):
            found = torch.load(tmp_path / f"{trainable}{rank}.pt", weights_only=True)
            assert found.keys() == wanted.keys()
            for name, gradient in wanted.items():
                torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)
