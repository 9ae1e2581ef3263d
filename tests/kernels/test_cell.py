import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseme import kernels
from polyseme.errors import InputError
from polyseme.kernels import twin

ROOT = Path(__file__).parents[2]
C_KERNELS = [kernel for kernel in kernels.available() if kernel != "torch"]


def spread(rows: int, columns: int, gap: int, dtype: torch.dtype, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    """A slice of a larger buffer whose rows lie `gap` elements further apart than they are long."""
    return (torch.randn(rows, columns + gap, generator=generator) * scale).to(dtype)[:, :columns]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def units(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of the exact value."""
    near = exact.float().abs()
    unit = torch.nextafter(near, torch.tensor(torch.inf)) - near
    return ((found.double() - exact).abs() / unit.double()).max().item()


def test_a_c_kernel_is_in_use_where_a_compiler_is():
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler here")
    assert kernels.in_use().startswith("c "), "install the package again (pip install -e .): _cell.so is missing"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_kernel_equals_the_twin(data):
    kernel = data.draw(st.sampled_from(kernels.available()))
    rows, dim = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([1, 3, 8, 17, 64, 255, 256, 257, 600]))
    gap = data.draw(st.integers(0, 9))
    kinds = st.sampled_from([torch.float32, torch.bfloat16])
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    clip = data.draw(st.sampled_from([None, 0.25, 1.0, 3.0]))
    forget_bias = data.draw(st.sampled_from([0.0, 1.0]))
    gates = spread(rows, 4 * dim, gap, data.draw(kinds), generator, 2.0)
    added = spread(rows, 4 * dim, gap, data.draw(kinds), generator) if data.draw(st.booleans()) else None
    bias = torch.randn(4 * dim, generator=generator) if data.draw(st.booleans()) else None
    c_prev = spread(rows, dim, gap, torch.float32, generator)
    c = spread(rows, dim, gap, torch.float32, generator)
    m = spread(rows, dim, gap, data.draw(kinds), generator)
    activated = spread(rows, 4 * dim, gap, data.draw(kinds), generator)
    options = {"added": added, "bias": bias, "forget_bias": forget_bias, "cell_clip": clip}
    wanted = twin.cell_forward(gates, c_prev, **options)
    kernels.cell_forward(gates, c_prev, c=c, m=m, activated=activated, **options, kernel=kernel)
    assert distance(c, wanted[0]) < 2e-6
    assert distance(m, wanted[1].to(m.dtype)) < (2e-6 if m.dtype == torch.float32 else 8e-3)
    assert distance(activated.abs(), wanted[2].to(activated.dtype).abs()) < (1e-6 if activated.dtype == torch.float32 else 8e-3)
    # Rounding may carry a cell over the limit in one and not in the other: only there may the marks differ.
    sure = torch.ones_like(c, dtype=torch.bool) if clip is None else (c.abs() - clip).abs() > 1e-5
    sure |= c.abs() == wanted[0].abs()
    assert torch.equal(torch.signbit(activated[:, :dim])[sure], torch.signbit(wanted[2][:, :dim])[sure])

    dm = spread(rows, dim, gap, data.draw(kinds), generator)
    dc = spread(rows, dim, gap, torch.float32, generator) if data.draw(st.booleans()) else None
    dgates = spread(rows, 4 * dim, gap, data.draw(kinds), generator)
    dc_prev = spread(rows, dim, gap, torch.float32, generator)
    wanted = twin.cell_backward(activated, c_prev, c, dm=dm, dc=dc)
    dbias = torch.ones(4 * dim) if data.draw(st.booleans()) else None
    kernels.cell_backward(activated, c_prev, c, dm=dm, dc=dc, dgates=dgates, dc_prev=dc_prev, dbias=dbias, kernel=kernel)
    assert dbias is None or distance(dbias, wanted[0].sum(dim=0) + 1) < 2e-5
    assert distance(dgates, wanted[0].to(dgates.dtype)) < (4e-6 if dgates.dtype == torch.float32 else 4e-2)
    assert distance(dc_prev, wanted[1]) < 4e-6


def test_the_twin_is_the_gradient_of_the_clamped_cell():
    generator = torch.Generator().manual_seed(1)
    rows, dim, clip = 7, 33, 0.7
    gates = torch.randn(rows, 4 * dim, generator=generator, dtype=torch.float64).mul(2).requires_grad_()
    c_prev = torch.randn(rows, dim, generator=generator, dtype=torch.float64).requires_grad_()
    i, f, g, o = gates.chunk(4, dim=1)
    c = (torch.sigmoid(f + 1) * c_prev + torch.sigmoid(i) * torch.tanh(g)).clamp(-clip, clip)
    m = torch.sigmoid(o) * torch.tanh(c)
    dm, dc = torch.randn(2, rows, dim, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad([m, c], [gates, c_prev], [dm, dc])
    found_c, found_m, activated = twin.cell_forward(gates.detach(), c_prev.detach().float(), forget_bias=1.0, cell_clip=clip)
    found = twin.cell_backward(activated, c_prev.detach().float(), found_c, dm=dm.float(), dc=dc.float())
    assert 0.2 < (found_c.abs() == clip).float().mean() < 0.8
    assert distance(found_c, c) < 1e-6
    assert distance(found_m, m) < 1e-6
    assert distance(found[0], wanted[0]) < 2e-6
    assert distance(found[1], wanted[1]) < 2e-6


@pytest.mark.parametrize("kernel", kernels.available())
def test_a_cell_exactly_at_the_limit_passes_its_gradient(kernel):
    gates = torch.tensor([[200.0, 200.0, 200.0, 0.0]])  # the cell becomes c_prev + 1
    for c_prev, passes in ((2.0, True), (2.5, False), (1.5, True)):
        before = torch.tensor([[c_prev]])
        c, m, dc_prev = torch.empty(3, 1, 1)
        kernels.cell_forward(gates, before, c=c, m=m, activated=(activated := torch.empty(1, 4)), cell_clip=3.0, kernel=kernel)
        zero, one = torch.zeros(1, 1), torch.ones(1, 1)
        kernels.cell_backward(activated, before, c, dm=zero, dc=one, dgates=torch.empty(1, 4), dc_prev=dc_prev, kernel=kernel)
        assert dc_prev.item() == float(passes)


@pytest.mark.parametrize("kernel", C_KERNELS)
def test_exponentials_are_accurate_to_a_few_units_in_the_last_place(kernel):
    tiny = torch.logspace(-44, 0, 9000, dtype=torch.float64).float()
    x = torch.cat([torch.linspace(-87, 87, 40001), tiny, -tiny, torch.zeros(1)])[:, None]
    activated, c, m = torch.empty(len(x), 4), torch.empty_like(x), torch.empty_like(x)
    kernels.cell_forward(x.expand(-1, 4).contiguous(), torch.zeros_like(x), c=c, m=m, activated=activated, kernel=kernel)
    for column, function in ((0, torch.sigmoid), (1, torch.sigmoid), (2, torch.tanh), (3, torch.sigmoid)):
        assert units(activated[:, column], function(x[:, 0].double())) <= 4
    assert units(m, activated[:, 3:].double() * torch.tanh(c.double())) <= 4


@pytest.mark.parametrize("kernel", C_KERNELS)
def test_infinities_nan_and_subnormal_numbers_go_through_as_in_torch(kernel):
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e-40, -1e-42, 3e38, -3e38, 90.0, -90.0, -103.0, 1.0])
    gates = torch.cartesian_prod(special, special, special, special)
    gates = gates.reshape(-1, 13, 4).transpose(1, 2).reshape(-1, 52).contiguous()
    for clip in (None, 3.0):
        c_prev = torch.randn(len(gates), 13, generator=torch.Generator().manual_seed(2))
        c_prev[::7] = torch.inf
        # torch rounds sigmoid(-90) to zero, the C file to a subnormal number; times infinity that would differ.
        c_prev[(gates[:, 13:26] < -88) & (gates[:, 13:26] > -104)] = 0.5
        c_prev[1::7] = torch.nan
        c_prev[2::7] = 1e-41
        c, m, activated = torch.empty_like(c_prev), torch.empty_like(c_prev), torch.empty_like(gates)
        kernels.cell_forward(gates, c_prev, c=c, m=m, activated=activated, cell_clip=clip, kernel=kernel)
        wanted = twin.cell_forward(gates, c_prev, cell_clip=clip)
        close = {"rtol": 1e-6, "atol": 1e-38, "equal_nan": True}
        torch.testing.assert_close(c, wanted[0], rtol=2e-6, atol=1e-7, equal_nan=True)
        torch.testing.assert_close(m, wanted[1], rtol=2e-6, atol=1e-7, equal_nan=True)
        torch.testing.assert_close(activated.abs(), wanted[2].abs(), **close)
        dm = torch.ones_like(c)
        dgates, dc_prev = torch.empty_like(gates), torch.empty_like(c)
        kernels.cell_backward(activated, c_prev, c, dm=dm, dc=None, dgates=dgates, dc_prev=dc_prev, kernel=kernel)
        wanted = twin.cell_backward(activated, c_prev, c, dm=dm)
        torch.testing.assert_close(dgates, wanted[0], rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(dc_prev, wanted[1], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kernel", kernels.available())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_may_overwrite_their_sources(kernel, dtype):
    generator = torch.Generator().manual_seed(3)
    gates, c_prev = torch.randn(5, 4 * 300, generator=generator).to(dtype), torch.randn(5, 300, generator=generator)
    c, m, activated = torch.empty_like(c_prev), torch.empty_like(c_prev), torch.empty_like(gates)
    kernels.cell_forward(gates, c_prev, c=c, m=m, activated=activated, cell_clip=0.8, kernel=kernel)
    dgates, dc_prev = torch.empty_like(gates), torch.empty_like(c)
    kernels.cell_backward(activated, c_prev, c, dm=m, dc=c, dgates=dgates, dc_prev=dc_prev, kernel=kernel)
    same, moving, m_again = gates.clone(), c_prev.clone(), torch.empty_like(m)
    kernels.cell_forward(same, moving, c=moving, m=m_again, activated=same, cell_clip=0.8, kernel=kernel)
    assert torch.equal(same, activated)
    assert torch.equal(moving, c)
    assert torch.equal(m_again, m)
    kernels.cell_backward(same, c_prev, c, dm=m, dc=moving, dgates=same, dc_prev=moving, kernel=kernel)
    assert torch.equal(same, dgates)
    assert torch.equal(moving, dc_prev)


@pytest.mark.parametrize("kernel", C_KERNELS)
def test_a_row_does_not_depend_on_the_rows_around_it(kernel):
    gates, c_prev = torch.randn(9, 4 * 100), torch.randn(9, 100)
    c, m = torch.empty(2, 9, 100)
    kernels.cell_forward(gates, c_prev, c=c, m=m, kernel=kernel)
    for row in range(9):
        one_c, one_m = torch.empty(2, 1, 100)
        kernels.cell_forward(gates[row : row + 1], c_prev[row : row + 1], c=one_c, m=one_m, kernel=kernel)
        assert torch.equal(one_c, c[row : row + 1])
        assert torch.equal(one_m, m[row : row + 1])


def test_threads_do_not_disturb_each_other():
    generator = torch.Generator().manual_seed(4)
    inputs = [(torch.randn(64, 4 * 256, generator=generator), torch.randn(64, 256, generator=generator)) for _ in range(8)]

    def run(pair):
        c, m = torch.empty(2, 64, 256)
        for _ in range(20):
            kernels.cell_forward(*pair, c=c, m=m, cell_clip=3.0)
        return torch.cat([c, m])

    alone = [run(pair) for pair in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, inputs))
    assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"added": torch.empty(2, 15)}, "gates is 2 x 15"),
        ({"m": torch.empty(2, 4, dtype=torch.float64)}, "m is 2 x 4, float64"),
        ({"c": torch.empty(2, 4, dtype=torch.bfloat16)}, "c is 2 x 4, bfloat16"),
        ({"activated": torch.empty(16, 2).T}, r"strides \(1, 2\)"),
        ({"bias": torch.empty(32)[::2]}, "wanted 16 adjacent float32"),
        ({"kernel": "c neon"}, "this machine has"),
    ],
)
@pytest.mark.skipif(not C_KERNELS, reason="the C file is not built here")
def test_wrong_tensors_are_refused_before_memory_is_touched(change, message):
    columns = change.get("added", torch.zeros(2, 16)).shape[1]
    right = {"c": torch.empty(2, 4), "m": torch.empty(2, 4)}
    with pytest.raises(InputError, match=message):
        kernels.cell_forward(torch.zeros(2, columns), torch.zeros(2, 4), **(right | change))


def test_without_a_working_compiler_the_build_goes_on_and_the_twin_serves(tmp_path):
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "README.md").write_text("")
    package = tmp_path / "src" / "polyseme" / "kernels"
    shutil.copytree(ROOT / "src" / "polyseme" / "kernels", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "src" / "polyseme" / name, package.parent)
    build = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=tmp_path, env={"CC": "false", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (package / "_cell.so").exists()
    code = "from polyseme import kernels; print(kernels.in_use())"
    used = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": "src"}, capture_output=True, text=True)
    assert used.stdout.strip() == "torch", used.stderr
