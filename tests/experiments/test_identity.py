"""What a run is: everything that decides its result enters the key, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from small_runs import mer, rotations
from torch import nn

import metareplay as mr
from metareplay.experiments.identity import Identity, describe

PLAIN = Identity(learner="MER", settings={"lr": 0.1, "engine": "auto"}, model="net", stream={"tasks": 2})


def test_the_key_stays_the_same_from_version_to_version() -> None:
    assert PLAIN.key == "89accba7b7399512"
    assert replace(PLAIN, settings={"lr": 0.1}, alignment=5).key == "deb9ef8fdfbccd35"
    assert replace(PLAIN, full_matrix=True).key == "3df5bf533aaa43a0"


SAME: dict[str, dict[str, Any]] = {
    "engine": {"settings": {"lr": 0.1, "engine": "cuda"}},
    "no engine": {"settings": {"lr": 0.1}},
    "order": {"settings": {"engine": "auto", "lr": 0.1}},
    "the past without a comparison": {"past": "after"},
}
OTHER: dict[str, dict[str, Any]] = {
    "learner": {"learner": "ER"},
    "rate": {"settings": {"lr": 0.2}},
    "an option more": {"settings": {"lr": 0.1, "clip": None}},
    "model": {"model": "another net"},
    "stream": {"stream": {"tasks": 3}},
    "gradients compared": {"alignment": 1},
    "gradients compared with those after": {"alignment": 1, "past": "after"},
    "full matrix": {"full_matrix": True},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME.keys())
def test_the_key_does_not_depend_on(changes: dict[str, Any]) -> None:
    assert replace(PLAIN, **changes).key == PLAIN.key


def test_everything_else_makes_another_key() -> None:
    keys = {name: replace(PLAIN, **changes).key for name, changes in OTHER.items()}
    assert len({PLAIN.key, *keys.values()}) == len(OTHER) + 1


def test_the_identity_of_a_learner_on_a_stream() -> None:
    learner, stream = mer(seed=5), rotations(seed=2)
    found = Identity.of(learner, stream)
    assert (found.learner, found.settings, found.stream) == ("MER", learner.settings(), stream.settings())
    assert found.model == describe(learner.model)
    assert found == mr.Run(mer(seed=5), rotations(seed=2)).identity
    more = mr.Run(mer(seed=5), rotations(seed=2), full_matrix=True, training=True, alignment=3, past="after")
    assert more.identity == replace(found, full_matrix=True, training=True, alignment=3, past="after")
    assert more.key == more.identity.key != found.key


def test_a_module_is_described_in_one_line() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    expected = "Sequential( (0): Linear(in_features=4, out_features=3, bias=True) (1): ReLU() )"
    assert describe(net) == expected
    assert describe(mr.networks.torch_default(net, 0)) == f"{expected} with first weights by torch's default"
