"""What is disturbed and has states of its own: prequential runs, PeriodicMER, and memories on disk."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import metareplay as mr
from metareplay.experiments import prequential_run
from torture.disturbance import Disturbance
from torture.experiments import same_results
from torture.subjects import INPUTS, SUBJECTS, differences, examples, stream
from torture.works import Work

BATCHES, ROWS = 6, 4
SAVED = 3  # batches; the state after them is loaded again
NUMBERS = count()


def works(folder: Path) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Return what is disturbed, by name.

    Args:
        folder: Where files are written.
    """
    for name in ("mer", "er, adam", "gem"):
        yield f"{name}: prequential", partial(_while_scoring, name, folder)
    memories: dict[str, Callable[[], mr.Memory]] = {
        "in RAM": lambda: mr.Reservoir(7),
        "on disk": lambda: mr.DiskReservoir(_new(folder), 7),
    }
    for where, make in memories.items():
        yield f"PeriodicMER {where}", partial(_while_mixing, make)
        yield f"PeriodicMER {where}, parts of rows", partial(_while_mixing, make, _parts_of_rows)
        yield f"PeriodicMER {where}: loading", partial(_while_going_back, make)
    yield "a memory on disk", partial(_while_offering, folder)


def _new(folder: Path) -> Path:
    return folder / f"reservoir {next(NUMBERS)}"


def _while_scoring(name: str, folder: Path) -> Work:
    """Disturb a prequential run; from its checkpoint it goes on to the same record."""
    undisturbed = mr.prequential(SUBJECTS[name](), stream(), every=4)

    def work(at: Disturbance) -> str | None:
        path = folder / "scored.ckpt"
        path.unlink(missing_ok=True)
        made = mr.PrequentialRun(SUBJECTS[name](), stream(), every=4, checkpoint=path)
        with patch.object(prequential_run, "SAVE_EVERY", 0.0), patch.object(prequential_run, "SHOW_EVERY", 0.0):
            wrong = at.during(lambda: list(made.steps()))
        if wrong is not None:
            return wrong
        if made.scores.count != made.learner.seen:
            return f"{made.scores.count} examples were scored, and {made.learner.seen} learned"
        again = mr.prequential(SUBJECTS[name](), stream(), every=4, checkpoint=path)
        return None if same_results(again, undisturbed) else "the run that went on ended with other scores"

    return work


def _rows(number: int) -> Tensor:
    """Return a batch."""
    return torch.arange(number * ROWS, (number + 1) * ROWS)[:, None].float()


def _parts_of_rows(number: int) -> Tensor:
    """Return a batch that is not contiguous, such as a language model's tokens[:, :-1]."""
    return (_rows(number) + torch.arange(3))[:, :-1]


class _Training:
    """Train with PeriodicMER; `new_rows` and `steps` say what has been done.

    Args:
        memory: The memory, which is empty.
        batch: Returns the batch of a number.
    """

    def __init__(self, memory: mr.Memory, batch: Callable[[int], Tensor] = _rows) -> None:
        self.memory, self.batch, self.model = memory, batch, mr.networks.mlp(INPUTS, (5,), 3, seed=1)
        self.mer = mr.PeriodicMER(self.model, memory=memory, share=0.5, every=2, rate=0.5)

    def go_on(self, end: int = BATCHES) -> list[Tensor]:
        """Do what is left to do up to a batch; return the mixed batches."""
        mixed = list[Tensor]()
        for number in range(end):
            if self.mer.new_rows == number * ROWS:
                mixed.append(self.mer.mix(self.batch(number)))
            if self.mer.steps == number:
                with torch.no_grad():
                    for theta in self.model.parameters():
                        theta.fill_(number + 1)
                self.mer.step()
        return mixed

    def state(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes over, and the rows held."""
        parts = self.mer.state_dict() | {"rows held": dict(self.memory.held().items())}
        parts["memory"] = {name: value for name, value in parts["memory"].items() if name != "mark"}  # a running number
        return {name: str(value) for name, value in parts.items()}

    def with_weights(self) -> dict[str, Any]:
        """Return the state and the weights."""
        return self.state() | {name: str(value) for name, value in self.model.state_dict().items()}

    def close(self) -> None:
        """Close a memory on disk."""
        if isinstance(self.memory, mr.DiskReservoir):
            self.memory.close()


def _while_mixing(make: Callable[[], mr.Memory], batch: Callable[[int], Tensor] = _rows) -> Work:
    """Disturb `mix` and `step`; `new_rows` and `steps` say what has been done, and going on ends the same."""
    undisturbed = _Training(make(), batch)
    undisturbed.go_on()
    expected = undisturbed.with_weights()
    undisturbed.close()

    def work(at: Disturbance) -> str | None:
        training = _Training(make(), batch)
        wrong = at.during(training.go_on)
        training.go_on()
        wrong = wrong or differences(training.with_weights(), expected)
        training.close()
        return wrong

    return work


def _while_going_back(make: Callable[[], mr.Memory]) -> Work:
    """Disturb `load_state_dict`; all is as it was or as it was saved, and going on from the state ends the same."""
    undisturbed = _Training(make())
    undisturbed.go_on(SAVED)
    states = [undisturbed.state()]
    mixed = undisturbed.go_on(SAVED + 1)
    states.append(undisturbed.state())
    mixed += undisturbed.go_on()
    expected = undisturbed.with_weights()
    undisturbed.close()

    def work(at: Disturbance) -> str | None:
        training = _Training(make())
        training.go_on(SAVED)
        saved = copy.deepcopy(training.mer.state_dict())
        training.go_on(SAVED + 1)
        wrong = at.during(lambda: training.mer.load_state_dict(saved))
        found = training.state()
        if all(differences(found, one) for one in states):
            wrong = wrong or "the state is neither as it was nor as it was saved"
        training.mer.load_state_dict(saved)
        if str(training.go_on()) != str(mixed):
            wrong = wrong or "other batches came after it"
        wrong = wrong or differences(training.with_weights(), expected)
        training.close()
        return wrong

    return work


def _while_offering(folder: Path) -> Work:
    """Disturb a memory on disk; `seen` says what it holds, in this process and after opening it again."""
    xs, ys, _ = examples()

    def go_on(memory: mr.DiskReservoir, end: int = BATCHES) -> None:
        for start in range(memory.seen, end * ROWS, ROWS):
            rows = slice(start, start + ROWS)
            memory.offer({"x": xs[rows], "y": ys[rows]})
            memory.sample(2)
            if start == 2 * ROWS:
                memory.mark()
        memory.flush()

    def held(memory: mr.DiskReservoir) -> str:
        return f"{memory.seen} {memory.numbers().tolist()} {dict(memory.held().items())}" if memory.seen else "0"

    expected = ["0"]
    for end in range(1, BATCHES + 1):
        with mr.DiskReservoir(_new(folder), 5) as memory:
            go_on(memory, end)
            expected.append(held(memory))

    def work(at: Disturbance) -> str | None:
        place = _new(folder)
        memory = mr.DiskReservoir(place, 5)
        wrong = at.during(lambda: go_on(memory))
        if wrong is not None:
            return wrong
        if memory.seen % ROWS or held(memory) != expected[memory.seen // ROWS]:
            return f"after {memory.seen} rows it holds others"
        memory.close()
        with mr.DiskReservoir(place, 5) as again:
            if held(again) != expected[again.seen // ROWS]:
                return "opened again, it holds other rows"
            go_on(again)
            return None if held(again) == expected[-1] else "it ended with other rows"

    return work
