"""Training over languages: what is measured, exact resume, records that are found again, and what replay does."""

import gzip
import json
import math
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metareplay._core.seal import sealed_json
from metareplay._core.state_file import read_state, write_state
from metareplay.errors import CheckpointError, DataError, DiskError, InputError
from metareplay.lm import (
    ARMS,
    SIZES,
    Llama,
    LmRecord,
    LmSettings,
    Size,
    made_up,
    read_languages,
    read_records,
    text,
    train,
)
from metareplay.lm.report import plot_alignment, plot_losses, table

TINY = LmSettings(
    size=Size(width=16, layers=1, heads=2),
    context=16,
    steps=8,
    rows=8,
    every=4,
    measures=2,
    test_rows=4,
    capacity=50,
    lr=0.01,
    warmup=2,
)


def trained(name: str, folder: Path, settings: LmSettings = TINY, languages: int = 2) -> LmRecord:
    record = train(ARMS[name], made_up(languages, 2000), settings, folder)
    assert record is not None
    return record


@pytest.mark.parametrize("name", ARMS)
def test_a_training_that_was_stopped_goes_on_exactly(name: str, tmp_path: Path) -> None:
    unbroken = trained(name, tmp_path / "a")
    languages = made_up(2, 2000)
    calls = iter([False] * 5 + [True])
    assert train(ARMS[name], languages, TINY, tmp_path / "b", stop=lambda: next(calls)) is None
    assert train(ARMS[name], languages, TINY, tmp_path / "b", save_seconds=0, stop=lambda: True) is None
    broken = trained(name, tmp_path / "b")
    assert broken.losses == unbroken.losses
    assert broken.steps == [4, 8, 12, 16]
    assert broken.ends == [1, 3]
    assert [path.suffix for path in (tmp_path / "b").iterdir()] == [".json"]  # checkpoint and rows are gone
    assert trained(name, tmp_path / "b") == broken  # it is not trained again


HAS_COMPILER = shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
AS_ONE_LINE = (
    r"^compiled=True, or --compile: torch.compile does not work here \(.*no/such.*\); install .*or train without it$"
)


@pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore")  # torch.compile gives several of its own
def test_a_compiled_model_computes_the_same_up_to_rounding(tmp_path: Path) -> None:
    """Also after a stop."""
    plain, calls = trained("reptile", tmp_path / "a"), iter([False] * 5 + [True])
    options: Any = {"folder": tmp_path / "b", "compiled": True}
    assert train(ARMS["reptile"], made_up(2, 2000), TINY, stop=lambda: next(calls), **options) is None
    compiled = train(ARMS["reptile"], made_up(2, 2000), TINY, **options)
    assert compiled is not None
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert (plain.compiled, compiled.compiled) == (False, True)
    np.testing.assert_allclose(compiled.losses, plain.losses, rtol=1e-4)
    assert trained("reptile", tmp_path / "b") == compiled  # the run has the same name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alignment", [False, True])
def test_without_a_compiler_one_line_says_what_to_do(
    alignment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first thing to be compiled is a comparison of gradients; what was learned before is not lost."""
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    languages, calls = made_up(2, 2000), iter([False] * 2 + [True])
    options: Any = {"folder": tmp_path / "runs", "alignment": alignment}
    assert train(ARMS["mer-0.5"], languages, TINY, stop=lambda: next(calls), **options) is None  # step 4 is measured
    no_compiler = config.patch({"cpp.cxx": ("/no/such/compiler",)})
    with no_compiler, pytest.raises(InputError, match=AS_ONE_LINE) as caught:
        train(ARMS["mer-0.5"], languages, TINY, compiled=True, **options)
    assert "\n" not in str(caught.value)
    record = train(ARMS["mer-0.5"], languages, TINY, **options)
    assert record is not None
    assert record.losses == trained("mer-0.5", tmp_path / "unbroken").losses


def test_comparing_gradients_changes_nothing_else(tmp_path: Path) -> None:
    """The losses are the same, also after a stop; only arms with replayed rows have something to compare."""
    plain, languages = trained("mer-0.5", tmp_path / "a"), made_up(2, 2000)
    calls = iter([False] * 5 + [True])
    options: Any = {"folder": tmp_path / "b", "alignment": True}
    assert train(ARMS["mer-0.5"], languages, TINY, stop=lambda: next(calls), **options) is None
    record = train(ARMS["mer-0.5"], languages, TINY, **options)
    unbroken = train(ARMS["mer-0.5"], languages, TINY, tmp_path / "c", alignment=True)
    assert record is not None
    assert unbroken is not None
    assert record.losses == plain.losses
    assert record.alignment == unbroken.alignment
    assert record.alignment is not None
    assert [len(values) for values in record.alignment.values()] == [4, 4]
    assert record.cosine is not None
    assert -1 <= record.cosine <= 1
    assert plain.alignment is None
    assert "alignment" not in json.loads(next((tmp_path / "a").glob("*.json")).read_text())
    alone = train(ARMS["reptile"], languages, TINY, **options)
    assert alone is not None
    assert alone.alignment is None
    assert table([record, alone])[0][-1] == "cosine"
    assert table([record, alone])[2][-1] == ""
    pytest.importorskip("matplotlib")
    plot_alignment([record, unbroken, alone], tmp_path / "alignment.png")
    assert (tmp_path / "alignment.png").stat().st_size > 10_000


def test_what_a_killed_process_left_is_not_replayed(tmp_path: Path) -> None:
    """Rows that were offered before the first checkpoint do not count."""
    unbroken = trained("mer-0.5", tmp_path / "a")

    def die(step: int, _total: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ARMS["mer-0.5"], made_up(2, 2000), TINY, tmp_path / "b", report=die)
    assert trained("mer-0.5", tmp_path / "b").losses == unbroken.losses


def test_every_arm_has_a_record_of_its_own(tmp_path: Path) -> None:
    records = [trained(name, tmp_path) for name in ARMS]
    assert len(list(tmp_path.glob("*.json"))) == len(ARMS)
    assert len({tuple(record.losses[-1]) for record in records}) == len(ARMS)
    heading, *rows = table(records)
    assert [row[0] for row in rows] == list(ARMS)
    assert {len(row) for row in rows} == {len(heading)}
    assert heading[5:7] == ["language 1", "language 2"]
    for record, row in zip(records, rows, strict=True):
        assert record.learned == (record.losses[1][0] + record.losses[3][1]) / 2
        assert row[2] == ("" if record.arm == "joint" else f"{record.learned:.3f}")
    pytest.importorskip("matplotlib")
    plot_losses(records, tmp_path / "losses.png")
    assert (tmp_path / "losses.png").stat().st_size > 10_000


def test_replay_reduces_forgetting(tmp_path: Path) -> None:
    settings = LmSettings(size=Size(width=32, layers=1, heads=2), context=32, rows=8, measures=1, test_rows=16, lr=0.01)
    alone, replay = (trained(name, tmp_path, settings) for name in ("sequential", "replay-0.5"))
    assert alone.forgetting is not None
    assert replay.forgetting is not None
    assert replay.forgetting < alone.forgetting / 2
    assert replay.final < alone.final


def test_the_model_sees_no_later_byte() -> None:
    model = Llama(SIZES["mini"], context=12, seed=0)
    rows = torch.randint(256, (3, 12))
    changed = rows.clone()
    changed[:, 7:] = 0
    one, other = model(rows), model(changed)
    torch.testing.assert_close(one[:, :7], other[:, :7])
    assert not torch.allclose(one[:, 7:], other[:, 7:])
    assert abs(model.loss(rows).item() - math.log(256)) < 0.3  # at first, it knows nothing
    moved = torch.roll(rows, 1, dims=1)
    assert not torch.allclose(model(moved)[:, -1], one[:, -1])  # positions matter


def test_sizes_are_what_they_are_called() -> None:
    for name, least, most in (("11m", 10e6, 12e6), ("30m", 29e6, 33e6), ("50m", 45e6, 52e6)):
        with torch.device("meta"):
            count = sum(np.prod(one.shape) for one in Llama(SIZES[name], 8, 0).parameters())
        assert least < count < most


def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DiskError, match=r"cannot write to .*file.*; choose another folder"):
        trained("sequential", tmp_path / "file")


def test_text_is_read_from_folders(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / "fr" / "man1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "fr" / "man1" / f"{i:02d}.1.gz").write_bytes(gzip.compress(b"%d" % (i % 10) * 50))
    (tmp_path / "de").mkdir()
    (tmp_path / "de" / "one.txt").write_text("ä" * 500)
    (tmp_path / "de" / "link.txt").symlink_to(tmp_path / "de" / "one.txt")
    french, german = read_languages([tmp_path / "fr", tmp_path / "de"], length=20)
    assert (french.name, german.name) == ("fr", "de")
    assert len(french.test) == 101
    assert set(french.test.tolist()) == {ord("9"), ord("\n")}  # files 19 and 39
    assert (len(german.train), len(german.test)) == (950, 50)
    assert french.rows(3, 20, [0]).shape == (3, 20)
    assert len(german.test_rows(100, 50)) == 1


def test_bad_text_and_settings_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there are no files in .*: give folders with text"):
        read_languages([tmp_path / "nowhere"])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("short")
    with pytest.raises(DataError, match="too little text, 5 bytes to learn and 0 to test"):
        read_languages([tmp_path / "a"])
    (tmp_path / "a" / "x.gz").write_text("not packed")
    with pytest.raises(DataError, match=r"cannot read .*x\.gz: .*; remove it, or get it again"):
        read_languages([tmp_path / "a"])
    with pytest.raises(InputError, match="steps=0: there is one at least"):
        LmSettings(steps=0)
    with pytest.raises(InputError, match="measures=9 in 8 steps"):
        LmSettings(steps=8, measures=9)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="is damaged: delete it, and train again"):
        LmRecord.load(tmp_path / "broken.json")


WRONG_PARTS: dict[str, Any] = {
    "settings": {},
    "arm": [],
    "losses": [[1.0]],
    "ends": [99, 1],
    "steps": "many",
    "seconds": "long",
    "languages": [],
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_a_record_that_no_training_would_have_written_is_refused(name: str, tmp_path: Path) -> None:
    made = trained("joint", tmp_path / "lm")
    [path] = (tmp_path / "lm").glob("*.json")
    path.write_bytes(sealed_json(made.plain() | {name: WRONG_PARTS[name]}))
    with pytest.raises(DataError, match="is damaged: delete it, and train again"):
        read_records(path.parent)


@pytest.mark.parametrize("part", ["model", "mer", "step"])
def test_a_checkpoint_without_one_of_its_parts_is_refused(part: str, tmp_path: Path) -> None:
    settings, languages = TINY, made_up(2, 4000)
    assert train(ARMS["mer-0.5"], languages, settings, tmp_path, stop=lambda: True) is None
    [path] = tmp_path.glob("*/checkpoint.pt")
    write_state(path, {name: value for name, value in read_state(path).items() if name != part})
    with pytest.raises(CheckpointError, match=f"does not fit .'{part}'.: delete its folder, and start again"):
        train(ARMS["mer-0.5"], languages, settings, tmp_path)


def test_packed_text_may_not_be_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(10**5)))
    monkeypatch.setattr(text, "memory_of_this_machine", lambda: 8 * 1000)
    with pytest.raises(DataError, match=r"x\.gz holds more than 1000 bytes: unpack it, or remove it"):
        read_languages([tmp_path])
