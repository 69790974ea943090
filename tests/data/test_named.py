"""Datasets by name, and those that another process has read."""

import importlib
from dataclasses import replace

import pytest
from small_characters import small_characters
from small_runs import small_images

from metareplay.data import dataset, fashion_mnist, images, mnist, omniglot, provide
from metareplay.errors import DataError

characters = importlib.import_module("metareplay.data.omniglot")


@pytest.fixture(autouse=True)
def _nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_kept", {})
    monkeypatch.setattr(characters, "_kept", {})


def test_what_was_provided_is_used_and_not_read_again() -> None:
    for name in ("mnist", "fashion-mnist"):
        provide(small_images(name))
    provide(replace(small_characters(), name="omniglot"))
    assert mnist() is dataset("mnist") is small_images("mnist")
    assert fashion_mnist() is dataset("fashion-mnist") is small_images("fashion-mnist")
    assert omniglot() is dataset("omniglot")


def test_what_was_there_first_stays() -> None:
    provide(small_images("mnist"))
    provide(replace(small_images("mnist")))
    assert mnist() is small_images("mnist")


def test_a_name_that_is_none() -> None:
    with pytest.raises(DataError, match=r"^no dataset 'cifar': use one of mnist, fashion-mnist, omniglot$"):
        dataset("cifar")
