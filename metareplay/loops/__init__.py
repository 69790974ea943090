"""MER in training loops of your own: batches of rows, any optimizer, any number of ranks.

`metareplay.loops.hugging_face` is for `transformers.Trainer`; nothing else here imports it.
"""

from metareplay.loops.alignment import GradientAlignment, gradient_alignment
from metareplay.loops.periodic_mer import PeriodicMER
from metareplay.loops.ranks import agree, deal, rank_reservoir
from metareplay.loops.reptile_line import ReptileLine

__all__ = [
    "GradientAlignment",
    "PeriodicMER",
    "ReptileLine",
    "agree",
    "deal",
    "gradient_alignment",
    "rank_reservoir",
]
