"""Damaged files: every flipped bit and every missing end is refused by one line, before anything has changed."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, final

import metareplay as mr
from metareplay.errors import MetareplayError
from metareplay.experiments import pack, unpack
from torture.others import documents, reservoirs
from torture.subjects import AGENTS, EXAMPLES, SUBJECTS, Agent, Make, examples, play, stream
from torture.trial import Torture, Try

Read = Callable[[], str | None]  # reads a damaged file; returns what went wrong


@final
class Damage(Torture):
    """Damage checkpoints of every learner, and files of every other kind that is written, and read them.

    Args:
        cut: Cut files short instead of flipping a bit.
    """

    name: ClassVar[str] = "a flipped bit"
    few: ClassVar[int] = 300
    some: ClassVar[int] = 100_000
    many: ClassVar[int] = 1_000_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Damage the files in turn."""
        files = list(_files(folder))
        for number in range(count):
            path, content, read = files[number % len(files)]
            place = rng.randrange(len(content))
            wrong = bytearray(content)
            wrong[place] ^= 1 << rng.randrange(8)
            path.write_bytes(wrong)
            yield Try(f"{path.name}, byte {place} of {len(content)}", read())


@final
class Truncation(Torture):
    """Cut the same files short."""

    name: ClassVar[str] = "a file cut short"
    few: ClassVar[int] = 100
    some: ClassVar[int] = 10_000
    many: ClassVar[int] = 100_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Cut the files in turn."""
        files = list(_files(folder))
        for number in range(count):
            path, content, read = files[number % len(files)]
            left = rng.randrange(len(content))
            path.write_bytes(content[:left])
            yield Try(f"{path.name}, {left} of {len(content)} bytes", read())


def _files(folder: Path) -> Iterator[tuple[Path, bytes, Read]]:
    """Write files of every kind; return them with their contents and what reads them."""
    for name, make in SUBJECTS.items():
        path = folder / f"{name}.ckpt"
        learner = make()
        learner.observe_many(*examples())
        learner.save(path)
        yield path, path.read_bytes(), _load(make, path)
    for name, make_agent in AGENTS.items():
        path = folder / f"{name}.ckpt"
        agent = make_agent()
        play(agent, EXAMPLES)
        agent.save(path)
        yield path, path.read_bytes(), _load(make_agent, path)
    record = mr.run(SUBJECTS["mer"](), stream())
    path = record.write(folder)
    yield path, path.read_bytes(), lambda: _refused(lambda: mr.Record.read(path))
    packed = folder / "records.jsonl"
    pack([record], packed)
    yield packed, packed.read_bytes().rstrip(b"\n"), lambda: "it was read" if unpack(packed, mr.Record) else None
    learner = SUBJECTS["er"]()
    learner.observe_many(*examples())
    export = folder / "memory.npz"
    assert learner.own_memory is not None, "er has one"
    learner.own_memory.export(export)
    yield export, export.read_bytes(), lambda: _refused(lambda: mr.memories.read_export(export))
    for written, open_it in (*documents(folder), *reservoirs(folder)):
        content = written.read_bytes().rstrip(b"\n") if written.suffix == ".json" else written.read_bytes()
        yield written, content, partial(_refused, open_it)


def _load(make: Make | Agent, path: Path) -> Read:
    """Return what loads a checkpoint and looks whether the model has changed."""
    model = make().model
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def read() -> str | None:
        wrong = _refused(lambda: mr.load(path, model))
        if any(not bool((value == before[name]).all()) for name, value in model.state_dict().items()):
            return "the model has changed"
        return wrong

    return read


def _refused(read: Callable[[], object]) -> str | None:
    """Return what is wrong with how a damaged file was refused."""
    try:
        read()
    except MetareplayError as error:
        return None if len(str(error).splitlines()) == 1 else "the message has several lines"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it was read"
