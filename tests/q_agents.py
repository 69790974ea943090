"""Agents of deep Q-learning for tests of engines: kinds, rates, options of all sorts, and how far weights are apart."""

from typing import Any

from hypothesis import strategies as st

import metareplay as mr

KINDS: dict[str, type[mr.DQN] | type[mr.DQNMER]] = {"DQN": mr.DQN, "DQNMER": mr.DQNMER}
EXPLORES: dict[str, Any] = {"epsilon_start": 1.0, "epsilon_end": 1.0}  # rounding cannot change an action
RATES = {"sgd": 0.05, "adam": 1e-3}


def distance(one: mr.QLearner, other: mr.QLearner) -> float:
    return float((one.weights.theta - other.weights.theta).norm() / one.weights.theta.norm())


@st.composite
def agents(draw: st.DrawFn, most: int) -> tuple[str, dict[str, Any]]:
    """A kind of agent and its options, with batches of at most so many transitions."""
    kind, optimizer = draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(list(RATES)))
    options = {
        "optimizer": optimizer,
        "lr": RATES[optimizer],
        "k": draw(st.integers(1, most)),
        "double": draw(st.booleans()),
        "clip": draw(st.sampled_from([None, 0.05, 10.0])),
        "warmup": draw(st.sampled_from([0, 7])),
        "target_every": draw(st.integers(1, 6)),
        "target_in": draw(st.sampled_from(["frames", "episodes"])),
        "seed": draw(st.integers(0, 1000)),
    }
    if kind == "DQNMER":
        options |= {"s": draw(st.integers(1, 3)), "beta": draw(st.sampled_from([0.3, 1.0])), "gamma": 0.3}
    return kind, options
