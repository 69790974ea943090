import json
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import assert_same_state, state
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import (
    EXAMPLES,
    HELD,
    MAKE,
    TASKS,
    kill,
    mer,
    rotations,
    run_saving_always,
    server_of_processes,
    small_images,
    wait_for_end,
    wait_until,
)
from torch import Tensor, nn

import metareplay as mr
from metareplay.experiments import loop
from metareplay.experiments.alignment import Moment
from metareplay.experiments.metrics import needed
from metareplay.streams import images as image_streams
from metareplay.streams.stream import Chunk, Examples

PASTS: tuple[Moment, Moment] = ("before", "after")


def same(one: mr.Record, other: mr.Record) -> bool:
    """Equal but for the time they took and the date."""
    first, second = (record.to_json() | {"seconds": None, "date": None} for record in (one, other))
    return first == second


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


def online(**options: Any) -> mr.Learner:
    return mr.Online(mr.networks.mlp(4, (5,), 3), lr=0.1, **options)


def refused(learner: mr.Learner, stream: mr.Stream, message: str, **options: Any) -> None:
    with pytest.raises(mr.MetareplayError, match=message) as caught:
        mr.run(learner, stream, **options)
    assert "\n" not in str(caught.value)


# What a run measures


def test_a_run_measures_what_the_metrics_need_and_no_more() -> None:
    record = mr.run(mer(), rotations())
    assert record.accuracy.shape == (TASKS + 1, TASKS)
    np.testing.assert_array_equal(~np.isnan(record.accuracy), needed(TASKS))


def test_the_full_matrix_has_all_of_it_and_the_same_where_both_have() -> None:
    some, full = mr.run(mer(), rotations()), mr.run(mer(), rotations(), full_matrix=True)
    assert not np.isnan(full.accuracy).any()
    np.testing.assert_array_equal(some.accuracy[needed(TASKS)], full.accuracy[needed(TASKS)])
    assert (some.metrics, some.weights) == (full.metrics, full.weights)


def test_training_accuracy_is_that_of_the_final_weights_on_what_was_learned() -> None:
    learner, stream = mer(), rotations()
    record = mr.run(learner, stream, training=True)
    expected = []
    for task in range(TASKS):
        examples = stream.train(task)
        assert len(examples) == EXAMPLES
        expected.append(100 * (learner.predict(examples.xs) == examples.ys).double().mean().item())
    assert record.training == expected
    assert record.ta == pytest.approx(np.mean(expected))
    plain = mr.run(mer(), rotations())
    assert plain.weights == record.weights
    assert plain.key != record.key
    assert plain.training is None


def test_a_run_is_a_plain_loop_over_the_stream() -> None:
    """Accuracies, weights and metrics worked out without Run."""
    record = mr.run(mer(), rotations(), full_matrix=True)
    learner, stream = mer(), rotations()
    accuracy = np.zeros((TASKS + 1, TASKS))
    examples = [chunk for chunk in stream.chunks() for _ in range(len(chunk))]
    for number in range(TASKS + 1):
        for task in range(TASKS):
            test = stream.test(task)
            right = sum(int(learner.predict(x[None])) == int(y) for x, y in zip(test.xs, test.ys, strict=True))
            accuracy[number, task] = 100 * right / len(test)
        for chunk in stream.chunks():
            if chunk.task == number:
                learner.observe_many(chunk.xs, chunk.ys, task=number)
    np.testing.assert_allclose(record.accuracy, accuracy, rtol=1e-12)
    assert record.accuracy[-1].max() > 40  # something was learned
    assert record.ra == pytest.approx(sum(accuracy[TASKS]) / TASKS)
    assert record.la == pytest.approx(sum(accuracy[t + 1, t] for t in range(TASKS)) / TASKS)
    assert record.bti == pytest.approx(sum(accuracy[TASKS, t] - accuracy[t + 1, t] for t in range(TASKS)) / TASKS)
    assert record.fti == pytest.approx(sum(accuracy[t, t] - accuracy[0, t] for t in range(TASKS)) / TASKS)
    assert record.examples == learner.seen == len(examples) == TASKS * EXAMPLES


def test_a_record_says_what_ran() -> None:
    learner, stream = mer(seed=5), rotations(seed=2)
    record = mr.run(learner, stream)
    assert (record.learner, record.seed, record.engine) == ("MER", 5, learner.chosen_engine.name)
    assert record.settings == learner.settings()
    assert record.stream == stream.settings()
    assert "Linear(in_features=784, out_features=8, bias=True)" in record.model
    assert "\n" not in record.model
    assert record.seconds.keys() == {"learn", "evaluate"}
    assert mr.run(mer(seed=5), rotations(seed=2)).weights == record.weights
    assert mr.run(mer(seed=6), rotations(seed=2)).weights != record.weights
    assert mr.run(mer(seed=5), rotations(seed=3)).weights != record.weights


def test_the_key_is_known_before_the_run() -> None:
    work = mr.Run(mer(), rotations())
    key = work.key
    list(work.steps())
    assert work.record().key == work.key == key


def test_progress_counts_up_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_streams, "CHUNK", 8)
    steps = list(mr.Run(mer(), rotations()).steps())
    assert [step.seen for step in steps if step.doing == "learning"] == [8, 16, 20, 28, 36, 40, 48, 56, 60]
    assert sum(step.doing == "evaluating" for step in steps) == needed(TASKS).sum()
    assert [step.finished for step in steps] == sorted(step.finished for step in steps)
    assert (steps[0].finished, steps[-1].finished, steps[0].total) == (0, TASKS, TASKS * EXAMPLES)


def test_a_model_with_heads_is_told_the_task() -> None:
    net = mr.networks.separate_mlps(784, (24,), 10, TASKS)
    record = mr.run(mr.Independent(net, lr=0.1), rotations(), full_matrix=True)
    np.testing.assert_array_equal(record.accuracy[1, 1:], record.accuracy[0, 1:])  # the other nets did not learn
    assert record.accuracy[2, 1] > record.accuracy[1, 1]
    assert record.bti == 0


@pytest.mark.parametrize("name", sorted(MAKE))
def test_comparing_gradients_changes_nothing_else(name: str) -> None:
    plain, watched = MAKE[name](), MAKE[name]()
    one, other = mr.run(plain, rotations()), mr.run(watched, rotations(), alignment=4)
    assert_same_state(state(plain), state(watched))
    assert (one.weights, one.metrics) == (other.weights, other.metrics)
    assert one.alignment is None
    assert math.isnan(one.dot)
    assert other.alignment is not None
    assert other.alignment["samples"] == 4
    assert other.alignment["count"] == 4 * (TASKS * EXAMPLES - 1)
    assert other.alignment["changes"] == [EXAMPLES, 2 * EXAMPLES]
    assert other.dot == other.alignment["mean"]
    assert one.key == mr.Run(MAKE[name](), rotations()).key
    assert other.key == mr.Run(MAKE[name](), rotations(), alignment=4).key != one.key


def test_past_gradients_after_learning_are_another_run_with_the_same_weights() -> None:
    before, after = (mr.run(mer(), rotations(), alignment=4, past=past) for past in PASTS)
    assert (before.weights, before.metrics) == (after.weights, after.metrics)
    assert before.dot != after.dot
    assert before.key != after.key == mr.Run(mer(), rotations(), alignment=4, past="after").key
    assert before.key == mr.Run(mer(), rotations(), alignment=4).key
    assert after.alignment is not None
    assert after.alignment["past"] == "after"
    assert before.alignment is not None
    assert "past" not in before.alignment  # as in earlier records
    assert mr.Record.from_json(json.loads(json.dumps(after.to_json()))).key == after.key


def test_where_gradients_are_not_compared_the_past_decides_nothing() -> None:
    one, other = (mr.run(mer(), rotations(), past=past) for past in PASTS)
    assert same(one, other)
    assert one.key == other.key


def test_gradients_that_cannot_be_compared_are_refused() -> None:
    refused(mer(), rotations(), "alignment=-1: .* use alignment >= 1", alignment=-1)
    refused(mer(), rotations(), "past='during': use 'before' or 'after'", alignment=2, past="during")


# Streams of one's own


def test_a_stream_without_test_sets_has_no_metrics(tmp_path: Path) -> None:
    learner = online()
    record = mr.run(learner, mr.OwnStream.from_tensors(*rows(20), tasks=torch.arange(20) // 5))
    assert (record.examples, learner.seen, record.accuracy.shape) == (20, 20, (1, 0))
    assert np.isnan([record.ra, record.la, record.bti, record.fti]).all()
    document = json.loads(record.write(tmp_path).read_text())
    assert [document[name] for name in ("ra", "la", "bti", "fti")] == [None] * 4
    assert document["accuracy"] == [[]]


def test_a_stream_without_tasks_has_one_test_set() -> None:
    test = rows(50, seed=1)
    record = mr.run(online(), mr.OwnStream.from_tensors(*rows(20), test=test))
    assert record.accuracy.shape == (2, 1)
    learner = online()
    assert record.accuracy[0, 0] == pytest.approx(100 * (learner.predict(test[0]) == test[1]).double().mean().item())
    learner.observe_many(*rows(20))
    assert record.accuracy[1, 0] == pytest.approx(100 * (learner.predict(test[0]) == test[1]).double().mean().item())
    assert record.ra == record.la == record.accuracy[1, 0]
    assert record.bti == record.fti == 0


def test_an_iterable_is_a_stream_too() -> None:
    xs, ys = rows(20)
    test = [rows(30, seed) for seed in (1, 2)]
    items = ((x, y, n // 10) for n, (x, y) in enumerate(zip(xs, ys, strict=True)))
    record = mr.run(online(), mr.OwnStream.from_iterable(items, test=test))
    tensors = mr.OwnStream.from_tensors(xs, ys, tasks=torch.arange(20) // 10, test=test)
    assert mr.run(online(), tensors).weights == record.weights


class Silent(mr.Stream):
    """A stream that gives nothing."""

    tasks, total = 2, 0

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        del start
        return iter([])

    def test(self, task: int) -> Examples:
        del task
        return Examples(*rows(5))

    def settings(self) -> dict[str, object]:
        return {"stream": "Silent", "shape": (1, 2)}  # a tuple, which JSON does not have


def test_an_empty_stream_is_refused(tmp_path: Path) -> None:
    refused(online(), Silent(), "the stream is empty")
    refused(online(), mr.OwnStream.from_tensors(*rows(0)), "the stream is empty")
    for _ in range(2):
        refused(online(), Silent(), "the stream is empty", checkpoint=tmp_path / "run.ckpt")


OUT_OF_ORDER = {
    "backwards": ([1, 0], "task 1 came where task 0 was due"),
    "never the first": ([1, 2], "task 1 came where task 0 was due"),
    "one left out": ([0, 2], "task 2 came where task 1 was due"),
    "one comes back": ([0, 1, 0], "task 0 came where task 2 was due"),
    "the last never comes": ([0, 1], "the stream ended after 2 of its 3 tasks"),
}


@pytest.mark.parametrize(("order", "message"), OUT_OF_ORDER.values(), ids=OUT_OF_ORDER.keys())
def test_tasks_must_come_in_order_and_all_of_them(order: list[int], message: str, tmp_path: Path) -> None:
    tasks = [task for task in order for _ in range(4)]
    stream = mr.OwnStream.from_tensors(*rows(len(tasks)), tasks=tasks, test=[rows(5)] * 3)
    refused(online(), stream, message)
    for _ in range(2):  # trying again changes nothing
        refused(online(), stream, message, checkpoint=tmp_path / "run.ckpt")


def test_a_learner_that_has_learned_is_refused() -> None:
    learner = mer()
    mr.run(learner, rotations())
    refused(learner, rotations(), "has already seen 60 examples: give run a new one")


def test_regression_is_refused_where_accuracy_is_measured() -> None:
    learner = mr.Online(nn.Linear(4, 1), regression=True)
    xs, _ = rows(6)
    refused(learner, mr.OwnStream.from_tensors(xs, xs[:, :1], test=(xs, xs[:, :1])), "undefined for regression")
    assert mr.run(learner, mr.OwnStream.from_tensors(xs, xs[:, :1])).examples == 6


# Going on after an interruption


@given(
    name=st.sampled_from(sorted(MAKE)),
    stop=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    save_every=st.sampled_from([0.0, 60.0]),
    alignment=st.sampled_from([0, 2]),
    past=st.sampled_from(["before", "after"]),
)
@settings(max_examples=8)
def test_stopped_anywhere_it_ends_the_same(
    name: str, stop: list[int], save_every: float, alignment: int, past: Moment
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SAVE_EVERY", save_every)
        patch.setattr(image_streams, "CHUNK", 7)
        path = Path(folder) / "run.ckpt"
        for number in stop:
            work = mr.Run(MAKE[name](), rotations(), checkpoint=path, alignment=alignment, past=past)
            for _ in zip(range(number), work.steps(), strict=False):
                pass
        learner, undisturbed = MAKE[name](), MAKE[name]()
        record = mr.run(learner, rotations(), checkpoint=path, alignment=alignment, past=past)
        assert same(record, mr.run(undisturbed, rotations(), alignment=alignment, past=past))
        assert_same_state(state(learner), state(undisturbed))


def test_going_on_does_not_learn_again_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(image_streams, "CHUNK", 10)
    path = tmp_path / "run.ckpt"
    for step in mr.Run(mer(), rotations(), checkpoint=path).steps():
        if step.seen == 30:
            break
    steps = list(mr.Run(mer(), rotations(), checkpoint=path).steps())
    assert [step.seen for step in steps if step.doing == "learning"] == [40, 50, 60]
    steps = list(mr.Run(mer(), rotations(), checkpoint=path).steps())
    assert steps == []  # it was finished


def test_a_stream_without_test_sets_goes_on_too(tmp_path: Path) -> None:
    xs, ys = rows(600)
    path = tmp_path / "run.ckpt"
    tasks = torch.arange(600) // 300
    run = mr.Run(online(), mr.OwnStream.from_tensors(xs, ys, tasks=tasks), checkpoint=path)
    for step in run.steps():
        if step.finished == 1:
            break
    learner = online()
    record = mr.run(learner, mr.OwnStream.from_tensors(xs, ys, tasks=tasks), checkpoint=path)
    assert same(record, mr.run(online(), mr.OwnStream.from_tensors(xs, ys, tasks=tasks)))
    assert mr.load(path, online().model).seen == 600  # saved at the end


def test_gradients_are_compared_with_a_past_that_can_be_read_but_once(tmp_path: Path) -> None:
    """Going on, an iterable is read from its beginning, once."""
    xs, ys = rows(600)
    path = tmp_path / "run.ckpt"

    def stream() -> mr.Stream:
        return mr.OwnStream.from_iterable(item for item in zip(xs, ys, strict=True))

    work = mr.Run(online(), stream(), checkpoint=path, alignment=3)
    for step in work.steps():
        if step.seen > 300:
            work.save()
            break
    record = mr.run(online(), stream(), checkpoint=path, alignment=3)
    assert record.examples == 600
    assert same(record, mr.run(online(), stream(), alignment=3))
    short = mr.OwnStream.from_iterable(item for item in zip(xs[:5], ys[:5], strict=True))
    refused(online(), short, "ended after 5 examples, but 600 were learned", checkpoint=path, alignment=3)


def no_twos(outputs: Tensor, ys: Tensor) -> Tensor:
    """A loss that is not finite for class 2."""
    return nn.functional.cross_entropy(outputs, ys) + torch.where(ys == 2, torch.inf, 0.0).sum()


def test_an_example_that_is_undone_does_not_count(tmp_path: Path) -> None:
    xs, ys = torch.rand(30, 4), torch.arange(30) % 2
    ys[20] = 2
    path = tmp_path / "run.ckpt"
    work = mr.Run(online(loss=no_twos), mr.OwnStream.from_tensors(xs, ys), checkpoint=path, alignment=2)
    with pytest.raises(mr.NonFiniteError, match="example 20"):
        list(work.steps())
    work.save()
    expected = mr.run(online(loss=no_twos), mr.OwnStream.from_tensors(xs[:20], ys[:20]), alignment=2)
    assert work.record().alignment == expected.alignment
    again = mr.Run(online(loss=no_twos), mr.OwnStream.from_tensors(xs, ys), checkpoint=path, alignment=2)
    with pytest.raises(mr.NonFiniteError, match="example 20"):
        list(again.steps())
    assert again.record().alignment == expected.alignment


@pytest.mark.parametrize("name", ["mer", pytest.param("ewc", marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes do the work; they are killed while they compute or save, whatever they are doing."""
    server = server_of_processes(monkeypatch)
    moments = random.Random(name)
    path = tmp_path / "run.ckpt"
    for _ in range(2):
        process = server.Process(target=run_saving_always, args=(name, tmp_path))
        process.start()
        wait_for_saves(path, moments.randint(2, 6), process)
        time.sleep(moments.uniform(0, 0.01))
        kill(process)
        assert process.exitcode == -signal.SIGKILL
        assert not (tmp_path / "learner.ckpt").exists()
    process = server.Process(target=run_saving_always, args=(name, tmp_path))
    process.start()
    wait_for_end(process)
    assert process.exitcode == 0
    undisturbed = MAKE[name]()
    record = mr.run(undisturbed, rotations())
    (written,) = tmp_path.glob("*.json")
    assert same(mr.Record.read(written), record)
    killed = mr.load(tmp_path / "learner.ckpt", MAKE[name]().model)
    assert_same_state(state(killed), state(undisturbed))
    assert killed.own_memory is None or len(killed.own_memory) == HELD


def wait_for_saves(path: Path, count: int, process: BaseProcess) -> None:
    """Wait until the process has replaced a file this many times."""
    for _ in range(count):
        last = version(path)
        wait_until(lambda last=last: version(path) != last, process)  # type: ignore[misc]


def version(path: Path) -> tuple[int, int]:
    if not path.exists():
        return 0, 0
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


OTHERS: dict[str, tuple[Callable[[], mr.Learner], Callable[[], mr.Stream], dict[str, Any], str]] = {
    "another rate": (lambda: mer(lr=0.2), rotations, {}, "saved with lr=0.1, not 0.2: use the same"),
    "another seed": (lambda: mer(seed=1), rotations, {}, "saved with seed=0, not 1"),
    "another learner": (MAKE["er-adam"], rotations, {}, "saved with learner=MER, not ER"),
    "the stream's seed": (mer, lambda: rotations(seed=1), {}, "saved with stream.seed=0, not 1"),
    "fewer tasks": (mer, lambda: rotations(tasks=2), {}, "saved with stream.tasks=3, not 2"),
    "another stream": (
        mer,
        lambda: mr.Permutations(TASKS, EXAMPLES, images=small_images()),
        {},
        "saved with stream.stream=Rotations, not Permutations",
    ),
    "another matrix": (mer, rotations, {"full_matrix": True}, "saved with full_matrix=False, not True"),
    "gradients compared": (mer, rotations, {"alignment": 5}, "saved with alignment=None, not 5"),
}


@pytest.mark.parametrize(("learner", "stream", "options", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_going_on_with_something_else_is_refused(
    learner: Callable[[], mr.Learner],
    stream: Callable[[], mr.Stream],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.ckpt"
    mr.run(mer(), rotations(), checkpoint=path)
    content, other = path.read_bytes(), learner()
    before = state(other)
    refused(other, stream(), message, checkpoint=path, **options)
    assert_same_state(state(other), before)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [("before", "after", "past=.*, not after"), ("after", "before", "past=after, not ")],
)
def test_going_on_with_gradients_of_another_moment_is_refused(
    saved: Moment, other: Moment, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.ckpt"
    mr.run(mer(), rotations(), checkpoint=path, alignment=2, past=saved)
    content = path.read_bytes()
    refused(mer(), rotations(), f"saved with {message}", checkpoint=path, alignment=2, past=other)
    assert path.read_bytes() == content


def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    path.write_text("nonsense")
    refused(mer(), rotations(), "damaged or not a metareplay checkpoint", checkpoint=path)
    mer().save(path)
    refused(mer(), rotations(), "holds a learner, not a run", checkpoint=path)


def test_a_path_that_cannot_be_written_is_known_before_anything_is_learned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    learner = mer()
    refused(learner, rotations(), "cannot write .*run.ckpt", checkpoint=tmp_path / "file" / "run.ckpt")
    assert learner.seen == 0


def with_tests(*tests: Any) -> mr.Stream:
    xs, ys = rows(10)
    ids = torch.arange(10) * len(tests) // 10
    return mr.OwnStream.from_tensors(xs, ys, ids, test=list(tests))


WRONG_LABELS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a column": (lambda ys: ys[:, None], r"y has shape \(5, 1\): give one label for each of the 5 examples"),
    "scores": (lambda ys: torch.zeros(len(ys), 5), "y has dtype torch.float32: class labels are integers"),
    "real": (lambda ys: ys.double(), "y has dtype torch.float64: class labels are integers"),
    "too large": (lambda ys: ys + 100, r"label 10\d is out of range: the model's classes are 0 to"),
    "negative": (lambda ys: ys - 100, r"label -\d+ is out of range"),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG_LABELS.values(), ids=WRONG_LABELS.keys())
def test_test_labels_are_checked_like_training_labels(spoil: Callable[[Tensor], Tensor], message: str) -> None:
    xs, ys = rows(5)
    refused(online(), with_tests((xs, ys), (xs, spoil(ys))), f"the test set of task 1 cannot be used: {message}")


def test_test_inputs_are_checked_too() -> None:
    xs, ys = rows(5)
    refused(online(), with_tests((xs[:, :2], ys)), "the test set of task 0 cannot be used: ")


def test_accuracy_is_that_of_the_predictions() -> None:
    learner, (xs, ys) = online(), rows(20)
    right = (learner.predict(xs) == ys).double().mean().item()
    assert learner.accuracy(xs, ys) == 100 * right
    with pytest.raises(mr.InputError, match="undefined for regression"):
        mr.Online(mr.networks.mlp(4, (3,), 1), regression=True).accuracy(torch.zeros(2, 4), [0, 1])


def test_going_on_with_other_task_ids_or_test_sets_is_refused(tmp_path: Path) -> None:
    path, (xs, ys) = tmp_path / "run.ckpt", rows(10)
    tests = [(xs[:5], ys[:5]), (xs[5:], ys[5:])]
    mr.run(online(), mr.OwnStream.from_tensors(xs, ys, [0] * 5 + [1] * 5, tests), checkpoint=path)
    message = "does not fit: .*other task ids or test sets: use the same, or --fresh"
    others = [([0] * 6 + [1] * 4, tests), ([0] * 5 + [1] * 5, tests[::-1])]
    for ids, test in others:
        refused(online(), mr.OwnStream.from_tensors(xs, ys, ids, test), message, checkpoint=path)
    mr.run(online(), mr.OwnStream.from_tensors(xs, ys, [0] * 5 + [1] * 5, tests), checkpoint=path)


NOT_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no learner": ({"learner": None}, "learner is None: use a learner"),
    "a class": ({"learner": mr.Online}, "learner is .*: use a learner"),
    "no stream": ({"stream": None}, "stream is None: use a stream"),
    "a list": ({"stream": []}, "stream is a list: use a stream"),
    "words": ({"full_matrix": "yes"}, "full_matrix='yes': use True or False"),
    "a moment": ({"past": 3}, "past=3: use 'before' or 'after'"),
    "alignment": ({"alignment": "some"}, "alignment='some': use a whole number"),
    "a path": ({"checkpoint": 3}, "checkpoint is an int: use a path"),
}


@pytest.mark.parametrize(("wrong", "message"), NOT_RUNS.values(), ids=NOT_RUNS.keys())
def test_what_cannot_be_run_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        mr.run(**dict[str, Any](learner=online(), stream=rotations()) | wrong)
