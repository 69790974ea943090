"""Streams: training examples in order, task after task, and a test set for each task."""

from metareplay.streams.first_tasks import FirstTasks
from metareplay.streams.held_out import HeldOut
from metareplay.streams.many_permutations import ManyPermutations
from metareplay.streams.omniglot import Omniglot
from metareplay.streams.own import OwnStream
from metareplay.streams.permutations import Permutations
from metareplay.streams.rotations import Rotations
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream

__all__ = [
    "CHUNK",
    "Chunk",
    "Examples",
    "FirstTasks",
    "HeldOut",
    "ManyPermutations",
    "Omniglot",
    "OwnStream",
    "Permutations",
    "Rotations",
    "Stream",
]
