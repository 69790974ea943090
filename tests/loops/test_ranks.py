"""Several ranks: a uniform sample in parts, no waiting for each other, clear messages, and another number of ranks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_work import network, rows
from scipy.stats import chisquare
from torch.nn import functional

import metareplay as mr
from metareplay.errors import InputError
from metareplay.loops import agree, deal, rank_reservoir

ROOT = Path(__file__).parent.parent.parent


def ranked(work: str, folder: Path, ranks: int = 2) -> list[Any]:
    """Let several processes do some work together; return what each printed, None for one that died."""
    script = str(Path(__file__).with_name("rank_work.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, work, str(folder), str(rank), str(ranks)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    for process in processes:
        try:
            printed, told = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0 or not printed, told
        found.append(json.loads(printed) if printed else None)
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], list[Any]]:
    """What two ranks did in a folder before one of them died, and what each said in the end."""
    folder = tmp_path_factory.mktemp("together")
    last = ranked("together", folder)
    return folder, [json.loads((folder / f"before-{rank}").read_text()) for rank in range(2)], last


Together = tuple[Path, list[Any], list[Any]]


def test_the_parts_together_are_a_uniform_sample(together: Together) -> None:
    first, second = (answer["uniform"] for answer in together[1])
    for what, total in (("held", 400 * 8), ("replayed", 400 * 4)):
        counts = first[what] + second[what]
        assert sum(counts) == total
        assert chisquare(counts).pvalue > 0.001
        assert first[what] != second[what]  # each rank has draws of its own


def test_a_rank_whose_loader_ends_early_stops_nobody(together: Together, tmp_path: Path) -> None:
    assert [answer["uneven"] for answer in together[1]] == [
        {"steps": 10, "held": 10, "capacity": 10},
        {"steps": 4, "held": 10, "capacity": 10},
    ]
    deal(together[0] / "replay", tmp_path / "alone", ranks=1)
    with rank_reservoir(tmp_path / "alone", 20) as whole:
        assert len(whole) == 14  # 10 of 60 and, as often, 4 of 24
        assert whole.seen == 120  # the next row is kept with probability 20 / 121, and an earlier one held with as much


def test_a_rank_that_died_is_told_to_the_others(together: Together) -> None:
    survivor, dead = together[2]
    assert dead is None
    assert survivor["message"] == (
        "rank 0 of 2 is at step 2, and another rank has stopped or does not answer: look for its message, then start "
        "all ranks again from the last checkpoint"
    )


def test_ranks_that_are_not_at_the_same_step_are_told(together: Together) -> None:
    agree(3)  # alone, there is nobody to agree with
    for answer in together[1]:
        assert answer["apart"]["message"].startswith(
            "the ranks are not at the same step (rank 0 at step 3, rank 1 at step 4)"
        )


@pytest.mark.slow  # test_torchrun.py has shards, too
def test_sharded_weights_are_moved_where_they_are(tmp_path: Path) -> None:
    """FSDP2 on two ranks gives the weights of one process with all rows; one rank can load the copies of two."""
    first, second = ranked("sharded", tmp_path)
    assert first["shards"]["0.weight"] == second["shards"]["0.weight"] == [4, 4]  # half of [8, 4]
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mer = mr.PeriodicMER(model, memory=None, every=3, rate=0.3)
    before = {}
    for step in range(8):
        x, y = (torch.cat(parts) for parts in zip(rows(step, 0), rows(step, 1), strict=True))
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        mer.step()
        if step == 3:
            before = {name: value.clone() for name, value in mer.state_dict()["before"].items()}
    for theta, ours, theirs in zip(model.parameters(), first["weights"], second["weights"], strict=True):
        assert ours == theirs
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theta.detach(), rtol=1e-9, atol=1e-9)
    [loaded] = ranked("resharded", tmp_path, ranks=1)
    for name, value in loaded.items():
        torch.testing.assert_close(torch.tensor(value, dtype=torch.float64), before[name], rtol=1e-9, atol=1e-9)


def parts_of(folder: Path, seen: list[int], capacity: int, seed: int) -> None:
    """Make the parts of ranks that saw different numbers of rows: rank r saw 100 r, 100 r + 1, ..."""
    for rank, count in enumerate(seen):
        with mr.DiskReservoir(folder / f"part-{rank:05d}-of-{len(seen):05d}", capacity, seed=seed + rank) as part:
            part.offer(torch.arange(100 * rank, 100 * rank + count))


def test_dealing_keeps_the_sample_uniform(tmp_path: Path) -> None:
    """Also from ranks that saw different numbers of rows, to more ranks and fewer slots."""
    counts: dict[int, int] = dict.fromkeys([*range(12), *range(100, 106)], 0)
    for seed in range(40):
        folder = tmp_path / str(seed)
        parts_of(folder / "old", seen=[12, 6], capacity=4, seed=2 * seed)
        deal(folder / "old", folder / "new", ranks=3, seed=seed)
        seen = []
        for rank in range(3):
            with mr.DiskReservoir(folder / "new" / f"part-{rank:05d}-of-00003") as part:
                seen.append(part.seen)
                for row in part.held()["0"].tolist():
                    counts[row] += 1
        assert seen == [9, 9, 6]  # a third of them would fill the part
    assert sum(counts.values()) == 40 * 6  # a third of 18 rows each time
    assert chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.parametrize(("capacity", "removed"), [(None, False), (30, False), (None, True)])
def test_what_comes_after_dealing_is_held_as_often(capacity: int | None, removed: bool, tmp_path: Path) -> None:
    """Also where the new part is not full or is larger than the old ones, and where rows were removed."""
    rows = [row for row in (*range(36), *range(100, 104), *range(200, 236)) if row % 3 or not removed]
    groups, counts = [row // 100 for row in rows], [0, 0, 0]
    for seed in range(40):
        folder = tmp_path / str(seed)
        parts_of(folder / "old", seen=[36, 4], capacity=4, seed=2 * seed)
        for rank in range(2 if removed else 0):
            with mr.DiskReservoir(folder / "old" / f"part-{rank:05d}-of-00002") as part:
                part.remove(lambda held: held["0"] % 3 == 0)
        deal(folder / "old", folder / "new", ranks=1, capacity=capacity, seed=seed)
        with mr.DiskReservoir(folder / "new" / "part-00000-of-00001", seed=1000 + seed) as whole:
            whole.offer(torch.tensor([row for row in rows if row >= 200]))
            for row in whole.held()["0"].tolist():
                counts[row // 100] += 1
    expected = [sum(counts) * groups.count(group) / len(groups) for group in range(3)]
    assert chisquare(counts, expected).pvalue > 0.001


def test_dealing_that_was_killed_leaves_no_half_of_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts_of(tmp_path / "old", seen=[5, 5], capacity=4, seed=0)
    made = list[Path]()

    def dies(one: mr.DiskReservoir, batch: Any) -> None:
        if one.folder not in made:
            made.append(one.folder)
        if len(made) == 2:
            raise KeyboardInterrupt
        offer(one, batch)

    with monkeypatch.context() as patch:
        offer = mr.DiskReservoir.offer
        patch.setattr(mr.DiskReservoir, "offer", dies)
        with pytest.raises(KeyboardInterrupt):
            deal(tmp_path / "old", tmp_path / "new", ranks=3)
    assert not (tmp_path / "new").exists()
    deal(tmp_path / "old", tmp_path / "new", ranks=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    held = list[int]()
    for rank in range(3):
        with mr.DiskReservoir(tmp_path / "new" / f"part-{rank:05d}-of-00003") as part:
            drawn = part.sample(2)
            assert isinstance(drawn, torch.Tensor)  # batches are of the kind that was offered
            held += part.held()["0"].tolist()
    assert len(set(held)) == len(held) == 8


def test_as_many_ranks_as_before_can_be_dealt_to(tmp_path: Path) -> None:
    """For rows of a rank whose loader has ended; a state then brings steps and copies, and leaves the memory alone."""
    memory = rank_reservoir(tmp_path / "old", capacity=5)
    mer = mr.PeriodicMER(torch.nn.Linear(1, 1), memory=memory, share=0.5)
    mer.mix(torch.arange(3))
    mer.step()
    state = mer.state_dict()
    memory.close()
    deal(tmp_path / "old", tmp_path / "new", ranks=1, states=[state])
    with rank_reservoir(tmp_path / "new", capacity=5) as memory:
        mer = mr.PeriodicMER(torch.nn.Linear(1, 1), memory=memory, share=0.5)
        with pytest.raises(InputError, match="cannot go back to mark 1"):
            mer.load_state_dict(state)
        mer.load_state_dict(state, dealt=True)
        assert (mer.steps, len(memory)) == (1, 3)


def test_dealing_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    memory = rank_reservoir(tmp_path / "old", capacity=5)
    mer = mr.PeriodicMER(torch.nn.Linear(1, 1), memory=memory, share=0.5, every=1)
    mer.mix(torch.arange(3))
    mer.step()
    state = mer.state_dict()
    mer.mix(torch.arange(3, 9))
    memory.close()
    deal(tmp_path / "old", tmp_path / "new", ranks=2, capacity=9, states=[state])
    found = []
    for rank in range(2):
        with mr.DiskReservoir(tmp_path / "new" / f"part-{rank:05d}-of-00002") as part:
            assert part.capacity == 5 - rank
            found += part.held()["0"].tolist()
    assert sorted(found) == [0, 1, 2]
    state["rank"] = [1, 4]  # as if four ranks had saved it
    mer = mr.PeriodicMER(torch.nn.Linear(1, 1), memory=mr.Reservoir(5), share=0.5)
    mer.load_state_dict(state)
    assert (mer.steps, mer.new_rows, mer.replayed_rows) == (1, 0, 0)


def test_what_cannot_be_dealt_is_told(tmp_path: Path) -> None:
    parts_of(tmp_path / "two", seen=[3, 3], capacity=4, seed=0)
    with pytest.raises(
        InputError, match=r"holds the parts of 2 ranks, and now there are 1: deal them into a new folder"
    ):
        rank_reservoir(tmp_path / "two", 8)
    with pytest.raises(InputError, match="is there already: use a new folder"):
        deal(tmp_path / "two", tmp_path / "two", ranks=1)
    with pytest.raises(InputError, match="holds 0 parts of a memory"):
        deal(tmp_path / "none", tmp_path / "new", ranks=1)
    with pytest.raises(InputError, match="capacity=2: each of the 3 ranks holds one row at least"):
        deal(tmp_path / "two", tmp_path / "new", ranks=3, capacity=2)
    state = {"rank": [0, 2], "memory": {"mark": 0}}
    for states, message in (
        ([state], "states holds 1, and not one of each of the 2 ranks: give all of them"),
        ([state, state], "states holds 2, and not one of each of the 2 ranks"),
        ([{"steps": 3}, state], r"states holds something else: give what each rank's state_dict\(\) returned"),
    ):
        with pytest.raises(InputError, match=message):
            deal(tmp_path / "two", tmp_path / "new", ranks=1, states=states)
    assert np.all([path.exists() for path in (tmp_path / "two").iterdir()])
