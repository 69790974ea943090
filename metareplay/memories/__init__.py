"""Memories: which of the examples seen are held."""

from collections.abc import Callable

from metareplay.memories.memory import Memory
from metareplay.memories.recent import Recent
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.ring import Ring

MEMORIES: dict[str, Callable[..., Memory]] = {"Recent": Recent, "Reservoir": Reservoir, "Ring": Ring}

__all__ = ["MEMORIES", "Memory", "Recent", "Reservoir", "Ring"]
