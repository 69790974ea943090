"""Files of trained agents."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_games import small_game, small_pixels

import metareplay as mr
from metareplay._core.archive import read_archive, write_archive
from metareplay.cli.agents import load_agent
from metareplay.environments import CATCHER_SPEEDS
from metareplay.errors import CheckpointError
from metareplay.rl.agent_file import SUFFIX, read_agent, save_agent
from metareplay.runners import Threads


def test_a_trained_agent_is_read_again(tmp_path: Path) -> None:
    experiment = small_game(game_options={"rewards": {"positive": 2.0}}, hidden=(9, 7))
    work = experiment.start(tmp_path / "run.ckpt")
    for _ in work.steps():
        pass
    path = tmp_path / (work.record().name + SUFFIX)
    found, model = read_agent(path)
    assert (found, found.key) == (experiment, experiment.key)
    assert not model.training
    for one, other in zip(model.parameters(), work.agent.model.parameters(), strict=True):
        assert torch.equal(one, other)
    x, agent = torch.rand(30, 4), load_agent(path)
    assert [agent.policy(one.numpy()) for one in x] == work.agent.predict(x).tolist()
    assert (agent.game, agent.tasks) == ("catcher", CATCHER_SPEEDS)
    assert agent.options == {"observation": "state", "rewards": {"positive": 2.0}}


def test_pictures_are_scaled_as_in_training(tmp_path: Path) -> None:
    work = small_pixels().start()
    save_agent(tmp_path / "a.agent", small_pixels(), work.agent.model)
    x, agent = torch.randint(256, (8, 4, 36, 36), dtype=torch.uint8), load_agent(tmp_path / "a.agent")
    assert [agent.policy(one.numpy()) for one in x] == work.agent.predict(x).tolist()
    assert agent.options == {"observation": "pixels", "size": 36}


def test_only_a_finished_run_in_a_folder_leaves_an_agent(tmp_path: Path) -> None:
    (record,) = Threads(1).run([small_game(frames=5)], tmp_path)
    assert record is not None
    assert {path.name for path in tmp_path.iterdir()} == {f"{record.name}.json", f"{record.name}.agent"}
    for _ in small_game(frames=5).start().steps():  # without a folder
        pass


SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown game": ({"game": "pong"}, "holds no agent that this version knows: game 'pong'"),
    "an unknown learner": ({"hidden": None}, "holds no agent that this version knows"),
    "another model": ({"hidden": (3,)}, "is of another model"),
    "nothing": ({"hidden": "many"}, "holds no agent that this version knows"),
}


@pytest.mark.parametrize(("change", "message"), SPOILED.values(), ids=SPOILED.keys())
def test_an_agent_that_cannot_be_made_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.agent"
    save_agent(path, small_game(), small_game().make_model())
    about, tensors = read_archive(path)
    write_archive(path, {"experiment": about["experiment"] | change}, tensors)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        read_agent(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_agents(tmp_path: Path) -> None:
    path = tmp_path / "a.agent"
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_agent(path)
    path.write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(CheckpointError, match="is damaged or not a metareplay checkpoint"):
        read_agent(path)
    mr.DQN(mr.networks.mlp(4, (8,), 3), memory=mr.Recent(5)).save(path)
    with pytest.raises(CheckpointError, match=r"is damaged \(experiment is missing\)"):
        read_agent(path)
    unfit: list[Any] = [5, [], None, {}]
    for wrong in unfit:
        write_archive(path, {"experiment": wrong}, {})
        with pytest.raises(CheckpointError, match="holds no agent that this version knows"):
            read_agent(path)
