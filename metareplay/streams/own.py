"""A stream of your own examples, given as tensors, as a dataset, or as anything that can be iterated over."""

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

from metareplay._core.checks import shown, whole
from metareplay.errors import InputError
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream, tensor_form


class Dataset(Protocol):
    """Have a length and items (x, y) by number, like a `torch.utils.data.TensorDataset`."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one pair (x, y)."""


Array = Tensor | NDArray[Any]
TestSet = Sequence[Array] | Dataset  # a pair (xs, ys) or a dataset
Test = TestSet | Sequence[TestSet] | None  # one test set, or a list with one for each of the tasks 0, 1, 2, ...
TaskIds = Sequence[int] | Array | None  # the task of every example, or None if all belong to task 0

_EMPTY = "the stream is empty; give at least one example (a generator can be read only once)"


@final
@dataclass(frozen=True, eq=False, repr=False)
class OwnStream(Stream):
    """Stream examples of your own, with or without task ids and test sets.

    Make one with `from_tensors`, `from_dataset` or `from_iterable`. Inputs keep their type; targets that are whole
    numbers become int64.

    >>> stream = OwnStream.from_tensors(torch.zeros(5, 3), torch.arange(5), tasks=[0, 0, 1, 1, 0])
    >>> [(chunk.task, chunk.ys.tolist()) for chunk in stream.chunks()]
    [(0, [0, 1]), (1, [2, 3]), (0, [4])]
    >>> stream
    OwnStream(examples=5, tasks=0)
    >>> stream = OwnStream.from_iterable((torch.zeros(3), n % 2) for n in range(5))
    >>> [(chunk.task, chunk.ys.tolist()) for chunk in stream.chunks(start=2)]
    [(0, [0, 1, 0])]

    Args:
        read: A function that yields the chunks that follow the first n examples, given n.
        test_sets: The test set of each task; empty if there are none.
        total: The number of training examples, or None if it is not known in advance.
        rows: All training examples if they are tensors, so that a resumed run can tell whether they are the same.
        ids: The task of every example, if they are known in advance; for the same purpose.
    """

    read: Callable[[int], Iterator[Chunk]]
    test_sets: tuple[Examples | Dataset, ...]
    total: int | None = None
    rows: Examples | None = None
    ids: NDArray[np.int64] | None = None

    @classmethod
    def from_tensors(cls, xs: Array, ys: Array | Sequence[float], tasks: TaskIds = None, test: Test = None) -> Self:
        """Make a stream of tensors or NumPy arrays.

        Args:
            xs: The inputs; row i is example i.
            ys: The targets; row i belongs to example i.
            tasks: The task of every example: 0, 1, 2, ...; a task may come back later. None: all belong to task 0.
            test: The test set as a pair (xs, ys) or a dataset, or a list of them with one for each task.
        """
        rows = _examples(xs, ys)
        made = cls._indexed(lambda i, j: Examples(rows.xs[i:j], rows.ys[i:j]), len(rows), tasks, test)
        return replace(made, rows=rows)  # which keeps the task ids

    @classmethod
    def from_dataset(cls, dataset: Dataset, tasks: TaskIds = None, test: Test = None) -> Self:
        """Make a stream of a torch `Dataset` or anything else with a length and items by number.

        Args:
            dataset: Its item i is example i, a pair (x, y) that is read when it is needed.
            tasks: The task of every example: 0, 1, 2, ...; a task may come back later. None: all belong to task 0.
            test: The test set as a pair (xs, ys) or a dataset, or a list of them with one for each task.
        """
        if not _is_dataset(dataset):
            raise InputError(f"{_what(dataset)} has no length or no items by number; use OwnStream.from_iterable")
        return cls._indexed(lambda i, j: _items(dataset, i, j), len(dataset), tasks, test)

    @classmethod
    def from_iterable(cls, iterable: Iterable[Any], test: Test = None) -> Self:
        """Make a stream of anything that can be iterated over, even without end.

        A run that is resumed after n examples skips n items, so give it the iterable from its beginning.

        Args:
            iterable: Its items are (x, y) or (x, y, task); they are read once, in order, as they are needed.
            test: The test set as a pair (xs, ys) or a dataset, or a list of them with one for each task.
        """
        if not isinstance(iterable, Iterable) or (isinstance(iterable, Tensor) and not iterable.dim()):
            raise InputError(f"{_what(iterable)} cannot be iterated over; give an iterable of (x, y)")
        test_sets = _test_sets(test)

        def read(start: int) -> Iterator[Chunk]:
            items = iter(iterable)
            skipped = sum(1 for _ in islice(items, start))
            if skipped < start:
                raise InputError(f"start={start}: the stream ended after {skipped} examples; use start <= {skipped}")
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
        """Make a stream whose examples from i to j are `rows(i, j)`."""
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

        return cls(read, test_sets, total, ids=ids)

    @property
    def tasks(self) -> int:
        """The number of tasks that have a test set."""
        return len(self.test_sets)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the examples in order; a chunk ends where the task changes.

        Args:
            start: The number of examples to skip.
        """
        if whole("start", start) < 0:
            raise InputError(f"start={shown(start)}: use a whole number of at least 0")
        return self.read(start)

    def test(self, task: int) -> Examples:
        """Return the test set of one task.

        Args:
            task: The number of the task, counted from 0.
        """
        if not 0 <= whole("task", task) < self.tasks:
            raise InputError(f"task {task} has no test set; give one with test=... when you make the stream")
        test_set = self.test_sets[task]
        return test_set if isinstance(test_set, Examples) else _items(test_set, 0, len(test_set))

    def settings(self) -> dict[str, object]:
        """Return what is known of the stream as plain JSON values; the record of a run keeps it."""
        known: dict[str, object] = {"stream": type(self).__name__, "tasks": self.tasks, "total": self.total}
        return known if self.rows is None else known | {"sha256": self._sha256}

    @cached_property
    def content(self) -> str:
        """A hash of task ids and test sets, so that a run is not resumed with other ones."""
        digest = hashlib.sha256(b"" if self.ids is None else self.ids.tobytes())
        for one in self.test_sets:
            digest.update(f"{len(one)}".encode())
            for part in (one.xs, one.ys) if isinstance(one, Examples) else ():
                digest.update(_bytes(part))
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        """Show the number of examples and the number of tasks that have a test set."""
        return f"OwnStream(examples={'unknown' if self.total is None else self.total}, tasks={self.tasks})"

    @cached_property
    def _sha256(self) -> str:
        """Return a hash of the examples, so that a run is not resumed with other ones."""
        digest = hashlib.sha256()
        for part in (self.rows.xs, self.rows.ys) if self.rows is not None else ():
            digest.update(_bytes(part))
        return digest.hexdigest()[:16]


def _bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class _Example(NamedTuple):
    """Hold one example and its place in the stream."""

    x: Tensor
    y: Tensor
    task: int
    number: int


def _example(item: object, number: int, tests: int | None = None) -> _Example:
    """Return an item (x, y) as an example; (x, y, task) is allowed too if the number of test sets is given."""
    lengths, forms = ((2,), "(x, y)") if tests is None else ((2, 3), "(x, y) or (x, y, task)")
    if not isinstance(item, tuple | list) or len(item) not in lengths:
        raise InputError(f"example {number} is {_what(item)}; give {forms}")
    try:
        task = index(item[2]) if len(item) == 3 else 0
    except TypeError as error:
        raise InputError(f"example {number}: task {item[2]!r}: number the tasks 0, 1, 2, ...") from error
    _check_tasks(task, task, tests or 0)
    return _Example(_tensor(item[0]), _target(item[1]), task, number)


def _stack(examples: Sequence[_Example]) -> Examples:
    """Return examples as two tensors; raise an error if they are not of the same type and shape."""
    first = examples[0]
    for example in examples:
        for name, one, other in (("x", first.x, example.x), ("y", first.y, example.y)):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise InputError(
                    f"example {example.number}: {name} is {tensor_form(other)}, but {tensor_form(one)} in example "
                    f"{first.number}; give all examples the same type and shape"
                )
    return Examples(torch.stack([e.x for e in examples]), torch.stack([e.y for e in examples]))


def _items(dataset: Dataset, low: int, high: int) -> Examples:
    """Return the items of a dataset from `low` to `high`."""
    try:
        items = [dataset[i] for i in range(low, high)]
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise InputError(f"{_what(dataset)} has no items by number from {low} to {high - 1}; give a dataset") from error
    return _stack([_example(item, i) for i, item in enumerate(items, low)])


def _runs(ids: NDArray[np.int64], start: int) -> Iterator[tuple[int, int]]:
    """Yield where chunks begin and end; each has at most CHUNK examples, all of one task."""
    for end in (*(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)):
        for low in range(start, end, CHUNK):
            yield low, min(low + CHUNK, end)
        start = max(start, end)


def _task_ids(tasks: TaskIds, total: int, tests: int) -> NDArray[np.int64]:
    """Return the task of each of `total` examples, checked against the number of test sets."""
    if tasks is None and tests > 1:
        raise InputError(f"there are {tests} test sets but no task ids; give tasks=..., or a single test set")
    if tasks is None:
        return np.zeros(total, np.int64)
    ids = _tensor(tasks).cpu().numpy()
    if total == 0 and ids.shape == (0,):
        return np.zeros(0, np.int64)
    if ids.shape != (total,):
        raise InputError(f"tasks has shape {ids.shape}; give one task id for each of the {total} examples")
    if ids.dtype.kind not in "iu":
        raise InputError(f"tasks has dtype {ids.dtype}; number the tasks 0, 1, 2, ...")
    _check_tasks(ids.min(), ids.max(), tests)
    return ids.astype(np.int64)


def _check_tasks(lowest: int, highest: int, tests: int) -> None:
    """Refuse negative task ids, and tasks without a test set if others have one."""
    if lowest < 0:
        raise InputError(f"task {lowest}: number the tasks 0, 1, 2, ...")
    if 0 < tests <= highest:
        raise InputError(
            f"task {highest} has no test set (number of test sets: {tests}); give one for each task, or none"
        )


def _test_sets(test: Any) -> tuple[Examples | Dataset, ...]:
    """Return the test sets as a tuple, whether none, one or several were given."""
    if test is None:
        return ()
    many = isinstance(test, tuple | list) and not any(isinstance(one, Tensor | np.ndarray) for one in test)
    return tuple(map(_test_set, test if many else [test]))


def _test_set(test: TestSet) -> Examples | Dataset:
    """Return one test set, checked."""
    test_set: Examples | Dataset | None
    if isinstance(test, tuple | list):
        test_set = _examples(*test) if len(test) == 2 else None
    else:
        test_set = test if _is_dataset(test) else None
    if test_set is None:
        raise InputError(
            f"a test set is {_what(test)}; give a pair (xs, ys) or a dataset with a length and items by number"
        )
    if len(test_set) == 0:
        raise InputError("a test set is empty; give at least one example")
    return test_set


def _is_dataset(value: object) -> bool:
    """Return True if a value has a length and items by number, and is not a tensor."""
    return all(hasattr(value, name) for name in ("__len__", "__getitem__")) and not isinstance(value, Tensor)


def _examples(xs: object, ys: object) -> Examples:
    """Return inputs and targets as tensors; raise an error if their numbers of rows differ."""
    rows = Examples(_tensor(xs), _target(ys))
    if rows.xs.ndim == 0 or rows.ys.ndim == 0 or len(rows.xs) != len(rows.ys):
        raise InputError(
            f"xs is {tensor_form(rows.xs)} and ys is {tensor_form(rows.ys)}; give one row of each per example"
        )
    return rows


def _what(value: object) -> str:
    """Name the type of a value with its article: "an int", "a tuple of 3"."""
    name = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{size}"


def _target(value: object) -> Tensor:
    """Return targets as a tensor: real numbers as they are, whole numbers as int64."""
    tensor = _tensor(value)
    return tensor if tensor.is_floating_point() else tensor.long()


def _tensor(value: Any) -> Tensor:
    """Return a value as a tensor; arrays that torch cannot share are copied."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError("a masked array cannot become a tensor; use filled(...), or leave the masked examples out")
    if isinstance(value, np.ndarray) and not (value.flags.writeable and value.flags.c_contiguous):
        value = value.copy()
    try:
        return torch.as_tensor(value).detach()
    except Exception as error:  # torch raises almost anything
        raise InputError(f"{_what(value)} cannot become a tensor; give tensors or NumPy arrays") from error
