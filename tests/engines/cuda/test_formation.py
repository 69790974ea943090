"""Runs in formation: who waits for whom, and that nobody waits for ever. No kernels: jobs are only written down."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws
from metareplay._core.plan import Plan
from metareplay._core.table import Table, TensorStorage
from metareplay._core.weights import Weights
from metareplay.engines.cuda import engine as cuda_engine
from metareplay.engines.cuda.convnet import ConvNet
from metareplay.engines.cuda.engine import CudaEngine
from metareplay.engines.cuda.formation import Formation, Place, SideBySide
from metareplay.engines.cuda.graphs import Work
from metareplay.engines.cuda.lockstep import Job, Lockstep, Terms
from metareplay.engines.engine import Outcome
from metareplay.engines.objective import Supervised
from metareplay.engines.torch_engine import TorchEngine

SECONDS = 10.0  # after which a thread that still waits has failed; usually it takes milliseconds
SOON = 0.05  # long enough for threads to do what they should not do
CPU = torch.device("cpu")
PLAIN = Supervised(functional.cross_entropy)
TERMS = Terms(as_bytes=True, clipped=False, penalised=False, within=False, across=False)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(8, 2))


def small_table() -> Table:
    like = Columns(
        {"x": torch.zeros(4, 1, 4, 4, dtype=torch.uint8), "y": torch.zeros(4).long(), "task": torch.zeros(4).long()}
    )
    table = Table(0, 4, like, TensorStorage(CPU))
    table.bring(like)
    return table


TABLE, WEIGHTS = small_table(), Weights(small_net())
FOUND = ConvNet.of(WEIGHTS, PLAIN, TABLE)
assert FOUND is not None
NET: ConvNet = FOUND


def job(examples: int = 1) -> Job:
    return Job(WEIGHTS, Plan.once(np.full(examples, -1), 0.1, 0, 0), TABLE, PLAIN)


class Aside:
    """Counts how often work is done aside."""

    def __init__(self) -> None:
        self.entered = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.entered += 1
        yield

    def record(self, work: Work) -> Work:
        return work


class Written:
    """In place of lockstep: writes down which runs had a job each time, and learns everything."""

    def __init__(self, size: int, net: ConvNet = NET, terms: Terms = TERMS) -> None:
        self.size, self.net, self.terms = size, net, terms
        self.together: list[list[int]] = []
        self.working = 0
        self.before: Callable[[], object] = lambda: None

    def execute(self, jobs: list[Job | None]) -> list[int]:
        assert len(jobs) == self.size
        self.working += 1
        assert self.working == 1, "two at a time"
        self.together.append([number for number, one in enumerate(jobs) if one is not None])
        try:
            self.before()
        finally:
            self.working -= 1
        return [0 if one is None else len(one.plan) for one in jobs]


def formation_of(size: int) -> tuple[Formation, Written]:
    """A formation that writes down what it does."""
    formation, made = Formation(size), list[Written]()

    def make(count: int) -> Lockstep:
        made.append(Written(count))
        return cast(Lockstep, made[-1])

    assert formation.takes(NET, TERMS, Aside(), make)
    assert formation.takes(NET, TERMS, Aside(), make)
    assert len(made) == 1
    assert made[0].size == size
    return formation, made[0]


class Run(Thread):
    """A run in a thread of its own; keeps what it found or what went wrong."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.found: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """What it found; fails if it still waits after a while."""
        self.join(SECONDS)
        assert not self.is_alive(), "a run waits for ever"
        if self.error is not None:
            raise self.error
        return self.found


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so; fail if it never is."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "this never happened"
        time.sleep(0.001)


def test_plans_wait_for_every_run_that_is_present() -> None:
    formation, written = formation_of(3)
    with formation.place() as one, formation.place() as two, formation.place() as three:
        runs = [Run(lambda place=place: formation.execute(place.number, job(2))) for place in (one, two)]  # type: ignore[misc]
        until(lambda: len(formation._waiting) == 2)
        time.sleep(SOON)
        assert written.together == []
        assert formation.execute(three.number, job(3)) == Outcome(3)
        assert [run.result() for run in runs] == [Outcome(2), Outcome(2)]
    assert written.together == [[0, 1, 2]]


def test_many_runs_and_plans_of_several_threads() -> None:
    """Runs of different lengths: those that are left go on; all see their own outcomes."""
    formation, written = formation_of(5)
    places = [formation.place() for _ in range(5)]
    entered = [place.__enter__() for place in places]

    def work(number: int) -> list[int]:
        found = [formation.execute(entered[number].number, job(number + 1)).learned for _ in range(3 * number + 1)]
        places[number].__exit__(None, None, None)
        return found

    runs = [Run(lambda number=number: work(number)) for number in range(5)]  # type: ignore[misc]
    for number, run in enumerate(runs):
        assert run.result() == (3 * number + 1) * [number + 1]
    wanted = [[number for number in range(5) if turn < 3 * number + 1] for turn in range(13)]
    assert written.together == wanted


def test_a_run_that_leaves_lets_the_others_go_on() -> None:
    formation, written = formation_of(2)
    with formation.place() as one:
        with formation.place() as two:
            run = Run(lambda: formation.execute(one.number, job()))
            until(lambda: len(formation._waiting) == 1)
            time.sleep(SOON)
            assert written.together == []
            two.leave()
            assert run.result() == Outcome(1)
            two.leave()  # a second time does nothing
            assert formation._present == 1
        assert formation._present == 1
        assert formation.execute(one.number, job()) == Outcome(1)
    assert formation._present == 0
    assert written.together == [[0], [0]]


def test_a_run_that_fails_outside_lets_the_others_go_on() -> None:
    formation, written = formation_of(2)

    def fails() -> None:
        with formation.place() as place:
            formation.execute(place.number, job())
            raise KeyError("something else")

    with formation.place() as one:
        other = Run(fails)
        until(lambda: formation._present == 2)
        assert formation.execute(one.number, job()) == Outcome(1)
        assert formation.execute(one.number, job()) == Outcome(1)
        with pytest.raises(KeyError):
            other.result()
    assert written.together == [[0, 1], [0]]


@pytest.mark.parametrize("error", [RuntimeError("no such kernel"), KeyboardInterrupt()])
def test_an_error_reaches_all_and_the_next_plans_go_on(error: BaseException) -> None:
    formation, written = formation_of(2)

    def fails() -> None:
        raise error

    with formation.place() as one, formation.place() as two:
        written.before = fails
        run = Run(lambda: formation.execute(one.number, job()))
        assert formation.execute(two.number, job()) == Outcome(0, error)
        assert run.result() == Outcome(0, error)
        written.before = lambda: None
        run = Run(lambda: formation.execute(one.number, job()))
        assert formation.execute(two.number, job()) == Outcome(1)
        assert run.result() == Outcome(1)


def test_running_out_of_memory_is_explained_to_all() -> None:
    formation, written = formation_of(2)

    def full() -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    written.before = full
    with formation.place() as one, formation.place() as two:
        run = Run(lambda: formation.execute(one.number, job()))
        outcomes = [formation.execute(two.number, job()), run.result()]
    for outcome in outcomes:
        assert outcome.learned == 0
        assert "not enough GPU memory" in str(outcome.error)


def test_a_run_that_comes_while_others_work_joins_the_next_time() -> None:
    formation, written = formation_of(2)
    begun, go_on = Event(), Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    written.before = slow
    with formation.place() as one:
        first = Run(lambda: formation.execute(one.number, job()))
        assert begun.wait(SECONDS)
        with formation.place() as two:
            second = Run(lambda: formation.execute(two.number, job()))
            until(lambda: len(formation._waiting) == 1)
            written.before = lambda: None
            go_on.set()
            assert first.result() == Outcome(1)
            time.sleep(SOON)
            assert second.is_alive()  # it waits for the first one's next plan
            assert formation.execute(one.number, job()) == Outcome(1)
            assert second.result() == Outcome(1)
    assert written.together == [[0], [0, 1]]


def test_places_are_used_again() -> None:
    formation, _ = formation_of(2)
    with formation.place() as one:
        with formation.place() as two:
            assert {one.number, two.number} == {0, 1}
        with formation.place() as three:
            assert three.number == two.number
    with formation.place() as four, formation.place() as five:
        assert {four.number, five.number} == {0, 1}


def test_a_place_is_not_given_away_while_its_run_still_has_it() -> None:
    """A run that does not learn in lockstep leaves, and goes on by itself."""
    formation, _ = formation_of(2)
    with formation.place() as one, formation.place():
        one.leave()
        with pytest.raises(mr.MetareplayError, match="make it larger"), formation.place():
            pass


def test_more_runs_than_places_are_refused_in_one_line() -> None:
    formation, _ = formation_of(1)
    with formation.place() as one:
        with pytest.raises(mr.MetareplayError, match="1 runs take part in this formation already: make it larger"):
            Run(lambda: formation.place().__enter__()).result()
        assert formation.execute(one.number, job()) == Outcome(1)
    with formation.place() as one:
        assert formation.execute(one.number, job()) == Outcome(1)


def test_more_runs_than_places_one_after_the_other() -> None:
    """As a pool of threads does it: ten runs, three at a time."""
    formation, written = formation_of(3)
    left = list(range(10))

    def work() -> int:
        done = 0
        while left:
            examples = left.pop()
            with formation.place() as place:
                for _ in range(examples):
                    assert formation.execute(place.number, job(examples)) == Outcome(examples)
                done += examples
        return done

    runs = [Run(work) for _ in range(3)]
    assert sum(run.result() for run in runs) == sum(range(10))
    assert sum(len(one) for one in written.together) == sum(range(10))


def test_nobody_asked_whether_such_runs_are_taken() -> None:
    formation = Formation(1)
    with formation.place() as one:
        outcome = formation.execute(one.number, job())
    assert isinstance(outcome.error, mr.MetareplayError)
    assert outcome.learned == 0


def test_only_runs_of_the_first_one_s_shape_are_taken() -> None:
    formation, _ = formation_of(2)

    def never(_: int) -> Lockstep:
        raise AssertionError("there is one already")

    wider = ConvNet.of(Weights(nn.Sequential(*list(small_net())[:-1], nn.Linear(8, 3))), PLAIN, TABLE)  # type: ignore[call-overload]
    again = ConvNet.of(Weights(small_net()), PLAIN, TABLE)
    assert wider is not None
    assert again is not None
    assert formation.takes(again, TERMS, Aside(), never)
    assert not formation.takes(wider, TERMS, Aside(), never)
    assert not formation.takes(again, replace(TERMS, clipped=True), Aside(), never)


def test_work_is_done_aside() -> None:
    formation, recorder = Formation(1), Aside()
    formation.takes(NET, TERMS, recorder, lambda size: cast(Lockstep, Written(size)))
    with formation.place() as place:
        formation.execute(place.number, job())
    assert recorder.entered == 1


def test_plans_of_other_tables_and_terms_are_not_served() -> None:
    plain, plan = TorchEngine(WEIGHTS, Draws(0)), job().plan
    formation, _ = formation_of(1)
    ours = SideBySide(plain, formation.alone(), TERMS, TABLE)
    assert ours.serves(plan, TABLE, PLAIN)
    assert not ours.serves(plan, small_table(), PLAIN)
    assert not ours.serves(plan, TABLE, replace(PLAIN, clip=1.0))
    assert not ours.serves(replace(plan, together=True), TABLE, PLAIN)
    assert ours.execute(plan, PLAIN) == Outcome(1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """Engines make locksteps that only write down; these are listed here."""
    found = list[Written]()

    def make(net: ConvNet, terms: Terms, size: int, *_: object, **__: object) -> Written:
        found.append(Written(size, net, terms))
        return found[-1]

    monkeypatch.setattr(cuda_engine, "Lockstep", make)
    monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: None)
    return found


def learner_at(place: Place | None, **options: Any) -> tuple[mr.Learner, CudaEngine]:
    net = small_net() if "net" not in options else options.pop("net")
    learner = mr.Online(net, lr=0.1, engine="torch", **options)
    assert isinstance(learner.chosen_engine, TorchEngine)
    engine = learner.chosen_engine = CudaEngine(learner.chosen_engine, Aside())
    engine.place = place
    return learner, engine


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randint(256, (count, 1, 4, 4), dtype=torch.uint8), torch.arange(count) % 2


def taught(learner: mr.Learner, *counts: int) -> int:
    for count in counts:
        learner.observe_many(*images(count))
    return learner.seen


def test_learners_in_a_formation_take_their_steps_together(made: list[Written]) -> None:
    formation = Formation(2)
    with formation.place() as one, formation.place() as two:
        pairs = [learner_at(one), learner_at(two)]
        runs = [Run(lambda learner=learner: taught(learner, 2, 3)) for learner, _ in pairs]  # type: ignore[misc]
        assert [run.result() for run in runs] == [5, 5]
    whole = [one for one in made if one.together]
    assert len(whole) == 1
    assert whole[0].size == 2
    assert whole[0].together == [[0, 1], [0, 1]]


def test_a_learner_that_is_used_after_its_time_in_the_formation_goes_alone(made: list[Written]) -> None:
    formation = Formation(1)
    with formation.place() as place:
        learner, engine = learner_at(place)
        assert taught(learner, 2) == 2
    with formation.place() as again:
        assert again.number == place.number
        assert taught(learner, 3) == 5
        assert engine.place is not None
        assert engine.place.formation is not formation
    assert [one.together for one in made if one.together] == [[[0]], [[0]]]


def test_a_learner_of_another_shape_goes_alone(made: list[Written]) -> None:
    """The other run of the formation does not wait for it."""
    formation = Formation(2)
    with formation.place() as one, formation.place() as two:
        (usual, engine), (clipped, other) = learner_at(one), learner_at(two, clip=1.0)
        first = Run(lambda: taught(usual, 2))
        until(lambda: len(formation._waiting) == 1)
        second = Run(lambda: taught(clipped, 3))
        assert first.result() == 2
        assert second.result() == 3
        assert engine.place is one
        assert other.place is not None
        assert other.place is not two
        assert other.place.formation.size == 1
    assert sorted(one.together for one in made if one.together) == [[[0]], [[0]]]


def test_a_learner_whose_network_is_not_supported_leaves(made: list[Written]) -> None:
    formation = Formation(2)
    with formation.place() as one, formation.place() as two:
        mlp = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        (usual, _), (different, engine) = learner_at(one), learner_at(two, net=mlp)
        first = Run(lambda: taught(usual, 2))
        until(lambda: len(formation._waiting) == 1)
        assert taught(different, 3) == 3
        assert first.result() == 2
        assert engine.place is None
        assert engine._batches is not None
    assert [one.together for one in made if one.together] == [[[0]]]


def test_a_learner_that_nothing_can_be_captured_of_leaves(made: list[Written], monkeypatch: pytest.MonkeyPatch) -> None:
    formation = Formation(2)
    with formation.place() as one, formation.place() as two:
        usual, _ = learner_at(one)
        stepping = mr.ER(small_net(), k=2, engine="torch")
        assert isinstance(stepping.chosen_engine, TorchEngine)
        engine = stepping.chosen_engine = CudaEngine(stepping.chosen_engine, Aside())
        monkeypatch.setattr(engine, "_obstacle", lambda *_: "nothing can be captured")
        engine.place = two
        first = Run(lambda: taught(usual, 2))
        until(lambda: len(formation._waiting) == 1)
        assert taught(stepping, 3) == 3
        assert first.result() == 2
        assert engine.place is None
        assert engine.reason == "nothing can be captured"
    assert [one.together for one in made if one.together] == [[[0]]]


def test_a_learner_that_fails_the_trial_leaves(made: list[Written], monkeypatch: pytest.MonkeyPatch) -> None:
    formation = Formation(2)
    with formation.place() as one, formation.place() as two:
        (usual, _), (failing, engine) = learner_at(one), learner_at(two)
        first = Run(lambda: taught(usual, 2))
        until(lambda: len(formation._waiting) == 1)
        monkeypatch.setattr(cuda_engine, "lockstep_obstacle", lambda *_: "it is a test")
        monkeypatch.setattr(cuda_engine, "streamlined", lambda model: model)
        assert taught(failing, 3) == 3
        assert first.result() == 2
        assert engine.place is None
    assert [one.together for one in made if one.together] == [[[0]]]


def test_a_learner_without_a_formation_is_alone(made: list[Written]) -> None:
    learner, engine = learner_at(None)
    assert taught(learner, 2, 3) == 5
    assert engine.place is not None
    assert [one.together for one in made if one.together] == [[[0], [0]]]
