from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from small_runs import instead_of_mnist, small_images
from torch import nn

import metareplay as mr
from metareplay.experiments.experiment import LEARNERS, MEMORIES, STREAMS, Experiment
from metareplay.learners import LEARNERS as KINDS
from metareplay.paper.best import WITH_MEMORY, WITHOUT_MEMORY
from metareplay.paper.tables import TABLES

every_learner = pytest.mark.parametrize("learner", LEARNERS)
every_stream = pytest.mark.parametrize("stream", STREAMS)
REPLAY = [name for name in WITH_MEMORY if name != "gem"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_mnist(monkeypatch)


def widths(net: nn.Module) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in net.modules() if isinstance(layer, nn.Linear)]


def memory_of(learner: mr.Learner) -> mr.Memory:
    assert learner.own_memory is not None
    return learner.own_memory


@every_stream
@every_learner
def test_every_learner_runs_on_every_stream(learner: str, stream: str) -> None:
    made = Experiment(learner=learner, stream=stream, tasks=2, examples=2, hidden=(6,), memory=4, test_examples=5)
    one, tasks = made.build()
    assert type(one) is LEARNERS[learner]
    assert type(tasks) is STREAMS[stream]
    record = mr.run(one, tasks)
    assert record.examples == 4
    assert not np.isnan(record.ra)
    assert record.stream["images"] == "mnist"


def test_no_learner_is_left_out() -> None:
    assert set(LEARNERS.values()) == set(KINDS)
    assert LEARNERS.keys() == WITHOUT_MEMORY.keys() | WITH_MEMORY.keys()


@every_stream
@every_learner
@pytest.mark.parametrize("memory", [200, 500, 5120])
def test_what_is_not_given_is_the_papers_best(learner: str, stream: str, memory: int) -> None:
    one, _ = Experiment(learner=learner, stream=stream, memory=memory, hidden=(6,)).build()
    if learner in WITHOUT_MEMORY:
        expected = WITHOUT_MEMORY[learner][stream]
    else:
        sizes = WITH_MEMORY[learner][stream]
        expected = sizes.get(memory, sizes[500])  # 200 was not tried on Many Permutations
        assert memory_of(one).capacity == memory
    assert expected.items() <= one.settings().items()
    assert expected.keys() >= {"lr"}


def test_the_default_is_the_papers_mer_on_rotations() -> None:
    learner, stream = Experiment().build()
    assert isinstance(learner, mr.MER)
    assert (learner.lr, learner.beta, learner.gamma, learner.s, learner.k) == (0.1, 0.01, 1.0, 10, 11)
    assert memory_of(learner).settings() == {"kind": "Reservoir", "capacity": 500, "rule": "paper"}
    assert isinstance(stream, mr.Rotations)
    assert (stream.tasks, stream.examples, stream.test_examples) == (20, 1000, None)
    assert widths(learner.model) == [(784, 100), (100, 100), (100, 10)]


def test_options_come_before_the_papers() -> None:
    learner, _ = Experiment(options={"s": 3, "clip": 2.0}, hidden=(6,)).build()
    assert isinstance(learner, mr.MER)
    assert (learner.s, learner.clip, learner.beta) == (3, 2.0, 0.01)


def test_independents_networks_share_the_hidden_units() -> None:
    learner, _ = Experiment(learner="independent").build()
    assert isinstance(learner.model, mr.networks.Separate)
    assert len(learner.model.nets) == 20
    assert widths(learner.model.nets[7]) == [(784, 5), (5, 5), (5, 10)]  # 100 / 20
    learner, _ = Experiment(learner="independent", stream="many-permutations", hidden=(100, 50)).build()
    assert isinstance(learner.model, mr.networks.Separate)
    assert len(learner.model.nets) == 100
    assert widths(learner.model.nets[0]) == [(784, 1), (1, 1), (1, 10)]


def test_task_input_has_a_first_layer_for_each_task() -> None:
    learner, _ = Experiment(learner="task-input", tasks=3, hidden=(6, 4)).build()
    assert isinstance(learner.model, mr.networks.TaskInputs)
    assert [widths(net) for net in learner.model.inputs] == [[(784, 6)]] * 3
    assert widths(learner.model.shared) == [(6, 4), (4, 10)]


def test_gem_gets_a_ring_with_room_for_every_task() -> None:
    learner, _ = Experiment(learner="gem", memory=60, tasks=3, hidden=(6,)).build()
    assert memory_of(learner).settings() == {"kind": "Ring", "capacity": 60, "tasks": 3}


@pytest.mark.parametrize("learner", ["gem", *REPLAY])
@pytest.mark.parametrize("kind", MEMORIES)
def test_every_memory_can_be_chosen(learner: str, kind: str) -> None:
    one, _ = Experiment(learner=learner, memory=60, memory_kind=kind, tasks=3, hidden=(6,)).build()
    assert type(memory_of(one)).__name__.lower() == kind
    assert memory_of(one).capacity == 60


@pytest.mark.parametrize("learner", REPLAY)
def test_replay_learners_get_a_reservoir(learner: str) -> None:
    assert type(memory_of(Experiment(learner=learner, hidden=(6,)).build()[0])) is mr.Reservoir


def test_the_seed_is_that_of_the_stream_the_weights_and_the_draws() -> None:
    made = [Experiment(seed=seed, hidden=(6,), tasks=2, examples=3).build() for seed in (4, 4, 5)]
    (one, stream), (again, _), (other, _) = made
    assert one.seed == 4
    assert stream.settings()["seed"] == 4
    assert np.array_equal(one.weights.theta.numpy(), again.weights.theta.numpy())
    assert not np.array_equal(one.weights.theta.numpy(), other.weights.theta.numpy())


def test_other_images_can_be_chosen() -> None:
    _, stream = Experiment(images="fashion-mnist", tasks=1, examples=2, hidden=(6,)).build()
    assert stream.settings()["images"] == "fashion-mnist"
    assert len(stream.test(0)) == len(small_images().test_xs)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "learner": ({"learner": "merlin"}, "learner 'merlin': use one of online, independent, .*mer-current-rate"),
    "stream": ({"stream": "translations"}, "stream 'translations': use one of rotations, permutations, many"),
    "images": ({"images": "cifar"}, "images 'cifar': use one of mnist, fashion-mnist"),
    "memory kind": ({"memory_kind": "stack"}, "memory kind 'stack': use one of reservoir, ring, recent"),
    "memory kind without memory": ({"learner": "online", "memory_kind": "ring"}, "online has no memory"),
    "no memory": ({"memory": 0}, "capacity=0: .* use capacity >= 1"),
    "less than no memory": ({"memory": -3}, "capacity=-3: "),
    "ring too small": ({"learner": "gem", "memory": 5}, "a ring of 5 slots for 20 tasks"),
    "unknown option": ({"options": {"zeta": 1}}, "mer has no option 'zeta'; it takes beta, clip, gamma, k, .*s"),
    "another learner's option": ({"learner": "online", "options": {"beta": 0.1}}, "online has no option 'beta'"),
    "engine as an option": ({"options": {"engine": "torch"}}, "mer has no option 'engine'"),
    "memory as an option": ({"options": {"memory": mr.Reservoir(3)}}, "mer has no option 'memory'"),
    "rate": ({"options": {"lr": -0.1}}, "lr=-0.1: use a positive number"),
    "share": ({"options": {"beta": 1.5}}, "beta=1.5: .* use 0 < beta <= 1"),
    "k": ({"options": {"k": 0}}, "k=0: .* use k >= 1"),
    "tasks": ({"tasks": 0}, "tasks=0: use a whole number of at least 1"),
    "examples": ({"examples": 60_001}, "examples=60001: use a whole number from 1 to 60000"),
    "test examples": ({"test_examples": 0}, "test_examples=0"),
    "negative seed": ({"seed": -1}, "seed=-1: use a whole number"),
    "huge seed": ({"seed": 2**70}, "seed=1180591620717411303424: use a whole number from 0"),
    "width": ({"hidden": (100, 0)}, "every layer needs at least one unit"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message) as caught:
        Experiment(**given).build()
    assert "\n" not in str(caught.value)


@every_learner
def test_every_option_of_a_learner_is_taken(learner: str) -> None:
    own = {f.name for f in fields(LEARNERS[learner])} - {"model", "memory", "engine", "seed"}
    default, _ = Experiment(learner=learner, hidden=(6,), tasks=2).build()
    given = {name: getattr(default, name) for name in own}
    one, _ = Experiment(learner=learner, hidden=(6,), tasks=2, options=given).build()
    assert one.settings() == default.settings()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("alignment", [0, 2])
def test_start_is_the_run_that_is_described(full: bool, alignment: int) -> None:
    given = Experiment(
        tasks=3, examples=4, hidden=(6,), memory=4, test_examples=5, full_matrix=full, alignment=alignment
    )
    work = given.start()
    key = work.key
    assert work.learner.seen == 0
    list(work.steps())
    record = work.record()
    assert record.key == key
    assert np.isnan(record.accuracy).any() != full
    assert (record.alignment is not None) == bool(alignment)
    assert record.alignment is None or record.alignment["samples"] == alignment
    learner, stream = given.build()
    assert record.weights == mr.run(learner, stream).weights  # what is measured changes nothing


def test_the_key_says_whether_gradients_are_compared_and_the_whole_matrix_is_measured() -> None:
    plain = Experiment(hidden=(6,))
    assert replace(plain, full_matrix=True).start().key != plain.start().key
    two = replace(plain, tasks=2)
    assert replace(two, full_matrix=True).start().key == two.start().key  # the metrics need all of it
    keys = {replace(plain, alignment=samples).start().key for samples in (0, 1, 5)}
    assert len(keys) == 3


def test_starting_reads_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked() -> None:
        raise AssertionError

    monkeypatch.setattr("metareplay.streams.images.mnist", unasked)
    assert Experiment().start().key
    assert Experiment().work() > 0


MORE_WORK: dict[str, dict[str, Any]] = {
    "tasks": {"tasks": 40},
    "examples": {"examples": 2000},
    "a larger batch": {"options": {"k": 101}},
    "more batches": {"options": {"s": 20}},
    "every task after every task": {"full_matrix": True},
}


@pytest.mark.parametrize("more", MORE_WORK.values(), ids=MORE_WORK.keys())
def test_more_is_more_work(more: dict[str, Any]) -> None:
    few = Experiment(test_examples=1000)
    assert replace(few, **more).work() > few.work()
    assert replace(few, test_examples=2000, **more).work() > replace(few, **more).work()


def test_learners_that_step_more_often_are_more_work() -> None:
    work = {learner: Experiment(learner=learner, memory=5120).work() for learner in LEARNERS}
    assert work["online"] < work["er"] < work["mer"]
    assert work["gem"] > Experiment(learner="gem", memory=500).work() > work["online"]


def test_the_work_of_everything_in_the_paper_is_known() -> None:
    for make in TABLES.values():
        assert all(cell.experiment.work() > 0 for cell in make().cells)
