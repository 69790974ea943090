import pytest
import torch

import metareplay as mr
from metareplay.networks import mlp


def test_images_of_any_shape_are_flattened() -> None:
    net = mlp(784, (10,), 10)
    flat = torch.rand(2, 784)
    assert torch.equal(net(flat), net(flat.reshape(2, 1, 28, 28)))


@pytest.mark.parametrize("widths", [(0, (4,), 3), (5, (0,), 3), (5, (4,), 0)])
def test_empty_layers_are_refused(widths: tuple[int, tuple[int, ...], int]) -> None:
    with pytest.raises(mr.InputError, match="at least one unit"):
        mlp(*widths)
