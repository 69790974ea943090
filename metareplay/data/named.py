"""Datasets by name, and datasets that another process has read already."""

from collections.abc import Callable

from metareplay._core.checks import instance, shown
from metareplay.data.characters import Characters
from metareplay.data.images import Images, fashion_mnist, mnist
from metareplay.data.images import keep as keep_images
from metareplay.data.omniglot import keep as keep_characters
from metareplay.data.omniglot import omniglot
from metareplay.errors import DataError

Dataset = Images | Characters


def dataset(name: str) -> Dataset:
    """Return a dataset, reading or downloading it if necessary.

    Args:
        name: "mnist", "fashion-mnist" or "omniglot".
    """
    known: dict[str, Callable[[], Dataset]] = {"mnist": mnist, "fashion-mnist": fashion_mnist, "omniglot": omniglot}
    if not isinstance(name, str) or name not in known:
        raise DataError(f"no dataset {shown(name)}: use one of {', '.join(known)}")
    return known[name]()


def provide(found: Dataset) -> None:
    """Let this process use a dataset that another one has read, instead of reading it again.

    Whoever asks for the dataset of that name gets it from now on, unless it has been read here before.

    Args:
        found: What `dataset` returned in the other process; its arrays may be in shared memory.
    """
    if isinstance(found, Images):
        keep_images(found)
    else:
        instance("found", found, Characters, "what dataset() returned")
        keep_characters(found)
