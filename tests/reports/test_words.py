"""Settings in a few words."""

from metareplay.reports.words import parts_of


def test_repeated_parts_are_counted_and_not_written_out() -> None:
    assert parts_of("(0): 999999 x A " * 3) == {"": 1, "A": 3 * 999999}
