import errno
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from every_learner import assert_same_state, examples, mlp, state
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr
from metareplay._core.draws import Draws, Ints
from metareplay.learners import checkpoint

Spoil = Callable[[dict[str, NDArray[Any]]], object]


def learner(model: nn.Module | None = None, **options: Any) -> mr.Learner:
    return mr.MER(model or mlp(), memory=mr.Reservoir(4), beta=0.3, s=1, k=2, seed=7, **options)


def taught(**options: Any) -> mr.Learner:
    made = learner(**options)
    made.observe_many(*(part[:10] for part in examples()))
    return made


def saved(path: Path, **options: Any) -> mr.Learner:
    made = taught(**options)
    made.save(path)
    return made


def refused(path: Path, message: str, model: nn.Module | None = None, **options: Any) -> None:
    """Loading fails in one line and leaves the model as it was."""
    model = model or mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(mr.CheckpointError, match=message) as caught:
        mr.load(path, model, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert str(path) in str(caught.value)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def rewrite(path: Path, spoil: Spoil) -> None:
    """Write the archive again with something changed, checksums and all."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    spoil(arrays)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def about(**changes: Any) -> Spoil:
    """Change what the checkpoint says of itself; a change to None takes the entry out."""

    def spoil(arrays: dict[str, NDArray[Any]]) -> None:
        text = json.loads(str(arrays["about"])) | changes
        arrays["about"] = np.array(json.dumps({name: value for name, value in text.items() if value is not None}))

    return spoil


def test_nothing_is_pickled(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    made = saved(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    weights = torch.cat([torch.from_numpy(arrays[f"model/{name}"]).flatten() for name in made.model.state_dict()])
    assert torch.equal(weights, made.weights.theta)
    assert json.loads(str(arrays["about"]))["learner"] == "MER"
    assert all(array.dtype != object for array in arrays.values())


class Trap:
    sprung = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return spring, ()


def spring() -> None:
    Trap.sprung = True


def test_a_pickle_inside_is_refused_and_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    pickle.loads(pickle.dumps(Trap()))
    assert Trap.sprung
    Trap.sprung = False
    for name in ("about", "model/1.weight", "something more"):
        saved(path)
        rewrite(path, lambda arrays, name=name: arrays.update({name: np.array([Trap()], object)}))  # type: ignore[misc]
        refused(path, "damaged or not a metareplay checkpoint")
        assert not Trap.sprung
    path.write_bytes(pickle.dumps(Trap()))
    refused(path, "damaged or not a metareplay checkpoint")
    assert not Trap.sprung


class Flipper:
    """Loads what was saved with one bit wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        saved(path)
        self.content = path.read_bytes()

    def flip(self, place: int, bit: int) -> None:
        wrong = bytearray(self.content)
        wrong[place] ^= 1 << bit
        self.path.write_bytes(wrong)
        model = mlp()
        refused(self.path, "damaged", model)


@pytest.fixture(scope="module")
def flipper(tmp_path_factory: pytest.TempPathFactory) -> Flipper:
    return Flipper(tmp_path_factory.mktemp("flipped") / "run.ckpt")


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=100)
def test_a_flipped_bit_is_noticed(place: float, bit: int, flipper: Flipper) -> None:
    flipper.flip(int(place * len(flipper.content)), bit)


@pytest.mark.parametrize("signature", [b"PK\3\4", b"PK\1\2", b"PK\5\6"], ids=["array", "entry", "end"])
def test_any_flipped_bit_of_a_header_is_noticed(signature: bytes, flipper: Flipper) -> None:
    start = flipper.content.index(signature)
    for place in range(start, start + 12):  # versions, flags, kinds of compression, counts
        for bit in range(8):
            flipper.flip(place, bit)


def test_wrong_bytes_in_the_middle_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("model/1.weight.npy")
    content = bytearray(path.read_bytes())
    middle = info.header_offset + info.file_size
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)
    refused(path, "damaged")


@pytest.mark.parametrize("left", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_noticed(left: float, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    refused(path, "damaged or not a metareplay checkpoint")
    path.write_bytes(content[:-1])
    refused(path, "damaged or not a metareplay checkpoint")
    path.write_bytes(content)
    assert mr.load(path, mlp()).seen == 10


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


NO_CHECKPOINTS = {
    "text": b"Dear diary",
    "bytes": bytes(range(256)) * 10,
    "an array": npy(np.zeros(5)),
    "another archive": archive(xs=np.zeros(5)),
    "about nothing": archive(about=np.array("")),
    "about a number": archive(about=np.array("5")),
    "about a list": archive(about=np.array("[1, 2]")),
    "about a number, not text": archive(about=np.zeros(3)),
    "no format": archive(about=np.array("{}")),
}


@pytest.mark.parametrize("content", NO_CHECKPOINTS.values(), ids=NO_CHECKPOINTS.keys())
def test_what_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    refused(path, "damaged or not a metareplay checkpoint")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.ckpt", "no checkpoint at .*: check the path")
    refused(tmp_path, "damaged or not a metareplay checkpoint")


OTHER_MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "fewer layers": (lambda: mr.networks.mlp(6, (8,), 4), r"3.weight is \(5, 8\) .* there and \(4, 8\) .* here"),
    "more layers": (lambda: mr.networks.mlp(6, (8, 5, 4), 4), "7.weight is missing there"),
    "other widths": (lambda: mr.networks.mlp(6, (8, 6), 4), r"3.weight is \(5, 8\)"),
    "other names": (lambda: nn.Sequential(*mlp().children(), nn.Identity(), nn.BatchNorm1d(4)), "missing there"),
    "other kind of layer": (lambda: nn.Linear(6, 4), "1.weight is .* there and missing here"),
    "float64": (lambda: mlp().double(), "1.weight is .*float32 there and .*float64 here"),
}


@pytest.mark.parametrize(("model", "message"), OTHER_MODELS.values(), ids=OTHER_MODELS.keys())
def test_a_checkpoint_of_another_model_is_refused(model: Callable[[], nn.Module], message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    refused(path, "is of another model: ", model())
    refused(path, message, model())


INCOMPLETE: dict[str, tuple[Spoil, str]] = {
    "future format": (about(format=2, metareplay="9.1"), "has format 2, made by metareplay 9.1; this version reads"),
    "unknown learner": (about(learner="MERLIN"), "holds a MERLIN, which this version does not know: update metareplay"),
    "no learner": (about(learner=None), "learner is missing"),
    "no settings": (about(settings=None), "settings is missing"),
    "no dtypes": (about(dtypes=None), "dtypes is missing"),
    "no weights": (lambda arrays: arrays.pop("model/1.weight"), "model/1.weight is missing"),
    "no memory": (lambda arrays: arrays.pop("memory/filled"), "memory/filled is missing"),
    "a format of many lines": (about(format="9\n" * 99, metareplay="\n9"), "has format '9.*, made by metareplay 9;"),
    "a learner of many lines": (
        about(learner="MER\nLIN" * 99),
        "holds a MER LINMER .*, which this version does not know",
    ),
    "a loss of many lines": (
        about(settings=taught().settings() | {"loss": "\nloss" * 99}),
        "with a loss of your own, loss loss .*: pass it",
    ),
    "a memory of many lines": (
        about(settings=taught().settings() | {"memory": {"kind": "\nmine" * 99}}),
        "with a memory of your own, mine mine .*: pass it",
    ),
    "unknown option": (about(settings=taught().settings() | {"zeta": 3}), "does not fit: .*zeta"),
    "option out of range": (about(settings=taught().settings() | {"beta": 7}), "does not fit: beta=7"),
}


@pytest.mark.parametrize(("spoil", "message"), INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_a_checkpoint_that_cannot_be_understood_is_refused(spoil: Spoil, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    rewrite(path, spoil)
    refused(path, message)


def changed(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Spoil:
    """Change one array."""
    return lambda arrays: arrays.update({name: change(arrays[name])})


IMPOSSIBLE: dict[str, tuple[Spoil, str]] = {
    "fewer inputs": (changed("table/xs", lambda xs: xs[:3]), r"columns have \[3, 4\] rows"),
    "fewer rows": (
        lambda arrays: arrays.update({f"table/{name}": arrays[f"table/{name}"][:3] for name in ("xs", "ys", "tasks")}),
        "4 slots are filled by 3 rows",
    ),
    "a column without rows": (changed("table/xs", lambda xs: xs[0, 0]), r"damaged \(the column x has no rows\)"),
    "other inputs": (changed("table/xs", lambda xs: xs[:, :5]), "does not fit: .*cannot take inputs of shape"),
    "a label too large": (changed("table/ys", lambda ys: ys + 100), "does not fit: .*label 10. is out of range"),
    "real labels": (changed("table/ys", lambda ys: ys.astype(np.float64)), "damaged"),
    "a slot too far": (changed("memory/filled", lambda slots: slots + 1), "a slot is filled twice or not there"),
    "a slot twice": (changed("memory/filled", lambda slots: slots * 0), "a slot is filled twice or not there"),
    "slots in a table": (changed("memory/filled", lambda slots: slots[:, None]), "lists have other shapes"),
    "wrong counts": (changed("memory/seen_of", lambda counts: counts + 1), "the counts of its tasks are wrong"),
    "weights of another shape": (changed("model/1.weight", lambda w: w.reshape(-1)), "is of another model"),
    "seen too little": (about(seen=3), "the counts of its tasks are wrong"),
    "seen less than nothing": (about(seen=-3), r"damaged \(seen=-3\)"),
    "seen in words": (about(seen="many"), r"damaged \(seen is not of type int\)"),
    "settings in words": (about(settings="good ones"), r"damaged \(settings is not of type dict\)"),
    "a memory in words": (about(settings=taught().settings() | {"memory": "large"}), "does not fit: "),
    "a memory without end": (
        about(settings=taught().settings() | {"memory": {"kind": "Reservoir", "capacity": 10**15}}),
        "does not fit: capacity=1000000000000000 would need .* GiB",
    ),
    "no loss": (about(settings={k: v for k, v in taught().settings().items() if k != "loss"}), "does not fit: 'loss'"),
    "moments of nobody": (
        lambda arrays: (
            arrays.update({"engine/step": np.zeros(3)})
            or about(dtypes=json.loads(str(arrays["about"]))["dtypes"] | {"engine/step": "torch.float64"})(arrays)
        ),
        "was saved with another optimizer: step is",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_no_learner_would_have_saved_is_refused(spoil: Spoil, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    rewrite(path, spoil)
    refused(path, message)


@pytest.mark.parametrize("other", ["rmsprop", "sgd"])
def test_the_moments_of_another_optimizer_are_refused(other: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    made = mr.ER(mlp(), memory=mr.Reservoir(4), optimizer="adam")
    made.observe_many(*examples())
    made.save(path)
    refused(path, "was saved with another optimizer: .*; use the options it was saved with", optimizer=other)
    assert_same_state(state(mr.load(path, mlp())), state(made))


def test_a_run_whose_state_is_wrong_is_refused_and_nothing_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    checkpoint.save(taught(), path, extra={"settings": {}, "run": {"accuracy": [[1.0]]}})
    fresh = learner()
    before = state(fresh)

    def take(extra: dict[str, Any], measured: dict[str, Tensor]) -> Callable[[], None]:
        raise KeyError(f"{len(extra)} {len(measured)}")

    with pytest.raises(mr.CheckpointError, match=r"is damaged .*: start again \(--fresh\)"):
        checkpoint.restore(fresh, path, {}, take)

    def fail() -> None:
        raise TypeError("too late")

    with pytest.raises(mr.CheckpointError, match="does not fit: too late"):
        checkpoint.restore(fresh, path, {}, lambda *_: fail)
    assert_same_state(state(fresh), before)
    assert fresh.table is None


def smooth(outputs: Tensor, ys: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, ys, label_smoothing=0.1)


def test_a_loss_of_the_users_own_must_be_passed_again(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    made = saved(path, loss=smooth)
    refused(path, r"a loss of your own, own:smooth: pass it, load\(path, model, loss=\.\.\.\)")
    loaded = mr.load(path, mlp(), loss=smooth)
    for one in (made, loaded):
        one.observe_many(*(part[10:] for part in examples()))
    assert_same_state(state(loaded), state(made))


def test_a_loss_of_torchs_is_found_again(tmp_path: Path) -> None:
    saved(tmp_path / "run.ckpt", loss=functional.cross_entropy)
    assert mr.load(tmp_path / "run.ckpt", mlp()).loss is functional.cross_entropy


@final
class First(mr.Memory):
    """A memory of the user's own: the first examples."""

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        del draws
        slots = self.seen + np.arange(len(tasks))
        return np.where(slots < self.capacity, slots, -1)

    def settings(self) -> dict[str, object]:
        return {"kind": "First", "capacity": self.capacity}


def test_a_memory_of_the_users_own_must_be_passed_again(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    made = mr.ER(mlp(), memory=First(3))
    made.observe_many(*examples())
    made.save(path)
    refused(path, r"a memory of your own, First: pass it, load\(path, model, memory=\.\.\.\)")
    assert_same_state(state(mr.load(path, mlp(), memory=First(3))), state(made))


@pytest.mark.parametrize("memory", [mr.Reservoir(3), mr.Reservoir(4, "official"), mr.Ring(4, 2), mr.Recent(4)])
def test_another_memory_is_refused(memory: mr.Memory, tmp_path: Path) -> None:
    saved(tmp_path / "run.ckpt")
    refused(tmp_path / "run.ckpt", r"saved with another memory, .*Reservoir.*: leave memory=\.\.\. out", memory=memory)


def test_options_can_be_replaced(tmp_path: Path) -> None:
    saved(tmp_path / "run.ckpt")
    loaded = mr.load(tmp_path / "run.ckpt", mlp(), lr=0.025, engine="torch", memory=mr.Reservoir(4))
    assert (loaded.lr, loaded.engine, loaded.seed) == (0.025, "torch", 7)
    refused(tmp_path / "run.ckpt", "does not fit: lr=-1", lr=-1)
    refused(tmp_path / "run.ckpt", "does not fit: .*fisher", fisher="mean-square")


def test_fewer_slots_than_examples_are_refused(tmp_path: Path) -> None:
    made = mr.EWC(mlp(), fisher_examples=6)
    made.observe_many(*examples())
    made.save(tmp_path / "run.ckpt")
    refused(tmp_path / "run.ckpt", "holds 6 examples, but this learner holds only 5", fisher_examples=5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_models_of_other_dtypes_go_on_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    made = saved(tmp_path / "run.ckpt", model=mlp().to(dtype))
    loaded = mr.load(tmp_path / "run.ckpt", mlp().to(dtype))
    assert loaded.weights.theta.dtype == dtype
    for one in (made, loaded):
        one.observe_many(*(part[10:] for part in examples()))
    assert_same_state(state(loaded), state(made))


def test_the_model_learns_on_after_loading(tmp_path: Path) -> None:
    saved(tmp_path / "run.ckpt")
    model = mlp()
    loaded = mr.load(tmp_path / "run.ckpt", model)
    assert loaded.model is model
    before = [p.detach().clone() for p in model.parameters()]
    loaded.observe_many(*(part[10:] for part in examples()))
    assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


class FullDisk(io.RawIOBase):
    """Takes this many bytes and then no more."""

    def __init__(self, path: Path, room: int) -> None:
        self.file, self.room = io.FileIO(path, "wb"), room

    def write(self, content: Any) -> int:
        self.room -= len(memoryview(content).cast("B"))
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(content)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


@pytest.mark.parametrize("room", [0, 100, 1500])
def test_a_full_disk_leaves_the_earlier_checkpoint(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.ckpt"
    made = saved(path)
    earlier, before = path.read_bytes(), state(made)
    made.observe_many(*(part[10:] for part in examples()))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode: FullDisk(self, room) if mode == "wb" else None)
        with pytest.raises(mr.MetareplayError, match=r"cannot write .*run.ckpt: No space left on device; ") as caught:
            made.save(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert path.read_bytes() == earlier
    assert [found.name for found in tmp_path.iterdir()] == ["run.ckpt"]
    assert_same_state(state(mr.load(path, mlp())), before)


def test_a_gpu_that_is_full_says_nothing_about_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = tmp_path / "run.ckpt", mlp()
    saved(path)
    before = [p.detach().clone() for p in model.parameters()]

    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    for place in ("learner.Learner.check_held", "checkpoint._apply"):
        with monkeypatch.context() as patch:
            patch.setattr(f"metareplay.learners.{place}", full)
            with pytest.raises(torch.cuda.OutOfMemoryError):
                mr.load(path, model)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_saving_is_the_same_bytes_again(tmp_path: Path) -> None:
    made = saved(tmp_path / "one.ckpt")
    made.save(tmp_path / "two.ckpt")
    mr.load(tmp_path / "one.ckpt", mlp()).save(tmp_path / "three.ckpt")
    contents = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == 1


def test_restore_wants_the_same_settings_and_changes_nothing_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    made = taught()
    checkpoint.save(made, path, extra={"settings": {"stream.tasks": 3}, "run": "far"})
    same = learner(engine="torch")  # another engine is no other run
    extra, measured = checkpoint.restore(same, path, {"stream.tasks": 3})
    assert (extra["run"], measured) == ("far", {})
    assert_same_state(state(same), state(made))
    others: list[tuple[mr.Learner, int, str]] = [
        (learner(), 4, "stream.tasks=3, not 4"),
        (learner(lr=0.5), 3, "lr=0.1, not 0.5"),
        (mr.ER(mlp()), 3, "learner=MER, not ER"),
        (learner(mr.networks.mlp(6, (8,), 4)), 3, "is of another model"),
    ]
    for other, tasks, message in others:
        before = state(other)
        with pytest.raises(mr.CheckpointError, match=message) as caught:
            checkpoint.restore(other, path, {"stream.tasks": tasks})
        assert "\n" not in str(caught.value)
        assert_same_state(state(other), before)


def test_restore_refuses_a_learner_that_was_not_saved_by_a_run(tmp_path: Path) -> None:
    saved(tmp_path / "run.ckpt")
    with pytest.raises(mr.CheckpointError, match="holds a learner, not a run"):
        checkpoint.restore(learner(), tmp_path / "run.ckpt", {})
