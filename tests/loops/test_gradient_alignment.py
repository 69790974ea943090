"""Gradients of new and replayed rows: against a literal computation, and without any effect on training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import metareplay as mr
from metareplay.errors import InputError
from metareplay.loops import gradient_alignment


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        x = torch.rand(6, 4, generator=generator, dtype=torch.float64)
        yield x, torch.randint(3, (6,), generator=generator)


def test_it_is_the_literal_computation() -> None:
    model = network().eval()
    model[0].requires_grad_(False)  # type: ignore[index]
    mer = mr.PeriodicMER(model, memory=mr.Reservoir(20), share=0.4, seed=1)
    first, second = batches(2)
    mer.mix(first)
    x, y = mer.mix(second)
    assert len(x) == 10
    found = mer.alignment((x, y), lambda rows: functional.cross_entropy(model(rows[0]), rows[1]))
    assert found is not None
    gradients = []
    for rows in (slice(6), slice(6, 10)):
        model.zero_grad()
        for one, label in zip(x[rows], y[rows], strict=True):
            (functional.cross_entropy(model(one[None]), label[None]) / len(x[rows])).backward()
        parts = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        gradients.append([value for part in parts for value in part.flatten().tolist()])
    dot = sum(a * b for a, b in zip(*gradients, strict=True))
    lengths = [sum(a * a for a in gradient) ** 0.5 for gradient in gradients]
    assert found.dot == pytest.approx(dot, rel=1e-9)
    assert found.cosine == pytest.approx(dot / (lengths[0] * lengths[1]), rel=1e-9)
    assert abs(found.cosine) < 0.999


def test_the_sign_says_whether_a_step_helps() -> None:
    """The same rows agree perfectly; with opposite targets, they disagree perfectly."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)

    def loss_of(rows: Any) -> Tensor:
        return functional.mse_loss(model(rows["x"]), rows["y"])

    x, y = torch.ones(2, 1).double(), torch.ones(2, 1).double()
    same = gradient_alignment(model, loss_of, {"x": x, "y": y}, {"x": x, "y": y})
    assert (same.dot, same.cosine) == (4.0, 1.0)
    other = gradient_alignment(model, loss_of, {"x": x, "y": y}, {"x": x, "y": -y})
    assert (other.dot, other.cosine) == (-4.0, -1.0)
    none = gradient_alignment(model, loss_of, {"x": x, "y": y}, {"x": x, "y": 0 * y})
    assert (none.dot, none.cosine) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_training_goes_on_as_if_nothing_had_been_measured(dtype: torch.dtype) -> None:
    """Dropout's draws, running means, accumulated gradients and modes stay as they are."""

    def trained(measures: bool) -> list[Tensor]:
        model = network().to(dtype)
        model[2].eval()  # type: ignore[index]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        mer = mr.PeriodicMER(model, memory=mr.Reservoir(20), share=0.4, every=3, rate=0.3)

        def loss_of(rows: Any) -> Tensor:
            return functional.cross_entropy(functional.dropout(model(rows[0].to(dtype)), 0.1).float(), rows[1])

        for number, batch in enumerate(batches(8)):
            mixed = mer.mix(batch)
            if measures:
                assert (mer.alignment(mixed, loss_of) is None) == (number == 0)  # the memory was empty
                assert [part.training for part in model.children()] == [True, True, False, True, True]
            loss_of(mixed).backward()
            if measures:
                mer.alignment(mixed, loss_of)  # also while gradients are accumulated
            optimizer.step()
            optimizer.zero_grad()
            mer.step()
        return [*model.state_dict().values(), torch.get_rng_state()]

    torch.manual_seed(0)
    plain = trained(measures=False)
    torch.manual_seed(0)
    assert all(map(torch.equal, plain, trained(measures=True)))


def test_bad_input_is_told_in_one_line() -> None:
    model = nn.Linear(4, 3)
    mer = mr.PeriodicMER(model, memory=mr.Reservoir(5), share=0.5)
    with pytest.raises(InputError, match="call mix first, and give that"):
        mer.alignment(torch.zeros(3, 4), lambda rows: model(rows).mean())
    mer.mix(torch.zeros(3, 4))
    batch = mer.mix(torch.zeros(3, 4))
    with pytest.raises(InputError, match="alignment looks at the batch that the latest mix returned"):
        mer.alignment(batch[:3], lambda rows: model(rows).mean())
    for bad in (lambda rows: model(rows), lambda rows: model(rows).mean().item(), lambda rows: rows.mean()):
        with pytest.raises(InputError, match=r"loss_of must return the mean loss of its rows: one number"):
            mer.alignment(batch, bad)
    with pytest.raises(InputError, match=r"loss_of=3: use a function"):
        mer.alignment(batch, 3)  # type: ignore[arg-type]


def test_wrapped_models_are_measured_inside_or_refused(tmp_path: Path) -> None:
    """DDP counts backward passes, so calling the wrapped model would break the next step: this is told at once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(4, 3))
        rows = torch.rand(2, 4)
        found = gradient_alignment(model, lambda rows: model.module(rows).square().mean(), rows, rows)
        assert found.cosine == pytest.approx(1)
        with pytest.raises(InputError, match=r"loss_of calls the model that DDP has wrapped: let it call model.module"):
            gradient_alignment(model, lambda rows: model(rows).square().mean(), rows, rows)
        for _ in range(2):
            model(rows).square().mean().backward()
        sharded = nn.Linear(4, 3)
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(InputError, match=r"the weights are sharded, .*: use DDP, or one process"):
            gradient_alignment(sharded, lambda rows: sharded(rows).square().mean(), rows, rows)
    finally:
        distributed.destroy_process_group()
