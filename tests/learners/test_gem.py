import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

import metareplay as mr
from metareplay._core.weights import Weights
from metareplay.engines.torch_engine import FlatGradients
from metareplay.learners.gem import project

Reals = NDArray[np.float64]


def projected(g: Tensor, rows: Tensor, strength: float = 0.0) -> Tensor:
    """GEM's step direction, from a gradient and the constraints."""
    both = torch.cat([g[None], rows])
    shares = project(FlatGradients(Weights(torch.nn.Linear(1, 1)), both).products(), strength)
    return (shares @ both.double()).to(g.dtype)


def by_general_solver(g: Reals, rows: Reals, strength: float) -> Reals:
    """GEM's dual program as printed, by SciPy's general-purpose SLSQP: min v'GG'v / 2 + g'G'v, v >= strength."""
    gram, linear = rows @ rows.T, rows @ g

    def objective(v: Reals) -> float:
        return float(v @ gram @ v / 2 + linear @ v)

    def slope(v: Reals) -> Reals:
        return gram @ v + linear

    solution = minimize(
        objective,
        np.full(len(rows), strength + 1.0),
        jac=slope,
        bounds=[(strength, None)] * len(rows),
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    return g + rows.T @ solution.x


def random_case(seed: int, tasks: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(size, generator=generator, dtype=torch.float64)
    rows = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    rows[0] *= -torch.sign(rows[0] @ g)  # at least one constraint is violated
    return g, rows


@given(
    seed=st.integers(0, 10**6), tasks=st.integers(1, 8), size=st.integers(2, 20), strength=st.sampled_from([0.0, 0.5])
)
def test_equals_a_general_solver(seed: int, tasks: int, size: int, strength: float) -> None:
    g, rows = random_case(seed, tasks, size)
    ours = projected(g, rows, strength).numpy()
    np.testing.assert_allclose(ours, by_general_solver(g.numpy(), rows.numpy(), strength), atol=2e-5)


def exhaustive(g: Tensor, rows: Tensor) -> Tensor:
    """The closest feasible vector, by trying every set of active constraints."""
    best, found = torch.inf, g
    for active in itertools.chain.from_iterable(
        itertools.combinations(range(len(rows)), n) for n in range(len(rows) + 1)
    ):
        chosen = rows[list(active)]
        candidate = g - chosen.T @ torch.linalg.pinv(chosen.T) @ g if active else g
        if (rows @ candidate).min() > -1e-9 and (distance := (candidate - g).norm()) < best:
            best, found = distance, candidate
    return found


@given(seed=st.integers(0, 10**6), tasks=st.integers(1, 5), size=st.integers(2, 9))
def test_is_the_closest_vector_that_satisfies_the_constraints(seed: int, tasks: int, size: int) -> None:
    g, rows = random_case(seed, tasks, size)
    found = projected(g, rows)
    assert (rows @ found).min() > -1e-9 * rows.norm() * g.norm()
    torch.testing.assert_close(found, exhaustive(g, rows), rtol=1e-6, atol=1e-8)


def test_a_gradient_that_violates_nothing_is_left_alone() -> None:
    g = torch.tensor([1.0, 2.0])
    assert torch.equal(projected(g, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), strength=0.5), g)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_survives_degenerate_constraints(scale: float, dtype: torch.dtype, strength: float) -> None:
    g, rows = random_case(0, 4, 30)
    base = rows[:1]
    awkward = torch.cat([base, base, -base * 1e-3, torch.zeros_like(base), base + 1e-9 * rows[1:2], rows, rows * 1e6])
    g, awkward = (g * scale).to(dtype), (awkward * scale).to(dtype)
    found = projected(g, awkward, strength)
    assert torch.isfinite(found).all()
    unit = torch.nn.functional.normalize(awkward.double() / scale, dim=1)
    if strength == 0:
        slack = 1e-4 if dtype == torch.float32 else 1e-7
        assert (unit @ (found.double() / scale)).min() > -slack


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_gradients_that_are_not_finite_give_nan(bad: float) -> None:
    g, rows = random_case(0, 2, 5)
    g[0] = bad
    assert torch.isnan(projected(g, rows)).all()
    g, rows = random_case(0, 2, 5)
    rows[0, 0] = bad
    assert torch.isnan(projected(g, rows)).all()


def test_only_zero_gradients_in_memory() -> None:
    g = torch.tensor([1.0, -2.0])
    assert torch.equal(projected(g, torch.zeros(3, 2)), g)


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_gem_equals_a_literal_transcription(strength: float) -> None:
    """Algorithm 1 of Lopez-Paz and Ranzato, one example at a time, with lists for memories."""
    generator = torch.Generator().manual_seed(1)
    xs = torch.rand(40, 5, generator=generator, dtype=torch.float64)
    ys = torch.randint(3, (40,), generator=generator)
    tasks = torch.arange(40) // 10
    net = mr.networks.mlp(5, (6,), 3, seed=2).double()
    learner = mr.GEM(
        mr.networks.mlp(5, (6,), 3, seed=2).double(), memory=mr.Ring(12, tasks=4), lr=0.3, strength=strength
    )
    learner.observe_many(xs, ys, tasks)

    def gradient(chosen: list[int]) -> Tensor:
        loss = functional.cross_entropy(net(xs[chosen]), ys[chosen])
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(net.parameters()))])

    memory: list[list[int]] = [[] for _ in range(4)]
    violated = 0
    for i in range(40):
        task = int(tasks[i])
        memory[task] = [*memory[task], i][-3:]
        g = gradient([i])
        if task:
            rows = torch.stack([gradient(memory[past]) for past in range(task)])
            if (rows @ g < 0).any():
                violated += 1
                g = torch.from_numpy(by_general_solver(g.numpy(), rows.numpy(), strength))
        with torch.no_grad():
            vector = torch.nn.utils.parameters_to_vector(net.parameters()) - 0.3 * g
            torch.nn.utils.vector_to_parameters(vector, net.parameters())
    assert violated > 5
    ours = torch.nn.utils.parameters_to_vector(learner.model.parameters())
    theirs = torch.nn.utils.parameters_to_vector(net.parameters())
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gem_with_reservoir_has_one_constraint_for_all_that_is_held() -> None:
    memory = mr.Reservoir(6)
    learner = mr.GEM(mr.networks.mlp(5, (6,), 3), memory=memory, lr=0.3)
    generator = torch.Generator().manual_seed(1)
    learner.observe_many(torch.rand(20, 5, generator=generator), torch.randint(3, (20,), generator=generator), 0)
    assert [sorted(group.tolist()) for group in memory.groups(task=0)] == [list(range(6))]


@pytest.mark.parametrize("strength", [-0.1, torch.inf, torch.nan])
def test_strength_out_of_range(strength: float) -> None:
    with pytest.raises(mr.InputError, match="strength"):
        mr.GEM(mr.networks.mlp(5, (6,), 3), memory=mr.Reservoir(3), strength=strength)
