"""What a model computes with besides its weights, and whether it has changed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from metareplay.engines.model_state import ModelState


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.kept = nn.Linear(2, 2), torch.rand(3)
        self.function: Callable[..., Tensor] = torch.tanh
        self.cycle = list[object]()
        self.cycle.append(self.cycle)


def test_modes_count_as_they_are_when_the_model_learns() -> None:
    model = Model()
    state = ModelState(model)
    model.eval()
    assert not state.changed()
    model.part.train()
    assert not state.changed()
    model.train()
    assert not state.changed()
    model.part.eval()
    assert state.changed()
    assert state.changed()
    model.part.train()
    assert not state.changed()


def test_tensors_that_a_call_keeps_do_not_count() -> None:
    model = Model()
    state = ModelState(model)
    model.kept = torch.rand(7)
    model.new = torch.rand(2)
    assert not state.changed()
    model.function = torch.relu
    assert state.changed()
