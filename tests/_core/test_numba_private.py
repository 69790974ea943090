"""What the kernels need of numba's private names: that they are used, and what happens where numba lacks one."""

import ast
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numba.core.registry import cpu_target

import metareplay
from metareplay._core import numba_private
from metareplay.engines.cpu import layout, q_compiling, steps
from metareplay.environments import kernels

PACKAGE = Path(metareplay.__file__).parent
GROUPS = {  # compiled functions that share a stamp: the folder that they are in, and the files
    "engine": (PACKAGE / "engines" / "cpu", layout.KERNEL_FILES),
    "q-learning": (PACKAGE / "engines" / "cpu", q_compiling.FILES),
    "games": (PACKAGE / "environments", kernels.KERNEL_FILES),
}


def imports(file: Path) -> Iterator[str]:
    """Yield what a file imports: modules, and names in them, as "module.name"."""
    for part in ast.walk(ast.parse(file.read_text())):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            yield from (f"{part.module}.{alias.name}" for alias in part.names)


def has_kernels(file: Path) -> bool:
    return any(name.split(".")[0] == "numba" or name.rpartition(".")[2] == "compiled" for name in imports(file))


def test_every_file_that_kernels_come_from_is_behind_the_stamp() -> None:
    """Whoever writes compiled functions into a new file must add it to the files behind a stamp."""
    found = {file for file in PACKAGE.rglob("*.py") if has_kernels(file) and file.name != "numba_private.py"}
    assert {file.parent for file in found} == {room for room, _ in GROUPS.values()}, "they belong into these rooms"
    assert found <= {room / name for room, files in GROUPS.values() for name in files}


@pytest.mark.parametrize("group", GROUPS)
def test_the_files_behind_a_stamp_import_from_no_others_in_their_room(group: str) -> None:
    room, files = GROUPS[group]
    names = {name for file in files for name in imports(room / file)}
    assert {file.name for file in room.glob("*.py") if any(comes_from(file, name) for name in names)} <= set(files)


def comes_from(file: Path, name: str) -> bool:
    module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    return f"{name}.".startswith(f"{module}.")


@pytest.mark.parametrize("group", GROUPS)
def test_each_of_these_files_changes_the_stamp(group: str, tmp_path: Path) -> None:
    room, files = GROUPS[group]
    stamps = {numba_private.source_stamp(room, files)}
    for changed in files:
        folder = tmp_path / changed
        folder.mkdir()
        for name in files:
            (folder / name).write_text((room / name).read_text() + ("# changed" if name == changed else ""))
        stamps.add(numba_private.source_stamp(folder, files))
    assert len(stamps) == 1 + len(files)


def test_this_numba_has_all_the_names() -> None:
    run_plan: Any = steps.run_plan
    assert run_plan._cache._cache_file._source_stamp == layout.STAMP
    assert run_plan.targetoptions["_nrt"] is False
    assert isinstance(cpu_target.target_context.codegen()._tm_features, str)


def test_no_other_module_uses_them() -> None:
    names = ("_source_stamp", "_nrt", "_tm_features")
    for file in PACKAGE.rglob("*.py"):
        if file.name != "numba_private.py":
            assert not any(name in file.read_text() for name in names), file


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged; a warning that other tests have seen is given again."""
    numba_private._warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="metareplay"):
        yield lambda: [record.getMessage() for record in caplog.records]
    numba_private._warn.cache_clear()


def test_without_the_option_references_are_counted(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(numba_private, "cpu", SimpleNamespace())
    for _ in range(2):
        made = numba_private.cached_njit(double, {}, "stamp")
        assert "_nrt" not in made.targetoptions
    assert len(warnings()) == 1
    assert "no option _nrt" in warnings()[0]


def test_what_another_version_left_on_disk_is_not_unpickled(tmp_path: Path) -> None:
    """A class that was renamed since can no longer be found by pickle."""
    made = numba_private.cached_njit(double, {}, "stamp")
    file = made._cache._cache_file
    file._index_path = str(tmp_path / "index")
    old = numba_private.cached_njit(double, {}, "another stamp")._cache._cache_file
    (tmp_path / "index").write_bytes(pickle.dumps(old._version) + b"cmetareplay\nNoSuchClass\n.")
    assert file._load_index() == {}
    old._index_path = str(tmp_path / "index")
    with pytest.raises(AttributeError):
        old._load_index()


def test_without_the_stamp_nothing_is_kept_on_disk(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    given: list[dict[str, Any]] = []

    def another_njit(**options: Any) -> Callable[[Any], Any]:
        given.append(options)
        return lambda function: function  # it has no _cache

    monkeypatch.setattr(numba_private, "njit", another_njit)
    assert numba_private.cached_njit(double, {"nogil": True}, "stamp")(4) == 8
    assert given == [{"cache": True, "nogil": True, "_nrt": False}, {"nogil": True, "_nrt": False}]
    assert len(warnings()) == 1
    assert "no _source_stamp" in warnings()[0]


@pytest.mark.parametrize(
    ("codegen", "found"),
    [
        (SimpleNamespace(_tm_features="+avx2,+avx512f"), True),
        (SimpleNamespace(_tm_features="+avx2,-avx512f"), False),
        (SimpleNamespace(), False),
    ],
    ids=["with", "without", "not said"],
)
def test_avx512(codegen: Any, found: bool) -> None:
    assert numba_private.has_avx512(SimpleNamespace(codegen=lambda: codegen)) is found
