import pytest
import torch
import torch.nn.functional as F

from polyseme.tasks.highway import InterleavedLSTM


def naive(lstm, x, lengths, masks=None):
    """The definition, one row, one layer and one token at a time."""
    rows = []
    for row, length in enumerate(lengths.tolist()):
        words = list(x[row, :length])
        for number, (enter, carry, bias) in enumerate(zip(lstm.enter, lstm.carry, lstm.bias, strict=True)):
            h = c = x.new_zeros(lstm.width)
            out = [None] * length
            for position in range(length) if number % 2 == 0 else reversed(range(length)):
                entered = (enter @ words[position]).split(lstm.width)
                carried = (carry @ h + bias).split(lstm.width)
                i, f, g, o, r = (a + b for a, b in zip(entered, carried, strict=False))
                c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c
                share = torch.sigmoid(r)
                h = share * torch.sigmoid(o) * torch.tanh(c) + (1 - share) * entered[5]
                if masks is not None:
                    h = h * masks[number][row]
                out[position] = h
            words = out
        tail = x.new_zeros(x.shape[1] - length, lstm.width)
        rows.append(torch.cat([torch.stack(words), tail]) if length else tail)
    return torch.stack(rows)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_interleaved_lstm_is_its_definition_and_so_are_its_gradients(monkeypatch, layers, dropout):
    torch.manual_seed(layers)
    lengths = torch.tensor([3, 7, 0, 7, 1])
    lstm = InterleavedLSTM(6, 9, layers=layers, dropout=dropout)
    for bias in lstm.bias:
        torch.nn.init.normal_(bias)
    # Rows are worked off longest first; the masks belong to rows.
    masks = F.dropout(torch.ones(layers, len(lengths), 9), dropout)
    order = torch.argsort(lengths.clamp(min=1), descending=True)
    drawn = iter(masks[:, order])
    monkeypatch.setattr(F, "dropout", lambda ones, rate: next(drawn))
    found, grads = [], []
    weights = torch.randn(5, 7, 9)
    for run in (lstm, lambda x, lengths: naive(lstm, x, lengths, masks if dropout else None)):
        x = torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
        lstm.zero_grad()
        y = run(x, lengths)
        (y * weights).sum().backward()
        found.append(y.detach())
        grads.append([x.grad, *[parameter.grad.clone() for parameter in lstm.parameters()]])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    for fast, slow in zip(*grads, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


def test_it_reads_alike_without_gradients_and_drops_only_in_training():
    torch.manual_seed(0)
    lstm = InterleavedLSTM(4, 5, layers=3, dropout=0.5)
    x, lengths = torch.randn(2, 6, 4), torch.tensor([6, 4])
    dropped = lstm(x, lengths)
    lstm.eval()
    with torch.inference_mode():
        quiet = lstm(x, lengths)
    assert torch.equal(quiet, lstm(x, lengths))
    assert not torch.equal(quiet, dropped)
    assert torch.equal(quiet[1, 4:], torch.zeros(2, 5))
    # A row's vectors do not depend on its neighbours.
    torch.testing.assert_close(lstm(x[1:, :4], lengths[1:])[0], quiet[1, :4], rtol=1e-6, atol=1e-6)
