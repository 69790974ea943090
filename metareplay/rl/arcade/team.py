"""The Q-networks of several agents, which learn from one frame of each at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from metareplay.engines.cuda.q_nets import QNets, huber_slope
from metareplay.engines.cuda.q_passes import Pass
from metareplay.engines.q_shape import Shape
from metareplay.learners.dqn_mer import DQNMER
from metareplay.learners.q_learner import QLearner

WARM_UP: Final = 3  # times that work is done before it is captured


@final
@dataclass(frozen=True)
class TransitionBatches:
    """Hold what the agents learn from in one frame; the first two axes are the agents and their s * k rows.

    Args:
        pictures: Bytes: those that were observed, oldest first, and the one that followed.
        actions: The actions that were taken.
        rewards: What they brought.
        ends: Whether the episode was over then.
    """

    pictures: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor


@final
class Team:
    """Hold the Q-networks and target networks of agents that differ only in seeds, rates and memories.

    Args:
        agents: The agents.
        shape: The shape of their networks.
        device: Where everything lives.
    """

    def __init__(self, agents: Sequence[QLearner], shape: Shape, device: torch.device) -> None:
        first = agents[0]
        self.agents, self.shape = agents, shape
        self.k, self.s, self.together = first.k, getattr(first, "s", 1), not isinstance(first, DQNMER)
        self.nets = QNets(shape, device, [one.lr for one in agents], adam=first.optimizer == "adam")
        self.target = torch.zeros_like(self.nets.theta)
        for run, agent in enumerate(agents):
            self.nets.load(self.nets.theta, run, agent.weights.theta)
            self.nets.load(self.target, run, agent.temporal_difference.target.theta)
        self._discount = _column([one.discount for one in agents], device)
        self._lines = {name: _column([getattr(one, name, 1.0) for one in agents], device) for name in ("beta", "gamma")}
        self._has_line = {name: any(getattr(one, name, 1.0) != 1 for one in agents) for name in ("beta", "gamma")}
        self._frame_start, self._batch_start = torch.zeros_like(self.target), torch.zeros_like(self.target)
        self._one, self._many = self.nets.passes(1), self.nets.passes(self.k)
        self._numbers = torch.arange(shape.actions, device=device)

    def best(self, pictures: Tensor, by: Pass | None = None) -> Tensor:
        """Return the actions with the greatest values, of shape (agents, batch).

        Args:
            pictures: What is observed: bytes of shape (agents, batch, stack, rows, columns).
            by: The pass that computes the values; None for a batch of one.
        """
        by = by or self._one
        return by.values(self.nets.matrices(self.nets.theta), by.take(pictures)).argmax(2)

    def learn(self, batches: TransitionBatches) -> None:
        """Learn one frame with every agent: Algorithm 8, or one step of DQN.

        Args:
            batches: What to learn from.
        """
        theta = self.nets.theta
        if self._has_line["gamma"]:
            self._frame_start.copy_(theta)
        for b in range(self.s):
            rows = slice(b * self.k, (b + 1) * self.k)
            if self._has_line["beta"]:
                self._batch_start.copy_(theta)
            self._learn_batch(*(values[:, rows] for values in _fields(batches)))
            self._draw_line("beta", self._batch_start)
        self._draw_line("gamma", self._frame_start)

    def _learn_batch(self, pictures: Tensor, actions: Tensor, rewards: Tensor, ends: Tensor) -> None:
        """Compute the targets; then take one step per row, or one on the mean loss of all."""
        nets, one, many = self.nets, self._one, self._many
        following = many.values(nets.matrices(self.target), many.take(pictures[:, :, 1:])).amax(2)
        targets = torch.where(ends, rewards, rewards + self._discount * following)[:, :, None]
        chosen = (actions[:, :, None] == self._numbers).to(torch.float32)
        matrices, pictures = nets.matrices(nets.theta), pictures[:, :, :-1]
        if self.together:
            first = many.take(pictures)
            nets.step(many, huber_slope(many.values(matrices, first), targets, chosen / self.k), first)
            return
        for j, first in enumerate(one.rows(pictures)):
            values, at = one.values(matrices, first), slice(j, j + 1)
            nets.step(one, huber_slope(values, targets[:, at], chosen[:, at]), first)

    def _draw_line(self, name: str, start: Tensor) -> None:
        if self._has_line[name]:
            torch.lerp(start, self.nets.theta, self._lines[name], out=self.nets.theta)

    def refresh(self, runs: list[int]) -> None:
        """Make the target networks of some agents equal to their networks.

        Args:
            runs: The numbers of the agents.
        """
        self.target[runs] = self.nets.theta[runs]

    def finite(self) -> list[bool]:
        """Return for each agent whether all its weights are finite."""
        found: list[bool] = torch.isfinite(self.nets.theta).all(1).tolist()
        return found

    def state(self, run: int) -> dict[str, Tensor]:
        """Return everything that one agent has learned.

        Args:
            run: The number of the agent.
        """
        nets = self.nets
        found = {"theta": nets.weights_of(nets.theta, run), "target": nets.weights_of(self.target, run)}
        if nets.adam:
            found |= {name: nets.weights_of(getattr(nets, name), run) for name in ("first", "second")}
            found["taken"] = nets.taken.clone()
        return found

    def restore(self, run: int, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned.

        Args:
            run: The number of the agent.
            state: What `state` returned.
        """
        nets = self.nets
        nets.load(nets.theta, run, state["theta"])
        nets.load(self.target, run, state["target"])
        if nets.adam:
            nets.load(nets.first, run, state["first"])
            nets.load(nets.second, run, state["second"])
            nets.taken.copy_(state["taken"])


def captured(work: Callable[[], None], device: torch.device, undo: Callable[[], None]) -> Callable[[], Any]:
    """Return a function that does some work in one launch on a GPU; elsewhere the work itself.

    Args:
        work: The work; it always reads and writes the same tensors.
        device: Where they live.
        undo: Puts back what the work has changed: it is done a few times before it is captured.
    """
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    undo()

    def replay(_alive: Callable[[], None] = work) -> None:  # the tensors that the work uses must stay where they are
        graph.replay()

    return replay


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None]


def _fields(batches: TransitionBatches) -> tuple[Tensor, ...]:
    return batches.pictures, batches.actions, batches.rewards, batches.ends
