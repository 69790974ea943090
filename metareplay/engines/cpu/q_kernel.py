"""The kernel of deep Q-learning with its arrays: what is copied in, run, and copied out."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay._core.draws import Ints
from metareplay._core.imports import import_whole
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.cpu.compiling import compiling
from metareplay.engines.inputs import gather
from metareplay.engines.q_shape import Conv, Shape
from metareplay.engines.temporal_difference import TemporalDifference

MOMENTS: Final = {"moments": "exp_avg", "squares": "exp_avg_sq"}  # Adam's, by their names in the kernel


@final
@dataclass(frozen=True)
class Form:
    """Say how the kernel sees a network.

    Args:
        mlp: The widths of an MLP; empty if there are convolutions.
        pictures: The shape of a network with convolutions; None if there are none.
    """

    mlp: tuple[int, ...]
    pictures: Shape | None = None

    @property
    def convs(self) -> tuple[Conv, ...]:
        """The convolutions."""
        return () if self.pictures is None else self.pictures.convs

    def make_net(self, batch: int, adam: bool) -> Any:
        """Return the kernel's arrays.

        Args:
            batch: The largest number of transitions in a batch.
            adam: Whether to make room for Adam's moments.
        """
        from metareplay.engines.cpu import convolutions, q_steps  # here, because numba takes long to import

        if self.pictures is None:
            return q_steps.make_net(self.mlp, batch, adam)
        widths = (convolutions.features_of(self.convs), *(dense.outs for dense in self.pictures.denses))
        return q_steps.make_net(widths, batch, adam, self.convs)


@final
class QKernel:
    """Run the kernel on its arrays. Weights are copied in before a call, where they differ, and out after it.

    Adam's moments stay in the kernel until somebody asks for them (`give_moments`), because copying them takes about as
    long as a step.

    Args:
        weights: The model's weights.
        form: How the kernel sees the network.
        optimizer: What takes the steps: Adam, or None for plain SGD.
        batch: The largest number of transitions in a batch.
    """

    def __init__(self, weights: Weights, form: Form, optimizer: torch.optim.Optimizer | None, batch: int) -> None:
        import_whole("metareplay.engines.cpu.q_steps")
        from metareplay.engines.cpu import q_steps  # here, because numba takes long to import

        self._code: Any = q_steps
        self._weights, self._optimizer = weights, optimizer
        self.form, self.batch = form, batch
        self.net: Any = form.make_net(batch, optimizer is not None)
        self._held: dict[str, Tensor] = {}  # what was in the kernel when it was last looked at, in torch's order
        self._known = set[str]()  # what has not changed in the kernel since
        self._is_ahead = False  # whether the moments in the kernel are newer than the optimizer's
        self._ran = set[tuple[bool, ...]]()  # the kinds of work that were done, for the remark on compiling

    def take(self, objective: TemporalDifference) -> None:
        """Copy the model's weights, the target network's and Adam's moments into the kernel.

        Args:
            objective: The objective with the target network.
        """
        with self.compiling(False):
            self._pack("weights", self._weights.theta)
            self._pack("target", objective.target.theta)
            if self._optimizer is not None and not self._is_ahead:
                state = self._moments()
                self.net.steps[0] = int(state["step"]) if state else 0
                for name, moment in MOMENTS.items():
                    self._pack(name, state[moment] if state else torch.zeros_like(self._weights.theta))
        self.net.learned[0] = 0
        self._known.clear()  # from now on the arrays may change

    def give(self, objective: TemporalDifference | None = None) -> int:
        """Copy the kernel's weights into the model; return how many examples were learned since the last call.

        Args:
            objective: The objective whose target network is also to be copied out; None to leave it alone.
        """
        learned = int(self.net.learned[0])
        if learned:
            self._unpack("weights", self._weights.theta)
            self._is_ahead = self._optimizer is not None
        if objective is not None:
            self._unpack("target", objective.target.theta)
        self._known |= {"weights", "target"}
        return learned

    def give_moments(self) -> None:
        """Copy Adam's moments into the optimizer, if those in the kernel are newer."""
        if not self._is_ahead or self._optimizer is None:
            return
        state = self._moments()
        if not state:
            state |= {"step": torch.tensor(0.0)}
            state |= {moment: torch.zeros_like(self._weights.theta) for moment in MOMENTS.values()}
            self._optimizer.state[self._parameter()] = state
        state["step"].fill_(float(self.net.steps[0]))
        for name, moment in MOMENTS.items():
            self._unpack(name, state[moment])
        self._is_ahead = False

    def run(self, plan: Plan, table: Table, objective: TemporalDifference) -> None:
        """Learn a plan's examples, up to the first whose loss or weights are not finite.

        Args:
            plan: The rows to visit, in order, and the rates.
            table: The transitions by row.
            objective: What each step minimises.
        """
        rates = self.rates(plan.rates, objective, plan.together)
        if not self.form.convs:
            columns = self.columns(table)
            with self.compiling():
                self._code.run_plan(self.net, columns, plan.rows, plan.ends, len(plan), plan.s, plan.incoming, rates)
            return
        for i in range(len(plan)):
            part = plan.part(i, i + 1)
            columns, rows, incoming = self._gathered(table, part)
            with self.compiling():
                if not self._code.run_plan(self.net, columns, rows, part.ends, 1, part.s, incoming, rates):
                    return

    def _gathered(self, table: Table, plan: Plan) -> tuple[Any, Ints, int]:
        """Return copies of the rows that a plan for one example visits, their new numbers, and that of the incoming."""
        rows, numbers = np.unique(plan.rows, return_inverse=True)
        found = gather(table, torch.from_numpy(rows), self._weights)
        xs, following = (found[name].flatten(1).numpy() for name in ("x", "next_x"))
        action, reward, over = (found[name].numpy() for name in ("action", "reward", "over"))
        incoming = np.flatnonzero(rows == plan.incoming)
        columns = self._code.Transitions(xs, action, reward, following, over)
        return columns, numbers.reshape(-1), int(incoming[0]) if len(incoming) else -1

    def outputs(self, xs: Tensor) -> Tensor:
        """Compute the values of all actions.

        Args:
            xs: Inputs, as the model takes them.
        """
        found = np.empty((len(xs), self.net.widths[-1]), np.float32)
        with self.compiling(False):
            self._pack("weights", self._weights.theta)
            self._code.outputs(self.net, xs.flatten(1).contiguous().numpy(), found)
        return torch.from_numpy(found)

    def columns(self, table: Table) -> Any:
        """Return a table's columns as the kernel takes them.

        Args:
            table: The transitions by row.
        """

        def values(name: str) -> Any:
            column = table.column(name)
            if not isinstance(column, TensorColumn):
                raise TypeError(type(column))  # the engine has looked
            return column.values.numpy()

        xs, following = (values(name).reshape(len(table), -1) for name in ("x", "next_x"))
        return self._code.Transitions(xs, values("action"), values("reward"), following, values("over"))

    def rates(self, rates: Rates, objective: TemporalDifference, together: bool) -> Any:
        """Return how steps are taken, as the kernel takes it.

        Args:
            rates: How far steps and Reptile lines go.
            objective: What each step minimises.
            together: Take one step on the mean loss of a batch, instead of one step per row.
        """
        number = np.float32
        return self._code.QRates(
            memory=number(rates.memory),
            current=number(rates.current),
            within=number(rates.within),
            across=number(rates.across),
            clip=np.inf if objective.clip is None else float(objective.clip),
            discount=number(objective.discount),
            double=bool(objective.double),
            together=together,
            adam=self._optimizer is not None,
            lr=0.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"]),
        )

    def compiling(self, learns: bool = True) -> AbstractContextManager[None]:
        """Log a remark if the first call takes long, because the kernel is compiled for this CPU.

        Args:
            learns: Whether it is a call that learns, not one that only packs weights or predicts.
        """
        return compiling(self._ran, learns, bool(self.form.convs))

    def _parameter(self) -> nn.Parameter:
        assert self._optimizer is not None
        parameter: nn.Parameter = self._optimizer.param_groups[0]["params"][0]
        return parameter

    def _moments(self) -> dict[str, Tensor]:
        """Return Adam's own moments; nothing before its first step."""
        assert self._optimizer is not None
        return dict(self._optimizer.state.get(self._parameter(), {}))

    def _pack(self, name: str, theta: Tensor) -> None:
        """Bring one of the net's vectors to these values, unless it has them already."""
        values = theta.detach().numpy()
        if name not in self._known or not self._code.same(self._held[name].numpy(), values):
            self._known.discard(name)
            self._code.pack(self.net, values, getattr(self.net, name))
            self._held[name] = theta.detach().clone()
            self._known.add(name)

    def _unpack(self, name: str, theta: Tensor) -> None:
        """Read one of the net's vectors."""
        held = self._held[name]
        self._code.unpack(self.net, getattr(self.net, name), held.numpy())
        theta.copy_(held)
        self._known.add(name)
