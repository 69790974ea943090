"""What is drawn ahead is what an agent draws frame by frame."""

import numpy as np
import pytest

import metareplay as mr
from metareplay._core.draws import Purpose
from metareplay.memories.sampler import Sampler
from metareplay.rl.arcade.kernels import GREEDY, draw_ahead
from metareplay.rl.compiled import habits_of

FRAMES, ACTIONS = 200, 3


def agent(kind: type[mr.Recent] | type[mr.Reservoir]) -> mr.DQNMER:
    options = {"k": 4, "s": 2, "warmup": 10, "epsilon_frames": 90, "seed": 3}
    return mr.DQNMER(mr.networks.mlp(2, (3,), ACTIONS), memory=kind(30), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [mr.Recent, mr.Reservoir])
@pytest.mark.parametrize("chunk", [1, 7, FRAMES])
def test_draws(kind: type[mr.Recent] | type[mr.Reservoir], chunk: int) -> None:
    one, other = agent(kind), agent(kind)
    times, order, held = np.full(30, -1), np.zeros(30, np.int64), np.zeros(1, np.int64)
    explored, rows = np.zeros(FRAMES, np.int64), np.zeros((FRAMES, 8), np.int64)
    for at in range(0, FRAMES, chunk):
        part = slice(at, at + chunk)
        draw_ahead(at, times, order, held, habits_of(one), ACTIONS, explored[part], rows[part])
    frame_in = np.full(31, -1)  # the frame of the transition that is in each row of the table
    for frame in range(FRAMES):
        p, which = other.draws.fractions(Purpose.ACTION, frame, 1, 2)[0]
        assert explored[frame] == (int(which * ACTIONS) if p <= other.epsilon else GREEDY)
        frame_in[30] = frame
        with Sampler(other.memory, other.draws, frame, np.array([-1])) as memory:
            plan = other.plan(memory)
        if frame >= 10:
            assert rows[frame].tolist() == frame_in[plan.rows].tolist()
        if plan.slots[0] >= 0:
            frame_in[plan.slots[0]] = frame
        other.memory.keep(plan.slots, np.array([-1]))
        other.seen += 1
