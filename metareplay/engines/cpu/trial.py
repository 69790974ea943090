"""A trial on real rows: does a compiled engine compute the gradients of the module that it was read from?"""

from dataclasses import replace

import numpy as np
import torch

from metareplay._core.draws import Ints
from metareplay._core.table import Table
from metareplay.engines.engine import Engine
from metareplay.engines.objective import Supervised
from metareplay.engines.torch_engine import TorchEngine

ROWS = 4  # that are tried
OTHER_GRADIENTS = "a model whose gradients are those of its layers; this one does more than call them"
TOLERANCE = 1e-3  # of a gradient; float32 sums differ by less, another forward pass by more


def rows_to_try(table: Table) -> Ints:
    """Return a few rows that have been written; none before the first example.

    Args:
        table: The examples by row.
    """
    return np.flatnonzero(table.writes)[:ROWS]


def agrees(compiled: Engine, plain: TorchEngine, table: Table, objective: Supervised) -> bool:
    """Return whether two engines find the same gradients for some rows, one by one and all together.

    Args:
        compiled: The engine to try.
        plain: The torch engine, which calls the module.
        table: The examples by row, at least one of which has been written.
        objective: What the loss is.
    """
    some, objective, example = rows_to_try(table), replace(objective, by_task=False), 0
    groups = [some, *some[:, None]]
    modes = [(part, part.training) for part in plain.weights.module.modules()]
    try:
        expected = plain.gradients(table, groups, objective, example).each()
    finally:
        for part, training in modes:
            part.training = training
    found = compiled.gradients(table, groups, objective, example).each()
    if not torch.isfinite(expected).all() or not torch.isfinite(found).all():
        return True  # such an example cannot be learned by either, and says nothing about the others
    apart, sizes = (found - expected).norm(dim=1), expected.norm(dim=1)
    return bool((apart <= TOLERANCE * sizes + 1e-6).all())
