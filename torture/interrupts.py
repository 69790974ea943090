"""Ctrl-C at every line: afterwards the learner is exactly before or after an example, and `seen` says which."""

import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, final

from torch import nn

import metareplay as mr
from metareplay._core.files import names_in
from metareplay.experiments.following import done
from torture.experiments import PLAYERS, RUNS, same_results
from torture.kills import save_always
from torture.subjects import AGENTS, SUBJECTS, Agent, Make, differences, examples, play, state, stream
from torture.trial import Torture, Try

PACKAGE = str(Path(mr.__file__).parent)
FROM, TO = 6, 14  # the examples during which Ctrl-C comes; they span two tasks


@final
class AtLine:
    """Send Ctrl-C to this process at the n-th line of the package that is executed in a `with` block.

    Args:
        number: The number of the line, counted from 0; -1 to count lines only.

    Attributes:
        lines: How many lines were executed.
        where: The line at which Ctrl-C came.
        times: When each line of the source was executed, as numbers of executed lines.
    """

    def __init__(self, number: int = -1) -> None:
        self.number, self.lines, self.where = number, 0, ""
        self.times: dict[tuple[str, int], list[int]] = {}

    def drawn(self, count: int, rng: random.Random) -> list[int]:
        """Draw one of the times of every line of the source, or of only some of them.

        Args:
            count: How many lines of the source, at most.
            rng: Draws.
        """
        times = [rng.choice(found) for found in self.times.values()]
        return sorted(rng.sample(times, min(count, len(times))))

    def _trace(self, frame: FrameType, event: str, _value: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.times.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.lines)
            if self.lines == self.number:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
            self.lines += 1
        return self._trace

    def __enter__(self) -> "AtLine":
        """Begin to count."""
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        sys.settrace(None)


@final
class Interrupts(Torture):
    """Interrupt `observe_many`, `observe`, `save`, `load` and `run`, with every learner, and others."""

    name: ClassVar[str] = "Ctrl-C at a line"
    few: ClassVar[int] = 20
    some: ClassVar[int] = 2_000
    many: ClassVar[int] = 1_000_000  # every line of the source that anything executes

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Find the lines that every learner and method executes, and interrupt at as many of them as are wanted."""
        methods = (_while_observing_many, _while_observing, _while_saving, _while_loading, _while_running)
        pairs = [(name, make, method) for name, make in SUBJECTS.items() for method in methods]
        pairs = pairs[self.part :: self.parts]
        share = max(1, count // len(pairs))
        rng.shuffle(pairs)
        for name, make, method in pairs[:count]:
            work = method(make, folder / f"{name}.{method.__name__}")
            yield from _interrupted(f"{name}: {method.__name__.strip('_').replace('_', ' ')}", work, share, rng)

        from torture.loops import works  # which uses what is here

        share, most = max(1, count // 50), max(1, count // 20)
        others = [*_of_agents(folder), *works(folder)][self.part :: self.parts]
        rng.shuffle(others)
        for name, begin in others[:most]:
            yield from _interrupted(name, begin(), share, rng)


Work = Callable[[AtLine], str | None]


def _interrupted(name: str, work: Work, count: int, rng: random.Random) -> Iterator[Try]:
    """Do some work undisturbed, and then again and again, with Ctrl-C at one of the lines that it executes."""
    whole = AtLine()
    wrong = work(whole)
    if wrong is not None or not whole.lines:
        yield Try(f"{name}, undisturbed", wrong or "no line was executed")
    for number in whole.drawn(count, rng):
        at = AtLine(number)
        wrong = work(at)
        yield Try(f"{name} at {at.where}", wrong)


def _of_agents(folder: Path) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Return what is interrupted while agents learn, save, load and play, by name."""
    for name, make in AGENTS.items():
        yield f"{name}: while observing", partial(_while_playing, make)
        yield f"{name}: while saving", partial(_while_saving, make, folder / f"{name}.saved")
        yield f"{name}: while loading", partial(_while_loading, make, folder / f"{name}.loaded")
    for name in PLAYERS:
        yield f"{name}: while training", partial(_while_training, name, folder / f"{name}.trained")


def _while_training(name: str, path: Path) -> Work:
    """Interrupt the training of an agent; from its checkpoint it goes on to the same record."""
    save_always()
    undisturbed = done(RUNS[name].start(), ())

    def work(at: AtLine) -> str | None:
        path.unlink(missing_ok=True)
        run = RUNS[name].start(path)
        wrong = disturbed(at, lambda: list(run.steps()))
        if wrong is not None:
            return wrong
        again = done(RUNS[name].start(path), ())
        return None if same_results(again, undisturbed) else "the training that went on ended with other numbers"

    return work


def _while_playing(make: Agent) -> Work:
    agent, states = make(), list[dict[str, Any]]()
    for end in range(TO + 1):
        play(agent, end)
        states.append(state(agent))

    def work(at: AtLine) -> str | None:
        agent = make()
        play(agent, FROM)
        wrong = disturbed(at, lambda: play(agent, TO))
        if wrong is not None:
            return wrong
        wrong = differences(state(agent), states[agent.seen])
        if wrong is not None:
            return f"after {agent.seen} transitions {wrong}"
        play(agent, TO)
        return differences(state(agent), states[TO])

    return work


def _observed(make: Make, count: int) -> mr.Learner:
    """Make a learner that has learned the first examples."""
    learner = make()
    xs, ys, tasks = (part[:count] for part in examples())
    learner.observe_many(xs, ys, tasks)
    return learner


def _taught(make: Make | Agent, count: int) -> mr.Learner | mr.QLearner:
    """Make a learner that has learned the first examples, or an agent that has learned the first transitions."""
    learner = make()
    if isinstance(learner, mr.Learner):
        learner.observe_many(*(part[:count] for part in examples()))
    else:
        play(learner, count)
    return learner


def _states(make: Make) -> list[dict[str, Any]]:
    """Return the state after each number of examples."""
    learner = make()
    found = [state(learner)]
    for x, y, task in zip(*examples(), strict=True):
        learner.observe(x, int(y), int(task))
        found.append(state(learner))
    return found


def disturbed(at: AtLine, work: Callable[[], object]) -> str | None:
    """Do some work that may be interrupted; return what is wrong with how Ctrl-C was treated.

    Args:
        at: When Ctrl-C comes. How many lines are executed may depend on the clock, so it need not come.
        work: The work.
    """
    before, came = signal.getsignal(signal.SIGINT), False
    try:
        with at:
            work()
    except KeyboardInterrupt:
        came = True
    finally:
        sys.settrace(None)
        after = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
    if after is not before:
        return "the handler of Ctrl-C has changed"
    return "Ctrl-C got lost" if at.where and not came else None


def _go_on(learner: mr.Learner, states: list[dict[str, Any]], end: int) -> str | None:
    """Compare a learner with what it must be after this many examples, then teach it the others, and compare again."""
    here = differences(state(learner), states[learner.seen])
    if here is not None:
        return f"after {learner.seen} examples {here}"
    xs, ys, tasks = (part[learner.seen : end] for part in examples())
    if len(xs):
        learner.observe_many(xs, ys, tasks)
    return differences(state(learner), states[end])


def _while_observing_many(make: Make, _path: Path) -> Work:
    states = _states(make)

    def work(at: AtLine) -> str | None:
        learner = _observed(make, FROM)
        xs, ys, tasks = (part[FROM:TO] for part in examples())
        wrong = disturbed(at, lambda: learner.observe_many(xs, ys, tasks))
        return wrong or _go_on(learner, states, TO)

    return work


def _while_observing(make: Make, _path: Path) -> Work:
    states = _states(make)

    def work(at: AtLine) -> str | None:
        learner = _observed(make, FROM)
        several = [(x, int(y), int(task)) for x, y, task in zip(*(part[FROM:TO] for part in examples()), strict=True)]

        def one_by_one() -> None:
            for example in several:
                learner.observe(*example)

        return disturbed(at, one_by_one) or _go_on(learner, states, TO)

    return work


def _while_saving(make: Make | Agent, path: Path) -> Work:
    earlier, later = _taught(make, FROM), _taught(make, TO)
    states = [state(earlier), state(later)]

    def work(at: AtLine) -> str | None:
        earlier.save(path)
        wrong = disturbed(at, lambda: later.save(path))
        if wrong is not None:
            return wrong
        left = [name for name in names_in(path.parent) if name.startswith(f".{path.name}")]
        if left:
            return f"left over: {', '.join(left)}"
        found = mr.load(path, make().model)
        wrong = differences(state(later), states[1])
        if wrong is not None:
            return f"the learner has changed: {wrong}"
        return None if any(differences(state(found), one) is None for one in states) else "the file is wrong"

    return work


def _while_loading(make: Make | Agent, path: Path) -> Work:
    _taught(make, TO).save(path)
    before, after = _weights(make().model), _weights(_taught(make, TO).model)

    def work(at: AtLine) -> str | None:
        model = make().model
        wrong = disturbed(at, lambda: mr.load(path, model))
        if wrong is not None:
            return wrong
        return None if _weights(model) in (before, after) else "the model is neither as it was nor as it was saved"

    return work


def _weights(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def _while_running(make: Make, path: Path) -> Work:
    states, undisturbed = _states(make), mr.run(make(), stream())

    def work(at: AtLine) -> str | None:
        path.unlink(missing_ok=True)
        learner = make()
        wrong = disturbed(at, lambda: mr.run(learner, stream(), checkpoint=path))
        if wrong is not None:
            return wrong
        wrong = differences(state(learner), states[learner.seen])
        if wrong is not None:
            return f"after {learner.seen} examples {wrong}"
        again = mr.run(make(), stream(), checkpoint=path)
        return None if same_results(again, undisturbed) else "the run that went on ended with other numbers"

    return work
