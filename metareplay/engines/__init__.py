"""Engines: the arithmetic on weights. Each executes plans; all land on the same weights."""

from metareplay.engines.engine import Engine, Gradients, Outcome
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised

__all__ = ["Engine", "Gradients", "Objective", "Outcome", "QuadraticPenalty", "Supervised"]
