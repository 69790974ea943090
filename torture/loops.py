"""What is disturbed and has states of its own: prequential runs, PeriodicMER, and memories on disk."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import metareplay as mr
from metareplay.experiments import prequential_run
from torture.disturbance import Disturbance
from torture.experiments import same_results
from torture.subjects import INPUTS, SUBJECTS, differences, examples, stream
from torture.works import Work

BATCHES, ROWS = 6, 4
NUMBERS = count()


def works(folder: Path) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Return what is disturbed, by name.

    Args:
        folder: Where files are written.
    """
    for name in ("mer", "er, adam", "gem"):
        yield f"{name}: prequential", partial(_while_scoring, name, folder)
    yield "PeriodicMER in RAM", partial(_while_mixing, lambda: mr.Reservoir(7))
    yield "PeriodicMER on disk", partial(_while_mixing, lambda: mr.DiskReservoir(_new(folder), 7))
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


def _while_mixing(make: Callable[[], mr.Memory]) -> Work:
    """Disturb `mix` and `step`; `new_rows` and `steps` say what has been done, and going on ends the same."""

    def begun() -> tuple[mr.PeriodicMER, nn.Module, mr.Memory]:
        memory, model = make(), mr.networks.mlp(INPUTS, (5,), 3, seed=1)
        return mr.PeriodicMER(model, memory=memory, share=0.5, every=2, rate=0.5), model, memory

    def go_on(mer: mr.PeriodicMER, model: nn.Module, seen: list[Tensor]) -> None:
        for batch in range(BATCHES):
            if mer.new_rows == batch * ROWS:
                seen.append(mer.mix(torch.arange(batch * ROWS, (batch + 1) * ROWS)[:, None].float()))
            if mer.steps == batch:
                with torch.no_grad():
                    for theta in model.parameters():
                        theta.fill_(batch + 1)
                mer.step()

    def state(mer: mr.PeriodicMER, model: nn.Module) -> dict[str, Any]:
        parts = mer.state_dict()
        parts["memory"] = {name: value for name, value in parts["memory"].items() if name != "mark"}  # a running number
        return {name: str(value) for name, value in (*parts.items(), *model.state_dict().items())}

    first, model, memory = begun()
    go_on(first, model, [])
    expected, rows = state(first, model), str(dict(memory.held().items()))
    _closed(memory)

    def work(at: Disturbance) -> str | None:
        mer, net, held = begun()
        wrong = at.during(lambda: go_on(mer, net, []))
        go_on(mer, net, [])
        wrong = wrong or differences(state(mer, net), expected)
        if str(dict(held.held().items())) != rows:
            wrong = "the memory holds other rows"
        _closed(held)
        return wrong

    return work


def _closed(memory: mr.Memory) -> None:
    if isinstance(memory, mr.DiskReservoir):
        memory.close()


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
