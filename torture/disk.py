"""Disks that fail: what was there stays, the learner is as it was, and one line says what happened."""

import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, NoReturn, final
from unittest.mock import patch

import metareplay as mr
from metareplay.errors import MetareplayError
from torture.subjects import SUBJECTS, differences, examples, state, stream
from torture.trial import Torture, Try

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EMFILE)


@final
class Disk(Torture):
    """Let writing fail after some bytes, or at one of the steps of writing a file."""

    name: ClassVar[str] = "a failing disk"
    few: ClassVar[int] = 60
    some: ClassVar[int] = 2_000
    many: ClassVar[int] = 20_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Write a file over an earlier one while the disk fails."""
        learners = {name: make() for name, make in SUBJECTS.items()}
        for learner in learners.values():
            learner.observe_many(*examples())
        record = mr.run(SUBJECTS["mer"](), stream())
        memory = learners["er"].own_memory
        assert memory is not None, "er has one"
        for _ in range(count):
            name = rng.choice(list(learners))
            learner, path = learners[name], folder / "file"
            path.write_bytes(b"earlier")
            kind = rng.choice(["save", "export", "record"])
            writers: dict[str, Callable[[], object]] = {
                "save": partial(learner.save, path),
                "export": partial(memory.export, path),
                "record": partial(record.write, folder),
            }
            fault, shown = _fault(rng)
            before = state(learner)
            with fault:
                wrong = _refused(writers[kind])
            wrong = wrong or differences(state(learner), before)
            if path.read_bytes() != b"earlier":
                wrong = "what was there is lost"
            left = [found.name for found in folder.iterdir() if found.name != "file"]
            yield Try(f"{kind} of {name}, {shown}", f"left over: {left}" if left else wrong)


def _fault(rng: random.Random) -> tuple[AbstractContextManager[object], str]:
    """Draw how the disk fails."""
    number = rng.choice(ERRORS)

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    step = rng.choice(["size", "size", "fsync", "replace", "open", "mkdir"])
    if step == "size":
        limit = rng.randrange(600)
        return _limited(limit), f"no more than {limit} bytes"
    where = "os.fsync" if step == "fsync" else f"pathlib.Path.{step}"
    return patch(where, fail), f"{step}: {os.strerror(number)}"


@contextmanager
def _limited(size: int) -> Iterator[None]:
    """Let no file become larger than this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _refused(write: Callable[[], object]) -> str | None:
    """Return what is wrong with how writing was refused."""
    try:
        write()
    except MetareplayError as error:
        return None if len(str(error).splitlines()) == 1 else "the message has several lines"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it was written"
