"""What a learner leaves as it was, what it can be copied by, and which inputs it takes."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from every_learner import CLASSES, EVERY, INPUTS, Make, assert_same_state, examples, mlp, state
from numpy.typing import NDArray
from torch import nn

import metareplay as mr
from metareplay.engines.choose import EngineName
from metareplay.learners.input_checks import Array

every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
Copy = Callable[[mr.Learner], mr.Learner]


def learn(learner: mr.Learner, start: int, end: int) -> None:
    learner.observe_many(*(part[start:end] for part in examples()))


@every
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_goes_on_by_itself(make: Make, copied: Copy) -> None:
    learner = make()
    learn(learner, 0, 13)
    other = copied(learner)
    assert_same_state(state(other), state(learner))
    assert other.model is not learner.model
    before = learner.weights.theta.clone()
    learn(other, 13, 30)
    assert torch.equal(learner.weights.theta, before)
    learn(learner, 13, 30)
    assert_same_state(state(other), state(learner))


def test_a_copy_made_between_single_examples_goes_on_too() -> None:
    learner = mr.MER(mlp(), memory=mr.Reservoir(9), s=2, k=4, seed=7)
    xs, ys, _ = examples()
    for number in range(10):
        learner.observe(xs[number], ys[number])
    other = copy.deepcopy(learner)
    for number in range(10, 30):
        learner.observe(xs[number], ys[number])
        other.observe(xs[number], ys[number])
    assert_same_state(state(other), state(learner))


def test_agents_can_be_copied() -> None:
    agent = mr.DQN(mr.networks.mlp(3, (8,), 2, seed=1), memory=mr.Recent(20), k=4, warmup=0)
    for number in range(10):
        agent.observe(torch.full((3,), number / 10), number % 2, 1.0, torch.full((3,), number / 9), False)
    other = copy.deepcopy(agent)
    for one in (agent, other):
        one.observe(torch.ones(3), 1, 0.5, torch.zeros(3), True)
    assert torch.equal(agent.weights.theta, other.weights.theta)
    assert agent.weights.theta.data_ptr() != other.weights.theta.data_ptr()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_the_module_stays(engine: EngineName, mode: bool) -> None:
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.2), nn.Linear(8, CLASSES)).train(mode)
    model[1].train(not mode)
    learner = mr.ER(model, memory=mr.Reservoir(9), k=3, engine=engine)
    xs, ys, _ = examples()
    learner.observe(xs[0], ys[0])
    learner.observe_many(xs, ys)
    learner.predict(xs)
    assert [part.training for part in model] == [mode, not mode, mode]


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("convert", [lambda x: x.double(), lambda x: x.double().numpy(), lambda x: x.half().float()])
def test_real_numbers_of_another_size_are_converted(convert: Callable[[torch.Tensor], Array], single: bool) -> None:
    xs, ys = torch.linspace(-1, 1, 120).reshape(20, INPUTS).half().float(), torch.arange(20) % CLASSES
    learner, other = (mr.MER(mlp(), memory=mr.Reservoir(9), s=2, k=4) for _ in range(2))
    for one, given in ((learner, convert), (other, lambda x: x)):
        one.observe_many(xs[:5], ys[:5])
        if single:
            for number in range(5, 20):
                one.observe(given(xs[number]), int(ys[number]))
        else:
            one.observe_many(given(xs[5:]), ys[5:])
    assert_same_state(state(learner), state(other))
    assert torch.equal(learner.predict(convert(xs)), other.predict(xs))


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("dtype", [np.int64, np.int16])
def test_integers_in_a_table_of_numbers_are_numbers(dtype: type, single: bool) -> None:
    xs: NDArray[Any] = (np.arange(60).reshape(10, INPUTS) % 7).astype(dtype)
    ys = np.arange(10) % CLASSES
    learner, other = (mr.MER(mlp(), memory=mr.Reservoir(9), s=2, k=4) for _ in range(2))
    if single:
        for x, y in zip(xs, ys, strict=True):
            learner.observe(x, int(y))
    else:
        learner.observe_many(xs, ys)
    other.observe_many(xs.astype(np.float32), ys)
    assert_same_state(state(learner), state(other))
    assert torch.equal(learner.predict(xs), other.predict(xs.astype(np.float32)))


def test_integers_stay_integers_for_a_model_that_looks_them_up() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(4 * INPUTS, CLASSES))
    learner = mr.Online(model)
    xs = torch.arange(60).reshape(10, INPUTS) % 7
    learner.observe_many(xs, torch.arange(10) % CLASSES)
    learner.observe(xs[0].int(), 1)
    assert learner.table is not None
    assert learner.table.gather(torch.tensor([0]))["x"].dtype == torch.int64


def test_bytes_and_real_numbers_are_not_mixed() -> None:
    learner = mr.Online(mlp())
    learner.observe(torch.rand(INPUTS), 1)
    with pytest.raises(mr.InputError, match="earlier ones had"):
        learner.observe(torch.zeros(INPUTS, dtype=torch.uint8), 1)
    with pytest.raises(mr.InputError, match="not finite"):
        learner.observe(torch.full((INPUTS,), 1e300, dtype=torch.float64), 1)
    assert learner.seen == 1


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_single_rows_can_be_predicted(engine: EngineName) -> None:
    learner = mr.MER(mlp(), memory=mr.Reservoir(9), s=2, k=4, engine=engine)
    xs, ys, _ = examples()
    learner.observe_many(xs, ys)
    label, outputs = learner.predict(xs[3]), learner.outputs(xs[3].numpy())
    assert label.shape == ()
    assert label == learner.predict(xs)[3]
    torch.testing.assert_close(outputs, learner.outputs(xs)[3])


def test_inputs_that_numpy_does_not_have_are_learned_in_the_usual_way() -> None:
    learner = mr.MER(mlp(), memory=mr.Reservoir(9), s=2, k=4)
    xs, ys, _ = examples()
    for x, y in zip(xs.bfloat16(), ys, strict=True):
        learner.observe(x, y)
    assert learner.predict(xs[3].bfloat16()).shape == ()


def test_layers_without_a_size_are_refused_with_a_remedy() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, CLASSES))
    with pytest.raises(mr.InputError, match=r"0\.weight has no size yet .*call the model with a batch of inputs"):
        mr.Online(model)
    model(torch.rand(2, INPUTS))
    mr.Online(model).observe(torch.rand(INPUTS), 1)


def test_batch_norm_is_refused_with_a_reason_and_a_remedy() -> None:
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    learner = mr.Online(model)
    with pytest.raises(mr.InputError, match=r"one at a time: use LayerNorm or GroupNorm, or .* layer\.eval\(\)"):
        learner.observe(torch.rand(INPUTS), 1)
    model[1].eval()
    learner.observe(torch.rand(INPUTS), 1)
    assert learner.seen == 1
    assert not model[1].training


class Full(nn.Linear):
    """A layer for which a GPU has no room while `is_full`."""

    is_full = False

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        if self.is_full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super().forward(xs.float())


@pytest.mark.parametrize("x", [torch.rand(4), torch.tensor([2**30 + 1, 2, 3, 4])], ids=["real", "integers"])
def test_a_gpu_that_is_full_says_nothing_about_what_a_model_takes(x: torch.Tensor) -> None:
    model = Full(4, 4)
    learner = mr.ER(model, memory=mr.Reservoir(3), lr=0.1, k=2, engine="torch")
    model.is_full = True
    with pytest.raises(torch.cuda.OutOfMemoryError):
        learner.predict(x)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        learner.observe(x, 1)
    model.is_full = False
    learner.observe(x, 1)
    assert learner.memory.held()["x"].dtype == x.dtype
    assert learner.predict(x).dim() == 0
