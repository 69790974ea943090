"""What is disturbed: learners and agents that learn, save, load and run, and what must hold afterwards."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

import metareplay as mr
from metareplay._core.files import names_in
from metareplay.experiments.following import done
from torture.disturbance import Disturbance
from torture.experiments import PLAYERS, RUNS, same_results
from torture.kills import save_always
from torture.subjects import (
    AGENTS,
    CLASSES,
    INPUTS,
    SUBJECTS,
    Agent,
    Make,
    differences,
    examples,
    mlp,
    play,
    state,
    stream,
)

FROM, TO = 6, 14  # the examples during which something comes; they span two tasks

Work = Callable[[Disturbance], str | None]


def of_learners() -> list[tuple[str, Make, Callable[[Make, Path], Work]]]:
    """Return what is disturbed while learners learn, save, load and run: name, learner and work."""
    methods = (while_observing_many, while_observing, while_saving, while_loading, while_running)
    return [(name, make, method) for name, make in SUBJECTS.items() for method in methods]


def of_changes(folder: Path) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Return what is disturbed while something about a learner changes or is asked for, by name.

    Args:
        folder: Where files are written.
    """
    changes: dict[str, Callable[[mr.Learner], object]] = {
        "an option changes": lambda learner: setattr(learner, "lr", 0.02),
        "it predicts": lambda learner: learner.predict(examples()[0]),
        "a layer is frozen": _freeze,
        "examples are removed": _remove,
    }
    learners = {"mer, torch": SUBJECTS["mer, torch"], "er, adam, torch": _with_adam}
    for (name, make), (what, change) in product(learners.items(), changes.items()):
        yield f"{name}: while {what}", partial(while_changing, make, change)
    yield "er, growing: while a larger one loads", partial(while_loading_into_larger, folder / "larger.ckpt")


def of_agents(folder: Path) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Return what is disturbed while agents learn, save, load and play, by name.

    Args:
        folder: Where files are written.
    """
    for name, make in AGENTS.items():
        yield f"{name}: while observing", partial(while_playing, make)
        yield f"{name}: while saving", partial(while_saving, make, folder / f"{name}.saved")
        yield f"{name}: while loading", partial(while_loading, make, folder / f"{name}.loaded")
    for name in PLAYERS:
        yield f"{name}: while training", partial(while_training, name, folder / f"{name}.trained")


def while_training(name: str, path: Path) -> Work:
    """Disturb the training of an agent; from its checkpoint it goes on to the same record."""
    save_always()
    undisturbed = done(RUNS[name].start(), ())

    def work(at: Disturbance) -> str | None:
        path.unlink(missing_ok=True)
        run = RUNS[name].start(path)
        wrong = at.during(lambda: list(run.steps()))
        if wrong is not None:
            return wrong
        again = done(RUNS[name].start(path), ())
        return None if same_results(again, undisturbed) else "the training that went on ended with other numbers"

    return work


def while_playing(make: Agent) -> Work:
    """Disturb an agent that plays; it is before or after a transition, and going on ends the same."""
    agent, states = make(), list[dict[str, Any]]()
    for end in range(TO + 1):
        play(agent, end)
        states.append(state(agent))

    def work(at: Disturbance) -> str | None:
        agent = make()
        play(agent, FROM)
        wrong = at.during(lambda: play(agent, TO))
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


def _before_next(learner: mr.Learner, states: list[dict[str, Any]]) -> str | None:
    """Compare a learner with what it must be after as many examples as it has seen.

    The label of the next example may be known already, with an output whose weights are 0.
    """
    here, wanted = state(learner), states[learner.seen]
    if here["labels"] and here["labels"][:-1] == wanted["labels"]:
        here["labels"] = wanted["labels"]
        for name, value in wanted.items():
            if isinstance(value, bytes) and here[name].startswith(value) and not any(here[name][len(value) :]):
                here[name] = value
    wrong = differences(here, wanted)
    return f"after {learner.seen} examples {wrong}" if wrong else None


def _go_on(learner: mr.Learner, states: list[dict[str, Any]], end: int) -> str | None:
    """Compare a learner with what it must be after this many examples, then teach it the others, and compare again."""
    here = _before_next(learner, states)
    if here is not None:
        return here
    xs, ys, tasks = (part[learner.seen : end] for part in examples())
    if len(xs):
        learner.observe_many(xs, ys, tasks)
    return differences(state(learner), states[end])


def while_observing_many(make: Make, _path: Path) -> Work:
    """Disturb `observe_many`; the learner is before or after an example, and going on ends the same."""
    states = _states(make)

    def work(at: Disturbance) -> str | None:
        learner = _observed(make, FROM)
        xs, ys, tasks = (part[FROM:TO] for part in examples())
        wrong = at.during(lambda: learner.observe_many(xs, ys, tasks))
        return wrong or _go_on(learner, states, TO)

    return work


def while_observing(make: Make, _path: Path) -> Work:
    """Disturb `observe`; the learner is before or after an example, and going on ends the same."""
    states = _states(make)

    def work(at: Disturbance) -> str | None:
        learner = _observed(make, FROM)
        several = [(x, int(y), int(task)) for x, y, task in zip(*(part[FROM:TO] for part in examples()), strict=True)]

        def one_by_one() -> None:
            for example in several:
                learner.observe(*example)

        return at.during(one_by_one) or _go_on(learner, states, TO)

    return work


def _with_adam() -> mr.Learner:
    return mr.ER(mlp(), memory=mr.Reservoir(9), lr=0.01, k=5, optimizer="adam", seed=7, engine="torch")


def _freeze(learner: mr.Learner) -> None:
    with learner.reshaping() as model:
        next(model.parameters()).requires_grad_(False)


def _remove(learner: mr.Learner) -> None:
    assert learner.own_memory is not None
    learner.own_memory.remove(lambda columns: columns["y"] == 1)


def while_changing(make: Make, change: Callable[[mr.Learner], object]) -> Work:
    """Disturb a change of a learner; it is as before or after it, and goes on from there."""
    ends = []
    for is_changed in (False, True):
        learner = _observed(make, FROM)
        if is_changed:
            change(learner)
        now = state(learner)
        learner.observe_many(*(part[FROM:TO] for part in examples()))
        ends.append((now, state(learner)))

    def work(at: Disturbance) -> str | None:
        learner = _observed(make, FROM)
        wrong = at.during(lambda: change(learner))
        if wrong is not None:
            return wrong
        here = state(learner)
        learner.observe_many(*(part[FROM:TO] for part in examples()))
        end = state(learner)
        if any(differences(here, now) is None and differences(end, later) is None for now, later in ends):
            return None
        return f"it is neither as before nor as after: {differences(here, ends[0][0])}"

    return work


def while_loading_into_larger(path: Path) -> Work:
    """Disturb a run that goes on with a head that is larger than the saved one; the learner is as new, or goes on."""

    def make() -> mr.Learner:
        return mr.ER(larger(), memory=mr.Balanced(9), lr=0.1, k=5, seed=7, classes="grow")

    def larger() -> nn.Module:
        return mr.networks.mlp(INPUTS, (8, 5), 2 * CLASSES, seed=1)

    mr.run(SUBJECTS["er, growing"](), stream(), checkpoint=path)
    restored = make()
    mr.run(restored, stream(), checkpoint=path)
    before, after = state(make()), state(restored)

    def work(at: Disturbance) -> str | None:
        learner = make()
        wrong = at.during(lambda: mr.run(learner, stream(), checkpoint=path))
        if wrong is not None:
            return wrong
        here = state(learner)
        wrong = differences(here, before)
        return f"it is neither new nor restored: {wrong}" if wrong and differences(here, after) else None

    return work


def while_saving(make: Make | Agent, path: Path) -> Work:
    """Disturb `save`; the file is the earlier or the new one, and nothing else has changed."""
    earlier, later = _taught(make, FROM), _taught(make, TO)
    states = [state(earlier), state(later)]

    def work(at: Disturbance) -> str | None:
        earlier.save(path)
        wrong = at.during(lambda: later.save(path))
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


def while_loading(make: Make | Agent, path: Path) -> Work:
    """Disturb `load`; the model is as it was or as it was saved."""
    _taught(make, TO).save(path)
    before, after = _weights(make().model), _weights(_taught(make, TO).model)

    def work(at: Disturbance) -> str | None:
        model = make().model
        wrong = at.during(lambda: mr.load(path, model))
        if wrong is not None:
            return wrong
        return None if _weights(model) in (before, after) else "the model is neither as it was nor as it was saved"

    return work


def _weights(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def while_running(make: Make, path: Path) -> Work:
    """Disturb `run`; the learner is before or after an example, and the run that goes on ends the same."""
    states, undisturbed = _states(make), mr.run(make(), stream())

    def work(at: Disturbance) -> str | None:
        path.unlink(missing_ok=True)
        learner = make()
        wrong = at.during(lambda: mr.run(learner, stream(), checkpoint=path))
        if wrong is not None:
            return wrong
        wrong = _before_next(learner, states)
        if wrong is not None:
            return wrong
        again = mr.run(make(), stream(), checkpoint=path)
        return None if same_results(again, undisturbed) else "the run that went on ended with other numbers"

    return work
