"""Kills, interrupts, damaged files and a full GPU: the same promises as on a CPU (docs/reliability.md)."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import metareplay as mr
from gpu_tests.room import all_of_it
from gpu_tests.test_cuda_engine import CLASSES, LEARNERS, cnn, examples, mlp, same, taught
from metareplay.experiments import loop
from metareplay.experiments.experiment import Experiment
from metareplay.runners.fleet import flight
from torture.disturbance import AtLine

KILLS = 6
PATIENCE = 300.0  # seconds until a run that nobody kills must have ended
ROOT = Path(__file__).parent.parent


def graph_run(folder: Path) -> None:
    """Learn a stream by graphs, saving all the time, and write the record."""
    loop.SAVE_EVERY = 0.0
    xs, ys, tasks = examples(600)
    tests = [(xs[tasks == task], ys[tasks == task]) for task in range(3)]
    stream = mr.OwnStream.from_tensors(xs, ys, tasks, test=tests)
    path = folder / "run.ckpt"
    mr.run(LEARNERS["mer"](cnn(), engine="cuda"), stream, checkpoint=path).write(folder)
    path.unlink()


def fleet_run(folder: Path) -> None:
    """Fly five runs, saving all the time, and write their records."""
    flight.SAVE_EVERY = 0.0
    wanted = [
        Experiment(options={"k": 11, "s": 2}, memory=100, seed=seed, tasks=3, examples=400, test_examples=500)
        for seed in range(5)
    ]
    flight.fly(wanted, folder)


def process(work: str, folder: Path) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    code = f"from pathlib import Path; from gpu_tests.test_reliability import {work}; {work}(Path({str(folder)!r}))"
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})


def results(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the weights and accuracies of every record; nothing else may be in the folder."""
    others = [path.name for path in folder.iterdir() if path.suffix != ".json"]
    assert not others, others
    found = [mr.Record.read(path) for path in folder.iterdir()]
    return {one.key: (one.weights, str(one.to_json()["accuracy"])) for one in found}


def killed_and_resumed(work: str) -> str:
    rng, kills = random.Random(0), 0
    with tempfile.TemporaryDirectory() as name:
        whole, again, parts = (Path(name) / folder for folder in ("whole", "again", "parts"))
        assert process(work, whole).wait(PATIENCE) == 0  # what is compiled is cached from here on
        start = time.monotonic()
        assert process(work, again).wait(PATIENCE) == 0
        longest = time.monotonic() - start
        for _ in range(KILLS):
            running = process(work, parts)
            try:
                running.wait(rng.uniform(0.3, 0.9) * longest)  # the first part of it is spent on importing
                break
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
                kills += 1
        assert kills, "it always ended before it could be killed"
        assert process(work, parts).wait(PATIENCE) == 0
        assert results(parts) == results(again) == results(whole)
    return f"{kills} kills, {longest:.0f} s undisturbed"


def test_a_run_by_graphs_that_is_killed_ends_the_same() -> str:
    return killed_and_resumed("graph_run")


def test_a_fleet_that_is_killed_ends_the_same() -> str:
    return killed_and_resumed("fleet_run")


def test_ctrl_c_comes_between_two_examples() -> str:
    given, tries = examples(20), 0
    after = [
        taught(LEARNERS["mer"](mlp(), engine="cuda"), tuple(part[:count] for part in given), ()) for count in (8, 20)
    ]

    def learn(learner: mr.Learner) -> Callable[[], None]:
        return lambda: learner.observe_many(*(part[learner.seen :] for part in given))

    whole = AtLine()
    once = taught(LEARNERS["mer"](mlp(), engine="cuda"), tuple(part[:8] for part in given), ())
    with whole:
        learn(once)()
    assert same(once, after[1])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    try:
        for number in range(0, whole.count, max(1, whole.count // 60)):
            learner = taught(LEARNERS["mer"](mlp(), engine="cuda"), tuple(part[:8] for part in given), ())
            at = AtLine(number)
            wrong = at.during(learn(learner))
            assert wrong is None, f"{at.where}: {wrong}"
            tries += bool(at.where)
            if learner.seen < 20:
                learn(learner)()
            assert same(learner, after[1]), number
    finally:
        signal.signal(signal.SIGINT, before)
    assert tries, "no Ctrl-C came"
    return f"{tries} interrupts at {whole.count} lines"


def test_a_damaged_checkpoint_is_refused_and_the_model_stays() -> str:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.ckpt"
        taught(LEARNERS["mer"](cnn(), engine="cuda"), examples()).save(path)
        content, model = path.read_bytes(), cnn()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        for _ in range(200):
            wrong = bytearray(content)
            wrong[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(wrong)
            try:
                mr.load(path, model)
                raise AssertionError("it was loaded")
            except mr.CheckpointError as error:
                assert "\n" not in str(error)
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    return "200 flipped bits"


def test_a_full_gpu_undoes_what_could_not_be_learned() -> str:
    """On a full GPU nothing can be learned; with a little room the learner may get further, and is refused or not.

    Whenever it is refused, it is as it was after `seen` examples, and goes on to the weights of one that had all the
    room.
    """
    given, refused = examples(24), list[str]()

    def after(count: int) -> mr.Learner:
        return taught(LEARNERS["er"](cnn(), engine="torch"), tuple(part[:count] for part in given), ())

    whole = after(24)
    for room in (0, 2**12, 2**16, 2**20):
        learner = after(8)
        was_refused = observed_without_room(learner, tuple(part[8:] for part in given), room)
        assert was_refused or room, "it was not refused although there was no room at all"
        if was_refused:
            refused.append(f"after {learner.seen}")
            assert same(learner, after(learner.seen))
        if learner.seen < 24:
            learner.observe_many(*(part[learner.seen :] for part in given))
        assert same(learner, whole)
    return f"{len(refused)} of 4 refused: {', '.join(refused)}"


def observed_without_room(learner: mr.Learner, given: tuple[torch.Tensor, ...], room: int) -> bool:
    """Let a learner observe examples on a GPU that has hardly any room; return whether that was refused.

    Nothing may be computed on the GPU before the room has been given back, so comparisons come after this.
    """
    held, freed = all_of_it(), 0
    try:
        while freed < room:
            freed += held.pop().numel()  # the smallest pieces
        learner.observe_many(*given)
        return False
    except (mr.MetareplayError, torch.cuda.OutOfMemoryError):
        return True
    finally:
        held.clear()
        torch.cuda.empty_cache()


def test_graphs_survive_a_full_gpu() -> str:
    """While the GPU is full, nothing is learned; then what is learned has the same weights up to rounding."""
    given = examples(24)
    whole = taught(LEARNERS["mer"](mlp(), engine="cuda"), given, ())
    learner = LEARNERS["mer"](mlp(), engine="cuda")
    assert observed_without_room(learner, tuple(part[:8] for part in given), 0), "it was not refused"
    assert learner.seen == 0
    learner.observe_many(*given)
    apart = float((learner.weights.theta - whole.weights.theta).norm() / whole.weights.theta.norm())
    assert apart < 2e-5, apart
    assert learner.predict(given[0]).max() < CLASSES
    return f"then by {learner.chosen_engine.name}; relative distance {apart:.1e}"
