import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metareplay._core.files import MACHINE, exists, remove, write_atomically
from metareplay.errors import MetareplayError


def write(path: Path, content: bytes) -> None:
    with write_atomically(path) as file:
        file.write(content)


def refuse(number: int) -> Any:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


def test_writes_and_replaces_a_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for content in (b"first", b"second"):
        write(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file"]  # noqa: PTH208


def test_nobody_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"before")
    with write_atomically(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"


def test_an_error_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"before")
    with pytest.raises(TypeError), write_atomically(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_refuses_is_reported_in_one_line(
    step: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write(path, b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, refuse(number))
        with pytest.raises(MetareplayError, match=f"cannot write .*file: {os.strerror(number)}") as caught:
            write(path, b"after")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetareplayError, match=r"cannot write .*: Not a directory; .* choose another place"):
        write(tmp_path / "file" / "folder" / "file", b"content")


def test_exists_also_where_we_may_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    assert not exists(path)
    path.touch()
    assert exists(path)
    monkeypatch.setattr(Path, "stat", refuse(errno.EACCES))
    assert not exists(path)


def test_remove_deletes_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    remove(path)
    path.touch()
    remove(path)
    assert not path.exists()


def test_what_cannot_be_removed_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse(errno.EACCES))
        with pytest.raises(MetareplayError, match=r"cannot delete .*file: Permission denied"):
            remove(path)
    with pytest.raises(MetareplayError, match=r"cannot delete .*file/inside: Not a directory"):
        remove(path / "inside")


def left_by(process: int, path: Path) -> Path:
    left = path.with_name(f".{path.name}.{MACHINE}-{process}.part")
    left.write_bytes(b"half")
    return left


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_dead_processes_have_left_is_deleted_when_the_file_is_written_again(tmp_path: Path) -> None:
    path, dead = tmp_path / "file", ended_process()
    by_dead = left_by(dead, path)
    by_earlier_version = path.with_name(f".{path.name}.{dead}.part")
    by_earlier_version.touch()
    alive = left_by(os.getppid(), path)
    elsewhere = path.with_name(f".{path.name}.0123abcd-{dead}.part")
    others = [alive, elsewhere, left_by(dead, tmp_path / "other"), path.with_name(f".{path.name}.my own.part")]
    for one in others:
        one.touch()
    write(path, b"content")
    assert not by_dead.exists()
    assert not by_earlier_version.exists()
    assert all(one.exists() for one in others)
    assert path.read_bytes() == b"content"


def test_a_link_that_waits_under_the_name_of_our_part_is_not_followed(tmp_path: Path) -> None:
    path, precious = tmp_path / "file", tmp_path / "precious"
    precious.write_bytes(b"precious")
    path.with_name(f".{path.name}.{MACHINE}-{os.getpid()}.part").symlink_to(precious)
    write(path, b"content")
    assert precious.read_bytes() == b"precious"
    assert path.read_bytes() == b"content"
