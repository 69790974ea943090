"""Memories: which of the examples seen are held."""

from metareplay._core.table import Column, Storage, TensorStorage
from metareplay.memories.disk_reservoir import DiskReservoir
from metareplay.memories.memory import Memory, read_export
from metareplay.memories.recent import Recent
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.ring import Ring
from metareplay.memories.sampler import Sampler

MEMORIES: tuple[type[Memory], ...] = (Reservoir, Ring, Recent)

__all__ = [
    "MEMORIES",
    "Column",
    "DiskReservoir",
    "Memory",
    "Recent",
    "Reservoir",
    "Ring",
    "Sampler",
    "Storage",
    "TensorStorage",
    "read_export",
]
