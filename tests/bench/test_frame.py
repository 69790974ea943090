"""What all benchmarks share: turns, calibration, documents, tables, and programs without typer and rich."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import metareplay as mr
from metareplay.bench.cpu import CpuBenchmark
from metareplay.bench.cuda import CudaBenchmark
from metareplay.bench.fleet import AGAINST_FLOOR, FleetBenchmark
from metareplay.bench.frame import (
    AGAINST_ONE,
    AGAINST_TORCH,
    Benchmark,
    Column,
    Effort,
    Sheet,
    Timing,
    announced,
    calibrate,
    clock_in_turns,
    clock_learner,
    compare,
    document,
    side_by_side,
    take_turns,
)
from metareplay.bench.torch_loop import torch_loop
from metareplay.errors import InputError

RESULTS = Path(__file__).parents[2] / "results"
SUBJECTS: dict[str, Benchmark] = {"cpu": CpuBenchmark(), "cuda": CudaBenchmark(), "fleet": FleetBenchmark()}


def keys(value: object) -> object:
    """The names in a document, without its values; rows of one kind have the same ones."""
    if isinstance(value, dict):
        return {name: keys(part) for name, part in value.items()}
    if isinstance(value, list):
        (found,) = {json.dumps(keys(part)) for part in value}
        return json.loads(found)
    return None


def test_both_sides_take_turns_and_the_ratio_is_of_the_same_round() -> None:
    log: list[str] = []
    first, second = iter([1.0, 2.0, 10.0]), iter([6.0, 4.0, 30.0])

    def take(name: str, numbers: Iterator[float]) -> float:
        log.append(name)
        return next(numbers)

    turns = take_turns(lambda: take("first", first), lambda: take("second", second), 3)
    assert log == ["first", "second"] * 3
    assert (turns.first, turns.second, turns.ratio) == (2.0, 6.0, 3.0)


@pytest.mark.parametrize(
    ("each", "most", "expected"),
    [(0.01, 4000, 50), (0.3, 4000, 1), (2.0, 4000, 1), (0.0, 4000, 4000), (0.001, 60, 60)],
)
def test_calibration_finds_how_many_examples_fill_a_turn(each: float, most: int, expected: int) -> None:
    asked: list[int] = []

    def clock(count: int) -> float:
        asked.append(count)
        return count * each

    assert calibrate(clock, 0.5, warm_up=3, most=most) == pytest.approx(expected, abs=1)
    assert asked[:2] == [3, 1]
    assert max(asked) <= most


def test_calibration_goes_on_while_the_first_examples_are_slow() -> None:
    assert calibrate(lambda count: 0.1 + 0.001 * count, 0.5, warm_up=1) > 150


def test_two_clocks_take_turns_of_about_the_same_length() -> None:
    asked: dict[float, list[int]] = {0.01: [], 0.1: []}

    def clock(each: float) -> Callable[[int], float]:
        def learn(count: int) -> float:
            asked[each].append(count)
            return count * each

        return learn

    turns = clock_in_turns(clock(0.01), clock(0.1), Effort(rounds=2, seconds=0.5), warm_up=3)
    assert (turns.first, turns.second, turns.ratio) == pytest.approx((0.01, 0.1, 10))
    assert asked == {0.01: [3, 1, 50, 50, 50], 0.1: [3, 1, 5, 5, 5]}
    turns = clock_in_turns(clock(0.01), clock(0.1), Effort(rounds=2, seconds=0.5), warm_up=3, most=4)
    assert asked[0.01][5:] == asked[0.1][5:] == [3, 1, 4, 4, 4]


def test_a_comparison_is_in_microseconds_per_step() -> None:
    class Small:
        name, promised, aim = "small", 5.0, None

    timing = compare(Small(), lambda count: 0.4 * count, lambda _: 0.6, Effort(3, 0.5), steps=2, warm_up=1)
    assert (timing.ours, timing.theirs, timing.ratio) == pytest.approx((2e5, 6e5, 3))
    assert timing.with_extra(engine="cpu").to_json(AGAINST_TORCH) == {
        "name": "small", "ours": timing.ours, "torch": timing.theirs, "ratio": timing.ratio, "at_least": 5.0,
        "aim": None, "engine": "cpu",
    }  # fmt: skip
    assert [one.name for one in announced([Small(), Small()], lambda _: None)] == ["small", "small"]


@pytest.mark.parametrize(("rounds", "seconds"), [(0, 0.5), (7, 0.0), (7, -1.0), (7, float("nan")), (7, float("inf"))])
def test_an_impossible_effort_is_refused(rounds: int, seconds: float) -> None:
    with pytest.raises(InputError, match="use"):
        Effort(rounds, seconds)


def test_learners_are_clocked_while_they_observe() -> None:
    learners = [mr.Online(mr.networks.mlp(6, (4,), 3, seed=seed), lr=0.1) for seed in range(2)]
    xs, ys = torch.rand(5, 6), torch.arange(5) % 3
    clocks = [clock_learner(learner, xs, ys) for learner in learners]
    assert clocks[0](3) > 0
    assert side_by_side(clocks, 4) > 0
    assert [learner.seen for learner in learners] == [7, 4]
    again = mr.Online(mr.networks.mlp(6, (4,), 3, seed=0), lr=0.1)
    again.observe_many(xs[[0, 1, 2, 3, 4, 0, 1]], ys[[0, 1, 2, 3, 4, 0, 1]])
    assert torch.equal(learners[0].weights.theta, again.weights.theta)


def test_an_error_in_a_thread_is_not_lost() -> None:
    def broken(_: int) -> float:
        raise InputError("broken")

    with pytest.raises(InputError, match="broken"):
        side_by_side([lambda _: 0.0, broken], 1)


def test_the_torch_loop_trains_and_leaves_the_past_alone() -> None:
    batches = [(torch.rand(1, 6), torch.tensor([1]))]
    alone, beside = (mr.networks.mlp(6, (4,), 3, seed=0) for _ in range(2))
    before = torch.nn.utils.parameters_to_vector(alone.parameters()).detach().clone()
    with pytest.MonkeyPatch.context() as patch:  # a clock on which every loop is one pass long
        ticks = iter(range(1000))
        patch.setattr("metareplay.bench.torch_loop.time.perf_counter", lambda: float(next(ticks)))
        assert torch_loop(alone, torch.nn.CrossEntropyLoss(), 0.1, batches)(0.5) > 0
        past = [(torch.rand(4, 6), torch.tensor([0, 1, 2, 0]))]
        assert torch_loop(beside, torch.nn.CrossEntropyLoss(), 0.1, batches, past)(0.5) > 0
    after, same = (torch.nn.utils.parameters_to_vector(one.parameters()) for one in (alone, beside))
    assert not torch.equal(before, after)
    assert torch.equal(after, same)


def test_a_sheet_has_empty_cells_where_there_is_no_value() -> None:
    columns = (Column("setting", "name"), Column("ours", "ours", ".1f"), Column("share", "share", ".0%"))
    full = {"name": "one", "ours": 1.26, "share": 0.5, "more": 3}
    sheet = Sheet("A title", columns, [full, dict.fromkeys(full)])
    assert sheet.cells() == [["one", "1.3", "50 %"], ["", "", ""]]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_earlier_documents_still_make_tables(subject: str) -> None:
    found = json.loads((RESULTS / f"bench-{subject}.json").read_text())
    sheets = SUBJECTS[subject].sheets(found)
    beside = found.get("replicas", [])
    rows = [*found["timings"], *found.get("growth", []), *(beside if isinstance(beside, list) else [beside])]
    assert [cells[0] for sheet in sheets for cells in sheet.cells()] == [row["name"] for row in rows]
    assert all(len(cells) == len(sheet.columns) for sheet in sheets for cells in sheet.cells())


def test_documents_keep_the_names_of_earlier_ones() -> None:
    timing = Timing("a setting", 1.0, 2.0, 2.0)
    graphs = timing.with_extra(engine="cuda", steps_per_second=1.0, most=80.0, wanted=50.0)
    graphs = graphs.with_extra(kernels=1.0, floor=1.0, bytes=1)
    row = timing.with_extra(engine="cpu").to_json(AGAINST_TORCH)
    parts: dict[str, dict[str, object]] = {
        "cpu": {"two_jobs": 0.5, "timings": [row], "growth": [row]},
        "cuda": {
            "empty_kernel": 1.0,
            "timings": [graphs.to_json(AGAINST_TORCH)],
            "replicas": [timing.with_extra(engine="cuda").to_json(AGAINST_ONE)],
        },
        "fleet": {"error": 0.0, "timings": [timing.with_extra(runs=1, k=6, step=1.0).to_json(AGAINST_FLOOR)]},
    }
    for subject, some in parts.items():
        earlier = keys(json.loads((RESULTS / f"bench-{subject}.json").read_text()))
        assert isinstance(earlier, dict)
        assert keys(document("a device", **some)) == {"device": None, **earlier}


WITHOUT_TYPER_AND_RICH = """
import runpy, sys
sys.modules.update(typer=None, rich=None)
for subject, word in (("cpu", "--help"), ("cuda", "--quick"), ("fleet", "--quick")):
    sys.argv = [subject, word]
    try:
        runpy.run_module(f"metareplay.bench.{subject}", run_name="__main__")
    except SystemExit as stopped:
        print(subject, stopped.code)
"""


def test_benchmarks_are_programs_that_need_neither_typer_nor_rich() -> None:
    words, nothing = [sys.executable, "-c", WITHOUT_TYPER_AND_RICH], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run(words, capture_output=True, text=True, check=True, env=nothing, cwd=RESULTS.parent)
    assert [line for line in answer.stdout.splitlines() if line[-1:].isdigit()] == ["cpu 0", "cuda 2", "fleet 2"]
    assert [line.split()[0] for line in answer.stderr.splitlines()] == ["metareplay:"] * 2
    assert answer.stderr.count("needs a CUDA GPU") == 2
