"""The compiled engine for models whose layers are found by watching a call, as long as these stay what they were."""

import threading
from typing import Any, final

from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.cpu.engine import CpuEngine
from metareplay.engines.cpu.layer_engine import LayerEngine
from metareplay.engines.engine import Engine, Gradients, Outcome, Singles
from metareplay.engines.layers import Layers, NotAChainError
from metareplay.engines.model_state import ModelState
from metareplay.engines.objective import Objective
from metareplay.engines.torch_engine import TorchEngine


@final
class TracedEngine(AcceleratedEngine):
    """Watch a model, leave the arithmetic to the engine for its layers, and watch it anew when the model changes.

    A user may change an attribute of the model at any time, such as the p of a Dropout or the name of an activation.

    Args:
        weights: The model's weights, on the CPU.
        plain: The engine that takes over if the model is no chain of known layers.
    """

    def __init__(self, weights: Weights, plain: TorchEngine) -> None:
        super().__init__(plain)
        self._weights = weights
        self._lock = threading.RLock()  # a prediction in another thread changes the modes for a while
        self._use(self._watched())

    def _watched(self) -> Engine:
        """Return the engine for the model as it is now; raise NotAChainError if there is none."""
        self._state = ModelState(self._weights.module)
        layers = Layers.of(self._weights.module)
        chain = layers.chain(self._weights.module)
        if chain is not None:
            return CpuEngine(self._weights, [chain], self._plain, traced=True)
        return LayerEngine(self._weights, layers, self._plain)

    def _use(self, engine: Engine) -> None:
        self.current = engine
        self.name, self.reason = engine.name, engine.reason

    def _follow(self) -> Engine:
        """Return the engine for the model, which is watched anew if it has changed."""
        if self._state.changed():
            self._weights.check()
            self._plain.reason = None
            try:
                self._use(self._watched())
            except NotAChainError as error:
                self._plain.reason = f"the compiled engine needs {error}"
                self._use(self._plain)
        return self.current

    def is_current(self, engine: Engine) -> bool:
        """Return whether an engine is still the right one for the model.

        Args:
            engine: What was `current` at some time.
        """
        with self._lock:
            return engine is self.current and not self._state.changed()

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Execute the plan by the engine for the model as it is now."""
        with self._lock:
            outcome = self._follow().execute(plan, table, objective)
            self._use(self.current)
            return outcome

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Compute gradients by the engine for the model as it is now."""
        with self._lock:
            found = self._follow().gradients(table, groups, objective, example)
            self._use(self.current)
            return found

    def singles(self, table: Table, objective: Objective) -> "Singles | None":
        """Return what the engine for the model as it is now has for single examples."""
        with self._lock:
            found = self._follow().singles(table, objective)
            self._use(self.current)
            return None if found is None else _TracedSingles(found, self, self._lock)

    def output(self, x: NDArray[Any]) -> NDArray[Any] | None:
        """Leave a single input to `outputs`: an engine that has not been tried must not predict."""
        del x
        return None

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by the module itself, in evaluation mode."""
        with self._lock:
            return self._plain.outputs(xs, tasks)


@final
class _TracedSingles(Singles):
    """Learn single examples as long as the model stays what it was."""

    def __init__(self, singles: Singles, engine: TracedEngine, lock: threading.RLock) -> None:
        self._singles, self._engine, self._made_for, self._lock = singles, engine, engine.current, lock

    def follow(self, plan: Plan) -> bool:
        """Take over a plan; `learn` looks at the model."""
        return self._singles.follow(plan)

    def change_rates(self, plan: Plan) -> None:
        """Go on with other rates."""
        self._singles.change_rates(plan)

    def learn(self, number: int, x: NDArray[Any], y: int | NDArray[Any]) -> bool:
        """Learn the next example, unless the model has changed."""
        with self._lock:
            return self._engine.is_current(self._made_for) and self._singles.learn(number, x, y)

    def give(self) -> None:
        """Make the weights that were computed the model's."""
        self._singles.give()
