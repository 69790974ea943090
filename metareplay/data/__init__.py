"""Datasets that are found on this machine or downloaded, with every file verified by its checksum."""

from metareplay.data.character_files import read_characters
from metareplay.data.characters import Characters
from metareplay.data.dataset_files import Bytes
from metareplay.data.download import fetch
from metareplay.data.images import Images, fashion_mnist, load, mnist
from metareplay.data.named import dataset, provide
from metareplay.data.omniglot import omniglot
from metareplay.data.sources import Source

__all__ = [
    "Bytes",
    "Characters",
    "Images",
    "Source",
    "dataset",
    "fashion_mnist",
    "fetch",
    "load",
    "mnist",
    "omniglot",
    "provide",
    "read_characters",
]
