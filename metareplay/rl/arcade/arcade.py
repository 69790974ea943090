"""Agents that play pictures side by side: what `Training` does one by one, for many of them in one loop."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay._core.archive import part, read_archive, write_archive
from metareplay._core.interrupts import HeldBack
from metareplay.engines.q_shape import Shape
from metareplay.environments.environment import GameEnv
from metareplay.environments.kernels import LENGTH
from metareplay.environments.scheduled import ScheduledEnv, schedules
from metareplay.errors import CheckpointError, InputError
from metareplay.learners.dqn import DQN
from metareplay.learners.dqn_mer import DQNMER
from metareplay.memories.recent import Recent
from metareplay.memories.reservoir import Reservoir
from metareplay.rl.arcade.exam import Exam, parts_of
from metareplay.rl.arcade.kernels import draw_ahead, play_frames
from metareplay.rl.arcade.screens import Frames, Screens
from metareplay.rl.arcade.team import Team, captured
from metareplay.rl.compiled import habits_of
from metareplay.rl.evaluation import Scores
from metareplay.rl.game_record import GameRecord
from metareplay.rl.training import Training

AHEAD: Final = 500  # frames for which everything is drawn at a time
Array = NDArray[Any]


def obstacle(work: Training) -> str | None:
    """Say in one line why an agent cannot play side by side with others; None if it can.

    Args:
        work: What it is trained on.
    """
    agent, env, game = work.agent, work.env, work.env.unwrapped
    if not isinstance(agent, DQN | DQNMER):
        return f"{type(agent).__name__} draws its own batches: use DQN or DQNMER"
    if not isinstance(game, GameEnv):
        return "only Catcher and Flappy Bird can be played side by side"
    if game.observation != "pixels":
        return "only pictures are played side by side: states are faster on a CPU"
    if not isinstance(env, ScheduledEnv) or env.env is not game:
        return "the game's difficulty must follow a schedule, and nothing else may come between"
    if Shape.of(agent.model, game.observation_space.shape or ()) is None:
        return "the network must be convolutions with ReLU, then linear layers with ReLU, as nature_cnn makes it"
    if agent.loss is not None or agent.clip is not None or agent.double:
        return "loss, clip and double are not supported side by side: leave them out"
    if agent.optimizer not in ("sgd", "adam"):
        return f"optimizer {agent.optimizer!r}: use 'sgd' or 'adam'"
    if agent.warmup < agent.k:
        return f"warmup={agent.warmup} and k={agent.k}: side by side, the first batch must already be full"
    memory = agent.memory
    if not isinstance(memory, Recent | Reservoir) or (isinstance(memory, Reservoir) and memory.rule != "paper"):
        return "the memory is of another kind: use Recent, or Reservoir with rule='paper'"
    return "the environment has no evaluation" if work.evaluation is None else None


def shape_of(work: Training) -> object:
    """Return what agents that play side by side must have in common.

    Args:
        work: What an agent is trained on, with no obstacle.
    """
    agent, game, exam = work.agent, work.env.unwrapped, work.evaluation
    assert isinstance(game, GameEnv), "`obstacle` has looked"
    assert exam is not None, "likewise"
    return (
        *(type(agent), agent.k, getattr(agent, "s", 1), agent.optimizer, agent.warmup),
        *(type(game), game.observation_space.shape, work.frames, agent.weights.theta.numel()),
        *(len(exam.tasks), exam.episodes, exam.cap, exam.every),
    )


@final
class Arcade:
    """Train agents of one shape side by side: the same draws as one by one, and the same weights up to rounding.

    Neither what is drawn nor what a memory keeps depends on what an agent learns, so both are drawn ahead. What is left
    for each frame is one compiled call that plays a frame of every game, and one launch on the GPU that stores what the
    agents saw, learns, and chooses the next actions.

    Args:
        works: What the agents are trained on, as `GameExperiment.start` makes it, for which `obstacle` finds nothing.
        device: Where the networks live. On a CPU this gives the same results up to rounding, slowly.

    Attributes:
        whole: Whether every agent is between two frames. Ctrl-C is held back until that is so; only a second one
            comes at once, and then nothing can be saved.
    """

    def __init__(self, works: Sequence[Training], device: torch.device | str = "cuda") -> None:
        for work in works:
            missing = obstacle(work)
            if missing is not None:
                raise InputError(f"agents cannot play side by side: {missing}")
        if len({shape_of(work) for work in works}) != 1:
            raise InputError("agents that play side by side must have the same shape: use several arcades")
        self.works, self.device, first = works, torch.device(device), works[0]
        self.agents, runs, frames = [work.agent for work in works], len(works), first.frames
        game = self._game(first)
        self._pixels: tuple[int, ...] = game.observation_space.shape or ()
        stack, size = self._pixels[0], (self._pixels[1], self._pixels[2])
        shape = Shape.of(first.agent.model, self._pixels)
        assert shape is not None, "`obstacle` has looked"
        self.seen, self.frames = 0, frames
        self.team = Team(self.agents, shape, self.device)
        self.finite, self.whole = [True] * runs, True
        self._entry, self._shades = game.game.difficulty_entry, game.game.greys()
        self._states, self._now, self._used = (
            np.zeros((runs, LENGTH)), np.zeros((runs, stack), np.int64), np.ones(runs, np.int64),
        )  # fmt: skip
        self._difficulty = np.stack([_difficulties(work) for work in works])
        self._history = np.zeros((runs, frames), np.uint8)  # the actions, from which everything can be played again
        self._episodes = np.zeros(runs, np.int64)
        self._measured: list[list[Scores]] = [[] for _ in works]
        self._at: list[int] = []
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._engines = [self._engine()]
        self._habits = [habits_of(agent) for agent in self.agents]
        self._clip = np.array([habits.reward_clip for habits in self._habits])[:, None]
        capacities = [agent.memory.capacity for agent in self.agents]
        self._times = [np.full(capacity, -1) for capacity in capacities]
        self._order, self._held = [np.zeros(capacity, np.int64) for capacity in capacities], np.zeros((runs, 1), int)
        self._screens = Screens(runs, frames, stack, size, self.device)
        self._frames = Frames(runs, 1, stack, size, first.agent.k * self.team.s, self.device)
        self._best = torch.zeros((runs, 1), dtype=torch.int64, device=self.device)
        self._cores = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._cores)
        self._exam = Exam(self.team, [_exam(work) for work in works], stack, size, self.device)
        self._graphs: dict[str, Callable[[], Any]] = {}
        self._begin()

    @staticmethod
    def _game(work: Training) -> GameEnv:
        game = work.env.unwrapped
        assert isinstance(game, GameEnv), "`obstacle` has looked"
        return game

    def _begin(self) -> None:
        """Begin the first episode of every game, and look at it."""
        pictures = np.zeros((len(self.works), 1, *self._pixels[1:]), np.uint8)
        for run, work in enumerate(self.works):
            work.env.reset(seed=work.seed)
            snapshot = self._game(work).snapshot()
            self._states[run], pictures[run, 0] = snapshot["state"], snapshot["pictures"][-1]
        self._screens.draw(torch.zeros((len(self.works), 1), dtype=torch.int64, device=self.device), self._on(pictures))
        self._look()

    def _on(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _look(self) -> None:
        """Choose the best action for what every agent sees now."""
        self._frames.answer(self._best)
        self._frames.arrays["now"][:] = self._now
        self._frames.send()
        self._work("look")()

    def _work(self, name: str) -> Callable[[], Any]:
        """Return the work on a frame of this kind, captured when it is first needed."""
        if name not in self._graphs:
            team, there, screens = self.team, self._frames.there, self._screens

            def work() -> None:
                if name != "look":
                    self._frames.store(screens)
                if name == "learn":
                    team.learn(screens.batches(there["rows"]))
                self._best.copy_(team.best(screens.observed(there["now"])))

            kept = [team.state(run) for run in range(len(self.works))]

            def undo() -> None:
                for run, state in enumerate(kept):
                    team.restore(run, state)

            self._graphs[name] = captured(work, self.device, undo)
        return self._graphs[name]

    def steps(self) -> Iterator[int]:
        """Play, learn and evaluate until the end; each step says how many frames have been played."""
        every = _exam(self.works[0]).every
        while True:
            if (not self._at or self._at[-1] != self.seen) and (self.seen % every == 0 or self.seen >= self.frames):
                self._evaluate()
            if self.seen >= self.frames:
                return
            ahead = min(self.frames, (self.seen // every + 1) * every) - self.seen
            self.play(min(AHEAD, ahead))
            yield self.seen

    def play(self, frames: int) -> None:
        """Play some frames and learn from each of them.

        Args:
            frames: How many.
        """
        start = time.perf_counter()
        self.whole = False
        with HeldBack():
            self._play(frames)
            self.whole = True
        self._seconds["learn"] += time.perf_counter() - start

    def _play(self, frames: int) -> None:
        """Play some frames, all of them or, after a second Ctrl-C, some of them."""
        while not self._screens.has_room(int(self._used.max()) + 2 * frames):
            self._screens.enlarge()
            self._graphs.clear()  # they know the old place
        explored, rows = self._draw(frames)
        arrays, warmup = self._frames.arrays, self.agents[0].warmup
        for i in range(frames):
            best = self._frames.answer(self._best)
            actions = np.where(explored[:, i : i + 1] >= 0, explored[:, i : i + 1], best)
            arrays["rows"][:] = rows[:, i]
            self._play_frame(actions)
            self._work("learn" if self.seen >= warmup else "store")()
            self.seen += 1
            self._refresh(arrays["ends"][:, 0])
        self.finite = [before and now for before, now in zip(self.finite, self.team.finite(), strict=True)]

    def _draw(self, frames: int) -> tuple[Array, Array]:
        """Draw random actions and batches for the next frames of every agent."""
        runs, rows = len(self.works), self._frames.arrays["rows"].shape[1]
        explored, drawn = np.zeros((runs, frames), np.int64), np.zeros((runs, frames, rows), np.int64)
        for run in range(runs):
            draw_ahead(
                self.seen, self._times[run], self._order[run], self._held[run], self._habits[run],
                self.team.shape.actions, explored[run], drawn[run],
            )  # fmt: skip
        return explored, drawn

    def _play_frame(self, actions: Array) -> None:
        """Play one frame of every game, and send what followed to the GPU."""
        arrays, at = self._frames.arrays, self.seen
        arrays["actions"][:], self._history[:, at : at + 1] = actions, actions
        play_frames(
            self._states, self._now, self._used, arrays["actions"], self._difficulty[:, at : at + 2], self._entry,
            self._shades, *(arrays[name] for name in ("pictures", "places", "stacks", "rewards", "ends")),
        )  # fmt: skip
        np.clip(arrays["rewards"], -self._clip, self._clip, out=arrays["rewards"], casting="same_kind")
        arrays["numbers"][:], arrays["now"][:] = at, self._now
        self._frames.send()

    def _refresh(self, ends: Array) -> None:
        """Count episodes, and renew the target networks that are due."""
        self._episodes += ends
        due = [
            run
            for run, habits in enumerate(self._habits)
            if (habits.by_frames or ends[run])
            and (self.seen if habits.by_frames else self._episodes[run]) % habits.target_every == 0
        ]
        if due:
            self.team.refresh(due)

    def _evaluate(self) -> None:
        start = time.perf_counter()
        found = self._exam.scores(self._pool, self._cores)
        with HeldBack():
            for measured, scores in zip(self._measured, found, strict=True):
                measured.append(scores)
            self._at.append(self.seen)
        self._seconds["evaluate"] += time.perf_counter() - start

    def record(self, run: int) -> GameRecord:
        """Put an agent's weights into its model, and return the record.

        Args:
            run: The number of the agent.
        """
        work, agent = self.works[run], self.agents[run]
        agent.weights.theta.copy_(self.team.state(run)["theta"])
        record = GameRecord.of(
            work.identity,
            seed=agent.seed,
            engine=", then ".join(self._engines),
            frames=self._at,
            scores=self._measured[run],
            episodes=int(self._episodes[run]),
            theta=agent.weights.theta,
            seconds=self._seconds,
        )
        return replace(record, versions=record.versions | self._gpu())

    def _engine(self) -> str:
        """Say in a few words what does the arithmetic."""
        return f"{self.device.type}, {len(self.works)} side by side"

    def _gpu(self) -> dict[str, str]:
        return {"gpu": torch.cuda.get_device_name(self.device)} if self.device.type == "cuda" else {}

    def save(self, paths: Sequence[Path]) -> None:
        """Write one small checkpoint per agent: its weights and actions; the games can be played again from those.

        Args:
            paths: The file of each agent.
        """
        for run, path in enumerate(paths):
            about = {"key": self.works[run].key, "seen": self.seen, "at": self._at, "scores": self._measured[run]}
            state = {f"state/{name}": value for name, value in self.team.state(run).items()}
            history = torch.from_numpy(self._history[run, : self.seen].copy())
            about |= {"seconds": self._seconds, "engines": self._engines}
            write_archive(path, about, state | {"actions": history})

    def restore(self, paths: Sequence[Path]) -> None:
        """Go on from checkpoints that were written at the same frame.

        Args:
            paths: The file of each agent.
        """
        for run, path in enumerate(paths):
            about, tensors = read_archive(path, ("key", "seen", "at", "scores", "seconds", "engines"))
            if about["key"] != self.works[run].key or (run and about["seen"] != self.seen):
                raise CheckpointError(f"{path} is the checkpoint of another run: use --fresh")
            self.seen, self._at, self._measured[run] = about["seen"], about["at"], about["scores"]
            self._seconds = dict(about["seconds"])
            self._engines = list(dict.fromkeys([*about["engines"], self._engine()]))
            self._history[run, : self.seen] = tensors["actions"].numpy()
            self.team.restore(run, part(tensors, "state/"))
        self._play_again(self.seen)

    def _play_again(self, seen: int) -> None:
        """Play and draw the frames up to here again, by the actions that were taken."""
        self.seen, runs, stack = 0, len(self.works), self._pixels[0]
        while self.seen < seen:
            start, count = self.seen, min(AHEAD, seen - self.seen)
            self._draw(count)
            while not self._screens.has_room(int(self._used.max()) + 2 * count):
                self._screens.enlarge()
            size = (self._pixels[1], self._pixels[2])
            some = Frames(runs, count, stack, size, 1, self.device)
            arrays = some.arrays
            arrays["actions"][:] = self._history[:, start : start + count]
            arrays["numbers"][:] = np.arange(start, start + count)
            shown = [arrays[name] for name in ("pictures", "places", "stacks", "rewards", "ends")]
            works = [
                self._pool.submit(
                    play_frames, self._states[at], self._now[at], self._used[at], arrays["actions"][at],
                    self._difficulty[at, start : start + count + 1], self._entry, self._shades,
                    *(one[at] for one in shown),
                )
                for at in parts_of(runs, self._cores)
            ]  # fmt: skip
            for work in works:
                work.result()
            np.clip(arrays["rewards"], -self._clip, self._clip, out=arrays["rewards"], casting="same_kind")
            self._episodes += arrays["ends"].sum(1)
            some.send()
            some.store(self._screens)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seen += count
        self._graphs.clear()
        self._look()

    def close(self) -> None:
        """End the threads that draw pictures."""
        self._pool.shutdown()


def _exam(work: Training) -> Any:
    assert work.evaluation is not None, "`obstacle` has looked"
    return work.evaluation


def _difficulties(work: Training) -> Array:
    """Return the difficulty at every frame, and after the last one that of the frame that would follow."""
    [scheduled] = schedules(work.env)
    game, schedule = work.env.unwrapped, scheduled.schedule
    assert isinstance(game, GameEnv), "`obstacle` has looked"
    values = np.array([game.game.checked_difficulty(value) for value in schedule.values])
    return values[[schedule.task(frame) for frame in range(work.frames + 1)]]
