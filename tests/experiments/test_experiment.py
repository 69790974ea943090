import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import instead_of_mnist, small_images
from torch import Tensor, nn

import metareplay as mr
from metareplay.experiments.alignment import Moment
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.names import LEARNERS_BY_NAME, MEMORIES_BY_NAME, STREAMS_BY_NAME
from metareplay.paper.best import WITH_MEMORY, best
from metareplay.paper.tables import TABLES

every_learner = pytest.mark.parametrize("learner", LEARNERS_BY_NAME)
every_stream = pytest.mark.parametrize("stream", [name for name in STREAMS_BY_NAME if name != "omniglot"])
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
    assert type(one) is LEARNERS_BY_NAME[learner]
    assert type(tasks) is STREAMS_BY_NAME[stream]
    record = mr.run(one, tasks)
    assert record.examples == 4
    assert not np.isnan(record.ra)
    assert record.stream["images"] == "mnist"


@every_stream
@every_learner
def test_what_is_not_given_is_the_learners_own_default(learner: str, stream: str) -> None:
    one, _ = Experiment(learner=learner, stream=stream, memory=200, hidden=(6,)).build()
    plain = LEARNERS_BY_NAME[learner](one.model).settings()
    memory = plain.pop("memory", None)
    assert plain.items() <= one.settings().items()
    if memory is not None:
        assert memory_of(one).capacity == 200


def test_the_default_is_mer_on_rotations() -> None:
    learner, stream = Experiment().build()
    assert isinstance(learner, mr.MER)
    assert (learner.lr, learner.beta, learner.gamma, learner.s, learner.k) == (0.1, 0.01, 1.0, 10, 11)
    assert memory_of(learner).settings() == {"kind": "Reservoir", "capacity": 500, "rule": "paper"}
    assert isinstance(stream, mr.Rotations)
    assert (stream.tasks, stream.examples, stream.test_examples) == (20, 1000, None)
    assert widths(learner.model) == [(784, 100), (100, 100), (100, 10)]


def test_options_come_before_the_defaults() -> None:
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
@pytest.mark.parametrize("kind", MEMORIES_BY_NAME)
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
    "no memory": ({"memory": 0}, "memory=0: .* use memory >= 1"),
    "less than no memory": ({"memory": -3}, "memory=-3: "),
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
    "images of digits": ({"stream": "omniglot", "images": "mnist"}, "images 'mnist': omniglot has images of its own"),
    "an MLP for Omniglot": ({"stream": "omniglot", "hidden": (6,)}, "hidden=.6,.: omniglot's CNN has no hidden layers"),
    "MLPs for Omniglot": (
        {"stream": "omniglot", "learner": "independent"},
        "independent needs an MLP with parts for each task, and omniglot has a CNN: use another learner",
    ),
    "input layers for Omniglot": ({"stream": "omniglot", "learner": "task-input"}, "task-input needs an MLP"),
    "the network's option": (
        {"stream": "omniglot", "network": {"depth": 4}},
        "the network of omniglot has no option 'depth'; it takes init, norm",
    ),
    "a norm of an MLP": (
        {"network": {"norm": "group"}},
        "the network of rotations has no option 'norm'; leave it out",
    ),
    "norm": ({"stream": "omniglot", "network": {"norm": "layer"}}, "norm='layer': use one of 'group', 'batch', or"),
    "the stream's option": (
        {"stream": "omniglot", "stream_options": {"angle": 3}},
        "the stream omniglot has no option 'angle'; it takes labels, order, pixels, resolution, split, test_share",
    ),
    "order": ({"stream": "omniglot", "stream_options": {"order": "random"}}, "order='random': use 'given' or"),
    "resolution": ({"stream": "omniglot", "stream_options": {"resolution": 14}}, "resolution=14: the network halves"),
    "width": ({"hidden": (100, 0)}, "each must be at least one unit"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message) as caught:
        Experiment(**given).build()
    assert "\n" not in str(caught.value)


@every_learner
def test_every_option_of_a_learner_is_taken(learner: str) -> None:
    own = {f.name for f in fields(LEARNERS_BY_NAME[learner])} - {"model", "memory", "engine", "seed", "classes", "head"}
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


# Found without building


@every_stream
@every_learner
def test_the_key_is_that_of_the_run(learner: str, stream: str) -> None:
    for memory in (200, 500):
        plain = Experiment(learner=learner, stream=stream, memory=memory)
        for one in (plain, replace(plain, options=best(learner, stream, memory), seed=3, hidden=(6,))):
            assert one.key == one.start().key
            assert one.identity == one.start().identity


@pytest.mark.parametrize("learner", ["gem", *REPLAY])
@pytest.mark.parametrize("kind", MEMORIES_BY_NAME)
def test_the_key_is_that_of_the_run_with_every_memory(learner: str, kind: str) -> None:
    one = Experiment(learner=learner, memory=60, memory_kind=kind, tasks=3, hidden=(6,))
    assert one.key == one.start().key
    assert one.identity.settings["memory"]["kind"].lower() == kind


def no_loss(outputs: Tensor, ys: Tensor) -> Tensor:
    del ys
    return outputs.sum()


ODD: dict[str, dict[str, Any]] = {
    "a rate that is a whole number": {"options": {"lr": 1}},
    "whole numbers of NumPy": {"options": {"k": np.int64(3), "s": np.int32(2)}},
    "numbers of NumPy": {"options": {"lr": np.float64(0.1), "beta": np.float32(0.5)}},
    "truth as a whole number": {"options": {"k": True}},
    "a clip that is a whole number": {"options": {"clip": 2}},
    "no clip": {"options": {"clip": None}},
    "a loss of torch's": {"options": {"loss": nn.functional.cross_entropy}},
    "a loss of one's own": {"options": {"loss": no_loss}},
    "a loss that is a module": {"options": {"loss": nn.CrossEntropyLoss()}},
    "a memory counted by NumPy": {"memory": np.int64(7)},
    "other images": {"images": "fashion-mnist"},
    "few test examples": {"test_examples": 5},
    "the whole matrix": {"full_matrix": True},
    "the whole matrix of two tasks": {"full_matrix": True, "tasks": 2},
    "gradients compared": {"alignment": 2},
    "gradients compared after": {"alignment": 2, "past": "after"},
    "a past that is not compared": {"past": "after"},
    "another engine": {"engine": "torch"},
    "the largest seed": {"seed": 2**32 - 1},
    "no hidden layer": {"hidden": ()},
    "training accuracy": {"training": True},
}


@pytest.mark.parametrize("given", ODD.values(), ids=ODD.keys())
def test_the_key_is_that_of_the_run_whatever_is_given(given: dict[str, Any]) -> None:
    one = Experiment(**{"hidden": (6,), "tasks": 3, "examples": 4, **given})
    assert one.key == one.start().key
    assert json.loads(json.dumps(one.identity.settings)) == one.identity.settings


def test_numbers_of_any_type_make_the_same_key() -> None:
    plain = Experiment(options={"lr": 1.0, "k": 3, "clip": 2.0}, memory=7)
    odd = Experiment(options={"lr": 1, "k": np.int64(3), "clip": np.float64(2)}, memory=np.int64(7))  # type: ignore[arg-type]
    assert plain.key == odd.key


def test_the_default_written_down_makes_the_same_key() -> None:
    assert Experiment().key == Experiment(options={"lr": 0.1, "k": 11, "s": 10}, memory_kind="reservoir").key
    assert Experiment(learner="gem").key == Experiment(learner="gem", memory_kind="ring").key


def test_the_key_says_whether_gradients_are_compared_and_the_whole_matrix_is_measured() -> None:
    plain = Experiment(hidden=(6,))
    assert replace(plain, full_matrix=True).key != plain.key
    two = replace(plain, tasks=2)
    assert replace(two, full_matrix=True).key == two.key  # the metrics need all of it
    pasts: tuple[Moment, Moment] = ("before", "after")
    keys = {replace(plain, alignment=samples, past=past).key for samples in (0, 1, 5) for past in pasts}
    assert len(keys) == 5


def test_the_key_says_whether_training_accuracy_is_measured() -> None:
    assert Experiment(training=True).key != Experiment().key


def test_the_keys_of_the_default_stay_the_same_from_version_to_version() -> None:
    assert Experiment().key == "6fb12796ecec0020"
    assert Experiment(learner="gem", options={"lr": 0.01, "strength": 0.0}, seed=7).key == "05208e040b1fd1e2"
    assert (
        Experiment(learner="independent", stream="many-permutations", options={"lr": 0.01, "start": "clone"}).key
        == "4e75c982598d3ea0"
    )


@every_learner
def test_nothing_is_built_or_read_to_find_the_key(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Experiment(learner=learner, hidden=(7, 5))
    assert one.key  # a description of the net is kept

    def unasked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("metareplay.streams.images.mnist", unasked)
    monkeypatch.setattr(mr.Learner, "__post_init__", unasked)
    monkeypatch.setattr(nn.Module, "__init__", unasked)
    for seed in range(1, 4):
        other = replace(one, seed=seed, options=best(learner, "rotations", 500), memory=100)
        assert other.key != one.key
        assert other.work > 0
        assert other.label


def test_starting_reads_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked() -> None:
        raise AssertionError

    monkeypatch.setattr("metareplay.streams.images.mnist", unasked)
    assert Experiment().start().key
    assert Experiment().work > 0


def test_a_label_says_what_runs() -> None:
    assert Experiment(memory=200, seed=3).label == "mer 200, rotations, seed 3"
    assert Experiment(learner="online", stream="permutations").label == "online, permutations, seed 0"


def test_a_run_is_saved_where_it_is_told_and_goes_on_from_there(tmp_path: Path) -> None:
    given = Experiment(tasks=2, examples=4, hidden=(6,), memory=4, test_examples=5, options={"k": 2, "s": 1})
    path = tmp_path / "run.ckpt"
    work = given.start(checkpoint=path)
    assert not path.exists()
    for step in work.steps():
        if step.seen == 4:
            work.save()
            break
    again = given.start(checkpoint=path)
    assert next(again.steps()).seen >= 4
    list(again.steps())
    whole = given.start()
    list(whole.steps())
    assert again.record().weights == whole.record().weights


# How long it takes

MORE_WORK: dict[str, dict[str, Any]] = {
    "tasks": {"tasks": 40},
    "examples": {"examples": 2000},
    "a larger batch": {"options": {"k": 101}},
    "more batches": {"options": {"s": 20}},
    "every task after every task": {"full_matrix": True},
    "training examples": {"training": True},
}


@pytest.mark.parametrize("more", MORE_WORK.values(), ids=MORE_WORK.keys())
def test_more_is_more_work(more: dict[str, Any]) -> None:
    few = Experiment(test_examples=1000)
    assert replace(few, **more).work > few.work
    assert replace(few, test_examples=2000, **more).work > replace(few, **more).work


def test_learners_that_step_more_often_are_more_work() -> None:
    work = {
        learner: Experiment(learner=learner, memory=5120, options=best(learner, "rotations", 5120)).work
        for learner in LEARNERS_BY_NAME
    }
    assert work["online"] < work["er"] < work["mer"]
    assert work["gem"] > Experiment(learner="gem", memory=500).work > work["online"]


def test_the_work_of_everything_in_the_paper_is_known() -> None:
    for make in TABLES.values():
        assert all(cell.experiment.work > 0 for cell in make().cells)


def test_a_part_of_the_stream_is_learned() -> None:
    """Memory and network stay those of the whole stream, so that a short run begins as the long one does."""
    made = Experiment(learner="gem", memory=30, tasks=3, examples=10, hidden=(6,), held_out=0.2, first_tasks=2)
    learner, stream = made.build()
    assert memory_of(learner).settings() == {"kind": "Ring", "capacity": 30, "tasks": 3}
    assert (stream.tasks, stream.total) == (2, 16)
    record = mr.run(learner, stream)
    assert record.key == made.key == made.start().key
    assert record.stream["held_out"] == 0.2
    assert record.stream["first_tasks"] == 2
    assert made.work < replace(made, held_out=0.0).work < replace(made, held_out=0.0, first_tasks=None).work
    with pytest.raises(mr.InputError, match="held_out=2"):
        _ = replace(made, held_out=2).key
    with pytest.raises(mr.InputError, match="first_tasks=4"):
        _ = replace(made, first_tasks=4).key
