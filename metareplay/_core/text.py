"""Numbers as people read them."""

import math
import statistics
from collections.abc import Sequence


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample (n - 1); None for fewer than two values, or if one is NaN.

    >>> deviation([80.0, 82.0]), deviation([79.25])
    (1.4142135623730951, None)
    """
    if len(values) < 2 or any(math.isnan(value) for value in values):
        return None
    return statistics.stdev(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean as text, followed by the standard deviation (of the sample, n - 1) if there are several values.

    Args:
        values: The numbers.
        digits: How many decimal places to show.

    >>> spread([80.0, 82.0]), spread([79.25])
    ('81.00 ± 1.41', '79.25')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    std = deviation(values)
    return mean if std is None else f"{mean} ± {std:.{digits}f}"


def duration(seconds: float) -> str:
    """Return a length of time as people write it.

    >>> duration(0.31), duration(75), duration(7380)
    ('0.3 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
