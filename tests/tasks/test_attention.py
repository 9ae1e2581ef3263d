import torch

from polyseme.tasks.attention import Maxout, SelfPooling, attend, masked_softmax, pool_extremes

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


def test_softmax_under_a_mask():
    shares = masked_softmax(torch.tensor([[1.0, 2.0, 3.0]] * 3), MASK)
    torch.testing.assert_close(shares.sum(1), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(shares[0], torch.softmax(torch.tensor([1.0, 2.0, 3.0]), 0))
    assert shares[1].tolist() == [1.0, 0.0, 0.0]


def test_attention_and_pooling_equal_loops_and_ignore_padding():
    torch.manual_seed(0)
    x = torch.randn(3, 3, 4)
    pooling = SelfPooling(4)
    attended, pooled = attend(x, x, MASK), pooling(x, MASK)
    largest, smallest, mean = pool_extremes(x, MASK)
    for row, length in enumerate([3, 1]):
        own = x[row, :length]
        for token in range(3):
            torch.testing.assert_close(attended[row, token], torch.softmax(own @ x[row, token], 0) @ own)
        torch.testing.assert_close(largest[row], own.max(0).values)
        torch.testing.assert_close(smallest[row], own.min(0).values)
        torch.testing.assert_close(mean[row], own.mean(0))
        torch.testing.assert_close(pooled[row], torch.softmax(pooling.score(own).squeeze(1), 0) @ own)
    for nothing in (attended[2], pooled[2], largest[2], smallest[2], mean[2]):
        assert not nothing.any()


def test_maxout():
    torch.manual_seed(0)
    maxout = Maxout(3, 2, pool=4)
    x = torch.randn(5, 3)
    pieces = maxout.dense(x)
    assert maxout(x)[0, 1] == pieces[0, 4:].max()
