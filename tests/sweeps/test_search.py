"""Sweeps from Python: what is run, how settings are compared, and what is reported."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_builds import build
from small_games import small_game
from small_runs import instead_of_mnist, small_images

import metareplay as mr
from metareplay.errors import InputError, MetareplayError
from metareplay.experiments import Experiment, OwnExperiment
from metareplay.rl import training
from metareplay.runners import FleetRunner, Processes, Threads
from metareplay.runners.fleet import fleet
from metareplay.streams import Examples
from metareplay.sweeps import Case, Report, Standing, SweepWatcher
from metareplay.sweeps import pictures as pictures_module
from metareplay.sweeps.subject import Measure

SMALL = Experiment(learner="er", memory=8, tasks=3, examples=10, test_examples=12, hidden=(6,))
LISTS: dict[str, Sequence[Any]] = {"lr": [0.01, 0.1], "k": [2, 3]}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Heard(SweepWatcher):
    """Remembers what it was told, and looks for the best setting when a round begins and when a run ends."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.begun: list[int] = []
        self.best: list[float | None] = []
        self.standing: Standing | None = None

    def round(self, title: str, cases: Sequence[Case], folder: Path, measure: Measure) -> None:
        self.titles.append(title)
        self.standing = Standing(cases, folder, measure)

    def begin(self, experiments: Sequence[Any]) -> None:
        self.begun.append(len(experiments))

    def end(self, experiment: Any, finished: bool) -> None:
        del experiment, finished
        assert self.standing is not None
        best = self.standing.best()
        self.best.append(None if best is None else best.mean)


def test_settings_are_chosen_by_what_was_held_out(tmp_path: Path) -> None:
    heard = Heard()
    found = mr.sweep(SMALL, LISTS, seeds=2, folder=tmp_path, held_out=0.2, watcher=heard)
    outcomes = {(one.settings["lr"], one.settings["k"]): one for one in found.rounds[0]}
    assert len(outcomes) == 4
    for (lr, k), one in outcomes.items():
        records = [mr.Record.read(path) for path in tmp_path.glob("*.json")]
        wanted = [r for r in records if r.settings["lr"] == lr and r.settings["k"] == k and r.held_out is not None]
        assert sorted(one.scores) == sorted(record.va for record in wanted)
        assert all(record.examples == 3 * 8 for record in wanted)
    assert found.best.mean == max(one.mean or 0 for one in outcomes.values())
    assert [record.examples for record in found.result if isinstance(record, mr.Record)] == [30, 30]
    plain = [mr.run(*SMALL.__class__(**vars_of(SMALL, found.best.settings, seed)).build()) for seed in (0, 1)]
    assert found.values("ra") == [record.ra for record in plain]
    assert heard.titles == ["settings", "the chosen setting with all training examples"]
    assert heard.begun == [8, 2]
    assert heard.best[7] == found.best.mean
    assert "held out" in found.chosen_by


def vars_of(base: Experiment, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    return {name: getattr(base, name) for name in base.__dataclass_fields__} | {"options": settings, "seed": seed}


def test_nothing_is_run_twice_and_more_values_run_only_what_is_new(tmp_path: Path) -> None:
    first = mr.sweep(build, {"lr": [0.01, 0.1]}, seeds=2, folder=tmp_path)
    before = names(tmp_path)
    heard = Heard()
    again = mr.sweep(build, {"lr": [0.01, 0.1]}, seeds=2, folder=tmp_path, watcher=heard)
    assert heard.begun == [0, 0]
    assert names(tmp_path) == before
    assert Report(again).document()["ranking"] == Report(first).document()["ranking"]
    more = Heard()
    mr.sweep(build, {"lr": [0.01, 0.1, 0.3]}, seeds=3, folder=tmp_path, watcher=more)
    assert more.begun[0] == 9 - 4


def test_a_setting_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 1e30]}
    found = mr.sweep(SMALL, grid, seeds=2, folder=tmp_path, runner=Threads(1))
    assert found.best.settings == {"lr": 0.1}
    assert [one.kind for one in found.failures] == ["not finite"] * 2
    [_, last] = found.table()
    assert (last["lr"], last["failed"], last["seeds"]) == (1e30, 2, 0)
    [fine, bad] = found.marginals()
    assert fine["best"] == found.best.mean
    assert (bad["failed"], "mean" in bad) == (1, False)
    heard = Heard()
    mr.sweep(SMALL, grid, seeds=2, folder=tmp_path, watcher=heard)
    assert heard.begun == [0, 0]
    mr.sweep(SMALL, grid, seeds=2, folder=tmp_path, watcher=heard, retry_failed=True)
    assert heard.begun[2:] == [2, 0]
    page = Report(found).markdown()
    assert "| lr=1e+30 | 0, 1 | not finite |" in page
    with pytest.raises(
        MetareplayError, match=r"no setting of er on rotations finished with every seed: 1 x not finite"
    ):
        mr.sweep(SMALL, {"lr": [1e30]}, seeds=1, folder=tmp_path)


def test_choosing_by_test_accuracy_says_so(tmp_path: Path) -> None:
    found = mr.sweep(SMALL, LISTS, seeds=1, folder=tmp_path, select="test")
    assert found.best.mean == max(one.scores[0] for one in found.rounds[0])
    assert found.values("ra") == found.best.scores
    assert len(names(tmp_path)) == 4  # nothing is held out, and nothing is run again
    page = Report(found).markdown()
    assert "TEST accuracy, as in the paper" in page
    assert "| test accuracy |" in page
    assert "TEST" in Report(found).document()["chosen_by"]


def test_halving_gives_up_hopeless_settings_early(tmp_path: Path) -> None:
    whole = Experiment(learner="er", memory=8, tasks=9, examples=6, test_examples=5, hidden=(4,))
    grid = {"lr": [0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 1e30]}
    heard = Heard()
    found = mr.sweep(whole, grid, seeds=1, folder=tmp_path, halving=3, watcher=heard)
    assert [[one.tasks for one in some] for some in found.rounds] == [[1] * 7, [3] * 3, [None]]
    assert heard.titles[:3] == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]
    assert heard.begun == [7, 3, 1, 1]
    for earlier, later in zip(found.rounds, found.rounds[1:], strict=False):
        survivors = {one.number for one in later}
        worst = min(one.mean or 0 for one in earlier if one.number in survivors)
        assert all((one.mean or 0) <= worst for one in earlier if one.number not in survivors)
    assert found.ranking[0] is found.rounds[2][0]
    assert len(found.ranking) == 7
    assert list(found.table()["tasks_learned"]) == ["all", 3, 3, 1, 1, 1, 1]
    assert "after the first task." in Report(found).markdown()
    records = mr.records(tmp_path)
    assert len(records.where(first_tasks=1)) == 6
    assert len(records.where(first_tasks=3)) == 3


def test_a_stream_may_bring_validation_sets_of_its_own(tmp_path: Path) -> None:
    class Mine(mr.Stream):
        tasks, total, has_validation = 1, 4, True

        def chunks(self, start: int = 0) -> Any:
            return mr.OwnStream.from_tensors(torch.eye(4), torch.arange(4)).chunks(start)

        def test(self, task: int) -> Examples:
            del task
            return Examples(torch.eye(4), torch.arange(4))

        def validation(self, task: int) -> Examples:
            return Examples(self.test(task).xs[:2], torch.tensor([0, 1]))

        def settings(self) -> dict[str, object]:
            return {"stream": "Mine"}

    def make(seed: int, lr: float) -> tuple[mr.Learner, mr.Stream]:
        return mr.Online(mr.networks.mlp(4, (5,), 4, seed=seed), lr=lr, seed=seed), Mine()

    found = mr.sweep(make, {"lr": [0.1, 0.5]}, seeds=1, folder=tmp_path)
    assert "own validation sets" in found.chosen_by
    assert len(names(tmp_path)) == 2  # nothing was held out, so nothing is run again
    assert all(
        record.examples == 4 for one in found.rounds[0] for record in one.records if isinstance(record, mr.Record)
    )


def test_games_are_chosen_by_their_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 1e9)
    found = mr.sweep(small_game(), {"lr": [0.001, 0.01], "target_every": [10]}, seeds=1, folder=tmp_path)
    assert found.values("final_mean") == found.best.scores
    assert "score" in found.chosen_by
    assert json.loads(json.dumps(Report(found).document()))["measure"] == "score"
    assert "| score |" in Report(found).markdown()
    for wrong, says in (({"select": "validation"}, "no examples to hold out"), ({"halving": 3}, "games have none")):
        with pytest.raises(InputError, match=says):
            mr.sweep(small_game(), {"lr": [0.001]}, folder=tmp_path, **wrong)


def nothing(seed: int) -> Any:
    del seed


@pytest.mark.parametrize(
    ("what", "options", "says"),
    [
        (SMALL, {"grid": {"rate": [0.1]}}, "er has no option 'rate'"),
        (SMALL, {"grid": {"lr": [0.1], "rate": [0.1]}}, "^er has no option 'rate'"),
        (SMALL, {"grid": {"lr": [0.1], "k": [0]}}, "^k=0: a batch holds"),
        (SMALL, {"grid": {"k": [2, "three"]}}, "k='three': use a whole number"),
        (SMALL, {"grid": {"memory": [8, -1]}}, "memory=-1"),
        (SMALL, {"grid": {"tasks": [3, 0]}}, "tasks=0"),
        (SMALL, {"grid": {"hidden": [(6,), 6]}}, "hidden=6: use a list of whole numbers"),
        (
            SMALL,
            {"grid": {"lr": [0.1]}, "seeds": 0},
            "seeds=0: use a number of seeds, or a list with each seed once, at least one",
        ),
        (
            SMALL,
            {"grid": {"lr": [0.1]}, "seeds": [1, 1]},
            r"seeds=\[1, 1\]: use a number of seeds, or a list with each seed once",
        ),
        (SMALL, {"grid": {"lr": [0.1]}, "select": "train"}, "select='train'"),
        (SMALL, {"grid": {"lr": [0.1]}, "held_out": 0}, "held_out=0"),
        (SMALL, {"grid": {"lr": [0.1]}, "halving": 1}, "halving=1"),
        (SMALL, {"grid": {"tasks": [2, 3]}, "halving": 3}, "a single number of tasks"),
        (
            build,
            {"grid": {"lr": [0.1], "rate": [1]}},
            "^build: got an unexpected keyword argument 'rate'; it",
        ),
        (build, {"grid": {"k": [1]}}, "missing a required argument: 'lr'"),
        (build, {"grid": {"lr": [0.1, -1.0]}}, "lr=-1"),
        (build, {"grid": {"lr": [0.1, min]}}, "use numbers, words, or lists of them"),
        (nothing, {"grid": {}}, "nothing returned a NoneType: return a learner and a stream"),
        (lambda seed: (seed, seed), {"grid": {}}, "returned int and int"),
        ("mer", {"grid": {}}, "a sweep of a str"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_starts(
    what: Any, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        mr.sweep(what, folder=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_an_experiment_of_your_own_is_found_by_its_settings(tmp_path: Path) -> None:
    """Even if the learner and the stream say the same of themselves, the settings tell runs apart."""

    def secret(seed: int, scale: float) -> tuple[mr.Learner, mr.Stream]:
        learner, stream = build(seed, 0.1)
        with torch.no_grad():
            learner.weights.theta.mul_(scale)
        return learner, stream

    one, two = (OwnExperiment(build=secret, settings={"scale": scale}) for scale in (1.0, 0.5))
    assert one.key != two.key
    [record] = Threads(1).run([one], tmp_path)
    assert isinstance(record, mr.Record)
    assert record.key == one.key
    assert mr.Record.from_json(json.loads(json.dumps(record.to_json()))).key == one.key
    assert record.built_by == {"function": one.learner, "settings": {"scale": 1.0}, "seed": 0}
    [row] = mr.records(tmp_path)
    assert row["scale"] == 1.0
    assert one.work > 0
    assert "scale=1.0, seed 0" in one.label


@pytest.mark.slow
def test_processes_find_the_same(tmp_path: Path) -> None:
    grid: dict[str, Sequence[Any]] = {"lr": [0.1, 1e30], "k": [2, 3]}
    here = mr.sweep(build, grid, seeds=2, folder=tmp_path / "here", runner=Threads(1))
    there = mr.sweep(build, grid, seeds=2, folder=tmp_path / "there", runner=Processes(2))
    assert there.table()["va"].tolist()[:2] == here.table()["va"].tolist()[:2]
    assert names(tmp_path / "here") == names(tmp_path / "there")
    assert len(there.failures) == 4
    weights = [[one.weights for one in found.result if isinstance(one, mr.Record)] for found in (here, there)]
    assert weights[0] == weights[1]
    assert len(weights[0]) == 2


def test_a_fleet_holds_out_examples_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is interpreted on the CPU."""
    monkeypatch.setattr(fleet, "mnist", small_images)
    flown = Experiment(memory=5, tasks=2, examples=5, test_examples=9, hidden=(10, 6), options={"s": 1, "k": 2})
    with pytest.warns(RuntimeWarning):  # NumPy's, at a rate of 1e30
        found = mr.sweep(flown, {"lr": [0.1, 1e30]}, seeds=1, folder=tmp_path, runner=FleetRunner("cpu"))
    assert found.best.settings == {"lr": 0.1}
    assert [record.engine for record in found.result if isinstance(record, mr.Record)] == ["fleet"]
    here = mr.sweep(flown, {"lr": [0.1]}, seeds=1, folder=tmp_path / "here", runner=Threads(1))
    assert here.best.scores == pytest.approx(found.best.scores)
    assert found.rounds[0][1].failed == 1


def pictures() -> list[tuple[dict[str, Sequence[Any]], int | None]]:
    return [
        ({"lr": [0.1]}, None),
        ({"lr": [0.01, 1e30]}, None),
        ({"lr": [0.01, 0.1], "k": [2, 3], "memory": [4, 8]}, None),
        ({"lr": [0.01, 0.1], "k": [2, 3], "memory": [4, 8], "optimizer": ["sgd", "adam"]}, 3),
    ]


@pytest.mark.parametrize(("lists", "sample"), pictures())
def test_every_grid_has_a_picture(lists: dict[str, Sequence[Any]], sample: int | None, tmp_path: Path) -> None:
    grid = mr.Grid(lists) if sample is None else mr.Grid(lists).random(sample)
    found = mr.sweep(SMALL, grid, seeds=1, folder=tmp_path)
    found.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert repr(found).startswith(f"Sweep(er on rotations: {len(grid)} settings, 1 seeds, best ")


def test_a_map_is_not_drawn_of_more_settings_than_anybody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mr.sweep(SMALL, LISTS, seeds=1, folder=tmp_path)
    heights = []
    for most in (4, 3):
        monkeypatch.setattr(pictures_module, "LARGEST", most)
        found.plot(tmp_path / "sweep.svg")
        heights.append(re.findall(r'height="([\d.]+)pt"', (tmp_path / "sweep.svg").read_text())[0])
    assert float(heights[0]) > 1.5 * float(heights[1])


def test_the_paper_s_setting_is_found_among_ours(tmp_path: Path) -> None:
    found = mr.sweep(SMALL, LISTS, seeds=1, folder=tmp_path)
    rank = [one.settings for one in found.ranking].index({"lr": 0.1, "k": 3}) + 1
    for setting, says in (({"lr": 0.1, "k": 3}, f"number {rank} of 4 here"), ({"lr": 0.5}, "is not among these")):
        assert any(says in line for line in Report(found, published=setting).lines())
    there = Report(found, published={"lr": 0.1, "k": 3, "s": 5}).document()["published"]
    assert there == {
        "settings": {"lr": 0.1, "k": 3, "s": 5},
        "rank": rank,
        "mean": found.ranking[rank - 1].mean,
        "std": None,
    }
