"""Datasets: found on this machine or fetched, and checked byte for byte."""

from metareplay.data.download import Bytes, Source, fetch
from metareplay.data.images import Images, fashion_mnist, load, mnist

__all__ = ["Bytes", "Images", "Source", "fashion_mnist", "fetch", "load", "mnist"]
