"""States of torch in sealed files: every damage is refused by one line."""

import hashlib
import io
import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from metareplay import CheckpointError
from metareplay._core.state_file import LINE, START, read_state, write_state

STATE: dict[str, Any] = {
    "weights": torch.arange(5.0),
    "counts": [1, 2],
    "nested": {"a": torch.ones(2, dtype=torch.int64)},
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_state(tmp_path / "state.pt", STATE)
    found = read_state(tmp_path / "state.pt")
    assert found["weights"].tolist() == [0, 1, 2, 3, 4]
    assert (found["counts"], found["nested"]["a"].tolist()) == ([1, 2], [1, 1])
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_every_flipped_bit_and_every_missing_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    write_state(path, STATE)
    content = path.read_bytes()
    damaged = [content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in range(len(content))]
    for wrong in (*damaged, *(content[:size] for size in range(0, len(content), 7))):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"state\.pt is damaged or not a checkpoint: delete its folder"):
            read_state(path)


def test_a_file_of_an_earlier_version_is_read_with_a_remark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(STATE, tmp_path / "state.pt")
    with caplog.at_level(logging.WARNING, logger="metareplay"):
        assert read_state(tmp_path / "state.pt")["counts"] == [1, 2]
    assert "carries no checksum" in caplog.text


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\3\4 no archive", b"something else"])
def test_what_is_no_state_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        read_state(tmp_path / "state.pt")


@pytest.mark.parametrize("sealed", [True, False])
def test_a_small_file_with_large_content_is_refused(sealed: bool, tmp_path: Path) -> None:
    path, packed = tmp_path / "state.pt", io.BytesIO()
    write_state(path, {"weights": torch.zeros(100_000)})
    with (
        zipfile.ZipFile(io.BytesIO(path.read_bytes()[LINE:])) as whole,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for member in whole.infolist():
            small.writestr(member.filename, whole.read(member))
    content = packed.getvalue()
    assert len(content) < 10_000
    seal = START + hashlib.sha256(content).hexdigest().encode() + b"\n"
    path.write_bytes(seal + content if sealed else content)
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        read_state(path)


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        read_state(tmp_path / "state.pt")
