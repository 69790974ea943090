"""A fleet: runs of small MLPs side by side on one GPU, what the kernel in `fleet_kernel.py` takes and gives.

A run is sequential, so a single one gains little from a GPU; a fleet gains by its size. Every run draws the same rows
and lands on the same weights (float32 rounding apart) as on any other engine, whoever flies beside it.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Purpose
from metareplay.data import mnist
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.inputs import scale_of
from metareplay.engines.precision import full_precision
from metareplay.errors import InputError
from metareplay.experiments.loop import Run
from metareplay.learners import MER, Learner, MERCurrentRate, MEROneBigBatch, Online
from metareplay.memories import Reservoir
from metareplay.streams.images import ImageStream
from metareplay.streams.stream import Stream

WIDEST: Final = 128  # units of a hidden layer, or classes: what the registers of one multiprocessor hold
SHORTEST, LONGEST = 128, 512  # steps that the kernel takes as one block; a batch must fit into one
PLACES: Final = 16  # see the kernel
WINDOW: Final = 128  # examples; the kernel's
FIRST, LAST, ANYWHERE = 0, 1, 2  # where a batch holds the current example


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
        chains = [chain_of(run.learner) for run in self.runs]
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
        from metareplay.runners.fleet import kernel as fleet_kernel  # here, because triton takes long to import

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


def check_device(device: torch.device) -> None:
    """A GPU with Triton; or the CPU, where Triton interprets the kernel (for tests: very slow)."""
    if importlib.util.find_spec("triton") is None:
        raise InputError("engine 'fleet' needs Triton, which is missing: pip install triton, or use engine='auto'")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return
    if device.type != "cuda" or not torch.cuda.is_available():
        raise InputError("engine 'fleet' needs a CUDA GPU, and torch finds none: use engine='auto'")


def chain_of(learner: Learner) -> Chain:
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
