"""Memories: which of the examples seen are held."""

from metareplay._core.table import Column, Storage, TensorStorage
from metareplay.memories.balanced import Balanced
from metareplay.memories.disk_reservoir import DiskReservoir
from metareplay.memories.memory import Memory, read_export
from metareplay.memories.mixed import Mixed
from metareplay.memories.recent import Recent
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.ring import Ring
from metareplay.memories.sampler import Sampler

MEMORIES: tuple[type[Memory], ...] = (Reservoir, Ring, Recent, Balanced, Mixed)

__all__ = [
    "MEMORIES",
    "Balanced",
    "Column",
    "DiskReservoir",
    "Memory",
    "Mixed",
    "Recent",
    "Reservoir",
    "Ring",
    "Sampler",
    "Storage",
    "TensorStorage",
    "read_export",
]
