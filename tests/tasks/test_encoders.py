import pytest
import torch
from torch import nn

from polyseme.tasks.encoders import BidirectionalLSTM, SharedDropout, make_encoder


def test_the_unpacked_lstm_equals_the_packed_one():
    torch.manual_seed(0)
    ours = BidirectionalLSTM(5, 4)
    theirs = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    for name, parameter in ours.forward_layers[0].named_parameters():
        getattr(theirs, name).data.copy_(parameter)
    for name, parameter in ours.backward_layers[0].named_parameters():
        getattr(theirs, f"{name}_reverse").data.copy_(parameter)
    lengths = torch.tensor([6, 1, 3])
    x = torch.randn(3, 6, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    wanted, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    torch.testing.assert_close(ours(x, lengths), wanted)


@pytest.mark.parametrize("kind", ["lstm", "cnn", "feedforward", "none"])
def test_a_row_does_not_depend_on_its_padding(kind):
    torch.manual_seed(0)
    encoder = make_encoder(kind, 6, 4, layers=2, dropout=0.5).eval()
    x = torch.randn(2, 5, 6)
    lengths = torch.tensor([5, 3])
    both = encoder(x, lengths)
    assert both.shape == (2, 5, encoder.width)
    x[1, 3:] = 100.0
    torch.testing.assert_close(encoder(x, lengths)[1, :3], both[1, :3])
    torch.testing.assert_close(encoder(x[1:, :3], lengths[1:])[0], both[1, :3])


def test_shared_dropout_drops_the_same_dimensions_of_a_row():
    torch.manual_seed(0)
    dropped = SharedDropout(0.5)(torch.ones(4, 7, 20))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert len({tuple(row) for row in dropped[:, 0].tolist()}) > 1
    x = torch.ones(1, 2, 3)
    assert SharedDropout(0.5).eval()(x) is x
