"""Pictures: GIF files and PNG files that can be read back, and half blocks for a terminal."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metareplay.environments import CatcherEnv, FlappyBirdEnv
from metareplay.environments.environment import GameEnv
from metareplay.environments.pictures import Picture, fitting, half_blocks, save_pictures
from metareplay.environments.players import greedy_player
from metareplay.errors import MetareplayError, PicturesMissingError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def pictures(env: GameEnv, count: int) -> list[Picture]:
    """Pictures of a game, as the greedy player plays it."""
    policy = greedy_player(env.game)
    observation, _ = env.reset(seed=0)
    found = []
    for _ in range(count):
        observation = env.step(policy(observation))[0]
        found.append(env.picture())
    return found


# Files


@pytest.mark.parametrize("kind", [CatcherEnv, FlappyBirdEnv])
def test_a_gif_shows_every_frame_exactly(kind: type[CatcherEnv | FlappyBirdEnv], tmp_path: Path) -> None:
    wanted = pictures(kind(observation="raw"), 40)
    with save_pictures(tmp_path / "game.gif") as add:
        for picture in wanted:
            add(picture)
    with Image.open(tmp_path / "game.gif") as found:
        assert (found.format, found.n_frames) == ("GIF", 40)  # type: ignore[attr-defined]
        assert found.info["loop"] == 0
        for number, picture in enumerate(wanted):
            found.seek(number)
            assert found.info["duration"] == 30
            np.testing.assert_array_equal(np.asarray(found.convert("RGB")), picture)
    assert [one.name for one in tmp_path.iterdir()] == ["game.gif"]


def test_a_gif_has_pictures_that_are_equal(tmp_path: Path) -> None:
    same = np.full((6, 8, 3), 200, np.uint8)
    with save_pictures(tmp_path / "same.GIF") as add:
        for _ in range(3):
            add(same)
    with Image.open(tmp_path / "same.GIF") as found:
        assert (found.n_frames, found.size) == (3, (8, 6))  # type: ignore[attr-defined]
        found.seek(2)
        assert (np.asarray(found.convert("RGB")) == 200).all()


def test_a_gif_replaces_an_older_one_when_it_is_complete(tmp_path: Path) -> None:
    path, small = tmp_path / "game.gif", np.zeros((2, 2, 3), np.uint8)
    with save_pictures(path) as add:
        add(small)
    before = path.read_bytes()

    def broken() -> None:
        with save_pictures(path) as add:
            add(small + 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert path.read_bytes() == before
    with save_pictures(path) as add:
        add(small + 1)
    assert path.read_bytes() != before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["game.gif", "folder"])
def test_without_pictures_no_file_is_left(name: str, tmp_path: Path) -> None:
    with save_pictures(tmp_path / name):
        pass
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def test_png_files_have_numbers(tmp_path: Path) -> None:
    wanted = pictures(CatcherEnv(observation="raw"), 3)
    with save_pictures(tmp_path / "new" / "folder") as add:
        for picture in wanted:
            add(picture)
    paths = sorted((tmp_path / "new" / "folder").iterdir())
    assert [one.name for one in paths] == ["frame-000001.png", "frame-000002.png", "frame-000003.png"]
    for path, picture in zip(paths, wanted, strict=True):
        with Image.open(path) as found:
            assert (found.format, found.size) == ("PNG", (384, 384))
            np.testing.assert_array_equal(np.asarray(found), picture)


REFUSED = {
    "folder.gif": "folder.gif is a folder; give the name of a file",
    "text.gif": "text.gif exists and is not a GIF; choose another name",
    "file": "file is a file; give a folder, or a name that ends in .gif",
    "full": "is not empty; give a new or an empty one",
    "film.mp4": "film.mp4: give a name that ends in .gif, or a folder, whose name has no dot in it",
    "file/film.gif": "cannot write .*/file/film.gif: .*/file is a file; choose another place",
    "file/new/folder": "cannot write .*/file/new/folder: .*/file is a file; choose another place",
}


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_a_path_that_cannot_be_used_is_refused_at_once(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "full").mkdir()
    for file in ("text.gif", "file", "full/letter.txt"):
        (tmp_path / file).write_text("text")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MetareplayError, match=message), save_pictures(tmp_path / name) as add:
        add(np.zeros((2, 2, 3), np.uint8))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "text.gif").read_text() == "text"


def test_an_empty_folder_and_an_empty_file_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "new.gif").touch()
    for name in ("folder", "new.gif"):
        with save_pictures(tmp_path / name) as add:
            add(np.zeros((2, 2, 3), np.uint8))
    assert (tmp_path / "folder" / "frame-000001.png").exists()
    assert (tmp_path / "new.gif").read_bytes().startswith(b"GIF89a")


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PicturesMissingError, match=r"need Pillow: pip install 'metareplay\[rl\]'"):
        save_pictures(tmp_path / "game.gif")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    pictures = save_pictures(tmp_path / "folder")
    (tmp_path / "folder").touch()
    with pytest.raises(MetareplayError, match=r"cannot write .*/folder: File exists; free some space or"), pictures:
        pass


# Sizes


def test_a_larger_picture_has_every_pixel_several_times() -> None:
    env = CatcherEnv(observation="raw")
    pictures(env, 60)
    small, large = env.picture((64, 64)), env.picture()
    np.testing.assert_array_equal(small.repeat(6, axis=0).repeat(6, axis=1), large)
    assert env.picture((10, 7)).shape == (10, 7, 3)


@pytest.mark.parametrize("size", [(64, 64), (512, 288)])
@pytest.mark.parametrize(("lines", "columns"), [(1, 1), (22, 80), (22, 20), (60, 200), (300, 1000), (0, 0)])
def test_a_picture_fits_into_the_terminal(size: tuple[int, int], lines: int, columns: int) -> None:
    height, width = fitting(size, lines, columns)
    assert height % 2 == 0
    assert 2 <= height <= max(2, 2 * lines)
    assert 1 <= width <= max(1, columns)
    if lines > 20:
        assert abs(width / height - size[1] / size[0]) < 0.1


# Half blocks


def test_half_blocks_of_a_small_picture() -> None:
    picture = np.array([[RED, RED, GREEN], [BLUE, BLUE, GREEN], [RED, GREEN, GREEN]], np.uint8)
    assert half_blocks(picture) == [
        "\x1b[38;2;255;0;0;48;2;0;0;255m▀▀\x1b[38;2;0;255;0;48;2;0;255;0m▀\x1b[0m",
        "\x1b[38;2;255;0;0;49m▀\x1b[38;2;0;255;0;49m▀▀\x1b[0m",  # nothing is below the last row
    ]


def test_half_blocks_in_256_colours() -> None:
    picture = np.array([[RED], [(255, 255, 255)], [(0, 0, 0)], [(16, 42, 67)]], np.uint8)
    assert half_blocks(picture, "256") == ["\x1b[38;5;196;48;5;231m▀\x1b[0m", "\x1b[38;5;16;48;5;23m▀\x1b[0m"]
