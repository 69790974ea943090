import numpy as np
import pytest

from metareplay.data import Images
from metareplay.streams import ManyPermutations, Permutations
from metareplay.streams.permutations import permutation

YS = np.zeros(1, np.uint8)


@pytest.mark.parametrize("task", [0, 1, 99])
def test_a_permutation_moves_every_pixel_once(task: int) -> None:
    assert sorted(permutation(0, task)) == list(range(784))
    assert permutation(0, task).tolist() != list(range(784))


def test_tasks_and_seeds_have_permutations_of_their_own() -> None:
    assert len({tuple(permutation(seed, task)) for seed in range(3) for task in range(20)}) == 60


@pytest.mark.parametrize("kind", [Permutations, ManyPermutations])
def test_a_task_moves_the_ink_to_where_its_permutation_says(
    kind: type[Permutations] | type[ManyPermutations],
) -> None:
    dot = np.zeros((1, 28, 28), np.uint8)
    dot[0, 3, 5] = 200  # pixel 3 * 28 + 5 = 89
    stream = kind(2, 1, seed=4, images=Images("dot", dot, YS, dot, YS))
    for chunk in stream.chunks():
        place = permutation(4, chunk.task).tolist().index(89)
        for x in (chunk.xs[0], stream.test(chunk.task).xs[0]):
            assert x.nonzero().flatten().tolist() == [place]
            assert x[place] == 200
