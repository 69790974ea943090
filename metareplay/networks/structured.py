"""Models whose inputs are dictionaries, tuples or sequences of different lengths."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay._core.checks import described, instance, real, shown, whole
from metareplay.errors import InputError

WORD = 8  # bytes; every part begins at a multiple of it


@final
class Structured(nn.Module):
    """Let a model take dictionaries, tuples, or sequences of different lengths, each example kept as one row of bytes.

    A dictionary becomes `model(**parts)`, a tuple `model(*parts)`, and a tensor `model(x)`. A part that is shorter than
    in `like` is filled up at its end. Real numbers reach the model in the type of its weights, bytes scaled to [0, 1],
    other integers as they are. If the model returns an object with `logits`, these are the outputs.

    Args:
        model: The model.
        like: The longest possible example, as a dictionary, a tuple or a tensor; only shapes and types matter.
        pad: What shorter parts are filled up with: one number, or a dictionary with one by name (of a tuple's parts: by
            position).
        mask: The name of an argument for the model that is 1 where the first part has values and 0 where it was filled
            up; None for none. Examples need not have it.

    >>> class Mean(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.of_token = nn.Embedding(10, 2)
    ...     def forward(self, tokens, mask):
    ...         return (self.of_token(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    >>> model = Structured(Mean(), like={"tokens": torch.zeros(4, dtype=torch.int64)}, mask="mask")
    >>> rows = model.pack([{"tokens": [1, 2, 3]}, {"tokens": [4]}])
    >>> model.unpack(rows)["mask"].tolist(), model(rows).shape
    ([[1, 1, 1, 0], [1, 0, 0, 0]], torch.Size([2, 2]))
    """

    def __init__(
        self,
        model: nn.Module,
        like: Mapping[str, Any] | tuple[Any, ...] | Tensor,
        pad: float | Mapping[Any, float] = 0,
        mask: str | None = None,
    ) -> None:
        super().__init__()
        self.model = instance("model", model, nn.Module, "a torch.nn.Module")
        named = _named(like)
        self._kind = dict if isinstance(like, Mapping) else tuple if isinstance(like, tuple) else Tensor
        self._like = {name: _as_tensor(str(name), value).detach().to("meta") for name, value in named.items()}
        for name, part in self._like.items():
            if part.dtype in (torch.int8, torch.bool) or part.is_complex():
                raise InputError(f"like has {part.dtype} for {name!r}: use real numbers, uint8 or int64")
        if not self._like:
            raise InputError("like is empty: give the longest possible example")
        if mask is not None and not isinstance(mask, str):
            raise InputError(f"mask={shown(mask)}: use the name of an argument of the model, or None")
        self._first, self._mask = next(iter(self._like)), mask
        if mask is not None and mask not in self._like:
            if not self._like[self._first].dim():
                raise InputError(f"mask={mask!r}: the first part of like is a single number, which is never filled up")
            self._like[mask] = self._like[self._first].new_empty(len(self._like[self._first]), dtype=torch.int64)
        self._pad = dict(pad) if isinstance(pad, Mapping) else dict.fromkeys(self._like, pad)
        for name in self._pad:
            if name not in self._like:
                raise InputError(
                    f"pad has {name!r}, which like does not have: it has {', '.join(map(repr, self._like))}"
                )
        for name, value in self._pad.items():
            self._pad[name] = _pad_value(name, value, self._like[name].dtype)
        sizes = [-(-math.prod(part.shape) * part.element_size() // WORD) * WORD for part in self._like.values()]
        self._starts = dict(zip(self._like, np.cumsum([0, *sizes]).tolist(), strict=False))
        self._bytes = sum(sizes)

    def forward(self, rows: Any) -> Tensor:
        """Call the model on what was packed.

        Args:
            rows: What `pack` returned, or what it takes.
        """
        parts = {name: self._as_input(part) for name, part in self.unpack(self.pack(rows)).items()}
        if self._kind is dict:
            found = self.model(**parts)
        else:
            by_name = {self._mask: parts.pop(self._mask)} if self._mask is not None else {}
            found = self.model(*parts.values(), **by_name)
        outputs: Tensor = getattr(found, "logits", found)
        return outputs

    def pack(self, xs: Any) -> Tensor:
        """Return a batch of inputs as one tensor of bytes, with a row for each example; raise InputError if it cannot.

        Args:
            xs: A list of examples, or a dictionary, tuple or tensor whose parts have a batch dimension.
        """
        if isinstance(xs, Tensor) and xs.dtype == torch.int8 and xs.shape[1:] == (self._bytes,):
            return xs
        columns = self._columns(xs)
        counts = {name: len(values) for name, values in columns.items()}
        if len(set(counts.values())) != 1:
            raise InputError(f"x has parts of different numbers of examples: {counts}")
        count = next(iter(counts.values()))
        packed = {name: self._filled(name, values) for name, values in columns.items() if name in self._like}
        if self._mask is not None and self._mask not in packed:
            lengths = torch.tensor([len(value) for value in columns[self._first]], device="cpu")
            packed[self._mask] = (torch.arange(len(self._like[self._first])) < lengths[:, None]).long()
        rows = torch.zeros((count, self._bytes), dtype=torch.int8)
        for name, part in packed.items():
            content = part.reshape(count, -1).contiguous().view(torch.int8) if count else part.new_zeros((0, 0)).char()
            rows[:, self._starts[name] : self._starts[name] + content.shape[1]] = content
        return rows

    def unpack(self, rows: Tensor) -> dict[Any, Tensor]:
        """Return the parts of packed examples by name, of a tuple by position, and of a tensor as part 0.

        Args:
            rows: What `pack` returned, or what a memory holds.
        """
        found = {}
        for name, part in self._like.items():
            start = self._starts[name]
            size = math.prod(part.shape) * part.element_size()
            content = rows[:, start : start + size].contiguous().view(part.dtype)
            found[name] = content.reshape(len(rows), *part.shape)
        return found

    def _as_input(self, part: Tensor) -> Tensor:
        """Return a part as the model takes it."""
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        if part.dtype == torch.uint8:
            return part.to(dtype) / 255.0
        return part.to(dtype) if part.is_floating_point() else part

    def _columns(self, xs: Any) -> dict[Any, Any]:
        """Return the parts of a batch by name, each with a batch dimension or as a list with one value per example."""
        needed = [name for name in self._like if name != self._mask]
        examples = [self._parts(x) for x in xs] if isinstance(xs, list) else [self._parts(xs)]
        for one in examples:
            _check_names(one, needed, self._like)
        if not isinstance(xs, list):
            return examples[0]
        masked = bool(examples) and all(self._mask in one for one in examples)
        return {name: [one[name] for one in examples] for name in [*needed, *([self._mask] if masked else [])]}

    def _parts(self, x: Any) -> dict[Any, Any]:
        """Return the parts of an example, or of a batch, by name; what is neither dictionary nor tuple is the first."""
        if isinstance(x, Mapping):
            return dict(x)
        return dict(enumerate(x)) if self._kind is tuple and isinstance(x, tuple) else {self._first: x}

    def _filled(self, name: Any, values: Any) -> Tensor:
        """Return the values of one part for all examples, filled up to the longest."""
        like = self._like[name]
        if not isinstance(values, list | tuple):
            values = _as_tensor(str(name), values)
            if values.shape[1:] == like.shape:
                return self._converted(name, values)
        filled = torch.full((len(values), *like.shape), self._pad.get(name, 0), dtype=like.dtype, device="cpu")
        for number, value in enumerate(values):
            part = self._converted(name, _as_tensor(str(name), value))
            fits = part.dim() == like.dim() and part.shape[1:] == like.shape[1:] and part.shape[:1] <= like.shape[:1]
            if not fits:
                raise InputError(
                    f"x of example {number} has shape {tuple(part.shape)} for {name!r}; it must fit into "
                    f"{tuple(like.shape)}, the shape in like: cut it, or make like longer"
                )
            filled[(number, slice(len(part))) if part.dim() else number] = part
        return filled

    def _converted(self, name: Any, part: Tensor) -> Tensor:
        """Return a part in the type that `like` has, or raise InputError if that would change numbers."""
        like = self._like[name]
        if part.is_complex() or (part.is_floating_point() and not like.is_floating_point() and part.numel()):
            raise InputError(f"x has dtype {part.dtype} for {name!r}, but {like.dtype} in like: use the same")
        if part.is_floating_point() and not torch.isfinite(part).all():
            raise InputError(f"x is not finite (NaN or infinity) for {name!r}: clean the input and try again")
        return part.to("cpu", like.dtype)


def _pad_value(name: Any, value: object, dtype: torch.dtype) -> float:
    """Return a number that parts of a type can be filled up with, or raise InputError."""
    number = whole("pad", value) if isinstance(value, int) else real(f"pad of {name!r}", value)
    if dtype.is_floating_point and abs(number) <= torch.finfo(dtype).max:
        return float(number)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if not limits.min <= number <= limits.max or number != int(number):
        raise InputError(f"pad of {name!r} is {shown(value)}: use a number that {dtype} has")
    return int(number)


def _named(parts: Any) -> dict[Any, Any]:
    """Return parts by name, those of a tuple by position, and a tensor as part 0."""
    if isinstance(parts, Mapping):
        return dict(parts)
    return dict(enumerate(parts if isinstance(parts, tuple) else (parts,)))


def _check_names(found: Mapping[Any, Any], needed: Sequence[Any], known: Mapping[Any, Any]) -> None:
    for name in needed:
        if name not in found:
            raise InputError(f"x has no part {name!r}: give all of {', '.join(map(repr, needed))}")
    for name in found:
        if name not in known:
            raise InputError(f"x has a part {name!r}, which like does not have: leave it out, or add it to like")


def _as_tensor(name: str, value: Any) -> Tensor:
    try:
        return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except Exception as error:  # torch raises almost anything
        raise InputError(f"{name} is {described(value)} that cannot become an array of numbers") from error
