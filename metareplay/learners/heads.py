"""The head of a model, which is the linear layer that gives its outputs: finding it, and changing its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metareplay._core.checks import shown
from metareplay._core.interrupts import HeldBack
from metareplay.errors import InputError

if TYPE_CHECKING:
    from metareplay.learners.table_learner import TableLearner


def find_head(model: nn.Module, name: str | None, compute: Callable[[], Tensor]) -> nn.Linear:
    """Return the layer that gives a model's outputs, or raise InputError if there is none that can grow.

    Args:
        model: The model.
        name: The name of the layer, as in `model.named_modules()`; None to find it.
        compute: Computes the model's outputs for any inputs, by calling the model.
    """
    layers = {there: layer for there, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if name is not None and name not in layers:
        raise InputError(f"head={shown(name)}: the model has no such linear layer; it has {_listed(layers)}")
    gave: dict[str, Tensor] = {}
    hooks = [layer.register_forward_hook(_noting(gave, there)) for there, layer in layers.items()]
    try:
        outputs = compute()
    finally:
        for hook in hooks:
            hook.remove()
    if name is None:
        last = [there for there, values in gave.items() if _same(values, outputs)]
        if not last:
            raise InputError(
                f"the model's outputs do not come from a linear layer as they are: name the layer that is to grow, "
                f"head=...; it has {_listed(layers)}"
            )
        name = last[-1]
    head = layers[name]
    if outputs.dim() != 2 or head.out_features != outputs.shape[1]:
        raise InputError(
            f"the layer {name!r} has {head.out_features} outputs, but the model's outputs for one input have shape "
            f"{tuple(outputs.shape[1:])}: a head that grows gives one output per class"
        )
    _check_can_grow(model, head, name)
    return head


def resize(head: nn.Linear, size: int) -> None:
    """Give a linear layer another number of outputs; those that stay keep their weights, new ones start from 0.

    Args:
        head: The layer.
        size: How many outputs it is to have.
    """
    with torch.inference_mode(False):
        found = {}
        for name, old in (("weight", head.weight), ("bias", head.bias)):
            if old is not None:
                new = old.detach().new_zeros((size, *old.shape[1:]))
                new[: len(old)] = old.detach()[:size]
                found[name] = nn.Parameter(new, requires_grad=old.requires_grad)
        for name, parameter in found.items():  # only now, since a GPU may have room for one of them
            setattr(head, name, parameter)
    head.out_features = size


def other_head(saved: Mapping[str, Tensor], here: Mapping[str, Tensor], model: nn.Module) -> str | None:
    """Return the name of the linear layer whose number of outputs is all that two models differ in, if there is one.

    Args:
        saved: Parameters and buffers of one model.
        here: Those of the other one.
        model: The other one.
    """
    different = [name for name in {**saved, **here} if name not in saved or name not in here]
    different += [name for name in saved if name in here and saved[name].shape != here[name].shape]
    layers = {name.rpartition(".")[0] for name in different}
    if len(layers) != 1 or different[0] not in here or different[0] not in saved:
        return None
    [name] = layers
    layer = model.get_submodule(name)
    alike = all(one in saved and one in here and saved[one].shape[1:] == here[one].shape[1:] for one in different)
    return name if type(layer) is nn.Linear and alike and len(different) == len(list(layer.parameters())) else None


@contextmanager
def sized_like(learner: TableLearner, saved: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a learner's model the saved number of outputs in a `with` block; a head that was larger is so afterwards.

    The outputs beyond the saved ones then have the weights that they had before. After an error the model is as it was.

    Args:
        learner: The learner that is being restored.
        saved: The saved parameters and buffers of the model.
        here: Those of the learner's model.
    """
    name = other_head(saved, here, learner.model)
    size = 0 if name is None else len(saved[f"{name}.weight"])
    if name is None or not learner.takes_head(size, len(here[f"{name}.weight"])):
        yield
        return
    head = learner.model.get_submodule(name)
    assert isinstance(head, nn.Linear)
    before, undo = [p.detach().clone() for p in head.parameters()], learner.remember_layers()
    with HeldBack():
        try:
            with learner.reshaping():
                resize(head, size)
            yield
            if len(before[0]) > size:
                with learner.reshaping(), torch.no_grad():
                    resize(head, len(before[0]))
                    for parameter, values in zip(head.parameters(), before, strict=True):
                        parameter[size:] = values[size:]
        except BaseException:
            undo()
            raise


def _noting(gave: dict[str, Tensor], name: str) -> Callable[[nn.Module, object, object], None]:
    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            gave[name] = output

    return note


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.data_ptr() == other.data_ptr())


def _check_can_grow(model: nn.Module, head: nn.Linear, name: str) -> None:
    """Raise InputError if a layer has weights that cannot be replaced by larger ones."""
    own = head._parameters.get("weight")
    if own is None or not own.requires_grad:
        raise InputError(f"the layer {name!r} is frozen or parametrized, so that it cannot grow: train it as it is")
    shared = [there for there, p in model.named_parameters(remove_duplicate=False) if p is own]
    if len(shared) > 1:
        raise InputError(f"the layer {name!r} cannot grow: {' and '.join(shared)} are one parameter")


def _listed(layers: Mapping[str, nn.Linear]) -> str:
    return ", ".join(map(repr, layers)) or "none"
