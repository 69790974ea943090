"""The paper's grids, as data."""

from itertools import product
from math import prod

import pytest

from metareplay.errors import InputError
from metareplay.experiments.names import LEARNERS_BY_NAME
from metareplay.learners.option_types import option_types
from metareplay.paper.best import STREAMS, WITH_MEMORY, WITHOUT_MEMORY
from metareplay.paper.grids import GRIDS, benchmark, paper_grid, published_best

SIZES = {"online": 7, "independent": 7, "task-input": 7, "ewc": 70, "gem": 28, "er": 48, "er-tasks": 48}
SIZES |= {"mer": 300, "mer-one-big-batch": 90, "mer-current-rate": 240}


def test_the_sizes_are_the_paper_s() -> None:
    assert {learner: prod(map(len, grid.values())) for learner, grid in GRIDS.items()} == SIZES
    assert set(GRIDS) == {*WITH_MEMORY, *WITHOUT_MEMORY}


def test_the_fields_are_options_of_the_learners() -> None:
    for learner, grid in GRIDS.items():
        types = option_types(LEARNERS_BY_NAME[learner])
        assert all(isinstance(value, types[name]) for name, values in grid.items() for value in values)


def test_every_published_best_value_is_on_its_grid() -> None:
    """Except our own choices on Omniglot, where the paper lists some of the learners not at all."""
    seen = 0
    for learner, stream, memory in product(GRIDS, STREAMS, (200, 500, 5120)):
        found = published_best(learner, stream, memory)
        if found is not None:
            seen += 1
            assert all(found[name] in values for name, values in GRIDS[learner].items() if name in found), learner
    assert seen > 60
    assert published_best("mer", "rotations", 300) is None


def test_names() -> None:
    assert benchmark("permutations-200") == ("permutations", 200)
    for wrong in ("tides", "tides-500", "rotations-", "rotations-x", "500"):
        with pytest.raises(InputError, match=f"--paper {wrong}: use a stream and a memory size, such as rotations-500"):
            benchmark(wrong)
    with pytest.raises(InputError, match="no grid for 'reptile'"):
        paper_grid("reptile")
