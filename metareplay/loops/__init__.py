"""MER in training loops of your own: batches of rows, any optimizer, any number of ranks.

`metareplay.loops.hugging_face` is for `transformers.Trainer`; nothing else here imports it.
"""

from metareplay.loops.periodic_mer import PeriodicMER
from metareplay.loops.ranks import agree, deal, rank_reservoir
from metareplay.loops.reptile_line import ReptileLine

__all__ = ["PeriodicMER", "ReptileLine", "agree", "deal", "rank_reservoir"]
