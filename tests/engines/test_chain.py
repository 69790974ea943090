from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import metareplay as mr
from metareplay.engines.chain import Chain, LossKind, dot_products
from metareplay.engines.objective import Loss
from metareplay.experiments.alignment import flat_gradients

LOSSES: dict[LossKind, Loss] = {
    LossKind.CROSS_ENTROPY: functional.cross_entropy,
    LossKind.SQUARED_ERROR: functional.mse_loss,
    LossKind.HUBER: functional.huber_loss,
}


def targets(kind: LossKind, count: int, outputs: int, generator: torch.Generator) -> Tensor:
    if kind is LossKind.CROSS_ENTROPY:
        return torch.randint(outputs, (count,), generator=generator)
    return 3 * torch.randn(count, outputs, dtype=torch.float64, generator=generator)


@given(
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    kind=st.sampled_from(LossKind),
    count=st.integers(2, 6),
    seed=st.integers(0, 100),
)
def test_products_without_gradients_are_products_of_gradients(
    widths: list[int], kind: LossKind, count: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs, *hidden, outputs = widths
    net: Any = mr.networks.mlp(inputs, hidden, outputs, seed=seed).double()
    chain = Chain.of(net)
    assert chain is not None
    xs = torch.randn(count, inputs, dtype=torch.float64, generator=generator)
    ys = targets(kind, count, outputs, generator)
    factors = chain.factors(xs, ys, kind)
    found = dot_products(factors, factors)
    assert not found.requires_grad
    tasks = torch.zeros(count, dtype=torch.int64)
    flat = flat_gradients(net, LOSSES[kind], xs, ys, tasks)
    torch.testing.assert_close(found, flat @ flat[0], rtol=1e-10, atol=1e-10)
