"""What users may do to a memory: look at it, remove and add examples, weigh them, hand them to another learner."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import EVERY, assert_same_state, examples, state

import metareplay as mr

MEMORIES: dict[str, Callable[[], mr.Memory]] = {
    "reservoir": lambda: mr.Reservoir(9),
    "recent": lambda: mr.Recent(9),
    "ring": lambda: mr.Ring(9, tasks=3),
    "mixed": lambda: mr.Mixed(9),
    "balanced": lambda: mr.Balanced(9),
}
every = pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES.keys())
both = pytest.mark.parametrize("engine", ["torch", "cpu"])


def is_of(label: int, held: mr.Columns) -> torch.Tensor:
    return held["y"] == label


def er(memory: mr.Memory, engine: Any = "torch", k: int = 5) -> mr.ER:
    return mr.ER(mr.networks.mlp(6, (8, 5), 4, seed=1), memory=memory, lr=0.1, k=k, seed=7, engine=engine)


@every
@both
def test_removing_is_for_good_and_learning_goes_on(make: Callable[[], mr.Memory], engine: str, tmp_path: Path) -> None:
    xs, ys, tasks = examples(40)
    learners = [er(make(), engine) for _ in range(2)]
    for learner in learners:
        learner.observe_many(xs[:25], ys[:25], tasks[:25])
        memory = learner.memory
        numbers = memory.numbers()
        assert torch.equal(memory.examples().xs, xs[numbers])
        assert memory.class_counts() == dict(sorted(Counter(ys[numbers].tolist()).items()))
        label = int(ys[numbers[0]])
        assert memory.remove(partial(is_of, label)) == int((ys[numbers] == label).sum())
        assert label not in memory.class_counts()
        assert memory.remove(numbers=[numbers[ys[numbers] != label][0]]) == 1
        left = memory.numbers()
        assert set(left) < set(numbers)
        assert [int(one["number"]) for one in memory] == left.tolist()
        assert torch.equal(torch.stack([one["x"] for one in memory]), xs[left])
        table = learner.table
        assert table is not None
        everything = table.gather(torch.arange(len(table)))["x"]
        kept = {tuple(row) for row in xs[left].tolist()}
        assert {tuple(row) for row in everything.tolist()} <= kept | {(0,) * 6}
    one, other = learners
    one.observe_many(xs[25:], ys[25:], tasks[25:])
    other.save(tmp_path / "removed.ckpt")
    other = mr.load(tmp_path / "removed.ckpt", other.model, kind=mr.ER)
    for i in range(25, 40):
        other.observe(xs[i], int(ys[i]), int(tasks[i]))
    assert_same_state(state(one), state(other))
    assert np.array_equal(one.memory.numbers(), other.memory.numbers())


def test_removing_by_age_and_everything(tmp_path: Path) -> None:
    learner = er(mr.Recent(9))
    xs, ys, tasks = examples()
    learner.observe_many(xs, ys, tasks)
    assert learner.memory.remove(older_than=5) == 4
    assert learner.memory.numbers().tolist() == [27, 28, 29, 25, 26]
    assert learner.memory.remove(older_than=0) == 5
    assert (len(learner.memory), learner.memory.remove(older_than=0)) == (0, 0)
    learner.save(tmp_path / "empty.ckpt")
    loaded = mr.load(tmp_path / "empty.ckpt", er(mr.Recent(9)).model, kind=mr.ER)
    for one in (learner, loaded):
        one.observe_many(xs, ys, tasks)
    assert_same_state(state(learner), state(loaded))


def test_gem_goes_on_after_a_task_was_removed() -> None:
    learner = EVERY["gem"]()
    xs, ys, tasks = examples()
    learner.observe_many(xs, ys, tasks)
    assert learner.own_memory is not None
    learner.own_memory.remove(lambda held: held["task"] == 0)
    learner.observe_many(xs[20:], ys[20:], tasks[20:])
    assert 0 not in learner.own_memory.tasks()


def test_what_is_left_after_removing_is_a_uniform_sample() -> None:
    counts: Counter[int] = Counter()
    for seed in range(150):
        memory = mr.Reservoir(10)
        learner = mr.ER(mr.networks.mlp(1, (2,), 2), memory=memory, k=1, lr=0.001, seed=seed, engine="torch")
        xs, ys = torch.zeros(40, 1), torch.arange(40) % 2
        learner.store(xs[:20], ys[:20])
        memory.remove(lambda held: held["y"] == 1)
        learner.store(xs[20:], ys[20:])
        counts.update(memory.numbers().tolist())
    stayed = [counts[number] for number in range(0, 20, 2)]
    came = [counts[number] for number in range(20, 40)]
    assert sum(counts[number] for number in range(1, 20, 2)) == 0
    assert abs(np.mean(stayed) - 37.5) < 4.5  # 150 tries, each held with probability 10 / 40
    assert abs(np.mean(came) - 37.5) < 4.5


def test_bad_conditions_are_refused() -> None:
    learner = er(mr.Reservoir(9))
    learner.observe_many(*examples())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "nothing says what to remove"),
        ({"where": 3}, "where=3: use a function"),
        ({"where": lambda _: True}, r"where returned bool of shape \(\) for 9 examples"),
        ({"where": lambda held: held["y"]}, "where returned int64"),
        ({"numbers": ["a"]}, "numbers='a': use a whole number"),
        ({"older_than": "x"}, "older_than='x'"),
    ]
    for options, message in wrong:
        with pytest.raises(mr.InputError, match=message):
            learner.memory.remove(**options)
    assert len(learner.memory) == 9


@every
@both
def test_storing_without_learning(make: Callable[[], mr.Memory], engine: str, tmp_path: Path) -> None:
    xs, ys, tasks = examples()
    learner, learned = er(make(), engine), er(make(), engine)
    before = learner.weights.theta.clone()
    learner.store(xs, ys, tasks)
    learned.observe_many(xs, ys, tasks)
    assert torch.equal(learner.weights.theta, before)
    assert (learner.seen, learner.memory.seen) == (0, 30)
    assert np.array_equal(learner.memory.numbers(), learned.memory.numbers())
    learner.save(tmp_path / "stored.ckpt")
    loaded = mr.load(tmp_path / "stored.ckpt", er(make(), engine).model, kind=mr.ER)
    for one in (learner, loaded):
        one.observe_many(xs, ys, tasks)
    assert_same_state(state(learner), state(loaded))
    with pytest.raises(mr.InputError, match="label 9 is out of range"):
        learner.store(xs[:1], torch.tensor([9]), tasks[:1])
    with pytest.raises(mr.InputError, match="Online has no memory to store examples in"):
        mr.Online(mr.networks.mlp(6, (4,), 4)).store(xs, ys)


@every
@both
def test_a_copy_goes_to_another_learner(make: Callable[[], mr.Memory], engine: str) -> None:
    xs, ys, tasks = examples()
    first = er(make(), engine)
    first.observe_many(xs, ys, tasks)
    second = er(first.memory.copy(), engine)
    assert len(second.memory) == len(first.memory)
    assert torch.equal(second.memory.examples().xs, first.memory.examples().xs)
    second.memory.remove(numbers=[int(second.memory.numbers()[0])])
    assert len(second.memory) == len(first.memory) - 1
    second.observe_many(xs[:5], ys[:5], tasks[:5])
    second.store(xs[:0], ys[:0], tasks[:0])
    small = mr.ER(mr.networks.mlp(6, (4,), 2), memory=first.memory.copy())
    with pytest.raises(mr.InputError, match="comes with examples that this learner cannot learn: label"):
        small.observe_many(xs[:2], torch.tensor([0, 1]), tasks[:2])
    wide = mr.ER(mr.networks.mlp(5, (4,), 4), memory=first.memory.copy())
    with pytest.raises(mr.InputError, match="comes with examples that do not fit: x is"):
        wide.observe_many(torch.rand(2, 5), torch.tensor([0, 1]), tasks[:2])


@both
def test_weights_decide_how_often_examples_are_drawn(engine: str, tmp_path: Path) -> None:
    xs, ys, tasks = examples()
    learners = [er(mr.Reservoir(9), engine) for _ in range(2)]
    for learner in learners:
        learner.observe_many(xs[:20], ys[:20], tasks[:20])
        learner.memory.weigh(lambda held: (held["y"] == 1).float() + 0.1)
    one, other = learners
    one.observe_many(xs[20:], ys[20:], tasks[20:])
    other.save(tmp_path / "weighed.ckpt")
    other = mr.load(tmp_path / "weighed.ckpt", other.model, kind=mr.ER)
    for i in range(20, 30):
        other.observe(xs[i], int(ys[i]), int(tasks[i]))
    assert_same_state(state(one), state(other))
    plain = er(mr.Reservoir(9), engine)
    plain.observe_many(xs, ys, tasks)
    assert not torch.equal(plain.weights.theta, one.weights.theta)


def test_weighted_draws_are_in_proportion() -> None:
    memory = mr.Reservoir(4)
    learner = er(memory)
    learner.store(*(part[:4] for part in examples()))
    memory.weigh([1, 0, 2, 1])
    with mr.Sampler(memory, mr.Draws(0), 0, np.full(1, -1)) as sampler:
        drawn = sampler.sample(4000, 4)
    shares = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    assert np.allclose(shares, [0.25, 0, 0.5, 0.25], atol=0.02)
    memory.weigh(None)
    assert memory.weights is None
    for wrong in ([1, 2], [-1, 1, 1, 1], [0, 0, 0, 0], "abc", lambda _: None):
        with pytest.raises(mr.InputError, match="weight"):
            memory.weigh(wrong)  # type: ignore[arg-type]


def named(memory: mr.Memory, classes: Any, outputs: int = 1) -> mr.ER:
    return mr.ER(mr.networks.mlp(6, (8,), outputs, seed=1), memory=memory, lr=0.1, k=5, seed=7, classes=classes)


@every
def test_labels_stay_with_the_examples(make: Callable[[], mr.Memory], tmp_path: Path) -> None:
    """Another learner starts from the labels that the first one has numbered, with an output for each."""
    xs, ys, tasks = examples()
    names = [("dog", "cat", "eel", "bee")[int(y)] for y in ys]
    first = named(make(), "grow")
    first.observe_many(xs, names, tasks)
    assert first.memory.labels == first.labels
    held = Counter(names[int(number)] for number in first.memory.numbers())
    assert first.memory.class_counts() == held
    for outputs in (1, 6):
        heirs = [named(first.memory.copy(), "grow", outputs) for _ in range(2)]
        heirs[1].save(tmp_path / "heir.ckpt")  # before it has observed anything
        heirs[1] = mr.load(tmp_path / "heir.ckpt", named(make(), "grow").model, kind=mr.ER)
        for heir in heirs:
            assert heir.memory.class_counts() == held
            heir.observe(xs[0], "fox", 0)
            assert heir.labels == heir.memory.labels == (*(first.labels or ()), "fox")
            heir.observe_many(xs, ["fox"] * 30, tasks)
            assert "fox" in heir.memory.class_counts()
        assert_same_state(state(heirs[0]), state(heirs[1]))
    assert first.memory.labels == first.labels


def test_other_labels_than_those_of_the_memory_are_refused() -> None:
    xs, ys, tasks = examples()
    first = named(mr.Reservoir(9), ["no", "yes"], 2)
    first.observe_many(xs, ["no", "yes"] * 15, tasks)
    for classes in (["yes", "no"], ["no"], None):
        heir = named(first.memory.copy(), classes, 2)
        with pytest.raises(mr.InputError, match="the memory comes with examples of the labels 'no', 'yes'"):
            heir.observe(xs[0], 0 if classes is None else "no", 0)
        assert (len(heir.memory), heir.seen) == (9, 0)
    more = named(first.memory.copy(), ["no", "yes", "perhaps"], 3)
    more.observe_many(xs, ["perhaps", "yes", "no"] * 10, tasks)
    assert set(more.memory.class_counts()) == {"no", "yes", "perhaps"}
    numbered = er(mr.Reservoir(9))
    numbered.observe_many(xs, ys, tasks)
    heir = named(numbered.memory.copy(), "grow")
    heir.observe(xs[0], 3, 0)
    assert heir.labels == (0, 1, 2, 3)
    with pytest.raises(mr.InputError, match="the labels 0, 1, 2, 3, but classes are 'no', 'yes'"):
        named(numbered.memory.copy(), ["no", "yes"], 2).observe(xs[0], "no", 0)


@every
def test_a_learner_whose_memory_came_with_examples_is_saved_before_it_learns(
    make: Callable[[], mr.Memory], tmp_path: Path
) -> None:
    xs, ys, tasks = examples()
    first = er(make())
    first.observe_many(xs, ys, tasks)
    heir = er(first.memory.copy())
    heir.save(tmp_path / "heir.ckpt")
    loaded = mr.load(tmp_path / "heir.ckpt", er(make()).model, kind=mr.ER)
    unsaved = er(first.memory.copy())
    for one in (heir, loaded, unsaved):
        one.observe_many(xs, ys, tasks)
        assert_same_state(state(one), state(heir))
