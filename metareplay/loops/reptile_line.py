"""The Reptile line over many steps of any optimizer: theta <- before + rate * (theta - before)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metareplay._core.checks import check_share, choice, instance
from metareplay.errors import InputError

LEAST_PIECE = 2**16  # numbers to move between host and device at a time, at least
PARTS = 200  # a piece is at most this part of the largest weight, so that the device needs next to no extra memory


@final
class ReptileLine:
    """Keep a copy of the weights that a model trains, and go part of the way from it to what they have become.

    Each parameter stays where it is and in its dtype. Of a parameter that is sharded (a DTensor, as FSDP2 makes them),
    each rank keeps and moves its own shard, and nothing is communicated. The optimizer's state is left alone.

    Args:
        model: The model, on its device and sharded already. Frozen parameters are neither copied nor moved.
        rate: How far to go from the copy to the present weights: 0 < rate <= 1. With 1, nothing is copied or moved.
        copy_on: "device" to keep the copy beside the weights, "host" to keep it in the host's memory, pinned for a GPU.
    """

    def __init__(self, model: nn.Module, rate: float, copy_on: Literal["device", "host"] = "device") -> None:
        self._model = _inner(instance("model", model, nn.Module, "a torch module"))
        check_share("rate", rate)
        choice("copy_on", copy_on, ("device", "host"))
        self.rate, self.copy_on = float(rate), copy_on
        self._before: dict[str, Tensor] = {}
        self.copy()

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the weights as they are now; the next line starts from them."""
        if self.rate == 1:
            return
        self._copy_to(self._copies())

    @torch.no_grad()
    def move(self) -> None:
        """Replace each weight by before + rate * (weight - before), and copy the result for the next line."""
        if self.rate == 1:
            return
        parameters = dict(self._model.named_parameters())
        thetas = {name: _local(parameters[name]) for name in self._before if name in parameters}
        for name, theta in thetas.items():
            self._check(name, theta)
        copies = self._copies()  # all room is made before anything moves, since a GPU may be full
        pairs = [(theta, self._before[name]) for name, theta in thetas.items()]
        if self.copy_on == "device":
            for theta, before in pairs:
                theta.copy_(before.lerp_(theta, self.rate))
        else:
            rooms = _rooms_for(pairs)
            for theta, before in pairs:
                _move_in_pieces(theta, before, self.rate, rooms[theta.device, theta.dtype])
        if copies.keys() != self._before.keys():  # something was frozen, or is trained from now on
            self._copy_to(copies)

    def state(self) -> dict[str, Tensor]:
        """Return the copies by name, not cloned; those of sharded parameters as DTensors, for torch's checkpoints."""
        self._wait()
        parameters = dict(self._model.named_parameters())
        return {name: _sharded_like(parameters.get(name), before) for name, before in self._before.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the copies that `state` returned, also where parameters were sharded in another way.

        Args:
            state: The copies by name.
        """
        self.take(self.fitting(state))

    @torch.no_grad()
    def fitting(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return those parts of the copies in a state that belong here; raise InputError for a state that does not fit.

        Args:
            state: The copies by name, as `state` returned them.
        """
        if self.rate == 1:
            return {}
        instance("the copies in this state", state, Mapping, "those that state() returned")
        missing, unknown = self._before.keys() - state.keys(), state.keys() - self._before.keys()
        if missing or unknown:
            name = sorted(map(str, missing or unknown))[0]
            what = "not in this state" if missing else "in this state, but not trained here"
            raise InputError(
                f"{name} is {what}: make the model as it was, with the same parameters frozen, and rate < 1"
            )
        for name, value in state.items():
            instance(f"{name} in this state", value, Tensor, "a tensor")
        parameters = dict(self._model.named_parameters())
        found = {name: _local_part(parameters[name], state[name]) for name in self._before}
        for name, value in found.items():
            if value.shape != self._before[name].shape:
                raise InputError(
                    f"{name} has shape {tuple(value.shape)} in this state and {tuple(self._before[name].shape)} here: "
                    f"make the model as it was"
                )
        self._wait()
        return {name: _formed_like(self._before[name], value) for name, value in found.items()}

    @torch.no_grad()
    def take(self, copies: Mapping[str, Tensor]) -> None:
        """Take over copies, which needs no memory.

        Args:
            copies: What `fitting` returned.
        """
        for name, value in copies.items():
            self._before[name].copy_(value)

    def _copies(self) -> dict[str, Tensor]:
        """Return the copies of what is trained now, with room for those that are new."""
        found = {}
        for name, theta in self._trained():
            if name in self._before:
                self._check(name, theta)
            found[name] = self._before[name] if name in self._before else _room_for(theta, self.copy_on)
        return found

    def _copy_to(self, copies: dict[str, Tensor]) -> None:
        """Copy the weights to where the next line finds them."""
        for name, theta in self._trained():
            copies[name].copy_(theta, non_blocking=True)
        self._before = copies

    def _wait(self) -> None:
        """Wait for copies from a GPU to the host that may still be under way."""
        if self.copy_on == "host":
            for device in {parameter.device for parameter in self._model.parameters() if parameter.is_cuda}:
                torch.cuda.synchronize(device)

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        """Go through the parameters that are trained; of those that are sharded, the part that is here."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                yield name, _local(parameter)

    def _check(self, name: str, theta: Tensor) -> None:
        """Raise InputError for a parameter that is another one than when it was copied."""
        before = self._before[name]
        is_there = self.copy_on == "host" or before.device == theta.device
        if before.shape != theta.shape or before.dtype != theta.dtype or not is_there:
            raise InputError(
                f"{name} is now {theta.dtype} {tuple(theta.shape)} on {theta.device}, and was {before.dtype} "
                f"{tuple(before.shape)} on {before.device}: move, convert and shard the model first, then give it to us"
            )


def _inner(model: nn.Module) -> nn.Module:
    """Return the model that DDP and torch.compile have wrapped, so that names are the same with and without them."""
    inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
    return _inner(inner) if isinstance(inner, nn.Module) else model


def _local(parameter: Tensor) -> Tensor:
    """Return the values of a parameter; of a DTensor, the shard that is here."""
    there: Any = parameter
    local: Tensor = there.to_local() if hasattr(there, "to_local") else parameter
    return local.detach()


def _room_for(theta: Tensor, copy_on: str) -> Tensor:
    if copy_on == "device":
        return torch.empty_like(theta)
    return torch.empty_like(theta, device="cpu", pin_memory=theta.is_cuda)


def _rooms_for(parameters: Iterable[tuple[Tensor, Tensor]]) -> dict[tuple[torch.device, torch.dtype], Tensor]:
    """Make room for the largest piece of the parameters on each device and of each dtype."""
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}
    for theta, before in parameters:
        kind = theta.device, theta.dtype
        sizes[kind] = max(sizes.get(kind, 0), min(_piece_size(theta, before), theta.numel()))
    return {kind: torch.empty(size, device=kind[0], dtype=kind[1]) for kind, size in sizes.items()}


def _piece_size(theta: Tensor, before: Tensor) -> int:
    """Return how many numbers of a parameter to move at a time."""
    in_a_row = theta.is_contiguous() and before.is_contiguous()
    return max(LEAST_PIECE, theta.numel() // PARTS) if in_a_row else theta.numel()


def _move_in_pieces(theta: Tensor, before: Tensor, rate: float, room: Tensor) -> None:
    """Draw the line with the copy on the host; a small piece of it at a time is brought to the device.

    Args:
        theta: The parameter.
        before: The copy.
        rate: How far to go.
        room: Where to bring a piece.
    """
    size, pieces = _piece_size(theta, before), [(theta, before)]
    if size < theta.numel():
        pieces = list(zip(theta.view(-1).split(size), before.view(-1).split(size), strict=True))
    for now, then in pieces:
        piece = room[: now.numel()].view(now.shape)
        now.copy_(piece.copy_(then, non_blocking=True).lerp_(now, rate))
        then.copy_(now, non_blocking=True)


def _formed_like(before: Tensor, value: Tensor) -> Tensor:
    """Return a saved copy so that no room is needed to bring it from another device: in dtype and order as it is here.

    Args:
        before: The copy that is here.
        value: The saved one.
    """
    if value.device == before.device or (value.dtype, value.stride()) == (before.dtype, before.stride()):
        return value
    return torch.empty_like(before, device=value.device).copy_(value)


def _sharded_like(parameter: Tensor | None, before: Tensor) -> Tensor:
    """Return a copy as a DTensor if its parameter is one."""
    like: Any = parameter
    if parameter is None or not hasattr(like, "to_local"):
        return before
    from torch.distributed.tensor import DTensor

    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(before, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)


def _local_part(parameter: Tensor, value: Any) -> Tensor:
    """Return the part of a saved copy that belongs here: of a whole tensor, and of one sharded as the parameter is."""
    like: Any = parameter
    if not hasattr(like, "to_local") or hasattr(value, "to_local"):
        return _local(value)
    from torch.distributed.tensor import distribute_tensor

    mesh = like.device_mesh
    return _local(distribute_tensor(value.to(mesh.device_type), mesh, like.placements, src_data_rank=None))
