import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metareplay._core.archive import read_arrays, write_arrays
from metareplay._core.seal import check_zip, opened_json, sealed_json
from metareplay.errors import CheckpointError

ARRAYS = {"xs": np.arange(12.0).reshape(3, 4), "seen": np.array(5)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "arrays.npz"
    write_arrays(path, ARRAYS)
    return path


def damaged(content: bytes) -> bool:
    try:
        return not check_zip(io.BytesIO(content))
    except ValueError:
        return True


def test_numpy_and_zip_read_a_sealed_archive(archive: Path) -> None:
    with np.load(archive, allow_pickle=False) as found:
        assert {name: found[name].tolist() for name in found.files} == {k: v.tolist() for k, v in ARRAYS.items()}
    with zipfile.ZipFile(archive) as found:
        assert found.testzip() is None
        assert found.comment.startswith(b"sha256:")


def test_every_flipped_bit_and_every_missing_end_is_noticed(archive: Path) -> None:
    content = archive.read_bytes()
    assert check_zip(io.BytesIO(content))
    for place in range(len(content)):
        for bit in range(8):
            wrong = bytearray(content)
            wrong[place] ^= 1 << bit
            with pytest.raises(ValueError, match=r"checksum|end"):
                check_zip(io.BytesIO(wrong))
        with pytest.raises(ValueError, match=r"checksum|end"):
            check_zip(io.BytesIO(content[:place]))


def test_an_archive_without_a_seal_is_read_with_a_remark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "old.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, xs=ARRAYS["xs"])
    found = read_arrays(tmp_path / "old.npz", "export", "damaged")
    assert found["xs"].tolist() == ARRAYS["xs"].tolist()
    [remark] = caplog.messages
    assert remark == f"{tmp_path / 'old.npz'} carries no checksum: it was written by an earlier version"


def header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


HUGE = {
    "larger than it is": header("(1000000000000,)") + bytes(80),
    "smaller than it is": header("(0, 20)") + bytes(80),
    "negative": header("(-10,)") + bytes(80),
    "an object": header("(1,)", "|O") + bytes(8),
    "no header": b"nothing",
    "nested": header("[" * 100 + "]" * 100) + bytes(8),
}


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE.keys())
def test_an_array_that_lies_about_its_size_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xs.npy", content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_arrays(path, "export", "damaged")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xs.npy", header("(12500000,)") + bytes(100_000_000))
    assert path.stat().st_size < 200_000
    with pytest.raises(CheckpointError, match="damaged"):
        read_arrays(path, "export", "damaged")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no export at .*: check the path"):
        read_arrays(tmp_path / "nowhere", "export", "damaged")
    with pytest.raises(CheckpointError, match=r"cannot read .*: File name too long"):
        read_arrays(tmp_path / ("x" * 300), "export", "damaged")
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(CheckpointError, match="damaged"):
            read_arrays(path, "export", "damaged")


documents = st.dictionaries(
    st.text(max_size=5), st.floats(allow_nan=False) | st.text(max_size=5) | st.none(), max_size=3
)


@given(document=documents, indent=st.sampled_from([None, 1]))
def test_a_sealed_document_is_json_and_opens_again(document: dict[str, Any], indent: int | None) -> None:
    content = sealed_json(document, indent)
    assert list(json.loads(content)) == [name for name in document if name != "sha256"] + ["sha256"]
    assert opened_json(content) == ({name: v for name, v in document.items() if name != "sha256"}, True)


@given(document=documents, indent=st.sampled_from([None, 1]))
@settings(max_examples=20)
def test_every_flipped_bit_of_a_document_is_noticed(document: dict[str, Any], indent: int | None) -> None:
    content = sealed_json(document | {"small": 5e-324, "rate": 1e-05}, indent)
    for place in range(len(content)):
        for bit in range(8):
            wrong = bytearray(content)
            wrong[place] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011
                opened_json(bytes(wrong))
        with pytest.raises(ValueError):  # noqa: PT011
            opened_json(content[:place])


def test_a_document_without_a_seal_is_read() -> None:
    assert opened_json(b'{"weights": "abc"}') == ({"weights": "abc"}, False)
    assert opened_json(b"{}") == ({}, False)
    for content in (b"[1]", b"5", b"", b"[" * 100_000, b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            opened_json(content)
