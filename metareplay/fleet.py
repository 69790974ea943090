"""Many runs at once on one GPU: a fleet of small MLPs, each with its own seed, rates, batches, memory and stream.

A run is sequential, so a single one gains little from a GPU; a fleet gains by its size. Every run draws the same rows
and lands on the same weights (float32 rounding apart) as on any other engine, whoever flies beside it, and gives the
same kind of record.
"""

import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay.data import mnist
from metareplay.draws import Purpose
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.inputs import scale_of
from metareplay.engines.precision import full_precision
from metareplay.errors import InputError, MetareplayError
from metareplay.experiment import Experiment
from metareplay.files import exists, remove, write_atomically
from metareplay.learners import MER, Learner, MERCurrentRate, MEROneBigBatch, Online
from metareplay.loop import Run
from metareplay.memories import Reservoir
from metareplay.record import Record, versions
from metareplay.records import Records
from metareplay.streams.images import ImageStream
from metareplay.streams.stream import Stream

NAME: Final = "fleet"
SAVE_EVERY = 20.0  # seconds between checkpoints
WIDEST: Final = 128  # units of a hidden layer, or classes: what the registers of one multiprocessor hold
SHORTEST, LONGEST = 128, 512  # steps that the kernel takes as one block; a batch must fit into one
PLACES: Final = 16  # see the kernel
WINDOW: Final = 128  # examples; the kernel's
FIRST, LAST, ANYWHERE = 0, 1, 2  # where a batch holds the current example
TURN: Final = 1.0  # seconds that one launch should take, so that progress is seen and Ctrl-C is heard
Report = Callable[[int, int], None]  # examples learned, examples in all


@final
@dataclass(frozen=True)
class Terms:
    """What the kernel must know of a learner: a batch is `drawn` rows from memory and `copies` of the current one."""

    memory: int
    drawn: int
    copies: int
    batches: int  # for each example
    place: int  # of the current example in a batch
    odds: int  # after N examples the reservoir draws from 0 .. N + odds - 1
    rate: float
    current_rate: float
    beta: float

    @staticmethod
    def of(learner: Learner) -> "Terms":
        """The terms of a learner that can fly; an InputError says what keeps another one on the ground."""
        if learner.regression or learner.clip is not None:
            raise InputError("a fleet neither clips gradients nor does regression: use engine='cpu'")
        if learner.loss is not None and LossKind.of(learner.loss) is not LossKind.CROSS_ENTROPY:
            raise InputError("a fleet learns with cross-entropy: leave the loss out, or use engine='auto'")
        if isinstance(learner, Online):
            return Terms(0, 0, 1, 1, FIRST, 1, learner.lr, learner.lr, 1.0)
        if not isinstance(learner, MER | MEROneBigBatch | MERCurrentRate):
            name = type(learner).__name__
            raise InputError(f"a fleet takes MER, MEROneBigBatch, MERCurrentRate and Online, not {name}")
        if not isinstance(learner.memory, Reservoir):
            raise InputError(f"a fleet remembers with a Reservoir, not with {type(learner.memory).__name__}")
        batches, copies, place = (
            (learner.s, 1, FIRST) if isinstance(learner, MER)
            else (1, learner.s, LAST) if isinstance(learner, MEROneBigBatch)
            else (1, 1, ANYWHERE)
        )  # fmt: skip
        rates = learner.rates()
        if batches > 1 and rates.across != 1:
            raise InputError(f"a fleet takes MER with gamma=1 or s=1, not gamma={rates.across} and s={batches}")
        drawn, odds = copies * (learner.k - 1), 1 if learner.memory.rule == "paper" else 2
        if drawn + copies > LONGEST:
            raise InputError(f"a batch of {drawn + copies} examples: a fleet takes up to {LONGEST}")
        capacity, beta = learner.memory.capacity, rates.within * rates.across
        return Terms(capacity, drawn, copies, batches, place, odds, rates.memory, rates.current, beta)

    @property
    def length(self) -> int:
        """Steps of one batch, once the memory holds enough."""
        return self.drawn + self.copies

    @property
    def limit(self) -> int:
        """Steps that the kernel takes as one block: the run's own affair, so that company does not change its sums."""
        return max(SHORTEST, _power(self.length))


@final
class Fleet:
    """Runs of one shape, side by side: `learn` the next examples of every stream, measure `accuracy`, read `theta`."""

    def __init__(self, runs: Sequence[Run], device: torch.device | str = "cuda") -> None:
        if not runs:
            raise InputError("a fleet has at least one run")
        self.runs, self.device = list(runs), torch.device(device)
        check_device(self.device)
        self.terms = [Terms.of(run.learner) for run in self.runs]
        chains = [_chain(run.learner) for run in self.runs]
        if len({chain.widths for chain in chains}) > 1:
            raise InputError("the runs of one fleet have nets of one shape: make a fleet for each")
        self.widths = chains[0].widths
        self.seen = 0
        self._width = _power(max(self.widths[1:3]))
        self._out = _power(self.widths[3])
        self._rows = max(terms.limit for terms in self.terms)
        self._check_room()
        self._place_streams()
        self._theta = torch.zeros(len(runs), sum(self._sizes().values()))
        for parts, chain in zip(self._parts(self._theta), chains, strict=True):
            _fill(parts, chain)
        self._theta = self._theta.to(self.device)
        self._make_tensors()

    def learn(self, count: int) -> None:
        """The next `count` examples of every run's stream.

        In parts that end at multiples of WINDOW examples it does the same sums in the same order, bit for bit.
        """
        from metareplay.engines import fleet_kernel  # here, because triton takes long to import

        if self.seen + count > self.ends[-1]:
            raise InputError(f"{count} examples after {self.seen}: the streams have {self.ends[-1]}")
        inputs, _, _, classes = self.widths
        fleet_kernel.learn[(len(self.runs),)](
            self._xs, self._ys, self._order, self._whole, self._real, self._keys, self._slots, self._failed,
            self._theta, self._block, self._scratch, self.seen, self.seen + count,
            self._slots.shape[1], 1 / scale_of(self._xs),
            inputs=inputs, width=self._width, places=PLACES, out=self._out, classes=classes,
            span=self._rows, edge=128, depth=64, num_warps=8, num_stages=2,
        )  # fmt: skip
        self.seen += count
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def start_with(self, count: int) -> None:
        """Go to example `count` of the streams, every memory holding the first ones, nothing learned: to time steps."""
        held = torch.arange(min(count, self._slots.shape[1]), dtype=torch.int32)
        self._slots[:, : len(held)] = held.to(self.device)
        self.seen = count

    def accuracy(self, run: int, task: int) -> float:
        """The accuracy of one run's net on a task, in percent."""
        xs, ys = self._test(self.runs[run].stream, task)
        parts = next(self._parts(self._theta[run : run + 1]))
        with full_precision(self.device):
            hidden = torch.addmm(parts["b1"], xs.float().mul_(1 / scale_of(xs)), parts["w1"].T).relu_()
            hidden = torch.addmm(parts["b2"], hidden, parts["w2"].T).relu_()
            scores = torch.addmm(parts["b3"], hidden, parts["w3t"])[:, : self.widths[3]]
        return 100 * (scores.argmax(1) == ys).double().mean().item()

    def theta(self, run: int) -> Tensor:
        """The weights of one run, flat, in the order of its module's parameters."""
        parts = next(self._parts(self._theta[run : run + 1]))
        inputs, below, above, classes = self.widths
        layers = [
            (parts["w1"][:below, :inputs], parts["b1"][:below]),
            (parts["w2"][:above, :below], parts["b2"][:above]),
            (parts["w3t"].T[:classes, :above], parts["b3"][:classes]),
        ]
        return torch.cat([values.reshape(-1) for layer in layers for values in layer]).cpu()

    @property
    def failed(self) -> list[int | None]:
        """For each run the first example of the few among which its numbers left their range; None: all is well.

        The range is float16's, up to 65,504, for the first layer's weights and changes, and float32's for all others.
        """
        return [number - 1 if number else None for number in self._failed.tolist()]

    def state(self) -> dict[str, Tensor]:
        """What has to be kept to go on bit for bit."""
        state = {"theta": self._theta, "slots": self._slots, "failed": self._failed, "seen": torch.tensor(self.seen)}
        return {name: values.cpu() for name, values in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self._theta.copy_(state["theta"])
        self._slots.copy_(state["slots"])
        self._failed.copy_(state["failed"])
        self.seen = int(state["seen"])

    def _sizes(self) -> dict[str, int]:
        """How many numbers each part of the kernel's `theta` has, in its order."""
        width, square = self._width, self._width * self._width
        return {
            "w1": width * self.widths[0], "w2": square, "w2t": square, "w3t": width * self._out,
            "b1": width, "b2": width, "b3": self._out,
        }  # fmt: skip

    def _parts(self, theta: Tensor) -> Iterator[dict[str, Tensor]]:
        """Views of each run's weights."""
        shapes = {"w1": (self._width, -1), "w2": (self._width, -1), "w2t": (self._width, -1), "w3t": (self._width, -1)}
        for of_run in theta:
            pieces = zip(self._sizes(), of_run.split(list(self._sizes().values())), strict=True)
            yield {name: piece.view(shapes.get(name, (-1,))) for name, piece in pieces}

    def _place_streams(self) -> None:
        """All streams on the device, each once, whoever learns from it."""
        streams = {_name(run.stream): run.stream for run in self.runs}
        wholes = [_whole(stream) for stream in streams.values()]
        self.ends = wholes[0][2]
        if any(ends != self.ends for _, _, ends in wholes):
            raise InputError("the runs of one fleet have streams with equally long tasks: make a fleet for each kind")
        if any(xs.dtype != torch.uint8 or xs[0].numel() != self.widths[0] for xs, _, _ in wholes):
            raise InputError(f"a fleet learns from images of {self.widths[0]} bytes (uint8): use engine='cpu'")
        self._xs = torch.cat([xs.flatten(1) for xs, _, _ in wholes]).to(self.device)
        self._ys = torch.cat([ys.int() for _, ys, _ in wholes]).to(self.device)
        self._starts = {name: number * self.ends[-1] for number, name in enumerate(streams)}
        self._tests: dict[tuple[str, int | None], tuple[Tensor, Tensor]] = {}

    def _test(self, stream: Stream, task: int) -> tuple[Tensor, Tensor]:
        """The test set of a task, on the device; of images one copy is kept, whose pixels move as the task says."""
        if not isinstance(stream, ImageStream):
            found = stream.test(task)
            return found.xs.flatten(1).to(self.device), found.ys.to(self.device)
        images = stream.images or mnist()
        key = images.name, stream.test_examples
        if key not in self._tests:
            xs, ys = (torch.tensor(values[: stream.test_examples]) for values in (images.test_xs, images.test_ys))
            self._tests[key] = xs.flatten(1).to(self.device), ys.to(self.device)
        xs, ys = self._tests[key]
        pixels = torch.from_numpy(stream.pixel_map(task)).to(self.device)
        return xs[:, pixels.clamp(min=0)].mul_(pixels >= 0), ys

    def _make_tensors(self) -> None:
        """What the kernel takes besides examples and weights."""
        count, width, rows = len(self.runs), self._width, self._rows
        starts = [self._starts[_name(run.stream)] for run in self.runs]
        whole = [
            [t.memory, t.drawn, t.copies, t.batches, t.place, t.odds, t.limit, start]
            for t, start in zip(self.terms, starts, strict=True)
        ]
        work = torch.tensor([t.batches * t.length for t in self.terms])
        draws = [run.learner.draws for run in self.runs]
        keys = [[one.key(purpose) for purpose in (Purpose.KEEP, Purpose.REPLAY, Purpose.PLACE)] for one in draws]
        on = self.device
        self._order = work.argsort(descending=True, stable=True).int().to(on)  # the longest first
        self._whole = torch.tensor(whole, dtype=torch.int32, device=on)
        self._real = torch.tensor(
            [[t.rate, t.current_rate, t.beta] for t in self.terms], dtype=torch.float32, device=on
        )
        self._keys = torch.from_numpy(np.array(keys, np.uint64)).to(on)
        self._slots = torch.zeros(count, max(1, *(t.memory for t in self.terms)), dtype=torch.int32, device=on)
        self._failed = torch.zeros(count, dtype=torch.int32, device=on)
        self._block = torch.zeros(count, rows, dtype=torch.int32, device=on)
        self._scratch = torch.zeros(count, rows * (2 * width + rows + 2), device=on)

    def _check_room(self) -> None:
        """Refuse a fleet that the device cannot hold, and say which one it can."""
        if self.device.type != "cuda":
            return
        streams = {_name(run.stream): run.stream for run in self.runs}
        examples = sum(one.total or 0 for one in streams.values())
        shared = (self.widths[0] + 4) * examples + 2**29  # half a GiB for test sets and the like
        own = 4 * (sum(self._sizes().values()) + self._rows * (2 * self._width + self._rows + 3))
        own += 4 * max(terms.memory for terms in self.terms)
        need = own * len(self.runs) + shared
        free = int(0.95 * torch.cuda.mem_get_info(self.device)[0])
        if need > free:
            raise InputError(
                f"{len(self.runs)} runs need {need / 2**30:.1f} GiB and the GPU has {free / 2**30:.1f} free: "
                f"fly at most {max(0, (free - shared) // own)} at a time"
            )


def fly(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    fresh: bool = False,
    report: Report | None = None,
    device: torch.device | str = "cuda",
) -> list[Record | None]:
    """Run experiments as one fleet, write their records; None for one whose numbers left their range.

    What has a record in the folder is not run again. Interrupted and called again it goes on from its last checkpoint.
    """
    versions()  # the commit as it is now
    if any(one.alignment for one in experiments):
        raise InputError("a fleet does not compare gradients: use engine='cpu' with alignment")
    started = [replace(one, engine="torch").start() for one in experiments]
    runs = {run.key: run for run in started}
    known = Records(folder)
    found: dict[str, Record | None] = {} if fresh else {key: known.find(key) for key in runs}
    path = folder / f".fleet-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:16]}.ckpt"
    due = [key for key in runs if found.get(key) is None]
    if fresh or not due:
        remove(path)
    state = _load(path) if exists(path) else None
    while due:
        flying = due if state is None else state["keys"]
        flight = _Flight(Fleet([runs[key] for key in flying], device), path, state)
        flight.go(report)
        for record in flight.records():
            if found.get(record.key) is None:
                record.write(folder)
                found[record.key] = record
        remove(path)
        due, state = [key for key in due if key not in flying], None
    return [found.get(run.key) for run in started]


def fleets(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    """Those among the experiments that can fly, in fleets of one shape of net and stream."""
    kinds: dict[str, object] = {}  # by all but the seed
    found: dict[object, list[Experiment]] = {}
    for one in experiments:
        name = repr(replace(one, seed=0))
        if name not in kinds:
            kinds[name] = _kind(one)
        if kinds[name] is not None:
            found.setdefault(kinds[name], []).append(one)
    return list(found.values())


def _kind(experiment: Experiment) -> object:
    """What the runs of one fleet have in common; None if this one cannot fly."""
    run = replace(experiment, engine="torch").start()
    try:
        Terms.of(run.learner)
        widths = _chain(run.learner).widths
    except InputError:
        return None
    return None if experiment.alignment else (widths, run.stream.tasks, run.stream.total)


@final
class _Flight:
    """A fleet on its way through the streams: learns, measures, saves."""

    def __init__(self, fleet: Fleet, path: Path, state: dict[str, Any] | None) -> None:
        self.fleet, self._path = fleet, path
        self._seconds = {"learn": 0.0, "evaluate": 0.0}
        self._saved = time.monotonic()
        if state is None:
            self.save()  # a folder that cannot be written is known before the work
        else:
            self._go_on_from(state)

    def go(self, report: Report | None) -> None:
        """All examples of all streams, whole windows at a time, or up to a task's end; every accuracy wanted."""
        fleet, size, total = self.fleet, 1, self.fleet.ends[-1]
        for finished, end in enumerate((0, *fleet.ends)):
            while fleet.seen < end:
                count = min((fleet.seen // WINDOW + size) * WINDOW, end) - fleet.seen
                took = self._timed("learn", partial(fleet.learn, count))
                size = 2 * size if took < TURN / 2 else size
                if report is not None:
                    report(fleet.seen, total)
                if time.monotonic() - self._saved > SAVE_EVERY:
                    self.save()
            if fleet.seen == end:
                self._timed("evaluate", partial(self._measure, finished))

    def records(self) -> Iterator[Record]:
        """Of each run that stayed finite."""
        share = {name: round(value / len(self.fleet.runs), 3) for name, value in self._seconds.items()}
        for number, (run, failed) in enumerate(zip(self.fleet.runs, self.fleet.failed, strict=True)):
            theta = self.fleet.theta(number)
            if failed is None and torch.isfinite(theta).all():
                run.learner.weights.theta.copy_(theta)
                run.learner.seen = self.fleet.seen
                record = run.record()
                yield replace(record, settings=record.settings | {"engine": NAME}, engine=NAME, seconds=share)

    def _measure(self, finished: int) -> None:
        for number, run in enumerate(self.fleet.runs):
            for task in run.missing(finished):
                run.accuracy[finished, task] = self.fleet.accuracy(number, task)

    def _timed(self, what: str, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        self._seconds[what] += took
        return took

    def save(self) -> None:
        """Write the checkpoint."""
        accuracy = torch.from_numpy(np.stack([run.accuracy for run in self.fleet.runs]))
        about = {"keys": [run.key for run in self.fleet.runs], "accuracy": accuracy, "seconds": self._seconds}
        with write_atomically(self._path) as file:
            torch.save(self.fleet.state() | about, file)
        self._saved = time.monotonic()

    def _go_on_from(self, state: dict[str, Any]) -> None:
        try:
            self.fleet.restore(state)
            for run, accuracy in zip(self.fleet.runs, state["accuracy"], strict=True):
                run.accuracy[:] = accuracy.numpy()
            self._seconds = dict(state["seconds"])
        except Exception as error:
            raise _damaged(self._path) from error


def _load(path: Path) -> dict[str, Any]:
    """A checkpoint, and with it the runs that were under way."""
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state | {"keys": list(state["keys"])}
    except Exception as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> MetareplayError:
    return MetareplayError(f"{path} is damaged: delete it and start again")


def check_device(device: torch.device) -> None:
    """A GPU with Triton; or the CPU, where Triton interprets the kernel (for tests: very slow)."""
    if importlib.util.find_spec("triton") is None:
        raise InputError("engine 'fleet' needs Triton, which is not installed: pip install triton, or use engine='cpu'")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return
    if device.type != "cuda" or not torch.cuda.is_available():
        raise InputError("engine 'fleet' needs a CUDA GPU, and torch finds none: use engine='cpu'")


def _chain(learner: Learner) -> Chain:
    """The layers of a learner's net, if the kernel can take it."""
    chain = Chain.of(learner.model)
    if (
        chain is None
        or len(chain.layers) != 3
        or max(chain.widths[1:]) > WIDEST
        or learner.weights.dtype != torch.float32
    ):
        raise InputError(
            f"a fleet takes float32 nets of Linear and ReLU with two hidden layers of up to {WIDEST} units: "
            f"use engine='cpu' for others"
        )
    return chain


def _fill(parts: dict[str, Tensor], chain: Chain) -> None:
    """Copy a net's weights into the corners of the padded ones."""
    (w1, b1), (w2, b2), (w3, b3) = ((layer.weight.detach(), layer.bias.detach()) for layer in chain.layers)
    given = {"w1": w1, "w2": w2, "w2t": w2.T, "w3t": w3.T, "b1": b1, "b2": b2, "b3": b3}
    for name, values in given.items():
        parts[name][tuple(slice(size) for size in values.shape)] = values


def _power(number: int) -> int:
    """The next power of two from 16 up: what the kernel's blocks are made of."""
    return max(16, 1 << (number - 1).bit_length())


def _name(stream: Stream) -> str:
    return repr(stream.settings())


def _whole(stream: Stream) -> tuple[Tensor, Tensor, list[int]]:
    """All examples of a stream, and where each task ends."""
    chunks, sizes = list(stream.chunks()), [0] * stream.tasks
    for chunk in chunks:
        sizes[chunk.task] += len(chunk)
    return torch.cat([c.xs for c in chunks]), torch.cat([c.ys for c in chunks]), np.cumsum(sizes).tolist()
