import numpy as np

from metareplay.streams import ManyPermutations, Permutations


def test_there_are_many_tasks_of_few_examples() -> None:
    stream = ManyPermutations()
    assert (stream.tasks, stream.examples, stream.seed, stream.total) == (100, 200, 0, 20_000)


def test_options_come_in_the_same_order_as_for_permutations() -> None:
    many, few = ManyPermutations(5, 7, 3), Permutations(5, 7, 3)
    assert {**many.settings(), "stream": ""} == {**few.settings(), "stream": ""}
    np.testing.assert_array_equal(many.pixel_map(4), few.pixel_map(4))
