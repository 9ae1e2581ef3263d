"""Few rows in C: against the torch twin on every instruction set of this machine, and with the bits of the usual products."""

import functools
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyseme.config import LSTMConfig
from polyseme.kernels import available, in_use, steps, sweep, twin
from polyseme.kernels.products import PackedWeight
from polyseme.kernels.steps import FewSteps, few_product, laid_out
from polyseme.kernels.sweep import LayerSweep, Packing
from polyseme.kernels.workers import side_by_side
from polyseme.lstm import LSTMLayer

KERNELS = [kernel for kernel in available() if kernel != "torch"]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def seen(precision: str) -> bool:
    """Whether torch shows oneDNN's layout of a weight here, and it is the one the C function knows."""
    return bool(KERNELS) and laid_out(PackedWeight(torch.ones(128, 64), precision=precision), 64) is not None


#: Precisions in which weights can be read here; float32 wherever the C files run, as a test below holds.
READABLE = [name for name in PRECISIONS if seen(name)]
pytestmark = pytest.mark.skipif(not READABLE, reason="the C files are not built here, or torch shows no layout")


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """A rounding to bfloat16 may go either way, and goes on into the next steps."""
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 3e-2, "rtol": 2e-2}
    torch.testing.assert_close(found.float(), wanted.float(), equal_nan=True, **tolerance)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 11), inputs=st.integers(1, 70).map(lambda half: 2 * half), outputs=st.integers(1, 200),
    kernel=st.sampled_from(KERNELS or ["none"]), precision=st.sampled_from(READABLE or ["none"]), seed=st.integers(0, 2**31),
    section=st.sampled_from([2, 16, 50, 64, 1024]), limit=st.sampled_from([None, 0.02, 3.0]),
)  # fmt: skip
def test_products_equal_the_plain_ones(rows, inputs, outputs, kernel, precision, seed, section, limit):
    generator = torch.Generator().manual_seed(seed)
    plain, x = torch.randn(outputs, inputs, generator=generator), torch.randn(rows, inputs, generator=generator)
    weight = PackedWeight(plain, precision=precision)
    x = x.to(weight.dtype)
    found = few_product(x, weight, section=section, kernel=kernel, limit=limit)
    if found is None:
        assert (inputs, outputs) != (64, 128)
        return
    wanted = x.double() @ plain.to(weight.dtype).double().T
    if limit is not None:
        limit = float(torch.tensor(limit, dtype=weight.dtype))
        wanted = wanted.clamp(-limit, limit)
    bound = 3e-5 if precision == "float32" else 0.25
    assert (found.double() - wanted).abs().max() <= bound


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("precision", READABLE)
def test_infinities_nan_and_subnormal_numbers_go_through_as_in_torch(kernel, precision):
    plain = torch.randn(128, 64, generator=torch.Generator().manual_seed(1))
    x = torch.ones(8, 64)
    x[0, 3], x[1, 5], x[2, 7], x[3, 9] = torch.nan, torch.inf, -torch.inf, torch.inf
    x[3, 10], x[4], x[5] = -torch.inf, 1e-41, 0.0
    plain[11, 20], plain[12, 21], plain[13, 22] = torch.nan, torch.inf, 0.0
    weight = PackedWeight(plain, precision=precision)
    for limit in (None, 0.5):
        wanted = x.to(weight.dtype).float() @ plain.to(weight.dtype).float().T
        wanted = wanted if limit is None else wanted.clamp(-limit, limit)
        found = few_product(x, weight, section=64, kernel=kernel, limit=limit)
        close(found, wanted, weight.dtype)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.isinf(), wanted.isinf())


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=9), dim=st.sampled_from([16, 48, 80, 320]),
    projection=st.sampled_from([None, 16, 48, 130]), kernel=st.sampled_from(KERNELS or ["none"]),
    precision=st.sampled_from(READABLE or ["none"]), cell_clip=st.sampled_from([None, 0.3, 3.0]),
    projection_clip=st.sampled_from([None, 0.1, 3.0]), forget_bias=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 2**31),
    special=st.sampled_from([0.0, torch.inf, torch.nan, 1e-41, 1e38]),
)  # fmt: skip
def test_steps_equal_the_twin(
    lengths, dim, projection, kernel, precision, cell_clip, projection_clip, forget_bias, seed, special
):
    generator = torch.Generator().manual_seed(seed)
    config = LSTMConfig(
        dim=dim, projection=projection, cell_clip=cell_clip, projection_clip=projection_clip, forget_bias=forget_bias
    )
    packing, dtype = Packing.of(sorted(lengths, reverse=True)), PRECISIONS[precision]

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    recurrent = some(4 * dim, config.width, scale=config.width**-0.5)
    turned = None if projection is None else some(projection, dim, scale=dim**-0.5)
    bias, before, c = some(4 * dim), some(len(lengths), config.width).to(dtype), some(len(lengths), dim)
    added = some(packing.tokens, 4 * dim)
    added[-1, :3], c[0, 1] = special, special
    added = added.to(dtype)
    weights = [
        PackedWeight(recurrent, precision=precision),
        None if turned is None else PackedWeight(turned, precision=precision),
    ]
    laid = [steps._Weight() if weight is None else laid_out(weight, weight.inputs) for weight in weights]
    assert all(weight is not None for weight in laid) or dim < 64 or projection == 16
    if any(weight is None for weight in laid):
        return
    few = FewSteps([steps._Weight(), *laid], bias, config, dtype, kernel)
    wanted, cells = twin.few_steps(
        recurrent.to(dtype), None if turned is None else turned.to(dtype), bias, packing.counts, before, added, c,
        forget_bias=forget_bias, cell_clip=cell_clip, projection_clip=projection_clip,
    )  # fmt: skip
    hidden = torch.full((packing.tokens + 1, config.width), 7.0, dtype=dtype)
    few(packing.counts, before, added, c, hidden)
    close(hidden[:-1], wanted, dtype)
    close(c, cells, dtype)
    assert (hidden[-1] == 7).all()


def layer(dim: int, projection: int | None, inputs: int, **options: float | None) -> LSTMLayer:
    made = LSTMLayer(LSTMConfig(dim=dim, projection=projection, **options), inputs)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return made


def both_ways(one: LayerSweep, lengths: list[int], monkeypatch: pytest.MonkeyPatch, few: int) -> list[tuple[Tensor, Tensor]]:
    """Outputs and cells with no step in C, and with those of at most `few` rows."""
    packing, generator = Packing.of(lengths), torch.Generator().manual_seed(4)
    x = torch.zeros(sweep.room(packing, [one]), one._input.inputs)
    x[: packing.tokens].normal_(generator=generator)
    h, cells = torch.randn(2, len(lengths), max(one.config.width, one.config.dim), generator=generator)
    found = []
    for rows in (0, few):
        monkeypatch.setattr(sweep, "_FEW_ROWS", rows)
        c = cells[:, : one.config.dim].clone()
        found.append((one(x.to(one.dtype), packing, h[:, : one.config.width], c)[: packing.tokens], c))
    return found


@pytest.mark.parametrize("precision", READABLE)
@pytest.mark.parametrize(("dim", "projection", "inputs"), [(1024, 128, 128), (2048, 64, 1024), (640, None, 96), (192, 48, 48)])
@pytest.mark.parametrize(("lengths", "few"), [([14], 32), ([9, 9, 7, 3], 32), ([70], 32), ([6] * 5 + [4] * 40 + [1] * 3, 5)])
def test_the_bits_are_those_of_the_usual_products(precision, dim, projection, inputs, lengths, few, monkeypatch):
    one = LayerSweep(layer(dim, projection, inputs, projection_clip=0.02), precision=precision)
    (usual, usual_cells), (found, cells) = both_ways(one, lengths, monkeypatch, few)
    assert torch.equal(found, usual)
    assert torch.equal(cells, usual_cells)


@pytest.mark.parametrize(("dim", "projection", "inputs"), [(1024, 128, 128), (4096, 512, 512), (640, None, 96)])
def test_weights_of_published_shapes_are_read_by_c(dim, projection, inputs):
    if in_use() == "c plain":
        pytest.skip("without fused products of float32 numbers the bits would be others")
    one = LayerSweep(layer(dim, projection, inputs), precision="float32")
    assert one._few is not None
    assert not LayerSweep(layer(dim, projection, inputs), precision="float32").light(Packing.of([3]))
    assert one.light(Packing.of([3, 2]))
    assert not one.light(Packing.of([3] * 33))
    assert not one.light(Packing.of([65]))


def test_where_other_bits_are_found_the_usual_products_serve(monkeypatch):
    original = steps.few_product

    def other(*arguments, **options):
        return original(*arguments, **options) * (1 + 2**-22)

    steps._section.cache_clear()
    monkeypatch.setattr(steps, "few_product", other)
    one = LayerSweep(layer(192, 48, 48), precision="float32")
    assert one._few is None
    (usual, _), (found, _) = both_ways(one, [5, 2], monkeypatch, 32)
    assert torch.equal(found, usual)
    steps._section.cache_clear()


def test_a_weight_of_an_odd_number_of_inputs_is_left_to_the_usual_products():
    assert laid_out(PackedWeight(torch.ones(64, 63)), 63) is None
    assert LayerSweep(layer(64, 33, 64), precision="float32")._few is None


# Who runs what


def test_the_caller_takes_the_last_piece_itself_where_it_may():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for here in (False, True):
            names: dict[int, str] = {}

            def note(number: int, names: dict[int, str] = names) -> None:
                names[number] = threading.current_thread().name

            side_by_side(*(functools.partial(note, number) for number in range(3)), here=here)
            assert (names[2] == threading.current_thread().name) == here
            assert names[0] != threading.current_thread().name
            ended = threading.Event()

            def fails() -> None:
                raise ValueError("the last")

            def ends(ended: threading.Event = ended) -> None:
                time.sleep(0.05)
                ended.set()

            with pytest.raises(ValueError, match="the last"):
                side_by_side(ends, fails, here=here)
            assert ended.is_set()
    finally:
        torch.set_num_threads(before)
