"""Torch's optimizers as the compiled engine knows them: which ones, with which options, and where their moments are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from metareplay._core.weights import Weights

Kind = Literal["adam", "rmsprop", "momentum"]
KINDS: Mapping[type[torch.optim.Optimizer], Kind] = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.SGD: "momentum",
}
SWITCHES = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "centered")  # all must be off
NUMBERS = ("lr", "weight_decay", "momentum", "dampening", "alpha", "eps")


@final
@dataclass(frozen=True)
class CompiledOptimizer:
    """Read the options and the moments of an optimizer whose steps are compiled.

    Args:
        optimizer: The optimizer, whose only parameter is the flat vector of all weights.
        kind: Which family of formulas it follows.
    """

    optimizer: torch.optim.Optimizer
    kind: Kind

    @staticmethod
    def of(optimizer: torch.optim.Optimizer | None, weights: Weights) -> "CompiledOptimizer | None":
        """Return what the kernel must know about an optimizer; None if it cannot take its steps.

        Args:
            optimizer: The optimizer, if there is one.
            weights: The weights that it should have as its only parameter.
        """
        kind = None if optimizer is None else KINDS.get(type(optimizer))
        if optimizer is None or kind is None or len(optimizer.param_groups) != 1:
            return None
        made, (options,) = CompiledOptimizer(optimizer, kind), optimizer.param_groups
        numbers = [options[name] for name in NUMBERS if name in options] + list(options.get("betas", ()))
        hooks = [value for name, value in vars(optimizer).items() if name.startswith("_optimizer_step_")]
        alone = len(options["params"]) == 1 and options["params"][0].data_ptr() == weights.theta.data_ptr()
        usual = not any(options.get(name) for name in SWITCHES) and not any(hooks)
        plain = all(type(number) in (int, float) for number in numbers) and options.get("eps", 1.0) > 0
        return made if alone and usual and plain else None

    @property
    def options(self) -> dict[str, Any]:
        """The options as they are now."""
        return self.optimizer.param_groups[0]

    @property
    def names(self) -> tuple[str | None, str | None]:
        """What torch calls the first and the second moments; None where it has none."""
        if self.kind == "adam":
            return "exp_avg", "exp_avg_sq"
        return "momentum_buffer" if self.options["momentum"] else None, "square_avg" if self.kind == "rmsprop" else None

    def rule(self) -> dict[str, Any]:
        """Return the options as the fields of the kernel's `Rule`."""
        options, adam = self.options, self.kind == "adam"
        keep, keep_square = options["betas"] if adam else (options["momentum"], options.get("alpha", 0.0))
        decay = float(options["weight_decay"])
        apart = options.get("decoupled_weight_decay", isinstance(self.optimizer, torch.optim.AdamW))
        return {
            "kind": list(get_args(Kind)).index(self.kind),
            "lr": float(options["lr"]),
            "decay": 0.0 if apart else decay,
            "shrink": decay if apart else 0.0,
            "keep": float(keep),
            "keep_square": float(keep_square),
            "damping": float(options.get("dampening", 0.0)),
            "nesterov": bool(options.get("nesterov", False)),
            "epsilon": float(options.get("eps", 0.0)),
        }

    def steps(self) -> int:
        """Return how many steps have been taken. SGD does not count them: 1 stands for some."""
        kept = self._kept()
        return int(kept["step"]) if "step" in kept else int(kept.get("momentum_buffer") is not None)

    def moments(self) -> list[Tensor | None]:
        """Return the first and the second moments, flat; None where there are none yet."""
        kept = self._kept()
        return [None if name is None else kept.get(name) for name in self.names]

    def room(self, steps: int) -> list[Tensor | None]:
        """Return tensors to write moments into, the optimizer's own; they are made if there are none yet.

        Args:
            steps: How many steps have been taken.
        """
        kept, parameter = self._kept(), self._parameter
        with torch.inference_mode(False):  # tensors made in inference mode cannot be changed outside of it
            if self.kind != "momentum":
                kept.setdefault("step", torch.tensor(0.0)).fill_(steps)
            for name in self.names:
                if name is not None and kept.get(name) is None:
                    kept[name] = torch.zeros_like(parameter, requires_grad=False)
        if kept:
            self.optimizer.state[parameter] = kept
        return self.moments()

    @property
    def _parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = self.options["params"][0]
        return parameter

    def _kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = self.optimizer.state.get(self._parameter, {})
        return kept
