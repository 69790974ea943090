"""Datasets that are found on this machine or downloaded, with every file verified by its checksum."""

from metareplay.data.download import Bytes, Source, fetch
from metareplay.data.images import Images, fashion_mnist, load, mnist

__all__ = ["Bytes", "Images", "Source", "fashion_mnist", "fetch", "load", "mnist"]
