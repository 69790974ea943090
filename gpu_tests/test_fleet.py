"""The fleet on a real GPU: the weights of the CPU's float64, the same bits whoever flies beside, exact resume."""

import tempfile
from pathlib import Path

import torch

import metareplay as mr
from gpu_tests.room import all_but
from metareplay.bench import fleet as bench_fleet
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.loop import Run
from metareplay.runners.fleet.fleet import Fleet
from metareplay.runners.fleet.flight import fly

KINDS = (
    ("mer", {"lr": 0.03, "beta": 0.1, "k": 101, "s": 3}),
    ("mer", {"lr": 0.1, "beta": 0.03, "k": 6, "s": 10}),
    ("mer", {"lr": 0.05, "beta": 0.3, "k": 200, "s": 1}),
    ("mer-one-big-batch", {"lr": 0.03, "gamma": 0.1, "k": 26, "s": 2}),
    ("mer-current-rate", {"lr": 0.03, "gamma": 0.1, "k": 51, "s": 5}),
    ("online", {"lr": 0.01}),
)

LEARNED = 30  # examples: later, a ReLU at zero parts float32 from float64, on a CPU as well


def started(number: int, seed: int = 0) -> Run:
    learner, options = KINDS[number]
    made = Experiment(
        learner=learner, options=options, memory=20, seed=seed, tasks=2, examples=60, test_examples=500, engine="torch"
    )
    return made.start()


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs).norm() / theirs.norm())


def test_every_learner_as_float64_on_the_cpu() -> str:
    fleet = Fleet([started(number) for number in range(len(KINDS))])
    fleet.learn(LEARNED)
    worst = 0.0
    for number in range(len(KINDS)):
        exact = started(number)
        exact.learner.model.double()
        kind = type(exact.learner)
        options = {name: getattr(exact.learner, name) for name in KINDS[number][1]}
        if kind is not mr.Online:
            options["memory"] = mr.Reservoir(20)
        learner = kind(exact.learner.model, seed=0, engine="torch", **options)
        for chunk in exact.stream.chunks():
            count = min(len(chunk), LEARNED - learner.seen)
            if count:
                learner.observe_many(chunk.xs[:count], chunk.ys[:count])
        found = apart(fleet.theta(number), learner.weights.theta)
        worst = max(worst, found)
        assert found < 1e-5, (KINDS[number], found)
    return f"relative error at most {worst:.1e}"


def test_thirty_batches_of_101_within_1e_5_of_float64() -> str:
    found = max(bench_fleet.error(seed) for seed in range(3))
    assert found < 1e-5, found
    return f"{found:.1e}"


def test_the_same_bits_again() -> None:
    found = []
    for _ in range(3):
        fleet = Fleet([started(number % len(KINDS), number) for number in range(132)])
        fleet.learn(60)
        found.append(fleet.state()["theta"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_same_bits_alone_and_in_company() -> None:
    many = Fleet([started(number % len(KINDS), seed) for seed, number in enumerate(range(150))])
    many.learn(120)
    for number in (0, 1, 5, 140):
        alone = Fleet([started(number % len(KINDS), number)])
        alone.learn(120)
        assert torch.equal(alone.theta(0), many.theta(number)), number


def test_a_run_that_overflows_leaves_the_others_alone() -> None:
    wild = Experiment(
        options={"lr": 1e30, "beta": 1.0, "k": 5, "s": 1}, memory=60, tasks=2, examples=60, engine="torch"
    )
    fleet = Fleet([started(0), wild.start(), started(1)])
    fleet.learn(70)
    alone = Fleet([started(0)])
    alone.learn(70)
    assert fleet.failed[0] is None
    assert fleet.failed[1] is not None
    assert fleet.failed[2] is None
    assert torch.equal(alone.theta(0), fleet.theta(0))


def test_records_and_resuming() -> str:
    wanted = [
        Experiment(options={"k": 11, "s": 2}, memory=100, seed=seed, tasks=2, examples=200, test_examples=1000)
        for seed in range(5)
    ]
    with tempfile.TemporaryDirectory() as name:
        whole = fly(wanted, Path(name) / "whole")

        class StopError(Exception):
            pass

        def stop(seen: int, total: int) -> None:
            del total
            if seen > 200:
                raise StopError

        from metareplay.runners.fleet import flight as module

        before, module.SAVE_EVERY = module.SAVE_EVERY, 0.0
        try:
            fly(wanted, Path(name) / "parts", report=stop)
        except StopError:
            pass
        else:
            raise AssertionError("was not stopped")
        finally:
            module.SAVE_EVERY = before
        parts = fly(wanted, Path(name) / "parts")
    exact = [one.start() for one in wanted]
    for ours, again, run in zip(whole, parts, exact, strict=True):
        assert ours is not None
        assert again is not None
        assert ours.weights == again.weights
        if run.learner.seed == 0:
            for _ in run.steps():
                pass
            assert abs(ours.ra - run.record().ra) < 2.0, (ours.ra, run.record().ra)
    return ", ".join(f"{one.ra:.2f}" for one in whole if one is not None)


def test_too_many_runs_are_refused_with_the_number_that_fits() -> str:
    run = started(0)
    held = all_but(4 * 2**30)
    try:
        Fleet([run] * 50_000)
    except mr.InputError as error:
        assert "at most" in str(error)
        del held
        return str(error)
    raise AssertionError("was not refused")
