"""The base of the engines that are faster than torch's, on which they fall back."""

from collections.abc import Callable
from typing import final

from torch import Tensor

from metareplay.engines.engine import Engine
from metareplay.engines.torch_engine import TorchEngine


class AcceleratedEngine(Engine):
    """Do the arithmetic faster than torch does, on weights and moments that belong to torch's engine.

    Args:
        plain: The engine that takes over where this one does not serve. It owns the optimizer.
    """

    def __init__(self, plain: TorchEngine) -> None:
        self._plain = plain

    def hand_back(self) -> None:
        """Bring the moments of torch's engine up to date; an engine that keeps newer ones overrides this."""

    @final
    def healthy(self) -> bool:
        """Return whether weights, statistics and moments are finite."""
        self.hand_back()
        return self._plain.healthy()

    @final
    def remember(self) -> Callable[[], None]:
        """Copy weights, buffers and moments."""
        self.hand_back()
        undo = self._plain.remember()

        def undo_all() -> None:
            self.hand_back()  # so that nothing newer comes later
            undo()

        return undo_all

    @final
    def state(self) -> dict[str, Tensor]:
        """Return an optimizer's moments."""
        self.hand_back()
        return self._plain.state()

    @final
    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        self.hand_back()  # so that nothing newer comes later
        self._plain.restore(state)
