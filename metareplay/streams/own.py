"""A stream of the user's own examples: tensors, a dataset, or anything that can be iterated over."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from operator import index
from typing import Any, NamedTuple, Protocol, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay.errors import InputError
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream


class Dataset(Protocol):
    """Anything map-style, such as a `torch.utils.data.TensorDataset`; items are pairs (x, y)."""

    def __len__(self) -> int:
        """How many items there are."""

    def __getitem__(self, index: int, /) -> Any:
        """One pair (x, y)."""


Array = Tensor | NDArray[Any]
TestSet = Sequence[Array] | Dataset  # a pair (xs, ys) or a dataset
Test = TestSet | Sequence[TestSet] | None  # a single test set, or one for each task 0, 1, 2, ...
TaskIds = Sequence[int] | Array | None  # of every example; None: there is but one task, 0

_EMPTY = "the stream is empty; give at least one example (a generator can be read only once)"


@final
@dataclass(frozen=True, eq=False)
class OwnStream(Stream):
    """Examples of your own, with or without task ids and test sets; make one with a `from_...` method.

    Inputs keep their type; whole-number targets become int64.

    >>> stream = OwnStream.from_tensors(torch.zeros(5, 3), torch.arange(5), tasks=[0, 0, 1, 1, 0])
    >>> [(chunk.task, chunk.ys.tolist()) for chunk in stream.chunks()]
    [(0, [0, 1]), (1, [2, 3]), (0, [4])]
    >>> stream = OwnStream.from_iterable((torch.zeros(3), n % 2) for n in range(5))
    >>> [(chunk.task, chunk.ys.tolist()) for chunk in stream.chunks(start=2)]
    [(0, [0, 1, 0])]
    """

    read: Callable[[int], Iterator[Chunk]]  # the examples from the n-th on
    test_sets: tuple[Examples | Dataset, ...]
    total: int | None = None
    rows: Examples | None = None  # all examples, where they are tensors

    @classmethod
    def from_tensors(cls, xs: Array, ys: Array | Sequence[float], tasks: TaskIds = None, test: Test = None) -> Self:
        """Row i of `xs` and `ys` is example i; a task may come back later."""
        rows = _examples(xs, ys)
        made = cls._indexed(lambda i, j: Examples(rows.xs[i:j], rows.ys[i:j]), len(rows), tasks, test)
        return replace(made, rows=rows)

    @classmethod
    def from_dataset(cls, dataset: Dataset, tasks: TaskIds = None, test: Test = None) -> Self:
        """Item i of a map-style dataset is example i, asked for when it is needed."""
        if not _is_dataset(dataset):
            raise InputError("the dataset has no length or no items by number; use OwnStream.from_iterable")
        return cls._indexed(lambda i, j: _items(dataset, i, j), len(dataset), tasks, test)

    @classmethod
    def from_iterable(cls, iterable: Iterable[Any], test: Test = None) -> Self:
        """Items are (x, y) or (x, y, task), read once and in order.

        A run resumed at example n skips n items: give it the iterable from its beginning.
        """
        if not isinstance(iterable, Iterable):
            raise InputError(f"{_what(iterable)} cannot be iterated over; give a generator of (x, y)")
        test_sets = _test_sets(test)

        def read(start: int) -> Iterator[Chunk]:
            items = iter(iterable)
            skipped = sum(1 for _ in islice(items, start))
            if skipped < start:
                raise InputError(f"the stream ended after {skipped} examples; use start <= {skipped}")
            empty = start == 0
            examples = (_example(item, n, len(test_sets)) for n, item in enumerate(items, start))
            for task, run in groupby(examples, key=lambda example: example.task):
                while some := list(islice(run, CHUNK)):
                    rows = _stack(some)
                    yield Chunk(rows.xs, rows.ys, task)
                    empty = False
            if empty:
                raise InputError(_EMPTY)

        return cls(read, test_sets)

    @classmethod
    def _indexed(cls, rows: Callable[[int, int], Examples], total: int, tasks: TaskIds, test: Test) -> Self:
        test_sets = _test_sets(test)
        ids = _task_ids(tasks, total, len(test_sets))

        def read(start: int) -> Iterator[Chunk]:
            if total == 0:
                raise InputError(_EMPTY)
            if start > total:
                raise InputError(f"start={start}: the stream has {total} examples; use start <= {total}")
            for low, high in _runs(ids, start):
                some = rows(low, high)
                yield Chunk(some.xs, some.ys, int(ids[low]))

        return cls(read, test_sets, total)

    @property
    def tasks(self) -> int:
        """How many tasks have a test set."""
        return len(self.test_sets)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """The examples in order, from the `start`-th on; a chunk ends where the task changes."""
        if start < 0:
            raise InputError(f"start={start}: use a whole number of at least 0")
        return self.read(start)

    def test(self, task: int) -> Examples:
        """The test set of one task."""
        if not 0 <= task < self.tasks:
            raise InputError(f"task {task} has no test set; give one with test=... when making the stream")
        test_set = self.test_sets[task]
        return test_set if isinstance(test_set, Examples) else _items(test_set, 0, len(test_set))

    def settings(self) -> dict[str, object]:
        """What is known of the stream, for the record."""
        known: dict[str, object] = {"stream": type(self).__name__, "tasks": self.tasks, "total": self.total}
        return known if self.rows is None else known | {"sha256": self._sha256}

    @cached_property
    def _sha256(self) -> str:
        """Of the examples, so that a run is not continued on others."""
        digest = hashlib.sha256()
        for part in (self.rows.xs, self.rows.ys) if self.rows is not None else ():
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


class _Example(NamedTuple):
    x: Tensor
    y: Tensor
    task: int
    number: int  # its place in the stream


def _example(item: object, number: int, tests: int | None = None) -> _Example:
    """One item (x, y), or also (x, y, task) where the number of test sets is given."""
    lengths, forms = ((2,), "(x, y)") if tests is None else ((2, 3), "(x, y) or (x, y, task)")
    if not isinstance(item, tuple | list) or len(item) not in lengths:
        raise InputError(f"example {number} is {_what(item)}; give {forms}")
    try:
        task = index(item[2]) if len(item) == 3 else 0
    except TypeError as error:
        raise InputError(f"example {number}: task {item[2]!r}; number the tasks 0, 1, 2, ...") from error
    _check_tasks(task, task, tests or 0)
    return _Example(_tensor(item[0]), _target(item[1]), task, number)


def _stack(examples: Sequence[_Example]) -> Examples:
    first = examples[0]
    for example in examples:
        for name, one, other in (("x", first.x, example.x), ("y", first.y, example.y)):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise InputError(
                    f"example {example.number}: {name} is {_form(other)}, but {_form(one)} in example "
                    f"{first.number}; give all the same form"
                )
    return Examples(torch.stack([e.x for e in examples]), torch.stack([e.y for e in examples]))


def _items(dataset: Dataset, low: int, high: int) -> Examples:
    return _stack([_example(dataset[i], i) for i in range(low, high)])


def _runs(ids: NDArray[np.int64], start: int) -> Iterator[tuple[int, int]]:
    """Where chunks begin and end: at most CHUNK examples of one task."""
    for end in (*(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)):
        for low in range(start, end, CHUNK):
            yield low, min(low + CHUNK, end)
        start = max(start, end)


def _task_ids(tasks: TaskIds, total: int, tests: int) -> NDArray[np.int64]:
    if tasks is None and tests > 1:
        raise InputError(f"there are {tests} test sets but no task ids; give tasks=... or one pair (xs, ys)")
    if tasks is None or total == len(tasks) == 0:
        return np.zeros(total, np.int64)
    ids = _tensor(tasks).cpu().numpy()
    if ids.shape != (total,):
        raise InputError(f"tasks has shape {ids.shape}; give one task id for each of the {total} examples")
    if ids.dtype.kind not in "iu":
        raise InputError(f"tasks is of type {ids.dtype}; number the tasks 0, 1, 2, ...")
    _check_tasks(ids.min(), ids.max(), tests)
    return ids.astype(np.int64)


def _check_tasks(lowest: int, highest: int, tests: int) -> None:
    if lowest < 0:
        raise InputError(f"task {lowest}; number the tasks 0, 1, 2, ...")
    if 0 < tests <= highest:
        raise InputError(f"task {highest} has no test set, there being {tests}; give one for each task, or none")


def _test_sets(test: Any) -> tuple[Examples | Dataset, ...]:
    if test is None:
        return ()
    many = isinstance(test, tuple | list) and not any(isinstance(one, Tensor | np.ndarray) for one in test)
    return tuple(map(_test_set, test if many else [test]))


def _test_set(test: TestSet) -> Examples | Dataset:
    test_set: Examples | Dataset | None
    if isinstance(test, tuple | list):
        test_set = _examples(*test) if len(test) == 2 else None
    else:
        test_set = test if _is_dataset(test) else None
    if test_set is None:
        raise InputError(f"a test set is {_what(test)}; give a pair (xs, ys) or a map-style dataset")
    if len(test_set) == 0:
        raise InputError("a test set is empty; give at least one example")
    return test_set


def _is_dataset(value: object) -> bool:
    return all(hasattr(value, name) for name in ("__len__", "__getitem__")) and not isinstance(value, Tensor)


def _examples(xs: object, ys: object) -> Examples:
    rows = Examples(_tensor(xs), _target(ys))
    if rows.xs.ndim == 0 or rows.ys.ndim == 0 or len(rows.xs) != len(rows.ys):
        raise InputError(f"xs is {_form(rows.xs)} and ys is {_form(rows.ys)}; give one row of each per example")
    return rows


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _what(value: object) -> str:
    name = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{size}"


def _target(value: object) -> Tensor:
    tensor = _tensor(value)
    return tensor if tensor.is_floating_point() else tensor.long()


def _tensor(value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and not (value.flags.writeable and value.flags.c_contiguous):
        value = value.copy()
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{_what(value)} cannot become a tensor; give tensors or NumPy arrays") from error
