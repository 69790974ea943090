"""Wrong calls: every public function either does what it should or refuses by one line of ours."""

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import nn

import metareplay as mr
from metareplay.data import Images
from metareplay.errors import MetareplayError
from torture.subjects import CLASSES, TASKS, examples, mlp, stream
from torture.trial import Torture, Try

Call = Callable[..., object]

WRONG: tuple[Any, ...] = (
    *(None, "x", "", b"x", "auto", "sgd", -1, 0, 1, 2, 7, 1.5, -0.5, 0.1, True, False, 1j),
    *(float("nan"), float("inf"), -float("inf"), 10**15, 10**20, 10**400, -(10**400), 2**63, 2**64, 1e308),
    *([], [1], [[]], [None], (), (3,), (0,), {}, {"a": 1}, set(), object(), int, len, range(3), Ellipsis),
    *(np.int64(3), np.float32(0.5), np.array([1, 2]), np.array([]), np.array(["a"]), np.array([None], object)),
    *(np.zeros((2, 6)), np.zeros((2, 6), np.uint8), np.full((2, 6), np.nan), np.zeros((2, 6), complex)),
    *(np.ma.masked_array([1.0, 2.0], [True, False]), np.array([True, False]), np.datetime64("2020-01-01")),
    *(torch.tensor(1), torch.zeros(2, 6), torch.zeros(2, 6).bool(), torch.zeros(0), torch.tensor([0.5, 1.5])),
    *(torch.zeros(2, 6, dtype=torch.complex64), torch.full((2,), 10**9), torch.zeros(2, 1, dtype=torch.int64)),
    *(nn.Identity(), nn.Linear(2, 2), Path("nowhere/at/all"), "x" * 300, "\0", "[/x]", "a\nb"),
)


def _images() -> Images:
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(30, 28, 28), dtype=np.uint8), rng.integers(10, size=30, dtype=np.uint8)
    return Images("noise", xs[:20], ys[:20], xs[20:], ys[20:])


def _taught() -> mr.MER:
    learner = mr.MER(mlp(), memory=mr.Reservoir(4), s=1, k=2, engine="torch")
    learner.observe_many(*(part[:5] for part in examples()))
    return learner


def _agent() -> mr.DQN:
    return mr.DQN(mlp(), memory=mr.Recent(4), k=2, warmup=0, engine="torch")


def _read_all(made: mr.Stream) -> None:
    """Use a stream that was made."""
    made.settings()
    for task in range(min(made.tasks, 2)):
        made.test(task)
    next(iter(made.chunks()))


def _calls(folder: Path) -> dict[str, tuple[Call, dict[str, Any]]]:
    """Return every call with arguments that are right."""
    xs, ys, tasks = examples()
    learner: dict[str, Any] = {"lr": 0.1, "seed": 0, "loss": None, "regression": False, "clip": None, "engine": "auto"}
    replay = {"k": 3, **learner}
    agent = {name: value for name, value in replay.items() if name != "regression"}
    agent |= {"optimizer": "sgd", "discount": 0.9, "double": False, "target_every": 5, "target_in": "frames"}
    agent |= {"warmup": 3, "epsilon_start": 1.0, "epsilon_end": 0.1, "epsilon_frames": 10, "reward_clip": None}
    image = {"tasks": 2, "examples": 5, "seed": 0, "images": _images(), "shape": (784,), "test_examples": 5}
    net: dict[str, Any] = {"inputs": 4, "hidden": (3,), "outputs": 2, "seed": 0}
    _taught().save(folder / "right.ckpt")
    _taught().memory.export(folder / "right.npz")
    run = {"full_matrix": False, "training": False, "alignment": 0, "past": "before", "checkpoint": None}
    found: dict[str, tuple[Call, dict[str, Any]]] = {
        "Online": (mr.Online, {"model": mlp(), "steps": 1, **learner}),
        "EWC": (mr.EWC, {"model": mlp(), "strength": 1.0, "fisher_examples": 3, "fisher": "squared-mean", **learner}),
        "Independent": (
            mr.Independent,
            {"model": mr.networks.separate_mlps(**net, tasks=2), "start": "fresh", **learner},
        ),
        "TaskInput": (mr.TaskInput, {"model": mr.networks.task_input_mlp(**net, tasks=2), **learner}),
        "Reptile": (mr.Reptile, {"model": mlp(), "beta": 0.1, "s": 2, "k": 2, **learner}),
        "Reservoir": (mr.Reservoir, {"capacity": 5, "rule": "paper", "storage": None}),
        "Ring": (mr.Ring, {"capacity": 5, "tasks": 2, "storage": None}),
        "Recent": (mr.Recent, {"capacity": 5, "storage": None}),
        "mlp": (mr.networks.mlp, net),
        "separate_mlps": (mr.networks.separate_mlps, {**net, "tasks": 2}),
        "task_input_mlp": (mr.networks.task_input_mlp, {**net, "tasks": 2}),
        "omniglot_cnn": (mr.networks.omniglot_cnn, {"seed": 0, "classes": 5, "norm": None, "init": "torch"}),
        "nature_cnn": (mr.networks.nature_cnn, {"seed": 0, "actions": 3, "frames": 1, "size": 36}),
        "MultiHead": (mr.networks.MultiHead, {"body": mlp(), "features": CLASSES, "classes": (2, 3), "seed": 0}),
        "Separate": (mr.networks.Separate, {"nets": [mlp(), mlp()], "classes": CLASSES}),
        "TaskInputs": (mr.networks.TaskInputs, {"inputs": [mlp()], "shared": mlp(), "classes": CLASSES}),
        "from_tensors": (
            lambda **o: _read_all(mr.OwnStream.from_tensors(**o)),
            {"xs": xs, "ys": ys, "tasks": [0] * len(xs), "test": (xs, ys)},
        ),
        "from_dataset": (
            lambda **o: _read_all(mr.OwnStream.from_dataset(**o)),
            {"dataset": torch.utils.data.TensorDataset(xs, ys), "tasks": None, "test": None},
        ),
        "from_iterable": (
            lambda **o: _read_all(mr.OwnStream.from_iterable(**o)),
            {"iterable": list(zip(xs, ys, strict=True)), "test": (xs, ys)},
        ),
        "Images": (Images, vars(_images())),
        "Metrics.of": (mr.Metrics.of, {"accuracy": np.zeros((3, 2))}),
        "Draws": (mr.Draws, {"seed": 0}),
        "load": (mr.load, {"path": folder / "right.ckpt", "model": mlp(), "kind": None, "lr": 0.1, "engine": "auto"}),
        "save": (lambda **o: _taught().save(**o), {"path": folder / "saved.ckpt"}),
        "export": (lambda **o: _taught().memory.export(**o), {"path": folder / "saved.npz"}),
        "read_export": (mr.memories.read_export, {"path": folder / "right.npz"}),
        "Record.read": (mr.Record.read, {"path": folder / "right.json"}),
        "run": (mr.run, {"learner": mr.Online(mlp()), "stream": stream(), **run}),
        "observe": (lambda **o: _taught().observe(**o), {"x": xs[0], "y": 1, "task": 0}),
        "observe_many": (lambda **o: _taught().observe_many(**o), {"xs": xs[:3], "ys": ys[:3], "task": tasks[:3]}),
        "predict": (lambda **o: _taught().predict(**o), {"xs": xs[:3], "task": None}),
        "outputs": (lambda **o: _taught().outputs(**o), {"xs": xs[:3], "task": None}),
        "accuracy": (lambda **o: _taught().accuracy(**o), {"xs": xs[:3], "ys": ys[:3], "task": None}),
        "act": (lambda **o: _agent().act(**o), {"x": xs[0]}),
        "agent.observe": (
            lambda **o: _agent().observe(**o),
            {"x": xs[0], "action": 1, "reward": 0.5, "next_x": xs[1], "terminated": False, "truncated": False},
        ),
        "train": (
            lambda **o: mr.Reptile(mlp(), s=2, k=2, engine="torch").train(**o),
            {"xs": xs, "ys": ys, "updates": 2, "task": None},
        ),
    }
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "GEM": (mr.GEM, {"memory": mr.Ring(4, TASKS), "strength": 0.0, **learner}),
        "ER": (mr.ER, {"memory": mr.Reservoir(4), "optimizer": "sgd", **replay}),
        "ERTasks": (mr.ERTasks, {"memory": mr.Reservoir(4), "optimizer": "sgd", **replay}),
        "MER": (mr.MER, {"memory": mr.Reservoir(4), "beta": 0.1, "gamma": 1.0, "s": 2, **replay}),
        "MEROneBigBatch": (mr.MEROneBigBatch, {"memory": mr.Reservoir(4), "gamma": 1.0, "s": 2, **replay}),
        "MERCurrentRate": (mr.MERCurrentRate, {"memory": mr.Reservoir(4), "gamma": 1.0, "s": 2, **replay}),
        "DQN": (mr.DQN, {"memory": mr.Recent(4), **agent}),
        "DQNMER": (mr.DQNMER, {"memory": mr.Recent(4), **agent}),
    }
    for name, (kind, options) in kinds.items():
        found[name] = (kind, {"model": mlp(), **options})
    for kind in (mr.Rotations, mr.Permutations, mr.ManyPermutations):
        found[kind.__name__] = (lambda kind=kind, **o: _read_all(kind(**o)), image)
    return found


@final
class Fuzz(Torture):
    """Call constructors and functions with one or two wrong arguments."""

    name: ClassVar[str] = "a wrong call"
    few: ClassVar[int] = 400
    some: ClassVar[int] = 10_000
    many: ClassVar[int] = 100_000

    def tries(self, count: int, rng: random.Random, folder: Path) -> Iterator[Try]:
        """Draw a call, one or two of its arguments, and values for them."""
        calls = _calls(folder)
        mr.run(mr.Online(mlp()), stream()).write(folder).rename(folder / "right.json")
        for _ in range(count):
            name = rng.choice(list(calls))
            call, right = calls[name]
            given = {**right, **_anew(right)}
            some = rng.sample(list(right), min(len(right), rng.choice([1, 1, 2])))
            given |= {one: rng.choice(WRONG) for one in some}
            if isinstance(given.get("updates"), int):
                given["updates"] = min(given["updates"], 2)  # many updates are right, and take long
            shown = ", ".join(f"{one}={_shown(given[one])}" for one in some)
            yield Try(f"{name}({shown})", _wrong(call, given))


def _anew(right: dict[str, Any]) -> dict[str, Any]:
    """Return new ones of the arguments that a call takes for itself."""
    made: dict[str, Any] = {}
    memory = right.get("memory")
    if isinstance(memory, mr.Memory):
        made["memory"] = mr.Ring(4, TASKS) if isinstance(memory, mr.Ring) else mr.Reservoir(4)
    if isinstance(right.get("learner"), mr.Online):
        made["learner"] = mr.Online(mlp(), engine="torch")
    return made


def _wrong(call: Call, given: dict[str, Any]) -> str | None:
    """Make a call; return what is wrong with how it ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**given)
    except MetareplayError as error:
        return None if len(str(error).splitlines()) == 1 and len(str(error)) < 1_000 else f"a long message: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def _shown(value: object) -> str:
    try:
        return " ".join(repr(value).split())[:60]
    except ValueError:
        return "a very large number"
