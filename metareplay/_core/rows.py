"""A small table with named columns, for results: NumPy arrays by name, and rows as dictionaries."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import flag, shown
from metareplay.errors import InputError

SHOWN = 10  # rows that a table shows of itself


@final
class Rows:
    """Hold results as a table: `rows["lr"]` is a column, and iterating gives each row as a dictionary.

    A column of numbers is a NumPy array with NaN where a row has no value; any other column is an array of objects with
    None there.

    Args:
        rows: The rows; each says only what it knows.

    >>> rows = Rows([{"lr": 0.1, "ra": 80.5}, {"lr": 0.3, "ra": 70.0}, {"lr": 0.3, "ra": 71.0, "k": 5}])
    >>> rows.where(lr=0.3)["ra"].mean()
    np.float64(70.5)
    >>> list(rows.sort("ra"))[0]
    {'lr': 0.1, 'ra': 80.5}
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        listed = list(rows)
        names = dict.fromkeys(name for row in listed for name in row)
        self._columns = {name: _column([row.get(name) for row in listed]) for name in names}
        self._count = len(listed)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Args:
            name: Its name.
        """
        if not isinstance(name, str) or name not in self._columns:
            raise InputError(f"there is no column {shown(name)}; the columns are {', '.join(self._columns) or 'none'}")
        return self._columns[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Go through the rows as dictionaries, without the values that a row does not have."""
        columns = {name: column.tolist() for name, column in self._columns.items()}
        for number in range(self._count):
            row = {name: values[number] for name, values in columns.items()}
            yield {name: value for name, value in row.items() if not _missing(value)}

    def where(self, **wanted: Any) -> "Rows":
        """Return the rows that have these values.

        Args:
            wanted: The value of each column; a list of values means any of them.
        """
        kept = np.ones(self._count, np.bool_)
        for name, value in wanted.items():
            column = self[name]
            options = value if isinstance(value, list | tuple | set | frozenset) else (value,)
            kept &= np.array([any(_same(one, other) for other in options) for one in column.tolist()], np.bool_)
        return self._rows(np.flatnonzero(kept))

    def sort(self, by: str, *, descending: bool = True) -> "Rows":
        """Return the rows in the order of a column, the largest value first; rows without a value come last.

        Args:
            by: The name of the column.
            descending: Whether the largest value comes first.
        """
        values = self[by].tolist()
        known = [number for number, value in enumerate(values) if not _missing(value)]
        known.sort(key=lambda number: values[number], reverse=flag("descending", descending))
        return self._rows(np.array(known + [n for n, value in enumerate(values) if _missing(value)], np.int64))

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        """Show the first rows, and only the columns in which rows differ; say what all rows have in common."""
        alike = {n: c.tolist()[0] for n, c in self._columns.items() if self._count > 1 and _all_alike(c.tolist())}
        different = [name for name in self._columns if name not in alike]
        first = self._rows(np.arange(min(SHOWN, self._count)))
        lines = text_table(different, [[plain_text(row.get(name)) for name in different] for row in first])
        rest = [f"... {self._count} rows in all"] if self._count > SHOWN else []
        told = ", ".join(f"{name}={plain_text(value)}" for name, value in alike.items() if not _missing(value))
        return "\n".join([*lines, *rest, *([f"in all rows: {told}"] if told else [])])

    def _rows(self, numbers: NDArray[np.int64]) -> "Rows":
        made = Rows([])
        made._columns = {name: column[numbers] for name, column in self._columns.items()}
        made._count = len(numbers)
        return made


def _same(one: object, other: object) -> bool:
    """Return whether two values are equal; an array equals nothing."""
    try:
        return bool(one is other or one == other)
    except Exception:  # the truth value of an array
        return False


def text_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text with aligned columns.

    Args:
        heads: The heads of the columns.
        cells: The rows.

    >>> text_table(["lr", "ra"], [["0.1", "80.5"], ["0.03", "9"]])
    ['  lr    ra', ' 0.1  80.5', '0.03     9']
    """
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (heads, *cells)]


def plain_text(value: object) -> str:
    """Return a value as people write it: a short number, and a dash for what is missing.

    Args:
        value: The value.

    >>> plain_text(0.1), plain_text(82.08333333), plain_text(None), plain_text("adam")
    ('0.1', '82.083', '-', 'adam')
    """
    if _missing(value):
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _all_alike(values: list[Any]) -> bool:
    return all(_missing(value) if _missing(values[0]) else value == values[0] for value in values)


def _column(values: list[Any]) -> NDArray[Any]:
    """Return values as an array of the narrowest kind that holds them."""
    kinds = set(map(type, values))
    if kinds == {bool}:
        return np.array(values, np.bool_)
    exact = all(abs(value) < 2**53 for value in values if type(value) is int)  # a float64 holds these as they are
    if kinds == {int} and exact:
        return np.array(values, np.int64)
    if exact and kinds & {int, float} and kinds <= {int, float, type(None)}:
        return np.array([math.nan if value is None else value for value in values], np.float64)
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found
