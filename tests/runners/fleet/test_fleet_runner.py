"""Which experiments fly together, and who runs the others. The kernel is interpreted on the CPU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import instead_of_mnist, small_images

import metareplay as mr
from metareplay.experiments import AnyExperiment, Experiment
from metareplay.runners import Failure, FleetRunner, Runner, Threads, Watcher, carry_out
from metareplay.runners.claims import Claim
from metareplay.runners.fleet import fleet as fleet_engine
from metareplay.runners.fleet.flight import fleet_key

SILENT = Watcher()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    instead_of_mnist(monkeypatch)
    monkeypatch.setattr(fleet_engine, "mnist", small_images)
    return Experiment(options={"k": 3, "s": 1}, memory=5, tasks=2, examples=2, test_examples=9, hidden=(10, 6))


class Noting(Runner):
    """Writes down what it is given, and gives it to threads."""

    def __init__(self) -> None:
        self.given: list[Experiment] = []
        self.fresh: list[bool] = []

    def run(self, experiments: Sequence[Any], folder: Path, *, fresh: bool = False, **options: Any) -> list[Any]:
        self.given.extend(experiments)
        self.fresh.append(fresh)
        return Threads(1).run(experiments, folder, fresh=fresh, **options)


def grounded(small: Experiment) -> list[Experiment]:
    return [replace(small, learner="gem", memory_kind="ring", options={}), replace(small, alignment=3)]


def test_fleets_are_made_of_what_can_fly(small: Experiment) -> None:
    online = replace(small, learner="online", options={})
    other = replace(small, tasks=4)
    given = [small, replace(small, seed=1), *grounded(small), online, other]
    runner = FleetRunner("cpu", rest=Noting())
    assert runner._fleets(given) == [[small, replace(small, seed=1), online], [other]]
    usual = [Experiment(learner="online", stream=stream) for stream in ("rotations", "many-permutations")]
    assert runner._fleets(usual) == [usual[:1], usual[1:]]


def test_it_says_that_runs_are_not_tracked(small: Experiment, tmp_path: Path) -> None:
    said: list[str] = []

    class Hearing(Watcher):
        followers = (lambda: pytest.fail("nobody follows them"),)

        def remark(self, text: str) -> None:
            said.append(text)

    FleetRunner("cpu").run([small, replace(small, seed=1)], tmp_path, watcher=Hearing())
    assert said == ["2 runs advance together and are not tracked: use --on threads for tracked runs"]


def test_what_cannot_fly_goes_to_the_rest_and_records_come_in_order(small: Experiment, tmp_path: Path) -> None:
    given = [grounded(small)[0], small, grounded(small)[1], replace(small, seed=1), small]
    rest = Noting()
    found = FleetRunner("cpu", rest=rest).run(given, tmp_path)
    assert [record.key for record in found if record is not None] == [one.key for one in given]
    assert [record.engine for record in found if isinstance(record, mr.Record)] == [
        "cpu",
        "fleet",
        "cpu",
        "fleet",
        "fleet",
    ]
    assert rest.given == grounded(small)
    again = FleetRunner("cpu", rest=rest).run(given, tmp_path)
    assert again == found
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, which stands in for the GPU
def test_what_leaves_the_range_of_a_fleet_goes_to_the_rest_or_has_no_record(small: Experiment, tmp_path: Path) -> None:
    wild = replace(small, options={"k": 3, "s": 1, "lr": 300.0, "beta": 1.0})  # too large only for the fleet's float16
    alone = FleetRunner("cpu").run([small, wild], tmp_path)
    assert [record is None for record in alone] == [False, True]
    rest = Noting()
    found = FleetRunner("cpu", rest=rest).run([small, wild], tmp_path)
    assert rest.given == [wild]
    assert [record.engine for record in found if isinstance(record, mr.Record)] == ["fleet", "cpu"]


def test_without_a_rest_what_cannot_fly_is_refused(small: Experiment, tmp_path: Path) -> None:
    gem, compared = grounded(small)
    with pytest.raises(mr.InputError, match="not GEM"):
        FleetRunner("cpu").run([small, gem], tmp_path)
    with pytest.raises(mr.InputError, match="does not compare gradients"):
        FleetRunner("cpu").run([small, compared], tmp_path)
    with pytest.raises(mr.InputError, match="does not measure training accuracy"):
        FleetRunner("cpu").run([small, replace(small, training=True)], tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was flown


@pytest.mark.parametrize("fresh", [False, True])
def test_fresh_is_handed_on(fresh: bool, small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def fly(experiments: Sequence[Experiment], folder: Path, *, fresh: bool, **_: object) -> list[mr.Record | None]:
        del folder
        told.append(fresh)
        return [None for _ in experiments]

    monkeypatch.setattr("metareplay.runners.fleet.runner.fly", fly)
    rest = Noting()
    FleetRunner("cpu", rest=rest).run([small, *grounded(small)], tmp_path, fresh=fresh)
    assert told == rest.fresh == [fresh]


def test_without_a_gpu_it_says_so_before_anything(small: Experiment, tmp_path: Path) -> None:
    rest = Noting()
    with pytest.raises(mr.InputError, match="needs a CUDA GPU"):
        FleetRunner(rest=rest).run([small, *grounded(small)], tmp_path)
    assert not rest.given
    assert not list(tmp_path.iterdir())


def test_a_watcher_is_told_how_far_all_of_them_are(small: Experiment, tmp_path: Path) -> None:
    class Counting(Watcher):
        """Writes down what it is told."""

        def begin(self, experiments: Sequence[AnyExperiment]) -> None:
            begun.append(len(experiments))

        def together(self, count: int, seen: int, total: int) -> None:
            told.append((count, seen, total))

    begun, told = list[int](), list[tuple[int, int, int]]()
    FleetRunner("cpu").run([small, replace(small, seed=1)], tmp_path, watcher=Counting())
    assert begun == [2]
    assert told
    assert [seen for _, seen, _ in told] == sorted(seen for _, seen, _ in told)
    assert told[-1] == (2, 4, 4)
    assert {(count, total) for count, _, total in told} == {(2, 4)}


# Other processes and failures, with threads in the place of the kernel


@pytest.fixture
def flown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], set[str]]]:
    """The seeds of every fleet, and the keys that were left to others; what has a rate of 300 leaves the range."""
    fleets: list[tuple[list[int], set[str]]] = []

    def fly(fleet: list[Experiment], folder: Path, *, others: set[str], **_: object) -> list[mr.Record | None]:
        fleets.append(([one.seed for one in fleet], others))
        due = [one for one in fleet if one.key not in others and one.options.get("lr") != 300.0]
        return [carry_out(one, folder) if one in due else None for one in fleet]

    monkeypatch.setattr("metareplay.runners.fleet.runner.fly", fly)
    monkeypatch.setattr("metareplay.runners.fleet.runner.OTHERS", 0.01)
    return fleets


@pytest.mark.parametrize("claimed", ["run", "fleet"])
def test_what_another_process_does_is_left_to_it_until_it_gives_up(
    claimed: str,
    small: Experiment,
    flown: list[tuple[list[int], set[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [small, replace(small, seed=1)]
    names = [small.key] if claimed == "run" else [fleet_key(given), *(one.key for one in given)]
    claims = [Claim.take(tmp_path, name) for name in names]

    def give_up(_seconds: float) -> None:
        for claim in claims:
            assert claim is not None
            claim.give_back()

    monkeypatch.setattr("metareplay.runners.fleet.runner.time.sleep", give_up)
    found = FleetRunner("cpu").run(given, tmp_path)
    assert [record.seed for record in found if isinstance(record, mr.Record)] == [0, 1]
    everything = {one.key for one in given}
    again = ([0], {small.key}) if claimed == "run" else ([0, 1], everything)
    assert flown == [([0, 1], again[1]), (again[0], set())]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 2


@pytest.mark.usefixtures("flown")
def test_what_leaves_the_range_is_a_failure_if_the_others_go_on(small: Experiment, tmp_path: Path) -> None:
    wild = replace(small, options={"k": 3, "s": 1, "lr": 300.0})
    found = FleetRunner("cpu").run([small, wild], tmp_path, keep_going=True)
    assert isinstance(found[1], Failure)
    assert (found[1].kind, found[1].key) == ("not finite", wild.key)
    assert FleetRunner("cpu").run([wild], tmp_path, keep_going=True) == found[1:]
    recovered = FleetRunner("cpu", rest=Threads(1)).run([wild], tmp_path, keep_going=True, fresh=True)
    assert isinstance(recovered[0], mr.Record)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 2
