"""Game and learner in one compiled loop: the same bits as frame by frame, about a hundred times as fast.

An agent whose engine is the compiled one, and one of the two games with state vectors, need no Python between frames.
`obstacle` says whether an agent and an environment can be joined like this, and `CompiledPlay` does it.
"""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import check_count
from metareplay._core.columns import Columns
from metareplay._core.draws import Purpose
from metareplay._core.interrupts import HeldBack
from metareplay._core.numba_private import cached_njit, source_stamp
from metareplay._core.plan import Rates
from metareplay._core.table import Table, TensorColumn
from metareplay.engines.cpu import q_compiling, q_steps
from metareplay.engines.cpu.layout import Index
from metareplay.engines.cpu.q_compiling import OPTIONS
from metareplay.engines.cpu.q_engine import CpuQEngine
from metareplay.engines.cpu.q_steps import QNet, QRates, Transitions, best_action, learn
from metareplay.engines.engine import Outcome
from metareplay.environments import kernels, play
from metareplay.environments.game import Game
from metareplay.environments.kernels import OVER, SCORE, State
from metareplay.errors import InputError
from metareplay.learners.dqn import DQN
from metareplay.learners.dqn_mer import DQNMER
from metareplay.learners.q_learner import QLearner
from metareplay.memories.recent import Recent
from metareplay.memories.reservoir import Reservoir

Array = NDArray[Any]
Function = TypeVar("Function")
GAMES = "metareplay.environments.environment"  # where the environments of the compiled games are
TRANSPARENT = {  # wrappers that change nothing of a frame
    "metareplay.environments.scheduled.ScheduledEnv",
    "gymnasium.wrappers.common.OrderEnforcing",
    "gymnasium.wrappers.common.PassiveEnvChecker",
}
STAMP = " ".join((q_compiling.STAMP, kernels.STAMP, source_stamp(Path(__file__).parent, ("compiled.py",))))


def compiled(function: Function) -> Function:
    """Compile a function for this CPU when it is first called, without the GIL, and keep the result on disk."""
    return cast(Function, cached_njit(cast(Any, function), OPTIONS, STAMP))


class Held(NamedTuple):
    """Hold what a memory and its table have besides the transitions' own columns."""

    order: Array  # (capacity,) int64: slots in the order they were first filled
    is_filled: Array  # (capacity,) bool
    tasks: Array  # (R,) int64
    writes: Array  # (R,) int64: how often each row was written


class Counts(NamedTuple):
    """Hold what is counted from frame to frame, as arrays of one number."""

    seen: Array
    episodes: Array
    offered: Array  # transitions offered to the memory
    held: Array  # transitions that the memory holds


class Habits(NamedTuple):
    """Hold an agent's options and the keys of its draws."""

    action_key: np.uint64
    keep_key: np.uint64
    replay_key: np.uint64
    epsilon_start: float
    epsilon_end: float
    epsilon_frames: int
    warmup: int
    reward_clip: float  # infinity for no limit
    target_every: int
    by_frames: bool  # whether target_every counts frames; otherwise it counts episodes
    is_recent: bool  # whether the memory holds the most recent transitions; otherwise it is a reservoir
    k: int
    s: int


@compiled
def mix(word: Any) -> Any:
    """Apply SplitMix64's output function, as in `_core/draws.py`."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def fraction(key: Any, example: Index, number: Index) -> float:
    """Return the draw with this number, counted from 0, for an example: what `Draws.fractions` gives."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    word = mix(mix(key + np.uint64(example) * golden) + np.uint64(number + 1) * golden)
    return float(np.float64(word >> np.uint64(11)) * 2.0**-53)


@compiled
def choose(net: QNet, table: Transitions, row: Index, seen: Index, habits: Habits) -> int:
    """Choose the action of a frame, as `QLearner.act` does."""
    done = min(1.0, seen / habits.epsilon_frames)
    epsilon = habits.epsilon_start + (habits.epsilon_end - habits.epsilon_start) * done
    if fraction(habits.action_key, seen, 0) <= epsilon:
        return int(fraction(habits.action_key, seen, 1) * net.widths[-1])
    return int(best_action(net, net.weights, table.x, row))


@compiled
def place(offered: Index, capacity: Index, habits: Habits) -> int:
    """Choose the slot of a transition, as `Recent` and `Reservoir` do; -1 if it is not kept."""
    if habits.is_recent:
        return int(offered % capacity)
    if offered < capacity:
        return int(offered)
    slot = int(fraction(habits.keep_key, offered, 0) * (offered + 1))
    return slot if slot < capacity else -1


@compiled
def sample(rows: Array, ends: Array, held: Held, count: Index, slot: Index, seen: Index, habits: Habits) -> None:
    """Draw the batches of a frame, as a `Sampler` does: the incoming transition first, then some from memory."""
    incoming, size, at, drawn = len(held.order), min(habits.k - 1, count), 0, 0
    for b in range(habits.s):
        ends[b] = at
        rows[at] = incoming
        at += 1
        for _ in range(size):
            found = held.order[int(fraction(habits.replay_key, seen, drawn) * count)]
            rows[at] = incoming if found == slot else found  # it is copied into its slot after the frame
            at += 1
            drawn += 1
    ends[habits.s] = at


@compiled
def store(table: Transitions, held: Held, slot: Index) -> None:
    """Copy the incoming transition into a slot."""
    row = len(held.order)
    for i in range(table.x.shape[1]):
        table.x[slot, i] = table.x[row, i]
        table.next_x[slot, i] = table.next_x[row, i]
    table.action[slot] = table.action[row]
    table.reward[slot] = table.reward[row]
    table.over[slot] = table.over[row]
    held.tasks[slot] = held.tasks[row]
    held.writes[slot] += 1
    held.is_filled[slot] = True


@compiled
def play_frames(
    state: State,
    frames: int,
    net: QNet,
    table: Transitions,
    held: Held,
    counts: Counts,
    rows: Array,
    ends: Array,
    rates: QRates,
    habits: Habits,
) -> int:
    """Play and learn; return how many frames were learned before the first that is not finite, which is undone."""
    row = len(held.order)
    for frame in range(frames):
        if state[OVER] == 1:
            play.reset(state)
        seen = counts.seen[0]
        play.observe(state, True, table.x[row])
        action = choose(net, table, row, seen, habits)
        reward, over = play.tick(state, action)
        play.observe(state, True, table.next_x[row])
        table.action[row] = action
        table.reward[row] = min(max(reward, -habits.reward_clip), habits.reward_clip)
        table.over[row] = over
        held.tasks[row] = -1
        held.writes[row] += 1
        slot = place(counts.offered[0], row, habits)
        is_new = slot >= 0 and not held.is_filled[slot]
        if is_new:
            held.order[counts.held[0]] = slot
        if seen >= habits.warmup:
            sample(rows, ends, held, counts.held[0] + is_new, slot, seen, habits)
            if not learn(net, table, rows, ends, np.int64(0), habits.s, row, rates):
                return frame
        if slot >= 0:
            store(table, held, slot)
        counts.held[0] += is_new
        counts.offered[0] += 1
        counts.seen[0] += 1
        counts.episodes[0] += over
        counted = counts.seen[0] if habits.by_frames else counts.episodes[0]
        if (habits.by_frames or over) and counted % habits.target_every == 0:
            q_steps.copy(net.weights.flat, net.target.flat)
    return frames


@compiled
def play_greedily(states: Array, cap: int, net: QNet, seen: Array, scores: Array, lengths: Array) -> None:
    """Play each game by the best actions until it ends or for `cap` frames; write scores and lengths."""
    for game in range(len(states)):
        state = states[game]
        lengths[game] = cap
        for frame in range(cap):
            play.observe(state, True, seen[0])
            _, over = play.tick(state, best_action(net, net.weights, seen, 0))
            if over:
                lengths[game] = frame + 1
                break
        scores[game] = int(state[SCORE])


@final
class CompiledPlay:
    """Let an agent play and learn many frames in one compiled call.

    Weights, target network, moments, memory, table, counts and the state of the game are afterwards, bit for bit, what
    this loop leaves in an environment with `observation="state"`:

        action = agent.act(x)
        next_x, reward, terminated, truncated, info = env.step(action)
        agent.observe(x, action, reward, next_x, terminated, truncated)

    The next episode begins with the first frame after the end of the last, so a game that ended with the last frame of
    a call begins again in the next call, with the difficulty that it brings.

    Args:
        agent: A DQN or DQNMER for which `obstacle` finds nothing.
        game: The settings of the game.
        state: The state of the game, which is played in place; see `Game.new_state` and `GameEnv.snapshot`.
    """

    def __init__(self, agent: QLearner, game: Game, state: State) -> None:
        missing = _obstacle(agent, game)
        if missing is not None:
            raise InputError(f"the agent cannot play in a compiled loop: {missing}")
        self.agent, self.game, self.state = agent, game, state
        batches = agent.s if isinstance(agent, DQNMER) else 1
        self._rows, self._ends = np.zeros(batches * agent.k, np.int64), np.zeros(batches + 1, np.int64)

    def frames(self, count: int, difficulty: float | None = None) -> None:
        """Play and learn.

        A frame whose loss or weights are not finite is undone and named by a NonFiniteError; the frames before it stay
        learned, and those after it are not played.

        Args:
            count: How many frames.
            difficulty: The game's difficulty from the first of these frames on; None for the one it has.
        """
        check_count("count", count, "at least one frame is played")
        if difficulty is not None:
            self.state[self.game.difficulty_entry] = self.game.checked_difficulty(difficulty)
        engine = self.agent.chosen_engine
        if not isinstance(engine, CpuQEngine):
            raise TypeError(type(engine))  # the constructor has looked
        with engine.lock, HeldBack():
            table = self._table()
            learned, counts = self._frames(count, engine, table)
            self._count(counts, learned, table)
        if learned < count:
            incoming = table.gather(torch.tensor([table.capacity]))
            self.agent.finish(Outcome(0), np.zeros(0, np.int64), incoming, table)

    def scores(self, theta: Tensor, states: Array, cap: int) -> tuple[Array, Array]:
        """Play games by the actions with the greatest values, without learning. Another thread may learn meanwhile.

        Args:
            theta: The weights of the Q-network, flat, in the order of the model's parameters.
            states: The states of the games, one per row; they are left as they are.
            cap: The largest number of frames to play each of them.

        Returns:
            The score of each game (pellets caught, or pipes passed) and how many frames it lasted.
        """
        engine = self.agent.chosen_engine
        if not isinstance(engine, CpuQEngine):
            raise TypeError(type(engine))  # the constructor has looked
        assert engine.chain is not None, "the constructor has looked"
        net = q_steps.make_net(engine.chain.widths, 1, adam=False)
        q_steps.pack(net, theta.detach().numpy(), net.weights)
        scores, lengths = np.zeros(len(states), np.int64), np.zeros(len(states), np.int64)
        played, seen = np.array(states, np.float64), np.zeros((1, self.game.values), np.float32)
        play_greedily(played, cap, net, seen, scores, lengths)
        return scores, lengths

    def _frames(self, count: int, engine: CpuQEngine, table: Table) -> tuple[int, Counts]:
        """Run the compiled loop; return how many frames were learned, and the counts."""
        agent = self.agent
        agent.weights.check()
        objective, memory, kernel = agent.temporal_difference, agent.memory, engine.kernel(agent.k)
        tasks = table.column("task")
        assert isinstance(tasks, TensorColumn), "the constructor has looked"
        counts = Counts(*(np.array([n]) for n in (agent.seen, agent.episodes, memory.seen, len(memory))))
        kernel.take(objective)
        arguments = (
            kernel.net,
            kernel.columns(table),
            Held(memory.order, memory.is_filled, tasks.values.numpy(), table.writes),
            counts,
            self._rows,
            self._ends,
            kernel.rates(self._rates(), objective, together=isinstance(agent, DQN)),
            habits_of(agent),
        )
        with kernel.compiling():
            play_frames(self.state, 0, *arguments)  # compiles, if need be, and does nothing else
        learned = play_frames(self.state, count, *arguments)
        kernel.give(objective)
        return learned, counts

    def _count(self, counts: Counts, learned: int, table: Table) -> None:
        """Take over what was counted."""
        agent, memory = self.agent, self.agent.memory
        agent.seen, agent.episodes = int(counts.seen[0]), int(counts.episodes[0])
        seen_of = memory.seen_of + type(memory.seen_of)({-1: learned})
        memory.restore(memory.order[: counts.held[0]].copy(), seen_of, int(counts.offered[0]), table)

    def _table(self) -> Table:
        """Return the agent's table; make it before the first frame."""
        agent, zero = self.agent, torch.zeros(1, self.game.values)
        if agent.table is None:
            columns = {"x": zero, "action": torch.zeros(1, dtype=torch.int64), "reward": torch.zeros(1)}
            columns |= {"next_x": zero, "over": torch.zeros(1, dtype=torch.bool), "task": torch.full((1,), -1)}
            agent.table = agent.make_table(Columns(columns), agent.piece_size())
            agent.expect(zero)
        return agent.table

    def _rates(self) -> Rates:
        agent = self.agent
        if isinstance(agent, DQNMER):
            return Rates(memory=agent.lr, current=agent.lr, within=agent.beta, across=agent.gamma)
        return Rates(memory=agent.lr, current=agent.lr)


def habits_of(agent: QLearner) -> Habits:
    """Return an agent's options and the keys of its draws, as compiled functions take them.

    Args:
        agent: A DQN or DQNMER.
    """
    key = agent.draws.key
    return Habits(
        action_key=np.uint64(key(Purpose.ACTION)),
        keep_key=np.uint64(key(Purpose.KEEP)),
        replay_key=np.uint64(key(Purpose.REPLAY)),
        epsilon_start=agent.epsilon_start,
        epsilon_end=agent.epsilon_end,
        epsilon_frames=agent.epsilon_frames,
        warmup=agent.warmup,
        reward_clip=np.inf if agent.reward_clip is None else agent.reward_clip,
        target_every=agent.target_every,
        by_frames=agent.target_in == "frames",
        is_recent=isinstance(agent.memory, Recent),
        k=agent.k,
        s=agent.s if isinstance(agent, DQNMER) else 1,
    )


def obstacle(agent: QLearner, env: Any) -> str | None:
    """Say in one line why an agent and an environment cannot be joined in a compiled loop; None if they can.

    Args:
        agent: The agent.
        env: An environment with Gymnasium's interface.
    """
    inside = env
    while hasattr(inside, "env"):
        if f"{type(inside).__module__}.{type(inside).__name__}" not in TRANSPARENT:
            return f"the wrapper {type(inside).__name__} may change what happens in a frame"
        inside = inside.env
    game = getattr(inside, "game", None)
    if not isinstance(game, Game) or type(inside).__module__ != GAMES:
        return f"{type(inside).__name__} is not compiled: CatcherEnv and FlappyBirdEnv are"
    if inside.observation != "state":
        return f"the observations are {inside.observation!r}: use observation='state'"
    return _obstacle(agent, game)


def _obstacle(agent: QLearner, game: Game) -> str | None:
    """Say why an agent cannot play a game in a compiled loop; None if it can."""
    engine, memory = agent.chosen_engine, agent.memory
    if not isinstance(agent, DQN | DQNMER):
        return f"{type(agent).__name__} draws its own batches: use DQN or DQNMER"
    optimizer = agent.make_optimizer(torch.nn.Parameter(agent.weights.theta))
    missing = CpuQEngine.obstacle(agent.weights, agent.objective, optimizer)
    if missing is not None:
        return f"the compiled engine needs {missing}"
    if not isinstance(engine, CpuQEngine):
        return f"the engine is {engine.name!r}: use engine='auto'"
    if engine.chain is None:
        return "the model has convolutions, which look at pictures"
    missing = None if agent.table is None else engine.misfit(agent.table, agent.objective)
    if missing is not None:
        return f"the compiled engine needs {missing}"
    if not isinstance(memory, Recent | Reservoir) or (isinstance(memory, Reservoir) and memory.rule != "paper"):
        return "the memory is of another kind: use Recent, or Reservoir with rule='paper'"
    if memory.storage is not None:
        return "the memory has a storage of its own: use storage=None"
    if (engine.chain.widths[0], engine.chain.widths[-1]) != (game.values, game.actions):
        return f"the game has {game.values} numbers and {game.actions} actions: the model's shape is another"
    return None
