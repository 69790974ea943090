"""Learners that act: they learn the values of actions from transitions, which they replay from a memory."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsFloat, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.checks import check_count, check_room, flag, instance, real, shown, whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Purpose
from metareplay._core.interrupts import HeldBack
from metareplay._core.plan import Plan
from metareplay._core.stacks import StackStorage, slides
from metareplay._core.table import Storage, Table, TensorStorage
from metareplay.engines.engine import Outcome
from metareplay.engines.temporal_difference import TemporalDifference
from metareplay.errors import InputError
from metareplay.learners.input_checks import Array, as_tensor, one_line
from metareplay.learners.optimizers import OptimizerName, make_optimizer
from metareplay.learners.table_learner import TableLearner
from metareplay.memories.memory import Memory
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.sampler import Sampler

Unit = Literal["frames", "episodes"]
ROW_BYTES = 40  # of the lists of a plan and of what is drawn for it, for each row


@dataclass(eq=False, repr=False, kw_only=True)
class QLearner(TableLearner):
    """Learn the value Q(x, a) of each action a in a situation x while acting. An implementation defines `plan`.

    A loop over frames looks like this, for an environment with Gymnasium's interface:

        action = agent.act(x)
        next_x, reward, terminated, truncated, info = env.step(action)
        agent.observe(x, action, reward, next_x, terminated, truncated)

    Args:
        model: The Q-network: any torch module that gives one value per action.
        memory: M, the memory that holds transitions.
        lr: alpha, the rate of the optimizer.
        k: Transitions per batch, the newest included (the paper lists k - 1 = 16).
        optimizer: What takes the steps: "sgd", "adam" or "rmsprop".
        discount: What a reward of the next frame is worth now.
        double: Let the model choose the action that the target network evaluates (double DQN).
        target_every: How often the target network is made equal to the model (E_Q in Algorithm 8).
        target_in: What `target_every` counts: "frames" or, as in Algorithm 8, "episodes".
        warmup: Frames that are only remembered, before learning begins.
        epsilon_start: The share of random actions at the beginning.
        epsilon_end: The share of random actions at the end.
        epsilon_frames: Frames in which the share falls, in a straight line, from the first to the last.
        reward_clip: Limit rewards to the range from -reward_clip to reward_clip; None for no limit.
        seed: Decides every draw.
        loss: The loss of (values, targets), a mean over the batch; None for Huber's.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.

    Attributes:
        episodes: How many episodes have ended.
    """

    memory: Memory = field(default_factory=lambda: Reservoir(50_000))
    lr: float = 1e-4
    k: int = 17
    optimizer: OptimizerName = "sgd"
    discount: float = 0.99
    double: bool = False
    target_every: int = 500
    target_in: Unit = "frames"
    warmup: int = 500
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_frames: int = 10_000
    reward_clip: float | None = None
    regression: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_count("k", self.k, "a batch holds at least the newest transition")
        check_count("target_every", self.target_every, "the target network is renewed from time to time")
        check_count("epsilon_frames", self.epsilon_frames, "exploration takes at least one frame to change")
        instance("memory", self.memory, Memory, "a memory, for instance Reservoir(50_000)")
        self._check_room()
        for name in ("discount", "epsilon_start", "epsilon_end"):
            if not 0 <= real(name, getattr(self, name)) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: use a share from 0 to 1")
        if whole("warmup", self.warmup) < 0:
            raise InputError(f"warmup={shown(self.warmup)}: use a number of frames, 0 or more")
        if self.reward_clip is not None and not real("reward_clip", self.reward_clip) > 0:
            raise InputError(f"reward_clip={self.reward_clip}: use a number above 0, or None for no limit")
        super().__post_init__()
        self.memory.claim()
        self.episodes = 0

    def follow_change(self, name: str) -> None:
        """Check that the batches are not too large.

        Args:
            name: The option that has changed.
        """
        self._check_room()
        super().follow_change(name)

    def rows_per_frame(self) -> int:
        """Return the largest number of rows that are visited for one frame."""
        return self.k

    def _check_room(self) -> None:
        """Raise InputError if the rows of a frame's batches would need more memory than this machine has."""
        rows = whole("k", self.rows_per_frame())
        check_room("k" if rows == self.k else "s times k", rows, ROW_BYTES * rows)

    @abstractmethod
    def plan(self, memory: Sampler) -> Plan:
        """Draw everything for the newest transition, before anything is computed.

        Args:
            memory: The memory as it stands before the transition.
        """

    @property
    def epsilon(self) -> float:
        """The share of random actions at the next frame."""
        done = min(1.0, self.seen / self.epsilon_frames)
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done

    @final
    def act(self, x: Array) -> int:
        """Choose the action of the next frame: with probability epsilon a random one, otherwise the best.

        Asking again before the next `observe` gives the same answer. For the best action, use `predict`.

        Args:
            x: What is observed now, in the model's input shape.
        """
        xs = as_tensor("x", x)[None]
        p, which = self.draws.fractions(Purpose.ACTION, self.seen, 1, 2)[0]
        if p <= self.epsilon:
            return int(which * self._actions(xs))
        return int(self.predict(xs)[0])

    @final
    def observe(
        self, x: Array, action: int, reward: SupportsFloat, next_x: Array, terminated: bool, truncated: bool = False
    ) -> None:
        """Remember one transition and learn.

        Bad input raises InputError before anything is learned; a transition whose loss is not finite is undone and
        named by a NonFiniteError.

        Args:
            x: What was observed before the action.
            action: The number of the action.
            reward: What it brought.
            next_x: What was observed afterwards, even if that was the end.
            terminated: Whether the episode has come to its end: nothing follows, and the target is the reward alone.
            truncated: Whether the episode was broken off, for instance by a time limit: the target is as usual.
        """
        over = flag("terminated", terminated) or flag("truncated", truncated)
        incoming = self._transition(x, action, reward, next_x, bool(terminated))
        if self.table is None:
            self.table = self.make_table(incoming, self.piece_size())
        with HeldBack():
            self._learn(incoming, self.table)
            self.episodes += over
            count, changed = (self.seen, True) if self.target_in == "frames" else (self.episodes, over)
            if changed and count % self.target_every == 0:
                self.temporal_difference.refresh(self.model)

    @final
    def check_held(self, held: Columns) -> None:
        """Raise InputError for transitions of a checkpoint that `observe` would not have accepted."""
        xs, following = self._checks.inputs(held["x"]), self._checks.inputs(held["next_x"])
        if following.shape != xs.shape or following.dtype != xs.dtype:
            raise InputError("x and next_x differ in shape or dtype")
        actions = self._forward(xs[:1], torch.full((len(xs[:1]),), -1)).shape[1:].numel()
        kinds = {"action": torch.int64, "reward": self.weights.dtype, "over": torch.bool, "task": torch.int64}
        for name, dtype in kinds.items():
            if held[name].dtype != dtype or held[name].shape != (len(xs),):
                raise InputError(f"{name} is {held[name].dtype} of shape {tuple(held[name].shape)}")
        if ((held["action"] < 0) | (held["action"] >= actions)).any():
            raise InputError(f"an action is not one of 0 to {actions - 1}")

    def _learn(self, incoming: Columns, table: Table) -> None:
        """Draw everything first, then compute, then store."""
        table.bring(incoming)
        with Sampler(self.memory, self.draws, self.seen, incoming.task_ids()) as memory:
            plan = self.plan(memory)
        outcome = Outcome(1) if self.seen < self.warmup else self.execute(plan, table)
        self.finish(outcome, plan.slots, incoming, table)

    def check_reshaping(self) -> None:
        """Refuse to change the model's layers: the target network would keep the old ones."""
        raise InputError(f"the layers of a {type(self).__name__}'s model cannot change: make a new agent")

    @property
    def temporal_difference(self) -> TemporalDifference:
        """The objective, which holds the target network."""
        assert isinstance(self.objective, TemporalDifference), "made by make_objective"
        return self.objective

    @final
    def make_objective(self) -> TemporalDifference:
        """Make the objective, with the model as it is now as the target network."""
        try:
            return TemporalDifference(
                self.model, self.loss or functional.huber_loss, self.discount, double=self.double, clip=self.clip
            )
        except (RuntimeError, TypeError) as error:
            raise InputError(f"the model cannot be copied to make a target network: {one_line(error)}") from error

    @final
    def make_optimizer(self, theta: nn.Parameter) -> torch.optim.Optimizer | None:
        """Make the optimizer that was named."""
        return make_optimizer(self.optimizer, theta, self.lr)

    @final
    def make_storage(self, like: Columns) -> Storage:
        """Keep every picture once if observations are stacks of the latest pictures; otherwise keep tensors."""
        return (StackStorage if slides(like["x"], like["next_x"]) else TensorStorage)(self.weights.device)

    @property
    @final
    def own_memory(self) -> Memory:
        """The learner's memory (M)."""
        return self.memory

    @final
    def piece_size(self) -> int:
        """Return 1: what to do next depends on what was learned."""
        return 1

    def private_state(self) -> dict[str, Tensor]:
        """Return how many episodes have ended."""
        return {"episodes": torch.tensor(self.episodes)}

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """Restore how many episodes had ended."""
        self.episodes = int(state["episodes"])

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost of a frame: one step per row of a batch.

        Args:
            settings: The learner's options, as `settings` returns them.
        """
        return float(settings["k"])

    def shown(self, incoming: Columns, at: int) -> str:
        """Name the action and the reward."""
        return f"action {int(incoming['action'][at])}, reward {float(incoming['reward'][at]):g}"

    def _actions(self, xs: Tensor) -> int:
        """Return how many actions there are; find out from the model at the first time."""
        if self._outputs is None:
            outputs = self._forward(self._checks.inputs(xs), torch.full((len(xs),), -1)).shape[1:]
            if len(outputs) != 1:
                raise InputError(
                    f"one input of shape {tuple(xs.shape[1:])} gives outputs of shape {tuple(outputs)}, not one value "
                    f"per action; give one observation in the model's input shape"
                )
            self._outputs = outputs
        return self._outputs[0]

    def _transition(self, x: Array, action: int, reward: SupportsFloat, next_x: Array, terminated: bool) -> Columns:
        """Return a transition ready to learn from, or raise InputError before anything has changed."""
        xs, following = self._checks.inputs(as_tensor("x", x)[None]), as_tensor("next_x", next_x)[None]
        if following.shape != xs.shape or following.dtype != xs.dtype:
            raise InputError(
                f"next_x has shape {tuple(following.shape[1:])} and dtype {following.dtype}; x has "
                f"{tuple(xs.shape[1:])} and {xs.dtype}"
            )
        following, actions = self._checks.inputs(following), self._actions(xs)
        number, value = as_tensor("action", action), _number(reward)
        if number.numel() != 1 or number.is_floating_point() or number.is_complex() or not 0 <= int(number) < actions:
            raise InputError(f"action {shown(action)}: the model's actions are 0 to {actions - 1}")
        if not math.isfinite(value):
            raise InputError(f"reward {shown(reward)}: use a finite number")
        most = math.inf if self.reward_clip is None else self.reward_clip
        self._checks.expect(xs)
        return Columns(
            {
                "x": xs,
                "action": number.reshape(1).to(torch.int64),
                "reward": torch.tensor([min(max(value, -most), most)], dtype=self.weights.dtype),
                "next_x": following,
                "over": torch.tensor([bool(terminated)]),
                "task": torch.full((1,), -1),
            }
        )


def _number(reward: SupportsFloat) -> float:
    """Return a reward as Python's float; NaN if it is not a single number."""
    try:
        return float(reward)
    except Exception:
        return math.nan
