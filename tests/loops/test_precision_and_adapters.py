"""PeriodicMER against its literal transcription where weights are bfloat16, autocast, accumulated or mostly frozen."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from periodic_transcription import OPTIMIZERS, Transcription, batches, learn, network, weights
from torch import Tensor, nn

import metareplay as mr


class Lora(nn.Module):
    """A linear layer whose weights are frozen, with a pair of small matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        options: Any = {"dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **options) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **options))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


def adapted(dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network with an adapter on each layer."""
    model: Any = network(dtype)
    model[0], model[2] = Lora(model[0]), Lora(model[2])
    return model  # type: ignore[no-any-return]


def held_against_the_transcription(
    ours: nn.Module, theirs: nn.Module, folder: Path, name: str, parts: int, autocast: bool = False
) -> list[str]:
    """Train two equal models, one with PeriodicMER and one with its transcription; return which weights it copies."""
    dtype = next(ours.parameters()).dtype
    memory = mr.DiskReservoir(folder / "replay", 20)
    mer = mr.PeriodicMER(ours, memory=memory, share=0.4, every=3, rate=0.3, seed=7)
    literal = Transcription(theirs, capacity=20, share=0.4, every=3, rate=0.3, seed=7)
    trained = [[one for one in model.parameters() if one.requires_grad] for model in (ours, theirs)]
    optimizers = [OPTIMIZERS[name](parameters) for parameters in trained]
    methods: list[Any] = [mer, literal]
    for batch in batches(14, dtype):
        for model, method, optimizer in zip((ours, theirs), methods, optimizers, strict=True):
            mixed = method.mix(batch)
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                learn(model, mixed, parts)
            optimizer.step()
            optimizer.zero_grad()
            method.step()
    assert mer.replayed_rows == 13 * 4
    copied = list(mer.state_dict()["before"])
    memory.close()
    return copied


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.bfloat16, False), (torch.float32, True), (torch.float32, False)]
)
def test_low_precision_is_the_transcription(
    dtype: torch.dtype, autocast: bool, parts: int, name: str, tmp_path: Path
) -> None:
    """bfloat16 weights are equal bit for bit; a float32 line may be rounded once more by hand."""
    ours, theirs, start = network(dtype), network(dtype), network(dtype)
    held_against_the_transcription(ours, theirs, tmp_path, name, parts, autocast)
    for one, other, first in zip(weights(ours), weights(theirs), weights(start), strict=True):
        assert one.dtype == dtype
        if dtype == torch.bfloat16:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=2e-4 if autocast else 1e-6)
        assert (one - first).abs().max() > 0.01  # it has learned something


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 2])
def test_an_adapter_is_the_transcription(name: str, parts: int, tmp_path: Path) -> None:
    """The frozen weights are neither copied nor moved; the small matrices are trained as by hand."""
    ours, theirs = adapted(), adapted()
    copied = held_against_the_transcription(ours, theirs, tmp_path, name, parts)
    assert copied == ["0.down", "0.up", "2.down", "2.up"]
    before = dict(adapted().named_parameters())
    for (key, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert torch.equal(one, before[key]) == ("base" in key)


@pytest.mark.filterwarnings("ignore")  # what is imported here warns of many things
def test_peft_is_an_adapter_like_ours(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", exc_type=ImportError)

    def model() -> Any:
        torch.manual_seed(1)
        return peft.get_peft_model(network(), peft.LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.0))

    ours, theirs, before = model(), model(), dict(model().named_parameters())
    copied = held_against_the_transcription(ours, theirs, tmp_path, "AdamW", parts=2)
    assert len(copied) == 4
    assert all("lora_" in key for key in copied)
    for (key, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert torch.equal(one, before[key]) == ("lora_" not in key)
