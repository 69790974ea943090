"""Training of an agent: it plays, learns and is evaluated from time to time; the end is a record."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, final, runtime_checkable

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.archive import part
from metareplay._core.checks import answer, check_count, function, instance, mapping, path_of, whole
from metareplay._core.draws import Draws
from metareplay._core.files import exists
from metareplay.environments.scheduled import ScheduledEnv
from metareplay.environments.wrapped import without_checks
from metareplay.errors import InputError
from metareplay.experiments.base import BaseRun, Curves, Progress
from metareplay.experiments.following import Follower, done
from metareplay.experiments.identity import describe
from metareplay.learners import checkpoint as checkpoints
from metareplay.learners.q_learner import QLearner
from metareplay.rl.evaluation import Environment, Evaluation, Scores
from metareplay.rl.failures import asking, learning_from, name_of
from metareplay.rl.game_record import GameIdentity, GameRecord
from metareplay.rl.playing import Playing, playing

SAVE_EVERY = 20.0  # seconds between checkpoints
SAVE_SHARE = 0.05  # of the time, at most: a large memory of pictures takes seconds to write


@runtime_checkable
class Resumable(Protocol):
    """Let an environment go on exactly where it was."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return everything that its future depends on."""

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a snapshot.

        Args:
            snapshot: What `snapshot` returned.
        """


def train(
    agent: QLearner,
    env: Environment,
    frames: int,
    *,
    evaluation: Evaluation | None = None,
    about: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    follow: Sequence[Follower] = (),
) -> GameRecord:
    """Let an agent play and learn, evaluate it from time to time, and return the record.

    Args:
        agent: An agent that has not learned anything yet.
        env: Any Gymnasium environment with discrete actions.
        frames: How many frames to play.
        evaluation: How the agent is evaluated; None for not at all.
        about: What to write into the record about the environment.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists. The
            environment needs `snapshot()` and `restore()` for that. A run that was killed and started again ends with
            the same weights and scores, bit for bit.
        follow: Who is told how the run is going; this does not change what is learned.
    """
    work = Training(agent, env, frames, evaluation=evaluation, about=about, checkpoint=checkpoint)
    return done(work, follow)


@final
class Training(BaseRun[GameRecord]):
    """Train an agent and be watched: iterate over `steps`, then ask for the `record`.

    Args:
        agent: An agent that has not learned anything yet.
        env: Any Gymnasium environment with discrete actions.
        frames: How many frames to play.
        evaluation: How the agent is evaluated; None for not at all.
        about: What to write into the record about the environment.
        checkpoint: Save the run at this path from time to time, and continue from there if the file exists.
        seed: Decides what the environment draws; None for the agent's seed.
        at_the_end: What to do with the record once it is there, such as saving the agent beside it.
    """

    def __init__(
        self,
        agent: QLearner,
        env: Environment,
        frames: int,
        *,
        evaluation: Evaluation | None = None,
        about: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        seed: int | None = None,
        at_the_end: Callable[[GameRecord], None] | None = None,
    ) -> None:
        instance("agent", agent, QLearner, "an agent, for instance DQN(model)")
        check_count("frames", frames, "an agent plays at least one frame")
        check_spaces(env)
        if evaluation is not None:
            instance("evaluation", evaluation, Evaluation, "an Evaluation, or None")
        if at_the_end is not None:
            function("at_the_end", at_the_end)
        self.agent, self.env, self.frames, self.evaluation = agent, env, whole("frames", frames), evaluation
        self.path = path_of("checkpoint", checkpoint) if checkpoint is not None else None
        if self.path is not None:
            self._world()
        self.seed = agent.seed if seed is None else Draws(seed).seed
        self._at_the_end = at_the_end
        self.identity = GameIdentity.of(
            type(agent).__name__,
            agent.settings(),
            describe(agent.model),
            (mapping("about", about) if about is not None else {})
            or {"game": env.spec.id if env.spec is not None else name_of(env)},
            frames=self.frames,
            seed=self.seed,
            evaluation=evaluation,
        )
        self._playing: Playing | None = None  # before the first frame
        self._measured: list[Scores] = []
        self._at: list[int] = []
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._chunk = 16  # frames to play before progress is reported again

    @property
    def key(self) -> str:
        """The key that the record will have."""
        return self.identity.key

    @property
    def tasks(self) -> int:
        """How many tasks the agent learns, one after the other."""
        return len(self.env.schedule.values) if isinstance(self.env, ScheduledEnv) else 1

    @property
    def trained(self) -> QLearner:
        """The agent."""
        return self.agent

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.identity.learner} on {self.identity.game.get('game', 'a game')}, seed {self.agent.seed}"

    def described(self) -> dict[str, Any]:
        """Return what is run, as plain JSON values."""
        what = self.identity
        return {"learner": what.learner, "settings": what.settings, "model": what.model, "game": what.game}

    def curves(self) -> Curves:
        """Return the mean score of each task over the frames."""
        return {
            f"score of task {task}": [(at, float(np.mean(of_all[task - 1]))) for at, of_all in self._points()]
            for task in range(1, 1 + max((len(one) for one in self._measured), default=0))
        }

    def _points(self) -> list[tuple[int, Scores]]:
        """Return all evaluations with the number of frames played by then."""
        return list(zip(self._at, self._measured, strict=True))

    def steps(self) -> Iterator[Progress]:
        """Play, learn and evaluate step by step; each step says how far the run has come."""
        if self.path is not None and exists(self.path):
            self._restore(self.path)
        elif self.agent.seen:
            raise InputError(f"this agent has already seen {self.agent.seen} frames: give train a new one")
        else:
            self._playing = playing(self.agent, self.env, self._first())
            self.save()  # so that a path that cannot be written is noticed before the work
        saved, pause = time.monotonic(), SAVE_EVERY
        while True:
            if self._due():
                yield self._progress("evaluating")
                self._evaluate()
            if self.agent.seen >= self.frames:
                break
            self._play()
            if time.monotonic() - saved > pause:
                began = time.monotonic()
                self.save()
                saved = time.monotonic()
                pause = max(SAVE_EVERY, (saved - began) / SAVE_SHARE)
            yield self._progress("learning")
        self.save()
        if self._at_the_end is not None:
            answer("at_the_end", self._at_the_end, self.record())

    def record(self) -> GameRecord:
        """Return the record: what was run, and the scores."""
        return GameRecord.of(
            self.identity,
            seed=self.agent.seed,
            engine=self.agent.chosen_engine.name,
            frames=self._at,
            scores=self._measured,
            episodes=self.agent.episodes,
            theta=self.agent.weights.theta,
            seconds=self._seconds,
        )

    def _play(self) -> None:
        """Play some frames, for about half a second, so that progress is shown and Ctrl-C is noticed."""
        start = time.perf_counter()
        every = self.evaluation.every if self.evaluation is not None else self.frames
        ahead = min(self.frames, (self.agent.seen // every + 1) * every) - self.agent.seen
        self._at_play.play(min(self._chunk, ahead))
        took = time.perf_counter() - start
        self._seconds["learn"] += took
        self._chunk = 2 * self._chunk if took < 0.25 else max(1, self._chunk // 2) if took > 1 else self._chunk

    @property
    def _at_play(self) -> Playing:
        assert self._playing is not None, "steps begins with it"
        return self._playing

    def _first(self) -> Any:
        """Begin the first episode; return what is observed, after a look at whether the model can act on it."""
        with asking(name_of(self.env), "when reset"):
            seen, _ = self.env.reset(seed=self.seed)
        with learning_from(name_of(self.env), "when reset"):
            outputs = tuple(self.agent.outputs(np.asarray(seen)[None]).shape[1:])
        actions = int(cast(gymnasium.spaces.Discrete, self.env.action_space).n)
        if outputs != (actions,):
            raise InputError(
                f"{name_of(self.env)} has {actions} actions, but the model's outputs have shape {outputs}: use a model "
                f"with one output per action"
            )
        return seen

    def _due(self) -> bool:
        """Return whether the agent must be evaluated now."""
        if self.evaluation is None or (self._at and self._at[-1] == self.agent.seen):
            return False
        return self.agent.seen % self.evaluation.every == 0 or self.agent.seen >= self.frames

    def _evaluate(self) -> None:
        assert self.evaluation is not None, "_due has looked"
        start = time.perf_counter()
        self._measured.append(self.evaluation.scores(self.agent))
        self._at.append(self.agent.seen)
        self._seconds["evaluate"] += time.perf_counter() - start

    def _progress(self, doing: Any) -> Progress:
        latest = [f"{np.mean(of_task):.0f}" for of_task in self._measured[-1]] if self._measured else []
        remark = f"scores {' '.join(latest)}" if latest else ""
        finished = self.agent.seen * self.tasks // self.frames
        return Progress(doing, finished, self.agent.seen, self.frames, remark)

    def _world(self) -> Resumable:
        """Return the environment, without wrappers that only check, as one that can take snapshots."""
        env = without_checks(self.env)
        if not isinstance(env, Resumable):
            raise InputError(
                f"{type(env).__name__} cannot go on where it was: give it snapshot() and restore(), or leave the "
                f"checkpoint out"
            )
        return env

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self.path is None:
            return
        world = self._world().snapshot()
        measured = {f"world.{name}": torch.from_numpy(np.array(value)) for name, value in world.items()}
        measured["seen"] = torch.from_numpy(np.array(self._at_play.seen))
        state = {"scores": self._measured, "at": self._at, "seconds": self._seconds}
        checkpoints.save(self.agent, self.path, {"run": state, "settings": self._settings()}, measured)

    def _restore(self, path: Path) -> None:
        _, measured = checkpoints.restore(self.agent, path, self._settings(), self._take)
        self._playing = playing(self.agent, self.env, measured["seen"].numpy())

    def _take(self, extra: dict[str, Any], measured: dict[str, Tensor]) -> Callable[[], None]:
        """Check the saved state of a run, and return a function that puts this run into it."""
        state = extra["run"]
        scores, at = list(state["scores"]), [whole("at", frame) for frame in state["at"]]
        seconds = {name: float(state["seconds"][name]) for name in self._seconds}
        if self.evaluation is not None:
            wanted = len(self.evaluation.tasks), self.evaluation.episodes
            if any(np.array(of_all).shape != wanted or not np.isfinite(of_all).all() for of_all in scores):
                raise InputError("the scores are not those of its evaluations")
        if len(at) != len(scores) or (scores and self.evaluation is None):
            raise InputError(f"{len(scores)} evaluations were made at {len(at)} frames")
        first, seen = np.asarray(self._first()), measured["seen"].numpy()
        if seen.shape != first.shape or seen.dtype != first.dtype:
            raise InputError(f"what is observed has shape {seen.shape} and dtype {seen.dtype}")
        self._world().restore({name: value.numpy() for name, value in part(measured, "world.").items()})

        def take() -> None:
            self._measured, self._at, self._seconds = scores, at, seconds

        return take

    def _settings(self) -> dict[str, object]:
        """Return what a resumed run must have in common with the saved one, besides the agent."""
        return {f"game.{name}": value for name, value in self.identity.game.items()}


def check_spaces(env: Environment) -> None:
    """Raise InputError for an environment that an agent cannot play.

    Args:
        env: The environment.
    """
    if not isinstance(env, gymnasium.Env):
        raise InputError(f"env is a {type(env).__name__}: use a Gymnasium environment")
    name, actions, seen = name_of(env), env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or int(actions.start) != 0:
        raise InputError(f"{name} has the action space {actions}: use one with discrete actions 0, 1, 2, ...")
    if not isinstance(seen, gymnasium.spaces.Box):
        raise InputError(f"{name} has the observation space {seen}: use one of arrays (a Box)")
