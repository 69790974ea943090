"""Predictions from outputs: which class they speak for, and how likely each class is."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay.engines.objective import Loss


def of_each_class(outputs: Tensor) -> Tensor:
    """Return an output for each class; a single output is that of class 1, and class 0 then has 0.

    Args:
        outputs: The outputs for a batch.
    """
    if outputs.dim() == 1 or (outputs.dim() == 2 and outputs.shape[1] == 1):
        single = outputs.reshape(len(outputs))
        return torch.stack([torch.zeros_like(single), single], dim=1)
    return outputs


def class_dimension(outputs: Tensor, target: torch.Size | None, loss: Loss | None) -> int:
    """Return the dimension of outputs that counts the classes: 1 in pictures, the last one in sequences of tokens.

    Args:
        outputs: The outputs for a batch.
        target: The shape of one target, if it is known.
        loss: The user's own loss, if there is one; torch's cross-entropy has the classes in dimension 1.
    """
    if outputs.dim() <= 2:
        return -1
    second, last = target == outputs.shape[2:], target == outputs.shape[1:-1]
    if second != last:
        return 1 if second else -1
    return 1 if loss is functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss) else -1


def decide(outputs: Tensor, dimension: int = -1) -> Tensor:
    """Return the class with the largest output.

    Args:
        outputs: The outputs for a batch.
        dimension: Which dimension counts the classes.

    >>> decide(torch.tensor([[0.1, 2.0, 0.3]])), decide(torch.tensor([[-0.2], [0.2]]))
    (tensor([1]), tensor([0, 1]))
    """
    return of_each_class(outputs).argmax(dim=dimension)


def probabilities(outputs: Tensor, dimension: int = -1) -> Tensor:
    """Return the probability of each class: softmax, which for a single output is sigmoid.

    Args:
        outputs: The outputs for a batch.
        dimension: Which dimension counts the classes.

    >>> probabilities(torch.tensor([[0.0], [30.0]])).round(decimals=3)
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]])
    """
    return of_each_class(outputs).softmax(dim=dimension)
