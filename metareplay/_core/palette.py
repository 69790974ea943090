"""One colour for each learner, the same in every page; readers who do not see all colours can tell them apart."""

import zlib
from typing import Final, NamedTuple


class Colour(NamedTuple):
    """Hold a colour as #rrggbb, once for each background.

    Args:
        light: For a light background.
        dark: For a dark background.
    """

    light: str
    dark: str


# Okabe and Ito's colours and some of Paul Tol's; the second of each pair is lighter.
BLUE: Final = Colour("#0072b2", "#56a9e0")
SKY: Final = Colour("#3d9bd1", "#9fd3f5")
INDIGO: Final = Colour("#332288", "#a79df0")
VERMILLION: Final = Colour("#c44f00", "#f08a4b")
ORANGE: Final = Colour("#b97800", "#f0b63d")
GREEN: Final = Colour("#007f5c", "#3cc79b")
PINK: Final = Colour("#b1548a", "#e09cc4")
GREY: Final = Colour("#6b6b6b", "#b4b4b4")
WINE: Final = Colour("#882255", "#d977a8")
OLIVE: Final = Colour("#7a7a1f", "#c9c965")
FOREST: Final = Colour("#117733", "#63c585")

LEARNER_COLOURS: Final = {
    "mer": BLUE,
    "mer-one-big-batch": SKY,
    "mer-current-rate": INDIGO,
    "er": VERMILLION,
    "er-tasks": ORANGE,
    "gem": GREEN,
    "ewc": PINK,
    "online": GREY,
    "independent": WINE,
    "task-input": OLIVE,
    "reptile": FOREST,
    "dqn": VERMILLION,
    "dqn-mer": BLUE,
    "sequential": GREY,  # this and what follows are the arms of language models
    "replay-0.25": ORANGE,
    "replay-0.5": VERMILLION,
    "mer-0.25": SKY,
    "mer-0.5": BLUE,
    "joint": WINE,
}
OTHERS: Final = (FOREST, OLIVE, WINE, INDIGO, PINK, ORANGE)


def colour_of(learner: str) -> Colour:
    """Return the colour of a learner, which for one of the user's own depends on its name alone.

    Args:
        learner: The learner's name on the command line, such as "mer-current-rate".

    >>> colour_of("mer").light
    '#0072b2'
    """
    return LEARNER_COLOURS.get(learner) or OTHERS[zlib.crc32(learner.encode()) % len(OTHERS)]
