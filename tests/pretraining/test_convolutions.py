"""The convolutions' maxima against the reference, values and gradients."""

import pytest
import torch

from polyseme.characters import ByteScheme, WordReader
from polyseme.config import CharacterConfig
from polyseme.pretraining.convolutions import maxima
from polyseme.token_encoder import CharacterCNN

WORDS = ["a", "I", "the", "words", "words", "unbelievably", "x" * 60, "", "naïve", "<S>", ".", "of"]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("words", [WORDS, WORDS[:1], WORDS[:3], []])
def test_equal_to_the_reference(words, fixed):
    torch.manual_seed(3)
    cnn = CharacterCNN(CharacterConfig(dim=4, filters=((1, 3), (2, 5), (7, 6)), highways=0))
    torch.nn.init.normal_(cnn.embedding)
    ids = WordReader(ByteScheme(), None).read(words).characters
    short = min(1, len(words))  # "a" with its two marks, and a window of padding
    groups = ((short, 3 + 7), (len(words) - short, 50)) if fixed else None
    upstream = torch.randn(len(words), 14)
    torch.relu(maxima(cnn.embedding, list(cnn.convolutions), ids, groups=groups)).mul(upstream).sum().backward()
    got = {name: parameter.grad.clone() for name, parameter in cnn.named_parameters()}
    cnn.zero_grad()
    expected = cnn(ids)
    expected.mul(upstream).sum().backward()
    torch.testing.assert_close(
        torch.relu(maxima(cnn.embedding, list(cnn.convolutions), ids, groups=groups)), expected, atol=1e-6, rtol=1e-5
    )
    for name, parameter in cnn.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, atol=1e-5, rtol=1e-5)
