"""The kernels in plain torch: the readable truth the C files are held to, and what other devices use."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def cell_forward(
    gates: Float[Tensor, "*rows gates"],
    c_prev: Float[Tensor, "*rows dim"],
    *,
    added: Float[Tensor, "*rows gates"] | None = None,
    bias: Float[Tensor, "gates"] | None = None,
    forget_bias: float = 0.0,
    cell_clip: float | None = None,
) -> tuple[Float[Tensor, "*rows dim"], Float[Tensor, "*rows dim"], Float[Tensor, "*rows gates"]]:
    """The new cell, the new hidden value before projection, and the activated gates, all in float32.

    `gates` is 4*dim wide. The sign of an activated input gate marks a cell that was clipped and passes no gradient.
    """
    gates = gates.float()
    if added is not None:
        gates = gates + added
    if bias is not None:
        gates = gates + bias
    i, f, g, o = gates.chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f + forget_bias), torch.tanh(g), torch.sigmoid(o)
    c = f * c_prev + i * g
    if cell_clip is not None:
        i = torch.where(c.abs() > cell_clip, -i, i)
        c = c.clamp(-cell_clip, cell_clip)
    return c, o * torch.tanh(c), torch.cat([i, f, g, o], dim=-1)


def cell_backward(
    activated: Float[Tensor, "*rows gates"],
    c_prev: Float[Tensor, "*rows dim"],
    c: Float[Tensor, "*rows dim"],
    *,
    dm: Float[Tensor, "*rows dim"],
    dc: Float[Tensor, "*rows dim"] | None = None,
) -> tuple[Float[Tensor, "*rows gates"], Float[Tensor, "*rows dim"]]:
    """The gradients of the gates before activation and of the previous cell, in float32.

    `dm` is the gradient of the hidden value, `dc` what comes back to `c` from the next step.
    """
    i, f, g, o = activated.float().chunk(4, dim=-1)
    dm = dm.float()
    t = torch.tanh(c)
    cell = dm * o * (1 - t * t)
    if dc is not None:
        cell = cell + dc
    cell = torch.where(torch.signbit(i), 0, cell)
    i = i.abs()
    dgates = [cell * g * i * (1 - i), cell * c_prev * f * (1 - f), cell * i * (1 - g * g), dm * t * o * (1 - o)]
    return torch.cat(dgates, dim=-1), cell * f


def cell_forward_into(
    gates: Tensor, c_prev: Tensor, c: Tensor, m: Tensor, activated: Tensor | None, added: Tensor | None,
    bias: Tensor | None, forget_bias: float, cell_clip: float | None,
) -> None:  # fmt: skip
    """`cell_forward` with its results written in place, so that a compiler makes one kernel of it."""
    new = cell_forward(gates, c_prev, added=added, bias=bias, forget_bias=forget_bias, cell_clip=cell_clip)
    c.copy_(new[0])
    m.copy_(new[1])
    if activated is not None:
        activated.copy_(new[2])


def cell_backward_into(
    activated: Tensor, c_prev: Tensor, c: Tensor, dm: Tensor, dc: Tensor | None, dgates: Tensor, dc_prev: Tensor,
    dbias: Tensor | None,
) -> None:  # fmt: skip
    """`cell_backward` with its results written in place."""
    new = cell_backward(activated, c_prev, c, dm=dm, dc=dc)
    dgates.copy_(new[0])
    dc_prev.copy_(new[1])
    if dbias is not None:
        dbias += new[0].sum(dim=-2)


def maxima(results: Float[Tensor, "words positions filters"]) -> tuple[Float[Tensor, "words filters"], Tensor]:
    """The largest result of all positions in float32, and the first position that has it."""
    best, at = results.max(dim=1)
    return best.float(), at


def maxima_backward(
    embedded: Float[Tensor, "words length"],
    kernel: Float[Tensor, "filters reach"],
    dbest: Float[Tensor, "words filters"],
    at: Tensor,
    *,
    step: int,
) -> tuple[Float[Tensor, "words length"], Float[Tensor, "filters reach"]]:
    """The gradients of what was read and of the kernel, where position p read `embedded[:, p * step : p * step + reach]`."""
    filters, reach = kernel.shape
    dresults = dbest.new_zeros(len(embedded), (embedded.shape[1] - reach) // step + 1, filters)
    dresults.scatter_(1, at.long()[:, None], dbest[:, None])
    windows = embedded.unfold(1, reach, step)
    dkernel = dresults.flatten(0, 1).T @ windows.flatten(0, 1)
    dwindows = dresults @ kernel
    dembedded = torch.zeros_like(embedded)
    # The first parts of all windows lie side by side, and so do the second parts, one part further on.
    parts = dembedded.unflatten(1, (-1, step))
    for number, part in enumerate(dwindows.split(step, dim=2)):
        parts[:, number : number + part.shape[1]] += part
    return dembedded, dkernel


def sampled_error(
    logits: Float[Tensor, "rows columns"],
    shift: Float[Tensor, "columns"],
    hits: Tensor,
    wanted: Float[Tensor, "rows"],
) -> tuple[Float[Tensor, "rows columns"], Float[Tensor, "rows"]]:
    """The softmax over shifted logits and the wanted one: the columns' shares, and the log of the sum of exponentials.

    In each row the column `hits` does not count; -1 is none.
    """
    logits = logits.float() + shift
    place = hits.clamp(min=0)[:, None]
    logits.scatter_(1, place, torch.where(hits[:, None] >= 0, -torch.inf, logits.gather(1, place)))
    norm = torch.logaddexp(logits.logsumexp(dim=1), wanted)
    return (logits - norm[:, None]).exp(), norm


def highway_forward(
    gate: Float[Tensor, "rows width"],
    transform: Float[Tensor, "rows width"],
    x: Float[Tensor, "rows width"],
    gate_bias: Float[Tensor, "width"],
    transform_bias: Float[Tensor, "width"],
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
    """The output of a highway layer, its gate and its other branch, in float32, from the products of both."""
    share = torch.sigmoid(gate.float() + gate_bias)
    other = torch.relu(transform.float() + transform_bias)
    return torch.lerp(x, other, share), share, other


def highway_backward(
    share: Float[Tensor, "rows width"],
    other: Float[Tensor, "rows width"],
    x: Float[Tensor, "rows width"],
    dy: Float[Tensor, "rows width"],
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
    """The gradients, in float32, of both products, and of x as far as it goes around them."""
    share, other = share.float(), other.float()
    return dy * (other - x) * share * (1 - share), dy * share * (other > 0), dy - dy * share


def adagrad(value: Tensor, gradient: Tensor, accumulator: Tensor, *, rate: float, scale: float) -> None:
    """TensorFlow's Adagrad in place: no epsilon, no decay. The gradient counts `scale` times."""
    accumulator.addcmul_(gradient, gradient, value=scale * scale)
    value.addcdiv_(gradient, accumulator.sqrt(), value=-rate * scale)


def adamw(
    value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *,
    rate: float, scale: float, betas: tuple[float, float], decay: float, root: float, epsilon: float,
) -> None:  # fmt: skip
    """AdamW in place. `rate` has the first average's correction in it, `root` is one over the second's square root.

    `decay` is what is left of the value before the step.
    """
    first.mul_(betas[0]).add_(gradient, alpha=(1 - betas[0]) * scale)
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=(1 - betas[1]) * scale * scale)
    value.mul_(decay).addcdiv_(first, second.sqrt().mul_(root).add_(epsilon), value=-rate)


def few_steps(
    recurrent: Float[Tensor, "gates width"],
    projection: Float[Tensor, "width dim"] | None,
    bias: Float[Tensor, "gates"],
    counts: Sequence[int],
    before: Float[Tensor, "rows width"],
    added: Float[Tensor, "tokens gates"],
    c: Float[Tensor, "rows dim"],
    *,
    forget_bias: float = 0.0,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> tuple[Float[Tensor, "tokens width"], Float[Tensor, "rows dim"]]:
    """The outputs of the steps of one layer, the rows of each step after those before it, and every row's last cell.

    `counts` are the rows of each step, never more than the step before has. What is multiplied and what comes out is rounded to
    the weights' type; sums, bias and cells are float32.
    """
    dtype, c, start = recurrent.dtype, c.clone(), 0
    outputs = []
    for count in counts:
        gates = (before[:count].float() @ recurrent.float().T).to(dtype)
        options = {"added": added[start : start + count], "bias": bias, "forget_bias": forget_bias, "cell_clip": cell_clip}
        c[:count], m, _ = cell_forward(gates, c[:count], **options)
        before = m.to(dtype)
        if projection is not None:
            before = (before.float() @ projection.float().T).to(dtype)
            before = before if projection_clip is None else before.clamp(-projection_clip, projection_clip)
        outputs.append(before)
        start += count
    return torch.cat(outputs), c
