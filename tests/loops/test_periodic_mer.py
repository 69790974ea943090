"""PeriodicMER against literal transcriptions: what is learned, what is replayed, and that resuming is exact."""

import copy
import random
from collections import OrderedDict, UserDict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from periodic_transcription import OPTIMIZERS, Transcription, batches, learn, network, weights
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import metareplay as mr
from metareplay.errors import DiskError, InputError
from metareplay.loops import ReptileLine
from torture.disturbance import AtLine, Disturbance, OutOfMemory, OutOfMemoryOnce
from torture.loops import works


def train(
    mer: mr.PeriodicMER | None, model: nn.Module, optimizer: torch.optim.Optimizer, given: Any, parts: int = 1
) -> None:
    for batch in given:
        learn(model, mer.mix(batch) if mer else batch, parts)
        optimizer.step()
        optimizer.zero_grad()
        if mer:
            mer.step()


def memory_of(kind: str, folder: Path, capacity: int = 20) -> mr.Memory:
    return mr.DiskReservoir(folder / "replay", capacity) if kind == "disk" else mr.Reservoir(capacity)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_it_is_the_transcription(name: str, parts: int, kind: str, tmp_path: Path) -> None:
    ours, theirs = network(), network()
    mer = mr.PeriodicMER(ours, memory=memory_of(kind, tmp_path), share=0.4, every=3, rate=0.3, seed=7)
    literal = Transcription(theirs, capacity=20, share=0.4, every=3, rate=0.3, seed=7)
    train(mer, ours, OPTIMIZERS[name](ours.parameters()), batches(17), parts)
    optimizer = OPTIMIZERS[name](theirs.parameters())
    for batch in batches(17):
        learn(theirs, literal.mix(batch), parts)
        optimizer.step()
        optimizer.zero_grad()
        literal.step()
    assert mer.new_rows == 17 * 6
    assert mer.replayed_rows == 16 * 4
    for one, other in zip(weights(ours), weights(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    plain = network()
    train(None, plain, OPTIMIZERS[name](plain.parameters()), batches(17), parts)
    assert not torch.allclose(weights(plain)[0], weights(ours)[0], atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_replay_and_line_it_is_plain_training(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    ours, plain = network(dtype), network(dtype)
    mer = mr.PeriodicMER(ours, memory=memory_of("disk", tmp_path), share=0, every=2, rate=1.0)
    train(mer, ours, OPTIMIZERS[name](ours.parameters()), batches(10, dtype))
    train(None, plain, OPTIMIZERS[name](plain.parameters()), batches(10, dtype))
    assert all(map(torch.equal, weights(ours), weights(plain)))


@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_resuming_is_exact(kind: str, tmp_path: Path) -> None:
    """Also in the middle between two lines, with a file in between, and after more was learned than was saved."""
    unbroken = network()
    options: Any = {"share": 0.35, "every": 4, "rate": 0.2, "seed": 1}
    mer = mr.PeriodicMER(unbroken, memory=memory_of(kind, tmp_path / "a"), **options)
    train(mer, unbroken, OPTIMIZERS["AdamW"](unbroken.parameters()), batches(20))

    model = network()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    memory = memory_of(kind, tmp_path / "b")
    mer, given = mr.PeriodicMER(model, memory=memory, **options), list(batches(20))
    train(mer, model, optimizer, given[:10])
    file = tmp_path / "state.pt"
    torch.save({"mer": mer.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(mer, model, optimizer, given[10:13])
    if isinstance(memory, mr.DiskReservoir):
        memory.close()

    state = torch.load(file, weights_only=True)
    model = network()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    mer = mr.PeriodicMER(model, memory=memory_of(kind, tmp_path / "b"), **options)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    mer.load_state_dict(state["mer"])
    assert mer.steps == 10
    train(mer, model, optimizer, given[10:])
    assert all(map(torch.equal, weights(model), weights(unbroken)))


def test_only_what_is_trained_moves() -> None:
    """As with adapters: the frozen part neither moves nor is copied; what is unfrozen later takes part from then on."""
    model = network()
    first, last = model[0], model[2]  # type: ignore[index]
    first.requires_grad_(False)
    mer = mr.PeriodicMER(model, memory=None, every=1, rate=0.25)
    assert list(mer.state_dict()["before"]) == ["2.weight", "2.bias"]
    frozen, before = first.weight.clone(), last.weight.detach().clone()
    with torch.no_grad():
        last.weight += 1
        first.weight += 1  # not by training
    mer.step()
    torch.testing.assert_close(last.weight.detach(), before + 0.25)
    assert torch.equal(first.weight, frozen + 1)
    first.requires_grad_(True)
    mer.step()
    with torch.no_grad():
        first.weight += 1
    mer.step()
    torch.testing.assert_close(first.weight.detach(), frozen + 1.25)


@pytest.mark.parametrize("copy_on", ["device", "host"])
def test_nothing_moves_if_there_is_no_memory_for_what_was_unfrozen(copy_on: Any) -> None:
    def unfrozen() -> tuple[mr.PeriodicMER, nn.Module]:
        model = network()
        model[2].requires_grad_(False)  # type: ignore[index]
        mer = mr.PeriodicMER(model, memory=None, every=1, rate=0.5, copy_on=copy_on)
        model.requires_grad_(True)
        with torch.no_grad():
            for theta in model.parameters():
                theta.add_(1)
        return mer, model

    whole = OutOfMemoryOnce()
    whole.during(unfrozen()[0].step)
    assert whole.count >= 2  # the copies of a weight and of a bias
    for number in range(whole.count):
        mer, model = unfrozen()
        before = weights(model)
        assert OutOfMemoryOnce(number).during(mer.step) is None
        assert mer.steps == 0
        assert all(map(torch.equal, weights(model), before))
        mer.step()
        assert list(mer.state_dict()["before"]) == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_copy_on_the_host_gives_the_same_weights(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metareplay.loops.reptile_line.LEAST_PIECE", 5)
    models = [network(dtype), network(dtype)]
    mers = [
        mr.PeriodicMER(models[0], memory=None, every=1, rate=0.3, copy_on="device"),
        mr.PeriodicMER(models[1], memory=None, every=1, rate=0.3, copy_on="host"),
    ]
    for _ in range(3):
        change = torch.rand(8, 4)
        for model, mer in zip(models, mers, strict=True):
            with torch.no_grad():
                model[0].weight += change.to(dtype)  # type: ignore[index]
            mer.step()
    assert all(map(torch.equal, weights(models[0]), weights(models[1])))
    assert {one.dtype for one in weights(models[0])} == {dtype}


def test_bfloat16_is_rounded_once() -> None:
    """The line is computed in higher precision: the result is the bfloat16 number that is nearest to the true one."""
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    before = model.weight.detach().clone()
    mer = mr.PeriodicMER(model, memory=None, every=1, rate=0.1)
    with torch.no_grad():
        model.weight += torch.randn(64, 64).to(torch.bfloat16) * 0.1
    after = model.weight.detach().clone()
    mer.step()
    true = before.double() + 0.1 * (after.double() - before.double())
    assert torch.equal(model.weight.detach(), true.to(torch.bfloat16))


@given(st.integers(1, 9), st.sampled_from([0.1, 0.2, 0.25, 1 / 3, 0.5, 0.75, 0.9]), st.integers(2, 12))
def test_the_share_is_exact_over_time(rows: int, share: float, count: int) -> None:
    mer = mr.PeriodicMER(nn.Linear(1, 1), memory=mr.Reservoir(5), share=share)
    mer.mix(torch.zeros(rows, 1))
    sizes = [len(mer.mix(torch.zeros(rows, 1))) for _ in range(count)]
    assert sum(sizes) == int(round(rows * count / (1 - share), 6))
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("share", [1e-6, 0.99999])
def test_a_share_near_an_end_is_exact_too(share: float) -> None:
    mer = mr.PeriodicMER(nn.Linear(1, 1), memory=mr.Reservoir(5), share=share)
    rows = 300_000 if share < 0.5 else 1
    mer.mix(torch.zeros(rows, 1))
    sizes = [len(mer.mix(torch.zeros(rows, 1))) for _ in range(4)]
    assert sum(sizes) == int(4 * rows / (1 - share) + 1e-6)
    assert sum(sizes) > 4 * rows


class Pair(NamedTuple):
    """A batch as some loaders make it."""

    x: Tensor
    y: Tensor


def found_by(mer: mr.PeriodicMER, batch: Any) -> list[type]:
    """Return the classes of the two batches whose gradients are compared."""
    found = list[type]()

    def loss_of(rows: Any) -> Tensor:
        found.append(type(rows))
        return torch.zeros(1, requires_grad=True)

    mer.alignment(batch, loss_of)
    return found


def test_classes_and_names_of_batches_stay_as_they_are() -> None:
    """Such as a tokenizer's BatchEncoding, which is a UserDict with a method `to`."""
    x, y = torch.rand(4, 2), torch.arange(4)
    given: list[Any] = [Pair(x, y), UserDict(x=x, y=y), OrderedDict(x=x, y=y), {0: x, 1: y}, MappingProxyType({"x": x})]
    for batch in given:
        mer = mr.PeriodicMER(nn.Linear(2, 2), memory=mr.Reservoir(9), share=0.5)
        mer.mix(batch)
        mixed: Any = mer.mix(batch)
        wanted: Any = dict if isinstance(batch, MappingProxyType) else type(batch)
        assert type(mixed) is wanted
        assert len(batch[0] if isinstance(batch, Pair) else next(iter(batch.values()))) == 4
        if isinstance(batch, Pair):
            torch.testing.assert_close(mixed.x, x[mixed.y])
        else:
            assert list(mixed) == list(batch)
            assert {len(part) for part in mixed.values()} == {8}
        assert found_by(mer, mixed) == [type(mixed)] * 2


@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_every_kind_of_batch_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    x, y = torch.rand(4, 2), torch.arange(4)
    given: list[Any] = [{"x": x, "y": y}, (x, y), [x, y], x, x.numpy()]
    for number, batch in enumerate(given):
        mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of(kind, tmp_path / str(number)), share=0.5)
        assert mer.mix(batch) is batch  # nothing is held yet
        mixed = mer.mix(batch)
        assert isinstance(mixed, Tensor if isinstance(batch, np.ndarray) else type(batch))
        parts = mixed.values() if isinstance(mixed, dict) else [mixed] if isinstance(mixed, Tensor) else mixed
        assert [len(part) for part in parts] == [8] * len(parts)
        if isinstance(mixed, dict):
            assert mixed["y"][:4].equal(y)
            torch.testing.assert_close(mixed["x"], x[mixed["y"]])  # rows stay whole


def test_a_seed_decides_everything() -> None:
    def replayed(seed: int) -> list[int]:
        mer = mr.PeriodicMER(nn.Linear(1, 1), memory=mr.Reservoir(30), share=0.5, seed=seed)
        return [int(row) for i in range(9) for row in mer.mix(torch.arange(10 * i, 10 * i + 10))]

    assert replayed(0) == replayed(0)
    assert replayed(0) != replayed(1)


def test_bad_input_is_told_in_one_line(tmp_path: Path) -> None:
    model, memory = nn.Linear(2, 2), mr.Reservoir(5)
    for options, message in (
        ({"share": 1.0}, "share=1.0: some rows of each batch must be new; use 0 <= share < 1"),
        ({"share": -0.1}, "share=-0.1: some rows"),
        ({"every": 0}, "every=0: a Reptile line comes after one step at least"),
        ({"rate": 0.0}, "rate=0.0: a Reptile rate"),
        ({"copy_on": "disk"}, "copy_on='disk': use 'device' or 'host'"),
        ({"memory": 5}, "memory is an int: use a memory"),
        ({"memory": None, "share": 0.5}, "share=0.5 needs rows to replay: give a memory, or share=0"),
        ({"memory": mr.Balanced(5)}, "memory is a Balanced, which looks at labels or tasks"),
    ):
        with pytest.raises(InputError, match="^" + message.replace("(", r"\(")):
            mr.PeriodicMER(**({"model": model, "memory": memory} | options))  # type: ignore[arg-type]
    for kind in ("ram", "disk"):
        mer = mr.PeriodicMER(model, memory=memory_of(kind, tmp_path), share=0.5)
        with pytest.raises(InputError, match="must have one length, and these have: 0 3, 1 2"):
            mer.mix((torch.zeros(3, 2), torch.zeros(2)))
        mer.mix({"tokens": torch.zeros(3, 8)})
        with pytest.raises(InputError, match=r"these rows have tokens float32 .7,.*give rows of that form"):
            mer.mix({"tokens": torch.zeros(3, 7)})
        assert (mer.new_rows, mer.replayed_rows) == (3, 0)
        assert len(mer.mix({"tokens": torch.zeros(3, 8)})["tokens"]) == 6  # nothing was lost
    with pytest.raises(InputError, match="this is no state of PeriodicMER"):
        mer.load_state_dict({"steps": 3})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_parts_whose_rows_cannot_be_copied_are_refused_and_leave_nothing(kind: str, tmp_path: Path) -> None:
    """A memory whose first batch was refused still takes rows of any form."""
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of(kind, tmp_path), share=0.5)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    for batch, message in (
        (torch.eye(3).to_sparse(), "part '0' of a batch is a sparse tensor: give dense ones, padded to one length"),
        ({"x": nested}, "part 'x' of a batch is a nested tensor"),
        (torch.zeros(3, 2, device="meta"), "part '0' of a batch is a meta tensor"),
        (np.zeros(2, ">f8"), "part '0' of a batch has dtype >f8: use numbers that torch knows"),
        ({0: torch.zeros(2), "0": torch.ones(2)}, r"two parts of a batch have the same name .0, '0'.: rename one"),
    ):
        with pytest.raises(InputError, match=message):
            mer.mix(batch)
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    mer.mix({"x": backwards, "y": torch.ones(3, dtype=torch.complex64).conj()})
    assert mer.mix({"x": backwards, "y": torch.ones(3, dtype=torch.complex64)})["x"][:3].tolist() == backwards.tolist()


def test_what_only_a_memory_in_ram_cannot_do_is_told(tmp_path: Path) -> None:
    tokens = torch.ones(3, 4, dtype=torch.uint16)
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of("ram", tmp_path), share=0.5)
    with pytest.raises(InputError, match=r"part '0' of a batch has dtype torch.uint16.*use signed numbers, or a Disk"):
        mer.mix(tokens)
    assert len(mer.mix(tokens.int())) == 3
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of("disk", tmp_path), share=0.5)
    mer.mix(tokens)
    assert mer.mix(tokens).tolist() == [[1] * 4] * 6


@pytest.mark.parametrize("kind", ["disk", "ram"])
def test_a_share_that_asks_for_more_rows_than_there_is_memory_for_is_told(kind: str, tmp_path: Path) -> None:
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of(kind, tmp_path), share=1 - 1e-15)
    mer.mix(torch.zeros(1, 9))
    with pytest.raises(InputError, match=r"^share=0.9+ would need \d+ GiB of memory, and this machine has \d+: use l"):
        mer.mix(torch.zeros(1, 9))
    assert mer.new_rows == 1


def test_a_full_disk_changes_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory_of("disk", tmp_path), share=0.25)
    mer.mix(torch.zeros(4, 2))

    def full(*_: object) -> None:
        raise DiskError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(mr.DiskReservoir, "offer", full)
        with pytest.raises(DiskError, match="the disk is full"):
            mer.mix(torch.zeros(4, 2))
    assert (mer.new_rows, mer.replayed_rows) == (4, 0)
    assert [len(mer.mix(torch.zeros(4, 2))) for _ in range(3)] == [5, 5, 6]  # 4 + 4/3, the rest carried over


def test_after_a_full_disk_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def mixed(folder: Path, fails: bool) -> list[list[int]]:
        with mr.DiskReservoir(folder, 20) as memory:
            mer = mr.PeriodicMER(nn.Linear(2, 2), memory=memory, share=0.5)
            found = []
            for number in range(9):
                batch = torch.arange(5000 * number, 5000 * number + 5000)  # more rows than are moved at a time
                if fails and number in (4, 6):
                    with monkeypatch.context() as patch:
                        patch.setattr("metareplay._core.row_file.os.pwrite", full)
                        found.append(mer.mix(batch).tolist())  # its rows wait to be written
                        with pytest.raises(DiskError, match="No space left"):
                            memory.flush()
                        for _ in range(3):
                            with pytest.raises(DiskError, match="No space left"):
                                mer.mix(batch + 5000)
                else:
                    found.append(mer.mix(batch).tolist())
            return [*found, memory.held()["0"].tolist()]

    assert mixed(tmp_path / "a", fails=False) == mixed(tmp_path / "b", fails=True)


def test_a_memory_in_ram_is_what_it_was(tmp_path: Path) -> None:
    mer = mr.PeriodicMER(nn.Linear(2, 2), memory=mr.Reservoir(5), share=0.5)
    mer.mix(torch.arange(9))
    torch.save(mer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for other, named in ((mr.Reservoir(9), "capacity 9"), (mr.Recent(5), "kind Recent")):
        with pytest.raises(InputError, match=rf"of a memory with .*capacity 5.*one here has .*{named}.*as it was"):
            mr.PeriodicMER(nn.Linear(2, 2), memory=other, share=0.5).load_state_dict(state)
    memory = mr.Reservoir(5)
    mr.PeriodicMER(nn.Linear(2, 2), memory=memory, share=0.5).load_state_dict(state)
    assert (len(memory), memory.seen) == (5, 9)


def test_a_state_that_is_refused_changes_nothing() -> None:
    mer = mr.PeriodicMER(network(), memory=mr.Reservoir(5), share=0.5, rate=0.5)
    mer.mix(torch.arange(9))
    state = copy.deepcopy(mer.state_dict())
    for copied in state["before"].values():
        copied += 1
    memory = mr.Reservoir(9)
    other = mr.PeriodicMER(network(), memory=memory, share=0.5, rate=0.5)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(InputError, match="this state is of a memory with"):
        other.load_state_dict(state)
    assert str(other.state_dict()) == str(before)


@pytest.mark.parametrize(
    "wrong",
    [
        {"filled": torch.tensor([0, 1, 1, 3, 4])},
        {"filled": torch.tensor([0, 1, 2, 3, 5])},
        {"filled": torch.arange(4)},
        {"filled": torch.arange(5.0)},
        {"filled": None},
        {"rows": {}},
        {"rows": None},
        {"seen": 4},
        {"sampled": -1},
        {"settings": None},
    ],
    ids=str,
)
def test_a_memory_s_state_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    mer = mr.PeriodicMER(network(), memory=mr.Reservoir(5), share=0.5, rate=0.5)
    mer.mix(torch.arange(9))
    before = copy.deepcopy(mer.state_dict())
    state = before | {"memory": before["memory"] | wrong}
    with pytest.raises(InputError, match=r"no state of a memory in RAM: give what state_dict\(\) returned"):
        mer.load_state_dict(state)
    assert str(mer.state_dict()) == str(before)


def test_saved_copies_get_their_form_before_they_come_to_the_device() -> None:
    """So that bringing them needs no memory there; the device here is "meta"."""
    here = nn.Conv2d(2, 3, 2, device="meta").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    line, saved = ReptileLine(here, 0.5), nn.Conv2d(2, 3, 2).double()
    found = line.fitting(saved.state_dict())
    assert found["weight"].stride() == here.weight.stride()
    assert {one.dtype for one in found.values()} == {torch.float32}
    assert torch.equal(found["weight"].double(), saved.weight.float().double())


def test_a_first_batch_that_found_no_memory_fixes_no_form() -> None:
    whole = OutOfMemoryOnce()
    whole.during(lambda: mr.PeriodicMER(nn.Linear(2, 2), memory=mr.Reservoir(5)).mix(torch.zeros(3, 4)))
    moments = 0
    for number in range(whole.count):
        mer = mr.PeriodicMER(nn.Linear(2, 2), memory=mr.Reservoir(5), share=0.5)
        OutOfMemoryOnce(number).during(lambda mer=mer: mer.mix(torch.zeros(3, 4)))  # type: ignore[misc]
        if not mer.new_rows:
            moments += 1
            mer.mix({"x": torch.zeros(3, 7)})
    assert moments


@pytest.mark.parametrize("kind", [OutOfMemoryOnce, OutOfMemory, AtLine])
@pytest.mark.parametrize("where", ["in RAM", "on disk"])
@pytest.mark.parametrize("what", [", parts of rows", ": loading"])
def test_nothing_is_half_done(what: str, where: str, kind: type[Disturbance], tmp_path: Path) -> None:
    """Where memory runs out or Ctrl-C comes, with batches that are not contiguous and while a state is loaded."""
    work, whole = dict(works(tmp_path))[f"PeriodicMER {where}{what}"](), kind()
    assert work(whole) is None
    moments = whole.drawn(1000, random.Random(0))
    assert moments or (where, what) == ("on disk", ": loading")  # which takes no memory
    assert not [wrong for number in moments[:: max(1, len(moments) // 20)] if (wrong := work(kind(number)))]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch.compile's own imports
def test_a_wrapped_model_has_the_state_of_the_plain_one(tmp_path: Path) -> None:
    """So that a training of several ranks under DDP can go on in a single process, and a compiled one as it was."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        compiled: Any = torch.compile(network())
        wrapped = [DistributedDataParallel(network()), compiled, DistributedDataParallel(compiled), network()]
        mers = [mr.PeriodicMER(model, memory=None, every=1, rate=0.5) for model in wrapped]
    finally:
        distributed.destroy_process_group()
    names = [name for name, _ in network().named_parameters()]
    for mer in mers:
        state = mer.state_dict()
        assert list(state["before"]) == names
        for other in mers:
            other.load_state_dict(state)
    before = weights(wrapped[0])
    with torch.no_grad():
        next(wrapped[0].parameters()).add_(1)
    mers[0].step()
    torch.testing.assert_close(weights(wrapped[0])[0], before[0] + 0.5)


def test_a_model_that_changed_is_told() -> None:
    model = nn.Linear(2, 2)
    mer = mr.PeriodicMER(model, memory=None, every=1, rate=0.5)
    state = copy.deepcopy(mer.state_dict())
    model.double()
    with pytest.raises(InputError, match=r"weight is now torch.float64.*first, then give it to us"):
        mer.step()
    with pytest.raises(InputError, match=r"weight has shape \(2, 2\) in this state and \(3, 2\) here"):
        mr.PeriodicMER(nn.Linear(2, 3), memory=None, rate=0.5).load_state_dict(state)
    with pytest.raises(InputError, match="bias is in this state, but not trained here"):
        mr.PeriodicMER(nn.Linear(2, 2, bias=False), memory=None, rate=0.5).load_state_dict(state)
    with pytest.raises(InputError, match="saved without a memory: do the same here"):
        mr.PeriodicMER(nn.Linear(2, 2), memory=mr.Reservoir(3), rate=0.5).load_state_dict(state)
