"""Colours of learners can be seen on their background."""

import pytest

from metareplay._core.palette import LEARNER_COLOURS, OTHERS, colour_of
from metareplay.experiments.names import LEARNERS_BY_NAME
from metareplay.rl.game_experiment import AGENTS_BY_NAME

PAGES = {"light": "#ffffff", "dark": "#15181b"}


def luminance(colour: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", PAGES)
def test_colours_stand_out(background: str) -> None:
    for colour in (*LEARNER_COLOURS.values(), *OTHERS):
        low, high = sorted((luminance(getattr(colour, background)), luminance(PAGES[background])))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_every_learner_has_a_colour_of_its_own() -> None:
    assert set(LEARNER_COLOURS) >= {*LEARNERS_BY_NAME, *AGENTS_BY_NAME}
    learners = [colour_of(name) for name in LEARNERS_BY_NAME]
    assert len(set(learners)) == len(learners)


def test_a_learner_of_ones_own_keeps_its_colour() -> None:
    assert colour_of("MyLearner") == colour_of("MyLearner")
    assert colour_of("MyLearner") in OTHERS
