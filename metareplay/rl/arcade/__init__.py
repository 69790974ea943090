"""Many agents that play pictures side by side on one GPU: each frame of all of them is one launch."""

from metareplay.rl.arcade.arcade import Arcade, obstacle

__all__ = ["Arcade", "obstacle"]
