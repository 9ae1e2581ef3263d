"""The checks of array shapes are really in force, and stand back where the package's own errors speak."""

import pytest
import torch
from jaxtyping import TypeCheckError

from polyseme.errors import InputError
from polyseme.mix import ScalarMix


def test_a_wrong_shape_is_caught():
    mix = ScalarMix(2)
    layer = torch.zeros(3, 4, 5)
    mask = torch.ones(3, 4, dtype=torch.bool)
    assert mix([layer, layer], mask).shape == (3, 4, 5)
    with pytest.raises(TypeCheckError):
        mix([layer, layer], mask.T)
    with pytest.raises(TypeCheckError):
        mix([layer, layer], mask.float())


def test_other_arguments_meet_our_own_errors():
    with pytest.raises(InputError, match="layer_norm is 'batch'"):
        ScalarMix(2, layer_norm="batch")  # type: ignore
