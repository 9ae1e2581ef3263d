"""The maxima of the character convolutions over a window's distinct words, with a hand-written backward pass.

Same arithmetic as token_encoder.CharacterCNN. Forward the convolutions are matrix products; backward only the positions that
won are looked at. Words of like length are worked off together, so that few positions are padding; half of them on each core.

Where several positions reach the maximum the first one gets the gradient. TensorFlow divides it among them: the same, where
they read the same characters (padding), else a matter of rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.characters import used_characters
from polyseme.kernels.products import product, rounded
from polyseme.kernels.training import maxima as largest
from polyseme.kernels.training import maxima_backward
from polyseme.kernels.workers import side_by_side

#: Words of each group and how much of the character axis they need, as `by_length` has it: the words come in this order, and
#: the caller answers for their lengths.
Groups = tuple[tuple[int, int], ...]

_GROUPS = 4


@dataclass
class _Group:
    """Words of like length; what the backward pass needs stays here."""

    ids: Int[Tensor, "words characters"]
    embedded: Float[Tensor, "words length"]
    at: list[Tensor]

    @classmethod
    def forward(cls, ids: Tensor, table: Tensor, kernels: list[Tensor], dtype: torch.dtype, best: Tensor) -> "_Group":
        """Writes the maxima of all convolutions, side by side, into `best`."""
        embedded = F.embedding(ids, table)
        words, characters, dim = embedded.shape
        low = embedded.to(dtype)
        at = []
        for kernel, part in zip(kernels, best.split([len(kernel) for kernel in kernels], dim=1), strict=True):
            reach = kernel.shape[1]
            positions = characters - reach // dim + 1
            windows = low.new_zeros(rounded(words * positions), reach)
            seen = low.as_strided((words, positions, reach), (characters * dim, dim, 1))
            windows[: words * positions].view(seen.shape).copy_(seen)
            results = product(windows, kernel.to(dtype))[: words * positions].view(words, positions, len(kernel))
            at.append(largest(results, best=part))
        return cls(ids, embedded.flatten(1), at)

    def backward(self, grad: Tensor, kernels: list[Tensor], dtable: Tensor, dkernels: list[Tensor]) -> None:
        """Adds the gradients of the table and of the kernels."""
        dembedded = torch.zeros_like(self.embedded)
        dim = dtable.shape[1]
        parts = grad.split([len(kernel) for kernel in kernels], dim=1)
        for kernel, dkernel, at, dbest in zip(kernels, dkernels, self.at, parts, strict=True):
            maxima_backward(self.embedded, kernel, dbest, at, step=dim, dembedded=dembedded, dweight=dkernel)
        dtable.index_add_(0, self.ids.flatten(), dembedded.view(-1, dim))


class _Maxima(torch.autograd.Function):
    """See `maxima`. `order` are the words of all groups; parameters are weight (filters, dim, width) and bias, layer by layer."""

    @staticmethod
    def forward(ctx, table, ids, order, rows, dtype, *parameters):
        # Laid out as the windows are: characters outermost.
        kernels = [weight.transpose(1, 2).flatten(1).contiguous() for weight in parameters[::2]]
        best = table.new_empty(sum(map(len, ids)), sum(map(len, kernels)))
        places = best.split([len(part) for part in ids])
        ctx.groups = [None] * len(ids)

        def work(number: int) -> None:
            ctx.groups[number] = _Group.forward(ids[number], table, kernels, dtype, places[number])

        _halves(len(ids), work)
        ctx.kernels, ctx.table, ctx.dims = kernels, table, [weight.shape[1] for weight in parameters[::2]]
        ctx.order = order
        place = F.pad(order.argsort(), (0, rows - len(order)))
        return best.add_(torch.cat(parameters[1::2]))[place]

    @staticmethod
    def backward(ctx, grad):  # pyrefly: ignore[bad-override]
        grad = grad[ctx.order]
        pieces = grad.split([len(group.ids) for group in ctx.groups])
        found = [(torch.zeros_like(ctx.table), [torch.zeros_like(kernel) for kernel in ctx.kernels]) for _ in range(len(pieces))]
        _halves(len(pieces), lambda n: ctx.groups[n].backward(pieces[n], ctx.kernels, *found[n]))
        dtable = torch.stack([part[0] for part in found]).sum(dim=0)
        gradients: list[Tensor] = []
        dbias = grad.sum(dim=0).split([len(kernel) for kernel in ctx.kernels])
        for number, (kernel, dim) in enumerate(zip(ctx.kernels, ctx.dims, strict=True)):
            dkernel = torch.stack([part[1][number] for part in found]).sum(dim=0)
            gradients += [dkernel.view(len(kernel), -1, dim).transpose(1, 2), dbias[number]]
        ctx.groups = ctx.kernels = ctx.table = ctx.order = None
        return dtable, None, None, None, None, *gradients


def _halves(count: int, work: Callable[[int], None]) -> None:
    """Works off 0..count-1 in two threads, short and long words mixed."""
    order = list(range(count))

    def all_of(numbers: Sequence[int]) -> None:
        for number in numbers:
            work(number)

    side_by_side(lambda: all_of(order[0::4] + order[3::4]), lambda: all_of(order[1::4] + order[2::4]))


def maxima(
    embedding: Float[Tensor, "table dim"],
    convolutions: Sequence[nn.Conv1d],
    ids: Int[Tensor, "words characters"],
    *,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    groups: Groups | None = None,
) -> Float[Tensor, "rows filters"]:
    """The maximum of every filter over all positions, padding included, in float32; `dtype` is that of the products.

    `rows`: how many the result has, if more than words: those beyond are filled with anything and must not be used.
    `groups`: the sizes of the groups of words worked off together, where they may not depend on the words (see Groups).
    """
    rows = len(ids) if rows is None or not len(ids) else rows
    parameters: list[Tensor] = []
    for convolution in convolutions:
        assert convolution.bias is not None
        parameters += [convolution.weight, convolution.bias]
    parts, order = (ids,), torch.arange(len(ids), device=ids.device)
    if groups is not None:
        found = ids.split([words for words, _ in groups])
        parts = tuple(part[:, :characters] for part, (_, characters) in zip(found, groups, strict=True))
    elif len(ids):
        parts, order = by_length(ids, max(int(convolution.kernel_size[0]) for convolution in convolutions))
    return _Maxima.apply(embedding, parts, order, rows, dtype, *parameters)


def by_length(
    ids: Int[Tensor, "words characters"], widest: int
) -> tuple[tuple[Int[Tensor, "some shorter"], ...], Int[Tensor, "words"]]:
    """Groups of words of like length, each on the part of the character axis that can change its maxima; and their order.

    Past the longest word and one window of its padding, every further window is all padding and repeats the last.
    """
    lengths, order = used_characters(ids).sort()
    groups = zip(ids[order].chunk(_GROUPS), lengths.chunk(_GROUPS), strict=True)
    return tuple(part[:, : widest + int(own[-1])] for part, own in groups), order
