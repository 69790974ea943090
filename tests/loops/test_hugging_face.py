"""PeriodicMER in transformers' Trainer and in a loop with Accelerate: the same weights as in a plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metareplay as mr
from metareplay.errors import CheckpointError, InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # what is imported here warns of many things
transformers = pytest.importorskip("transformers", exc_type=ImportError)
accelerate = pytest.importorskip("accelerate", exc_type=ImportError)


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def rows(count: int = 48) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(32, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in made]


def trainer(folder: Path, memory: mr.Memory, accumulation: int = 1, **others: Any) -> tuple[Any, Any]:
    from metareplay.loops.hugging_face import add_mer

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        weight_decay=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **({"save_strategy": "no"} | others),
    )
    made = transformers.Trainer(model=llama(), args=arguments, train_dataset=rows())
    made._get_train_sampler = lambda *_: None  # in order
    return made, add_mer(made, lambda model: mr.PeriodicMER(model, memory=memory, share=0.5, every=3, rate=0.3, seed=2))


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_does_what_a_plain_loop_does(accumulation: int, tmp_path: Path) -> None:
    ours, callback = trainer(tmp_path, mr.Reservoir(20), accumulation)
    with pytest.raises(InputError, match="training has not begun"):
        _ = callback.mer
    ours.train()
    assert (callback.mer.steps, callback.mer.new_rows, callback.mer.replayed_rows) == (12 // accumulation, 48, 44)

    model = llama()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    mer = mr.PeriodicMER(model, memory=mr.Reservoir(20), share=0.5, every=3, rate=0.3, seed=2)
    given = torch.stack([row["input_ids"] for row in rows()]).split(4 * accumulation)
    for several in given:
        mixed = [mer.mix({"input_ids": batch, "labels": batch}) for batch in several.split(4)]
        count = sum(len(batch["labels"]) for batch in mixed)
        for batch in mixed:
            (model(**batch).loss * len(batch["labels"]) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        mer.step()
    for one, other in zip(weights(ours.model), weights(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("folder", ["b", "another"])
def test_the_trainer_goes_on_from_a_checkpoint(folder: str, tmp_path: Path) -> None:
    unbroken, _ = trainer(tmp_path / "a", mr.DiskReservoir(tmp_path / "replay-a", 20))
    unbroken.train()
    memory = mr.DiskReservoir(tmp_path / "replay-b", 20)
    broken, _ = trainer(tmp_path / "b", memory, save_strategy="steps", save_steps=5, max_steps=7)
    broken.train()
    memory.close()
    again, callback = trainer(tmp_path / folder, mr.DiskReservoir(tmp_path / "replay-b"))
    again.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-5"))
    assert callback.mer.steps == 12
    assert all(map(torch.equal, weights(again.model), weights(unbroken.model)))
    (tmp_path / "b" / "checkpoint-5" / "metareplay-00000.pt").unlink()
    without, _ = trainer(tmp_path / "b", mr.Reservoir(20))
    with pytest.raises(CheckpointError, match="is missing: go on from a checkpoint that was saved with this callback"):
        without.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-5"))


def test_a_loop_with_accelerate() -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    given: Any = rows()
    loader: Any = torch.utils.data.DataLoader(given, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    mer = mr.PeriodicMER(model, memory=mr.Reservoir(20), share=0.5, every=3, rate=0.3)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**mer.mix(batch)).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            mer.step()
    assert (mer.steps, mer.replayed_rows) == (6, 44)

    plain = llama()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    mer = mr.PeriodicMER(plain, memory=mr.Reservoir(20), share=0.5, every=3, rate=0.3)
    batches = torch.stack([row["input_ids"] for row in rows()]).split(4)
    for number, batch in enumerate(batches, 1):
        (plain(**mer.mix({"input_ids": batch, "labels": batch})).loss / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
            mer.step()
    for one, other in zip(weights(model), weights(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
