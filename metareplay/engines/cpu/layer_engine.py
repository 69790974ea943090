"""The compiled engine for chains of any known layers, such as Tanh, GELU, LayerNorm and Dropout."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints, Purpose
from metareplay._core.imports import import_whole
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.cpu.compiling import compiling
from metareplay.engines.cpu.losses import Reals, loss_number, loss_obstacle, shares_of, target_obstacle
from metareplay.engines.cpu.masks import MaskMaker
from metareplay.engines.cpu.optimizers import CompiledOptimizer
from metareplay.engines.cpu.row_copies import RowCopies
from metareplay.engines.cpu.trial import OTHER_GRADIENTS, agrees, rows_to_try
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.inputs import as_input
from metareplay.engines.layers import Kind, Layer, Layers
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised
from metareplay.engines.torch_engine import FlatGradients, TorchEngine

MASK_NUMBERS = 2**22  # of Dropout's masks that are drawn at a time, at most, unless one example needs more


@final
class LayerEngine(AcceleratedEngine):
    """Execute plans by the kernel in `layer_steps.py`: the same rows and masks, the same weights up to rounding.

    Args:
        weights: The model's weights, on the CPU.
        layers: The layers that inputs go through.
        plain: The engine that takes over where the kernel does not serve, and that predicts.
    """

    def __init__(self, weights: Weights, layers: Layers, plain: TorchEngine) -> None:
        super().__init__(plain)
        self.weights, self.layers = weights, layers
        self.name = "cpu"
        self._stepping = TorchEngine(weights, plain.draws, plain.optimizer, self._differentiate)
        self._lock = threading.RLock()  # a prediction in another thread waits for the example being learned
        self._kernel: _LayerKernel | None = None
        self._untried = True

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn at full speed first; if an example failed, start again and go carefully, up to that example.

        The steps of optimizers that the kernel does not know are torch's, with gradients from the kernel.
        """
        with self._lock:
            if not self._fits(table, objective) or not isinstance(objective, Supervised):
                return self._plain.execute(plan, table, objective)
            optimizer = CompiledOptimizer.of(self._plain.optimizer, self.weights)
            if optimizer is None and self._plain.optimizer is not None:
                return self._stepping.execute(plan, table, objective)
            undo = self.remember()
            try:
                return self._execute(plan, table, objective, optimizer)
            except BaseException as error:  # Ctrl-C, or no room for the kernel's arrays
                undo()
                self._kernel = None
                return Outcome(0, error)

    def _execute(self, plan: Plan, table: Table, objective: Supervised, optimizer: CompiledOptimizer | None) -> Outcome:
        learned = self._made().run(plan, table, objective, optimizer, careful=False)
        if learned < len(plan):
            self._kernel = None
            learned = self._made().run(plan, table, objective, optimizer, careful=True)
        self._made().give(optimizer if learned else None)
        return Outcome(learned)

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Make one pass over all the groups."""
        with self._lock:
            rows, ends = np.concatenate(groups), np.cumsum([0, *(len(group) for group in groups)])
            if not self._fits(table, objective) or not isinstance(objective, Supervised):
                return self._plain.gradients(table, groups, objective, example)
            shares = shares_of(table, rows, ends, by_task=False)
            seed = self._plain.draws.word(Purpose.MODULE, example)
            return FlatGradients(self.weights, self._made().gradients(table, rows, shares, ends, objective, seed))

    def _differentiate(self, table: Table, rows: Ints, objective: Objective) -> None:
        """Put the gradient of a batch's loss into weights.gradient; masks go on from torch's generator as it is."""
        if not isinstance(objective, Supervised):
            raise TypeError(type(objective))  # `execute` has looked
        ends = np.array([0, len(rows)])
        shares = shares_of(table, rows, ends, objective.by_task)
        self.weights.gradient.copy_(self._made().gradients(table, rows, shares, ends, objective, None)[0])

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by the module itself, in evaluation mode."""
        with self._lock:
            return self._plain.outputs(xs, tasks)

    def _made(self) -> "_LayerKernel":
        self.weights.check()
        if self._kernel is None:
            self._kernel = _LayerKernel(self.weights, self.layers, self._plain)
        return self._kernel

    def _fits(self, table: Table, objective: Objective) -> bool:
        """Return whether the kernel can do this; if not, torch does the arithmetic from now on.

        The first rows are a trial: the kernel's gradients must be those of the module.
        """
        if self.name != "cpu":
            return False
        outputs = self.layers.each[-1].outputs
        missing = loss_obstacle(objective) or target_obstacle(objective, table.shape("y"), outputs)
        if missing is None and not self.layers.takes(table.shape("x")):
            missing = "inputs that are vectors to the first layer"
        if missing is None and self._untried and isinstance(objective, Supervised) and len(rows_to_try(table)):
            self._untried = False
            missing = None if agrees(self, self._plain, table, objective) else OTHER_GRADIENTS
        if missing is not None:
            self.name = self._plain.name
            self.reason = self._plain.reason = f"the compiled engine needs {missing}"
        return missing is None


@final
class _LayerKernel:
    """Run the kernel on its arrays. The weights are copied in before a plan and out after it.

    Args:
        weights: The module's weights.
        layers: The layers that inputs go through.
        plain: The torch engine, whose draws seed Dropout.
    """

    def __init__(self, weights: Weights, layers: Layers, plain: TorchEngine) -> None:
        import_whole("metareplay.engines.cpu.layer_steps")
        from metareplay.engines.cpu import layer_steps, layout, optimizer_steps, simd  # here: numba is slow to import

        self._code, self._packed, self._by_optimizer = layer_steps, layout, optimizer_steps
        self._lanes = simd.LANES
        self._weights, self._layers, self._draws = weights, layers, plain.draws
        self._dtype = weights.theta.numpy().dtype
        self._number: Any = self._dtype.type
        parameters = [p for layer in layers.each for p in (layer.weight, layer.bias) if p is not None]
        self._frozen = [p for p in parameters if not p.requires_grad]
        drops = [layer for layer in layers.each if _drops(layer)]
        widths, kept = tuple(layer.outputs for layer in drops), tuple(1 - layer.option for layer in drops)
        self._masks, self._source = MaskMaker(widths, kept, weights.dtype), torch.Generator()
        self._net = self._make_net()
        self._moments = optimizer_steps.make_moments(self._net)
        self._xs = np.zeros((0, layers.inputs), self._dtype)
        self._rows = RowCopies(layers.each[-1].outputs, self._dtype)
        self._ran: set[tuple[bool, ...]] = set()
        self._penalty: tuple[QuadraticPenalty | None, Any] = (None, None)  # the last penalty, and its rows

    def _make_net(self) -> Any:
        """Make the kernel's net: trained weights lie where torch's flat vector has them, frozen ones after them."""
        theta, lanes, layers = self._weights.theta, self._lanes, self._layers.each
        trained, places = -(-theta.numel() // lanes) * lanes, dict[int, int]()
        for layer in layers:
            for p in (layer.weight, layer.bias):
                if p is not None and p.requires_grad:
                    places[id(p)] = (p.data_ptr() - theta.data_ptr()) // theta.element_size()
        at = trained
        for p in self._frozen:
            places[id(p)] = at
            at += p.numel()
        drawn = np.cumsum([0, *(one.outputs if _drops(one) else 0 for one in layers)]).tolist()
        return self._code.make_layer_net(
            kinds=[int(layer.kind) for layer in layers],
            widths=[self._layers.inputs, *(layer.outputs for layer in layers)],
            options=[1 / (1 - one.option) if one.kind is Kind.DROPOUT else one.option for one in layers],
            places=[(places.get(id(one.weight), -1), places.get(id(one.bias), -1)) for one in layers],
            masks_at=[at if _drops(one) else -1 for one, at in zip(layers, drawn, strict=False)],
            mask_width=self._masks.numbers_per_row,
            trained=trained,
            frozen=at - trained,
            dtype=self._dtype,
        )

    def run(
        self, plan: Plan, table: Table, objective: Supervised, optimizer: CompiledOptimizer | None, careful: bool
    ) -> int:
        """Learn a plan's examples, starting from the module's weights; return how many stayed finite."""
        self._take_rows(table, plan.rows)
        self._take_weights()
        self._take_moments(optimizer)
        rule = {"kind": self._code.SGD, **dict.fromkeys(self._by_optimizer.Rule._fields[1:], 0.0), "nesterov": False}
        made = self._by_optimizer.Rule(**(rule if optimizer is None else optimizer.rule()))
        learned, pull = 0, self._pull(objective.penalty)
        for part in self._parts(plan):
            with compiling(self._ran, True):
                done = self._code.run_plan(
                    self._net,
                    self._xs,
                    self._targets(objective),
                    self._steps(part, table, objective.by_task),
                    self._rates(part, objective.clip),
                    pull,
                    part.together,
                    made,
                    self._moments,
                    self._draw(part),
                    careful,
                )
            learned += done
            if done < len(part):
                return learned if careful else 0
        return learned

    def _parts(self, plan: Plan) -> Iterator[Plan]:
        """Cut a plan so that the masks of each part fit into memory; without Dropout it stays whole."""
        rows = np.diff(plan.ends[:: plan.s])  # of each example
        most = int(rows.max(initial=1)) * self._masks.numbers_per_row
        size = max(1, MASK_NUMBERS // most) if most else len(plan)
        for start in range(0, len(plan), size):
            yield plan if size >= len(plan) else plan.part(start, min(start + size, len(plan)))

    def _draw(self, plan: Plan) -> Any:
        """Draw the masks of all rows that a plan visits, as the torch engine does."""
        if not self._masks.widths:
            return np.zeros(0, self._dtype)
        words = self._draws.words(Purpose.MODULE, plan.first, len(plan))
        seeds = dict(zip(plan.ends[:: plan.s].tolist(), words, strict=False))
        passes = pairwise(plan.ends.tolist() if plan.together else range(len(plan.rows) + 1))
        return self._masks.draw(len(plan.rows), passes, seeds, self._source).numpy()

    def gradients(
        self, table: Table, rows: Ints, shares: Reals, ends: Ints, objective: Supervised, seed: int | None
    ) -> Tensor:
        """Compute, for each g, the gradient over rows[ends[g] : ends[g + 1]], each row weighted by its share.

        Without a seed, masks go on from torch's generator as it is.
        """
        self._take_rows(table, rows)
        self._take_weights()
        source, seeds = (torch.default_generator, {}) if seed is None else (self._source, {0: seed})
        masks = self._masks.draw(len(rows), pairwise(ends.tolist()), seeds, source).numpy()
        found = self._packed.aligned((len(ends) - 1, self._net.trained), self._dtype)
        with compiling(self._ran, False):
            fine = self._code.gradients(
                self._net, self._xs, self._targets(objective), rows, shares.astype(self._dtype), ends, masks, found
            )
        if not fine:
            found[:] = np.nan
        return torch.from_numpy(found)[:, : self._weights.theta.numel()]

    def give(self, optimizer: CompiledOptimizer | None) -> None:
        """Copy the kernel's weights into the module's, and its moments into an optimizer's own."""
        size = self._weights.theta.numel()
        self._weights.theta.copy_(torch.from_numpy(self._net.rows[0, :size]))
        if optimizer is not None:
            found = optimizer.room(int(self._moments.steps[0]))
            for room, vector in zip((self._moments.first, self._moments.second), found, strict=True):
                if vector is not None:
                    vector.copy_(torch.from_numpy(room[0, :size]))

    def _take_weights(self) -> None:
        theta, at = self._weights.theta, self._net.trained
        self._net.rows[0, : theta.numel()] = theta.numpy()
        for p in self._frozen:
            self._net.rows[0, at : at + p.numel()] = p.detach().flatten().numpy()
            at += p.numel()

    def _take_moments(self, optimizer: CompiledOptimizer | None) -> None:
        """Copy an optimizer's moments into the kernel; those that it does not have yet are 0."""
        if optimizer is not None:
            self._moments.steps[0] = optimizer.steps()
            for room, vector in zip((self._moments.first, self._moments.second), optimizer.moments(), strict=True):
                room[0] = 0
                if vector is not None:
                    room[0, : len(vector)] = vector.numpy()

    def _take_rows(self, table: Table, rows: Ints) -> None:
        """Bring the copies of these rows up to date."""
        if len(self._rows) < len(table):
            self._xs = np.zeros((len(table), self._xs.shape[1]), self._dtype)
            self._rows.make_room(len(table))
        if not self._rows.are_of(table):
            self._rows.turn_to(table)
        stale = self._rows.stale(table, rows)
        if len(stale):
            xs = table.column("x").gather(torch.from_numpy(stale))
            self._xs[stale] = as_input(xs, self._weights).flatten(1).numpy()
            self._rows.take(table, stale)

    def _targets(self, objective: Supervised) -> Any:
        return self._packed.Targets(loss_number(objective), self._rows.labels, self._rows.values)

    def _steps(self, plan: Plan, table: Table, by_task: bool) -> Any:
        shares = shares_of(table, plan.rows, plan.ends, by_task) if plan.together else np.ones(len(plan.rows))
        return self._packed.Steps(plan.rows, plan.ends, shares.astype(self._dtype), plan.s, plan.incoming)

    def _rates(self, plan: Plan, clip: float | None) -> Any:
        rates, most = plan.rates, np.inf if clip is None else clip
        each = (rates.memory, rates.current, rates.within, rates.across, most)
        return self._packed.KernelRates(*(self._number(rate) for rate in each))

    def _pull(self, penalty: QuadraticPenalty | None) -> Any:
        """Lay out a penalty like the net's weights, once per penalty; without one, its strength is 0."""
        if self._penalty[1] is None or penalty is not self._penalty[0]:
            rows, strength = [self._net.gradient, self._net.gradient], 0.0
            if penalty is not None:
                rows, strength = (
                    [self._packed.aligned(self._net.gradient.shape, self._dtype) for _ in range(2)],
                    penalty.strength,
                )
                for row, vector in zip(rows, (penalty.importance, penalty.anchor), strict=True):
                    row[0, : len(vector)] = vector.numpy()
            self._penalty = penalty, self._packed.PullRows(self._number(2 * strength), *rows)
        return self._penalty[1]


def _drops(layer: Layer) -> bool:
    """Return whether a layer draws masks."""
    return layer.kind is Kind.DROPOUT and layer.option > 0
