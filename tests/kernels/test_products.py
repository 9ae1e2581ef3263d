import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.kernels import products
from polyseme.kernels.products import PackedWeight


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70), inputs=st.integers(1, 90), outputs=st.integers(1, 90), blocked=st.booleans(),
    precision=st.sampled_from(["float32", "bfloat16"]), seed=st.integers(0, 2**31), hint=st.none() | st.integers(1, 64),
)  # fmt: skip
def test_products_equal_the_plain_ones(rows, inputs, outputs, blocked, precision, seed, hint):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        if not blocked:  # a processor without oneDNN's bfloat16
            patch.setattr(products, "_blocks", lambda weight, rows: None)
        packed = PackedWeight(weight, precision=precision, rows=hint)
    x = torch.randn(rows, inputs, generator=generator).to(packed.dtype)
    exact = x.double() @ weight.to(packed.dtype).double().T
    bound = (inputs**0.5 * 4 + 1) * (1e-6 if precision == "float32" else 8e-3)
    start = torch.randn(rows, outputs, generator=generator).to(packed.dtype)
    out = torch.empty(rows, outputs + 3, dtype=packed.dtype)[:, :outputs]
    assert (packed.product(x).double() - exact).abs().max() <= bound
    packed.product(x, out=out)
    assert (out.double() - exact).abs().max() <= bound
    out.copy_(start)
    packed.add_product(x, out)
    assert (out.double() - exact - start.double()).abs().max() <= 2 * bound


def test_a_packed_weight_is_a_copy():
    weight = torch.ones(3, 2)
    packed = PackedWeight(weight)
    weight.zero_()
    assert packed.product(torch.ones(1, 2)).tolist() == [[2.0, 2.0, 2.0]]


def test_wrong_rows_are_refused():
    packed = PackedWeight(torch.ones(3, 2), precision="bfloat16")
    with pytest.raises(InputError, match=r"x is 1 x 2, torch.float32; this weight takes rows x 2, torch.bfloat16"):
        packed.product(torch.ones(1, 2))
    with pytest.raises(InputError, match="precision is 'int3'"):
        PackedWeight(torch.ones(3, 2), precision="int3")  # type: ignore
