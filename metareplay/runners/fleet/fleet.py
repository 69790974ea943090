"""A fleet: runs of small MLPs side by side on one GPU. It gives the kernel what it needs and reads back the results.

A run is sequential, so a single one gains little from a GPU; a fleet gains by its size. Every run draws the same rows
and ends with the same weights (up to float32 rounding) as on any other engine, and its bits do not depend on the other
runs of the fleet.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Draws, Purpose
from metareplay.data import mnist
from metareplay.engines.chain import Chain
from metareplay.engines.inputs import scale_of
from metareplay.engines.precision import full_precision
from metareplay.errors import InputError
from metareplay.experiments.loop import Run
from metareplay.runners.fleet.layout import WINDOW, Examples, Keys, Layout, Settings, State, Theta, Work
from metareplay.runners.fleet.terms import Terms, chain_of
from metareplay.streams import FirstTasks, HeldOut
from metareplay.streams.images import ImageStream
from metareplay.streams.stream import Stream

__all__ = ["WINDOW", "Fleet", "Terms", "chain_of", "check_device"]


@final
class Fleet:
    """Advance runs of one shape side by side: `learn` the next examples, measure `accuracy`, read `theta`.

    Args:
        runs: The runs, at least one; their nets have the same widths, and their streams have equally long tasks.
        device: A GPU, or the CPU where Triton interprets the kernel (for tests: very slow).
    """

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
        self.layout = Layout.of(self.widths, span=max(terms.limit for terms in self.terms))
        self.seen = 0
        self._check_memory()
        self._examples, starts, self.ends = self._load_streams()
        self._settings = self._tabulate(starts)
        self._state = self._first_state(chains)
        self._work = Work(
            rows=torch.zeros(len(runs), self.layout.span, dtype=torch.int32, device=self.device),
            scratch=torch.zeros(len(runs), self.layout.scratch_size, device=self.device),
        )
        self._tests: dict[tuple[str, int | None], tuple[Tensor, Tensor]] = {}
        self._validations: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}  # by stream and task

    def learn(self, count: int) -> None:
        """Learn the next `count` examples of every run's stream.

        Learning in parts that end at multiples of WINDOW examples does the same sums in the same order, bit for bit.
        """
        from metareplay.runners.fleet import kernel  # here, because triton takes long to import

        if self.seen + count > self.ends[-1]:
            raise InputError(f"{count} examples after {self.seen}: the streams have {self.ends[-1]}")
        kernel.learn[(len(self.runs),)](
            self._examples,
            self._settings,
            self._state,
            self._work,
            self.seen,
            self.seen + count,
            self._state.slots.shape[1],
            1 / scale_of(self._examples.xs),
            layout=self.layout,
            num_warps=8,
            num_stages=2,
        )
        self.seen += count
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def start_with(self, count: int) -> None:
        """Go to example `count` of the streams with memories that hold the first examples, to time steps from there.

        Nothing is learned on the way.
        """
        slots = self._state.slots
        held = torch.arange(min(count, slots.shape[1]), dtype=torch.int32)
        slots[:, : len(held)] = held.to(self.device)
        self.seen = count

    def accuracy(self, run: int, task: int) -> float:
        """Return the accuracy of one run's net on the test set of a task, in percent."""
        return self._accuracy(run, *self._test(self.runs[run].stream, task))

    def validation_accuracy(self, run: int, task: int) -> float:
        """Return the accuracy of one run's net on the validation set of a task, in percent."""
        stream = self.runs[run].stream
        key = _identity(stream), task
        if key not in self._validations:
            found = stream.validation(task)
            self._validations[key] = found.xs.flatten(1).to(self.device), found.ys.to(self.device)
        return self._accuracy(run, *self._validations[key])

    def _accuracy(self, run: int, xs: Tensor, ys: Tensor) -> float:
        """Return the accuracy of one run's net on some examples, in percent."""
        theta = self.layout.views(self._state.theta[run])
        with full_precision(self.device):
            hidden = torch.addmm(theta.b1, xs.float().mul_(1 / scale_of(xs)), theta.w1.T).relu_()
            hidden = torch.addmm(theta.b2, hidden, theta.w2.T).relu_()
            scores = torch.addmm(theta.b3, hidden, theta.w3t)[:, : self.layout.classes]
        return 100 * (scores.argmax(1) == ys).double().mean().item()

    def theta(self, run: int) -> Tensor:
        """Return the weights of one run as a flat vector, in the order of its module's parameters."""
        theta = self.layout.views(self._state.theta[run])
        inputs, below, above, classes = self.widths
        layers = [
            (theta.w1[:below, :inputs], theta.b1[:below]),
            (theta.w2[:above, :below], theta.b2[:above]),
            (theta.w3t.T[:classes, :above], theta.b3[:classes]),
        ]
        return torch.cat([values.reshape(-1) for layer in layers for values in layer]).cpu()

    @property
    def failed(self) -> list[int | None]:
        """Return for each run where its numbers left their range: the first example of that block, or None.

        The range is float16's, up to 65,504, for the first layer's weights and changes, and float32's for all others.
        """
        return [number - 1 if number else None for number in self._state.failed.tolist()]

    def state(self) -> dict[str, Tensor]:
        """Return what `restore` needs to continue bit for bit."""
        state = {name: getattr(self._state, name) for name in ("theta", "slots", "failed")}
        return {name: values.cpu() for name, values in state.items()} | {"seen": torch.tensor(self.seen)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._state.theta.copy_(state["theta"])
        self._state.slots.copy_(state["slots"])
        self._state.failed.copy_(state["failed"])
        self.seen = int(state["seen"])

    def _check_memory(self) -> None:
        """Refuse a fleet that does not fit into the GPU's memory, and say how many runs do."""
        if self.device.type != "cuda":
            return
        streams = {_identity(run.stream): run.stream for run in self.runs}
        examples = sum(one.total or 0 for one in streams.values())
        shared = (self.layout.inputs + 4) * examples + 2**29  # half a GiB for test sets and the like
        slots = max(terms.memory for terms in self.terms)
        own = 4 * (self.layout.theta_size + self.layout.scratch_size + self.layout.span + slots)
        need = own * len(self.runs) + shared
        free = int(0.95 * torch.cuda.mem_get_info(self.device)[0])
        if need > free:
            raise InputError(
                f"{len(self.runs)} runs need {need / 2**30:.1f} GiB and the GPU has {free / 2**30:.1f} free: "
                f"fly at most {max(0, (free - shared) // own)} at a time"
            )

    def _load_streams(self) -> tuple[Examples, list[int], list[int]]:
        """Copy every stream to the device, each once; return them, where each run's begins, and where tasks end."""
        streams = {_identity(run.stream): run.stream for run in self.runs}
        loaded = [_all_examples(stream) for stream in streams.values()]
        task_ends = loaded[0][2]
        if any(ends != task_ends for _, _, ends in loaded):
            raise InputError("the runs of one fleet have streams with equally long tasks: make a fleet for each kind")
        if any(xs.dtype != torch.uint8 or xs[0].numel() != self.layout.inputs for xs, _, _ in loaded):
            raise InputError(f"a fleet learns from images of {self.layout.inputs} bytes (uint8): use --on threads")
        examples = Examples(
            xs=torch.cat([xs.flatten(1) for xs, _, _ in loaded]).to(self.device),
            ys=torch.cat([ys.int() for _, ys, _ in loaded]).to(self.device),
        )
        starts = {key: number * task_ends[-1] for number, key in enumerate(streams)}
        return examples, [starts[_identity(run.stream)] for run in self.runs], task_ends

    def _tabulate(self, starts: Sequence[int]) -> Settings:
        """Make the tables of settings, given where each run's stream begins."""
        integers = [terms.integers(start) for terms, start in zip(self.terms, starts, strict=True)]
        floats = [terms.floats() for terms in self.terms]
        keys = [_draw_keys(run.learner.draws) for run in self.runs]
        steps = torch.tensor([terms.batches * terms.length for terms in self.terms])
        return Settings(
            order=steps.argsort(descending=True, stable=True).int().to(self.device),  # the longest first
            integers=torch.tensor(integers, dtype=torch.int32, device=self.device),
            floats=torch.tensor(floats, dtype=torch.float32, device=self.device),
            keys=torch.from_numpy(np.array(keys, np.uint64)).to(self.device),
        )

    def _first_state(self, chains: Sequence[Chain]) -> State:
        """Make empty memories, and the weights that the nets have now."""
        count, slots = len(self.runs), max(1, *(terms.memory for terms in self.terms))
        theta = torch.zeros(count, self.layout.theta_size)
        for of_run, chain in zip(theta, chains, strict=True):
            _copy_weights(self.layout.views(of_run), chain)
        return State(
            slots=torch.zeros(count, slots, dtype=torch.int32, device=self.device),
            failed=torch.zeros(count, dtype=torch.int32, device=self.device),
            theta=theta.to(self.device),
        )

    def _test(self, stream: Stream, task: int) -> tuple[Tensor, Tensor]:
        """Return the test set of a task on the device; images are kept there once, and rearranged for each task."""
        while isinstance(stream, HeldOut | FirstTasks):  # the test sets are those of the whole stream
            stream = stream.stream
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


def check_device(device: torch.device) -> None:
    """Raise InputError unless this is a GPU with Triton, or the CPU with Triton's interpreter (which is for tests)."""
    if importlib.util.find_spec("triton") is None:
        raise InputError("a fleet needs Triton, which is missing: pip install triton, or use --on threads")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return
    if device.type != "cuda" or not torch.cuda.is_available():
        raise InputError("a fleet needs a CUDA GPU, and torch finds none: use --on threads")


def _copy_weights(theta: Theta[Tensor], chain: Chain) -> None:
    """Copy a net's weights into the corners of the padded ones."""
    (w1, b1), (w2, b2), (w3, b3) = ((layer.weight.detach(), layer.bias.detach()) for layer in chain.layers)
    given = Theta(w1=w1, w2=w2, w2t=w2.T, w3t=w3.T, b1=b1, b2=b2, b3=b3)
    for part, values in zip(theta, given, strict=True):
        part[tuple(slice(size) for size in values.shape)] = values


def _draw_keys(draws: Draws) -> Keys:
    """Return what the kernel's draws start from."""
    return Keys(keep=draws.key(Purpose.KEEP), replay=draws.key(Purpose.REPLAY), place=draws.key(Purpose.PLACE))


def _identity(stream: Stream) -> str:
    """Return what two streams have in common if they consist of the same examples."""
    return repr(stream.settings())


def _all_examples(stream: Stream) -> tuple[Tensor, Tensor, list[int]]:
    """Return the inputs and labels of a whole stream, and where each of its tasks ends."""
    chunks, sizes = list(stream.chunks()), [0] * stream.tasks
    for chunk in chunks:
        sizes[chunk.task] += len(chunk)
    return torch.cat([c.xs for c in chunks]), torch.cat([c.ys for c in chunks]), np.cumsum(sizes).tolist()
