"""Everything that several agents have seen, on the GPU: every picture once, and transitions as numbers of pictures."""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay.rl.arcade.team import TransitionBatches

SPARE = 1.05  # pictures per frame that there is room for: every episode begins with one more
MORE = 64  # pictures that there is room for besides


@final
class Screens:
    """Hold all transitions of all agents by the number of their frame, kept in a memory or not.

    That takes more room than the memories alone would, but nothing has to be moved when a transition is forgotten.

    Args:
        runs: How many agents there are.
        frames: How many frames each of them plays.
        stack: How many pictures an observation has.
        size: The height and width of a picture.
        device: Where everything lives.
    """

    def __init__(self, runs: int, frames: int, stack: int, size: tuple[int, int], device: torch.device) -> None:
        self.runs, self.stack, self.size, self.device = runs, stack, size, device
        self._pictures = torch.zeros((runs, int(SPARE * frames) + MORE, *size), dtype=torch.uint8, device=device)
        self._stacks = torch.zeros((runs, frames, stack + 1), dtype=torch.int64, device=device)
        self._actions = torch.zeros((runs, frames), dtype=torch.int64, device=device)
        self._rewards = torch.zeros((runs, frames), device=device)
        self._ends = torch.zeros((runs, frames), dtype=torch.bool, device=device)
        self._each = torch.arange(runs, device=device)[:, None]

    def has_room(self, pictures: int) -> bool:
        """Return whether there is room for this many pictures, and for one that nobody looks at.

        Args:
            pictures: How many.
        """
        return pictures < self._pictures.shape[1]

    def enlarge(self) -> None:
        """Make room for twice as many pictures."""
        self._pictures = torch.cat([self._pictures, torch.zeros_like(self._pictures)], 1)

    def draw(self, places: Tensor, pictures: Tensor) -> None:
        """Keep some pictures of every agent.

        Args:
            places: Their numbers, of shape (agents, pictures); -1 for one that nobody will look at.
            pictures: The pictures, of shape (agents, pictures, rows, columns).
        """
        room = self._pictures.shape[1]
        at = torch.where(places < 0, room - 1, places) + room * self._each
        self._pictures.flatten(0, 1).index_copy_(0, at.flatten(), pictures.flatten(0, 1))

    def write(self, frames: Tensor, stacks: Tensor, actions: Tensor, rewards: Tensor, ends: Tensor) -> None:
        """Keep the transitions of some frames.

        Args:
            frames: The numbers of the frames.
            stacks: The pictures observed and the one that followed, of shape (agents, frames, stack + 1).
            actions: The actions, of shape (agents, frames).
            rewards: What they brought.
            ends: Whether the episode was over then.
        """
        self._stacks.index_copy_(1, frames, stacks)
        self._actions.index_copy_(1, frames, actions)
        self._rewards.index_copy_(1, frames, rewards)
        self._ends.index_copy_(1, frames, ends)

    def observed(self, now: Tensor) -> Tensor:
        """Return one observation of every agent, of shape (agents, 1, stack, rows, columns).

        Args:
            now: The numbers of its pictures, of shape (agents, stack).
        """
        return self._pictures[self._each, now][:, None]

    def batches(self, rows: Tensor) -> TransitionBatches:
        """Return transitions of every agent.

        Args:
            rows: The numbers of their frames, of shape (agents, rows).
        """
        pictures = self._pictures[self._each[:, :, None], self._stacks[self._each, rows]]
        return TransitionBatches(
            pictures, self._actions.gather(1, rows), self._rewards.gather(1, rows), self._ends.gather(1, rows)
        )


@final
class Frames:
    """Hold a few frames of every agent on their way from the games to the GPU.

    The GPU reads `arrays` some time after `send` has returned. Until `answer` has waited for it, they are read-only.

    Args:
        runs: How many agents there are.
        frames: How many frames.
        stack: How many pictures an observation has.
        size: The height and width of a picture.
        rows: How many transitions each agent learns from in a frame.
        device: Where they go.

    Attributes:
        arrays: What will be sent, by name.
        there: What has been sent, by name.
    """

    def __init__(
        self, runs: int, frames: int, stack: int, size: tuple[int, int], rows: int, device: torch.device
    ) -> None:
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "pictures": ((runs, 2 * frames, *size), torch.uint8),
            "places": ((runs, 2 * frames), torch.int64),
            "stacks": ((runs, frames, stack + 1), torch.int64),
            "actions": ((runs, frames), torch.int64),
            "rewards": ((runs, frames), torch.float32),
            "ends": ((runs, frames), torch.bool),
            "numbers": ((frames,), torch.int64),
            "now": ((runs, stack), torch.int64),
            "rows": ((runs, rows), torch.int64),
        }
        pin = device.type == "cuda"
        self._here = {name: torch.zeros(size, dtype=kind, pin_memory=pin) for name, (size, kind) in shapes.items()}
        self.there = {name: value.to(device) for name, value in self._here.items()}
        self.arrays: dict[str, NDArray[np.generic]] = {name: value.numpy()[:] for name, value in self._here.items()}

    def send(self) -> None:
        """Begin to copy everything to the GPU."""
        for name, value in self._here.items():
            self.there[name].copy_(value, non_blocking=True)
        self._allow_changes(False)

    def answer(self, found: Tensor) -> NDArray[Any]:
        """Wait until the GPU has computed something from what was sent, and return it.

        Args:
            found: What was computed.
        """
        here: NDArray[Any] = found.cpu().numpy()
        self._allow_changes(True)
        return here

    def _allow_changes(self, allowed: bool) -> None:
        for array in self.arrays.values():
            array.flags.writeable = allowed

    def store(self, screens: Screens) -> None:
        """Keep the frames that were sent.

        Args:
            screens: Where.
        """
        there = self.there
        screens.draw(there["places"], there["pictures"])
        screens.write(*(there[name] for name in ("numbers", "stacks", "actions", "rewards", "ends")))
