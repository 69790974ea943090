"""The environments: Gymnasium's own checks, seeds, what resets leave, changes of difficulty, bad arguments."""

import re
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from metareplay import environments
from metareplay.environments import CatcherEnv, FlappyBirdEnv
from metareplay.environments.environment import GameEnv
from metareplay.errors import GymnasiumMissingError, InputError

CATCHER, FLAPPY_BIRD = "metareplay/Catcher-v0", "metareplay/FlappyBird-v0"
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    (CATCHER, {}),
    (CATCHER, {"size": 84, "frames": 1}),
    (CATCHER, {"size": (30, 40), "frames": 2}),
    (CATCHER, {"observation": "state"}),
    (CATCHER, {"observation": "raw", "rounding": "round"}),
    (CATCHER, {"observation": "raw", "screen": 640, "pellet_speed": 0.758}),
    (CATCHER, {"observation": "state", "pellet_speed": 1.92}),
    (CATCHER, {"observation": "state", "rewards": {"loss": 0.0, "tick": 0.1}}),
    (FLAPPY_BIRD, {}),
    (FLAPPY_BIRD, {"size": (64, 48), "pipe_gap": 75}),
    (FLAPPY_BIRD, {"size": None, "frames": 1}),
    (FLAPPY_BIRD, {"observation": "state", "rewards": {"positive": 2}}),
    (FLAPPY_BIRD, {"observation": "raw", "carry_velocity": False}),
]
NAMES = [f"{name[11:]} {options}" for name, options in OPTIONS]


def made(name: str, **options: Any) -> GameEnv:
    env = gymnasium.make(name, **options).unwrapped
    assert isinstance(env, GameEnv)
    return env


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=NAMES)
def test_gymnasiums_checker_finds_nothing(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made(name, render_mode="rgb_array", **options), skip_render_check=True)


@pytest.mark.parametrize("name", [CATCHER, FLAPPY_BIRD])
def test_gymnasiums_checker_finds_nothing_in_any_render_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made(name, render_mode="rgb_array"))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=NAMES)
def test_the_checks_made_while_playing_find_nothing(name: str, options: dict[str, Any]) -> None:
    """`gymnasium.make` puts a wrapper around the environment that looks at every observation."""
    env = gymnasium.make(name, **options)
    env.action_space.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(seed=0)
        for _ in range(400):
            seen, _, over, truncated, _ = env.step(env.action_space.sample())
            assert seen in env.observation_space
            assert not truncated
            if over:
                env.reset()


def episode(env: GameEnv, seed: int | None, ticks: int = 300) -> list[Any]:
    seen, info = env.reset(seed=seed)
    found: list[Any] = [seen.tolist(), info]
    for number in range(ticks):
        seen, reward, over, _, info = env.step((number * number // 7) % env.game.actions)
        found.append((seen.tolist(), reward, over, info))
        if over:
            found.append(env.reset()[0].tolist())
    return found


@pytest.mark.parametrize("name", [CATCHER, FLAPPY_BIRD])
@pytest.mark.parametrize("observation", ["pixels", "state", "raw"])
def test_the_seed_decides_everything(name: str, observation: str) -> None:
    first, second = (made(name, observation=observation) for _ in range(2))
    expected = episode(first, 5)
    assert episode(second, 5) == expected
    assert episode(first, 5) == expected, "an episode that begins with a seed knows nothing of what was before"
    assert episode(second, 6) != expected
    assert episode(second, None) != expected


def test_without_a_seed_every_environment_is_another() -> None:
    assert episode(CatcherEnv(observation="raw"), None) != episode(CatcherEnv(observation="raw"), None)


def test_an_episode_is_the_compiled_game() -> None:
    env = FlappyBirdEnv(observation="raw", pipe_gap=90)
    env.reset(seed=11)
    np.testing.assert_array_equal(env.snapshot()["state"], env.game.new_state(11))


def test_the_newest_picture_is_the_last() -> None:
    many, one = CatcherEnv(frames=3), CatcherEnv(frames=1)
    seen = [one.reset(seed=0)[0][0]] * 3
    np.testing.assert_array_equal(many.reset(seed=0)[0], seen)
    for action in (0, 1, 1, 0, 2, 0):
        kept = many.step(action)[0]
        seen.append(one.step(action)[0][0])
        np.testing.assert_array_equal(kept, seen[-3:])
        kept[:] = 7  # an observation is the user's own


def test_reset_leaves_no_picture_of_the_last_episode() -> None:
    env = CatcherEnv()
    env.reset(seed=0)
    for _ in range(20):
        env.step(0)
    seen, _ = env.reset()
    assert all((picture == seen[-1]).all() for picture in seen)


def test_velocity_is_carried_over_unless_there_is_a_seed() -> None:
    for carries, velocity in ((True, 10), (False, 0)):
        env = FlappyBirdEnv(observation="raw", carry_velocity=carries)
        env.reset(seed=0)
        while not env.step(1)[2]:
            pass
        assert env.reset()[0][1] == velocity
        assert env.reset(seed=1)[0][1] == 0


def test_the_difficulty_changes_at_once() -> None:
    env = CatcherEnv(observation="raw")
    env.reset(seed=0)
    while env.step(2)[0][3] < 0:
        pass
    before = env.step(2)[0][3]
    env.pellet_speed = 0.1208
    assert env.step(2)[0][3] == before + 4
    assert env.pellet_speed == 0.1208
    env.reset(options={"pellet_speed": 0.0908})
    assert env.pellet_speed == 0.0908
    env.reset(seed=3)
    assert env.pellet_speed == 0.0908, "a change stays"


def test_a_new_gap_holds_for_new_pipes() -> None:
    env = FlappyBirdEnv(observation="raw")
    seen, _ = env.reset(seed=0)
    env.pipe_gap = 75
    assert env.pipe_gap == 75
    after = env.step(1)[0]
    assert [after[4] - after[3], after[7] - after[6]] == [100, 100]
    seen, _ = env.reset()
    assert [seen[4] - seen[3], seen[7] - seen[6]] == [75, 75]
    seen, _ = env.reset(seed=0, options={"pipe_gap": 90})
    assert [seen[4] - seen[3], seen[7] - seen[6]] == [90, 90]


@pytest.mark.parametrize("kind", [CatcherEnv, FlappyBirdEnv])
def test_a_snapshot_goes_on_in_the_same_way(kind: type[CatcherEnv] | type[FlappyBirdEnv]) -> None:
    env, other = kind(), kind()
    episode(env, 3, 50)
    setattr(env, env.game.difficulty, {"pellet_speed": 0.1, "pipe_gap": 80}[env.game.difficulty])
    kept = env.snapshot()
    other.restore(kept)
    assert other.game == env.game
    for number in range(200):
        first, second = (one.step(number % env.game.actions) for one in (env, other))
        np.testing.assert_array_equal(first[0], second[0])
        assert first[1:] == second[1:]
        if first[2]:
            np.testing.assert_array_equal(env.reset()[0], other.reset()[0])
    with pytest.raises(InputError, match="the snapshot is of another environment"):
        (FlappyBirdEnv() if kind is CatcherEnv else CatcherEnv()).restore(kept)


def test_pictures_for_people() -> None:
    env = CatcherEnv(render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (384, 384, 3)
    colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert colours <= {(0, 0, 0), (255, 255, 255), (255, 120, 120)}


def test_without_a_render_mode_there_is_no_picture() -> None:
    env = FlappyBirdEnv()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="nothing to render"):
        assert env.render() is None


def test_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = FlappyBirdEnv(render_mode="human")
    env.reset(seed=0)
    env.step(0)
    assert env.render() is None
    env.close()
    env.close()


def test_without_pygame_there_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(InputError, match=re.escape("render_mode='human' needs pygame: pip install pygame-ce")):
        CatcherEnv(render_mode="human")


def test_without_gymnasium_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in ("CatcherEnv", "FlappyBirdEnv", "ScheduledEnv"):
        with pytest.raises(GymnasiumMissingError, match=re.escape("need gymnasium: pip install 'metareplay[rl]'")):
            getattr(environments, name)
    with pytest.raises(GymnasiumMissingError):
        environments.register()


def test_games_and_schedules_need_no_gymnasium() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None; from metareplay.environments import Catcher, Schedule, play; "
        "print(play.tick(Catcher().new_state(0), 1))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "(0.0, False)"


def test_gymnasium_imports_what_it_is_told_to() -> None:
    code = "import gymnasium; print(gymnasium.make('metareplay.environments:metareplay/Catcher-v0').unwrapped)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CatcherEnv" in result.stdout
    assert result.stderr == ""


def test_registering_again_changes_nothing() -> None:
    before = dict(gymnasium.registry)
    environments.register()
    assert dict(gymnasium.registry) == before


def test_there_is_no_other_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Pong'"):
        _ = environments.Pong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "pixel"}, "observation='pixel': use one of 'pixels', 'state', or 'raw'"),
        ({"size": 4}, "size=4: use a number of pixels from 8 to 4096, or (height, width)"),
        ({"size": (64, 64, 3)}, "size=(64, 64, 3): use a number of pixels from 8 to 4096, or (height, width)"),
        ({"size": "large"}, "size='large': use a whole number"),
        ({"frames": 0}, "frames=0: an observation has at least one picture; use frames >= 1"),
        ({"render_mode": "ansi"}, "render_mode='ansi': use one of 'human', 'rgb_array', or None"),
        ({"rewards": {"catch": 1}}, "rewards has 'catch'; use tick, positive, negative, loss"),
        ({"rewards": {"tick": "much"}}, "the reward tick='much': use a number"),
        ({"rewards": {"tick": float("inf")}}, "rewards={'tick': inf}: use finite numbers"),
        ({"pellet_speed": -1.0}, "pellet_speed=-1.0: use pixels per millisecond"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        CatcherEnv(**options)


def test_bad_calls_are_refused() -> None:
    env = CatcherEnv()
    with pytest.raises(InputError, match=re.escape("no episode has begun; call reset() first")):
        env.step(0)
    env.reset(seed=0)
    for action in (3, -1, 0.5, "left"):
        with pytest.raises(InputError, match=re.escape(f"action={action!r}: use a whole number from 0 to 2")):
            env.step(action)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=re.escape("options has 'pipe_gap'; use 'pellet_speed'")):
        env.reset(options={"pipe_gap": 90})
    with pytest.raises(InputError, match=re.escape("pellet_speed=0: use pixels per millisecond")):
        env.pellet_speed = 0
    assert env.pellet_speed == 0.0608
