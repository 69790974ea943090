"""Claims: one process at a time, and free again when it ends, however it ends."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metareplay as mr
from metareplay.runners import claims
from metareplay.runners.claims import Claim, can_share, claim_path, is_claimed


def taken(folder: Path, key: str = "key") -> Claim:
    claim = Claim.take(folder, key)
    assert claim is not None
    return claim


def test_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with taken(tmp_path / "new"):
        assert Claim.take(tmp_path / "new", "key") is None
        assert is_claimed(tmp_path / "new", "key")
        with taken(tmp_path / "new", "another"):
            pass
    assert not is_claimed(tmp_path / "new", "key")
    with taken(tmp_path / "new"):
        assert is_claimed(tmp_path / "new", "key")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new").rmdir()
    with taken(tmp_path / "new" / "too"):
        pass
    assert not (tmp_path / "new" / "too").exists()


def test_looking_takes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert not is_claimed(tmp_path, "key")
    assert not is_claimed(tmp_path / "nowhere", "key")
    claim_path(tmp_path, "left").touch()
    assert not is_claimed(tmp_path, "left")
    assert [path.name for path in tmp_path.iterdir()] == [".left.claim"]
    taken(tmp_path, "left").give_back()
    assert list(tmp_path.iterdir()) == []


def test_given_back_twice(tmp_path: Path) -> None:
    claim = taken(tmp_path)
    claim.give_back()
    with taken(tmp_path):
        claim.give_back()
        assert is_claimed(tmp_path, "key")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a child")
def test_free_again_when_its_process_is_killed(tmp_path: Path) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        kept = Claim.take(tmp_path, "key")
        os.write(told, b"." if kept is not None else b"!")
        os.read(os.pipe()[0], 1)  # for ever
    assert os.read(ready, 1) == b"."
    assert Claim.take(tmp_path, "key") is None
    os.kill(child, 9)
    os.waitpid(child, 0)
    for number in (ready, told):
        os.close(number)
    assert claim_path(tmp_path, "key").exists()
    taken(tmp_path).give_back()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_deleted_on_the_way_is_not_taken_for_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, its holder may have deleted it and somebody else made a new one."""
    assert claims._locks is not None
    lock, times = claims._locks.flock, list[int]()

    def slow(descriptor: int, how: int) -> None:
        times.append(descriptor)
        if len(times) == 1:
            claim_path(tmp_path, "key").unlink()
        lock(descriptor, how)

    monkeypatch.setattr(claims._locks, "flock", slow)
    with taken(tmp_path):
        assert len(times) == 2
        assert is_claimed(tmp_path, "key")


def refusing(number: int) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", sorted(claims.NO_LOCKS))
def test_without_locks_everybody_gets_everything(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_share(tmp_path)
    monkeypatch.setattr(claims._locks, "flock", refusing(number))
    with taken(tmp_path), taken(tmp_path):
        assert not is_claimed(tmp_path, "key")
    assert not can_share(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_module_everybody_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_locks", None)
    with taken(tmp_path), taken(tmp_path):
        assert not is_claimed(tmp_path, "key")
    assert not can_share(tmp_path)
    claims.allow(10)


def test_a_folder_that_cannot_be_written_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(mr.MetareplayError, match=r"cannot write .*file/: .*; free some space or choose another"):
        Claim.take(tmp_path / "file", "key")
    monkeypatch.setattr(claims._locks, "flock", refusing(errno.EIO))
    with pytest.raises(mr.MetareplayError, match="Input/output error"):
        Claim.take(tmp_path, "key")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20))
def test_in_any_order(steps: list[tuple[str, bool]]) -> None:
    """A claim is to be had exactly if nobody has it, and at the end nothing is left."""
    with tempfile.TemporaryDirectory() as name:
        folder, held = Path(name), dict[str, Claim]()
        for key, take in steps:
            if take:
                claim = Claim.take(folder, key)
                assert (claim is None) == (key in held)
                if claim is not None:
                    held[key] = claim
            elif key in held:
                held.pop(key).give_back()
            assert {path.name for path in folder.iterdir()} == {f".{one}.claim" for one in held}
        for claim in held.values():
            claim.give_back()
        assert not list(folder.iterdir())
