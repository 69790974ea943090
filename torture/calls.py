"""Every public constructor and function, with arguments that are right; which names are public the API pages say."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib import import_module
from inspect import isabstract, signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final, get_origin

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import metareplay as mr
from metareplay import lm, plots
from metareplay.data import Characters, Images, Source
from metareplay.environments import CatcherEnv, FlappyBirdEnv, Schedule, ScheduledEnv
from metareplay.experiments import Experiment, OwnExperiment
from metareplay.rl import Evaluation, GameExperiment, GameRecord
from metareplay.streams import Chunk, Examples, FirstTasks, HeldOut
from torture.subjects import AGENTS, CLASSES, INPUTS, TASKS, cnn, examples, mlp, pictures, play, stream

PAGES: Final = Path(__file__).parent.parent / "docs" / "api"
NOT_INSTALLED: Final = ("integrations.avalanche", "loops.hugging_face")  # they need Avalanche and transformers

# Names without calls of their own, and why.
MADE_FOR_USERS: Final = {  # results, and news of how work is going: metareplay fills them in, users read them
    *("Record", "PrequentialRecord", "rl.GameRecord", "lm.LmRecord", "runners.Failure", "Sweep", "sweeps.Outcome"),
    *("sweeps.Case", "sweeps.Standing", "Progress", "Measurements", "FollowedRun", "Metrics", "Rows"),
    *("loops.GradientAlignment", "experiments.Identity", "experiments.Prequential"),
}
FOR_EXTENDING: Final = {  # what learners, memories and engines hand to each other, and base classes
    *("Plan", "Rates", "Sampler", "Table", "Columns", "engines.Outcome", "engines.QuadraticPenalty", "Supervised"),
    *("TableLearner", "ReplayLearner", "Learner", "QLearner", "memories.TensorStorage", "OwnStream"),
    *("experiments.Alignment", "experiments.PrequentialExperiment"),
}


@final
@dataclass(frozen=True)
class Fresh:
    """An argument that every call needs a new one of.

    Args:
        make: Makes it.
    """

    make: Callable[[], object]


@final
@dataclass(frozen=True)
class Call:
    """A function or constructor, and arguments that are right.

    Args:
        function: Makes the call.
        right: The arguments by name.
        most: The largest numbers of some arguments: more is right as well, and takes long.
    """

    function: Callable[..., object]
    right: dict[str, Any]
    most: dict[str, int] | None = None

    def given(self) -> dict[str, Any]:
        """Return arguments that are right, new ones where a call needs that."""
        return {name: value.make() if isinstance(value, Fresh) else value for name, value in self.right.items()}


def public_names() -> dict[str, Any]:
    """Return every public constructor and function that has arguments, by its name on the API pages."""
    found = dict[str, Any]()
    for page in sorted(PAGES.glob("*.md")):
        for name in re.findall(r"^::: metareplay\.([\w.]+)", page.read_text(), re.MULTILINE):
            if not name.startswith(NOT_INSTALLED):
                place, _, last = f"metareplay.{name}".rpartition(".")
                found[name] = getattr(import_module(place), last)
    return {name: one for name, one in found.items() if _takes_arguments(one)}


def _takes_arguments(one: Any) -> bool:
    """Return whether something can be called with arguments, and is neither an error nor only there to be derived."""
    if isinstance(one, ModuleType) or not callable(one) or get_origin(one) is not None or isabstract(one):
        return False
    if isinstance(one, type) and issubclass(one, Exception):
        return False
    return bool(signature(one).parameters)


def left_out(calls: dict[str, Call]) -> list[str]:
    """Return the public names that no call is about; there should be none.

    Args:
        calls: What `every_call` returned.
    """
    known = {name for name in public_names() if any(call == name or call.startswith(f"{name}.") for call in calls)}
    return sorted(public_names().keys() - known - MADE_FOR_USERS - FOR_EXTENDING)


def every_call(folder: Path) -> dict[str, Call]:
    """Return the calls, each by a public name, or by that and a method.

    Args:
        folder: An empty folder for their files.
    """
    groups = (_learners, _agents, _memories, _networks, _streams, _data, _runs, _loops, _games, _sweeps, _languages)
    return {name: call for group in (*groups, _others) for name, call in group(folder).items()}


def taught(**options: Any) -> mr.MER:
    """Return a learner that has seen some examples."""
    learner = mr.MER(mlp(), memory=mr.Reservoir(4), s=1, k=2, engine="torch", **options)
    learner.observe_many(*(part[:5] for part in examples()))
    return learner


def _growing() -> mr.MER:
    """Return a learner that knows labels by their names."""
    learner = mr.MER(mlp(), memory=mr.Reservoir(4), s=1, k=2, engine="torch", classes="grow")
    learner.observe_many(examples()[0][:4], ["a", "b", 3, "a"])
    return learner


def _agent() -> mr.DQN:
    return mr.DQN(mlp(), memory=mr.Recent(4), k=2, warmup=0, engine="torch")


def images() -> Images:
    """Make up images of digits."""
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(256, size=(30, 28, 28), dtype=np.uint8), rng.integers(10, size=30, dtype=np.uint8)
    return Images("noise", xs[:20], ys[:20], xs[20:], ys[20:])


def _characters() -> Characters:
    drawings = np.random.default_rng(0).integers(256, size=(4, 4, 1379), dtype=np.uint8)
    return Characters("noise", drawings, np.array([0, 0, 1, 1]), ("one", "two"), ("a", "b", "c", "d"))


def _read_all(made: mr.Stream) -> None:
    """Use a stream that was made."""
    made.settings()
    for task in range(min(made.tasks, 2)):
        made.test(task)
    next(iter(made.chunks()))


def build(seed: int, lr: float = 0.1) -> tuple[mr.Learner, mr.Stream]:
    """Build a small run, as users of sweeps do."""
    return mr.Online(mlp(), lr=lr, seed=seed, engine="torch"), stream()


@final
class _OneChunk(mr.Stream):
    """Show one chunk and one test set that a user has made."""

    def __init__(self, chunk: Chunk, tested: Examples) -> None:
        self._chunk, self._tested = chunk, tested

    @property
    def tasks(self) -> int:
        return 1

    @property
    def total(self) -> int | None:
        return None

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        del start
        yield self._chunk

    def test(self, task: int) -> Examples:
        del task
        return self._tested

    def settings(self) -> dict[str, object]:
        return {"stream": "one chunk"}


LEARNER: Final[dict[str, Any]] = {"lr": 0.1, "seed": 0, "loss": None, "regression": False, "clip": None}
LEARNER.update({"engine": "auto", "classes": None, "head": None})


def _learners(folder: Path) -> dict[str, Call]:
    xs, ys, tasks = examples()
    replay = {"k": 3, **LEARNER}
    net: dict[str, Any] = {"inputs": 4, "hidden": (3,), "outputs": 2, "seed": 0}
    taught().save(folder / "right.ckpt")
    reservoir, ring = Fresh(lambda: mr.Reservoir(4)), Fresh(lambda: mr.Ring(4, TASKS))
    kinds: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "Online": (mr.Online, {"steps": 1, **LEARNER}),
        "EWC": (mr.EWC, {"steps": 1, "strength": 1.0, "fisher_examples": 3, "fisher": "squared-mean", **LEARNER}),
        "Reptile": (
            mr.Reptile,
            {"beta": 0.1, "s": 2, "k": 2}
            | {name: value for name, value in LEARNER.items() if name not in ("classes", "head")},
        ),
        "GEM": (mr.GEM, {"memory": ring, "strength": 0.0, **LEARNER}),
        "ER": (mr.ER, {"memory": reservoir, "optimizer": "sgd", **replay}),
        "ERTasks": (mr.ERTasks, {"memory": reservoir, "optimizer": "sgd", **replay}),
        "MER": (mr.MER, {"memory": reservoir, "beta": 0.1, "gamma": 1.0, "s": 2, **replay}),
        "MEROneBigBatch": (mr.MEROneBigBatch, {"memory": reservoir, "gamma": 1.0, "s": 2, **replay}),
        "MERCurrentRate": (mr.MERCurrentRate, {"memory": reservoir, "gamma": 1.0, "s": 2, **replay}),
    }
    several, some = {"xs": xs[:3], "ys": ys[:3], "task": tasks[:3]}, {"xs": xs[:3], "task": None}
    return {name: Call(kind, {"model": mlp(), **options}) for name, (kind, options) in kinds.items()} | {
        "Independent": Call(
            mr.Independent, {"model": mr.networks.separate_mlps(**net, tasks=2), "start": "fresh", **LEARNER}
        ),
        "TaskInput": Call(mr.TaskInput, {"model": mr.networks.task_input_mlp(**net, tasks=2), **LEARNER}),
        "Online.with classes": Call(
            lambda **o: mr.Online(mlp(), engine="torch", **o).observe(xs[0], "a"), {"classes": "grow", "head": None}
        ),
        "load": Call(
            mr.load, {"path": folder / "right.ckpt", "model": mlp(), "kind": None, "lr": 0.1, "engine": "auto"}
        ),
        "MER.save": Call(lambda **o: taught().save(**o), {"path": folder / "saved.ckpt"}),
        "MER.observe": Call(lambda **o: taught().observe(**o), {"x": xs[0], "y": 1, "task": 0, "predict": False}),
        "MER.observe a label": Call(lambda **o: _growing().observe(**o), {"x": xs[0], "y": "a", "task": 0}),
        "MER.observe_many": Call(lambda **o: taught().observe_many(**o), several),
        "MER.observe_many with labels": Call(lambda **o: _growing().observe_many(**o), several | {"ys": ["a", 3, "c"]}),
        "MER.store": Call(lambda **o: taught().store(**o), several),
        "MER.predict": Call(lambda **o: taught().predict(**o), some),
        "MER.predict_proba": Call(lambda **o: _growing().predict_proba(**o), some),
        "MER.outputs": Call(lambda **o: taught().outputs(**o), some),
        "MER.accuracy": Call(lambda **o: taught().accuracy(**o), several | {"task": None}),
        "MER.accuracy with labels": Call(
            lambda **o: _growing().accuracy(**o), several | {"task": None, "ys": ["a"] * 3}
        ),
        "MER.an option": Call(_with_option, {"lr": 0.2, "clip": 1.0, "k": 3}),
        "Reptile.train": Call(
            lambda **o: mr.Reptile(mlp(), s=2, k=2, engine="torch").train(**o),
            {"xs": xs, "ys": ys, "updates": 2, "task": None},
            {"updates": 2},
        ),
    }


def _with_option(**options: Any) -> None:
    """Change options of a learner that has learned something."""
    learner = taught()
    for name, value in options.items():
        setattr(learner, name, value)
    learner.observe(examples()[0][0], 1)


def _watching() -> mr.QLearner:
    """Return an agent that has seen some pictures."""
    agent = AGENTS["dqn, pictures"]()
    play(agent, 6)
    return agent


def _with_agents_option(**options: Any) -> None:
    """Change options of an agent that has seen some pictures."""
    agent = _watching()
    for name, value in options.items():
        setattr(agent, name, value)
    play(agent, 8)


def _agents(folder: Path) -> dict[str, Call]:
    xs = examples()[0]
    options = {name: value for name, value in LEARNER.items() if name not in ("regression", "classes", "head")}
    options |= {"k": 3, "memory": Fresh(lambda: mr.Recent(4)), "optimizer": "sgd", "discount": 0.9, "double": False}
    options |= {"target_every": 5, "target_in": "frames", "warmup": 3, "reward_clip": None}
    options |= {"epsilon_start": 1.0, "epsilon_end": 0.1, "epsilon_frames": 10}
    shown = pictures()
    watched = {"x": shown[6], "action": 1, "reward": 0.5, "next_x": shown[7], "terminated": False, "truncated": False}
    seen = {"x": xs[0], "action": 1, "reward": 0.5, "next_x": xs[1], "terminated": False, "truncated": False}
    return {
        "DQN": Call(mr.DQN, {"model": mlp(), **options}),
        "DQNMER": Call(mr.DQNMER, {"model": mlp(), "gamma": 0.5, "beta": 0.5, "s": 1, **options}),
        "DQN on pictures": Call(mr.DQN, {"model": cnn(), **options}),
        "DQN.act on pictures": Call(lambda **o: _watching().act(**o), {"x": pictures()[7]}),
        "DQN.observe pictures": Call(lambda **o: _watching().observe(**o), watched),
        "DQN.observe the first pictures": Call(lambda **o: AGENTS["dqn, pictures"]().observe(**o), watched),
        "DQN.predict": Call(lambda **o: _agent().predict(**o), {"xs": xs[:3], "task": None}),
        "DQN.predict on pictures": Call(lambda **o: _watching().predict(**o), {"xs": pictures()[:3], "task": None}),
        "DQN.outputs of pictures": Call(lambda **o: _watching().outputs(**o), {"xs": pictures()[:3], "task": None}),
        "DQN.save": Call(lambda **o: _watching().save(**o), {"path": folder / "saved.ckpt"}),
        "DQN.an option on pictures": Call(_with_agents_option, {"lr": 0.2, "clip": 1.0, "k": 3}),
        "DQN.act": Call(lambda **o: _agent().act(**o), {"x": xs[0]}),
        "DQN.observe": Call(lambda **o: _agent().observe(**o), seen),
    }


def _memories(folder: Path) -> dict[str, Call]:
    taught().memory.export(folder / "right.npz")
    rows = {"x": torch.zeros(3, 2), "y": torch.arange(3)}
    removed = {"where": None, "numbers": [0], "older_than": 3}

    def disk(use: Callable[[mr.DiskReservoir], object]) -> None:
        with mr.DiskReservoir(folder / "offered", 5) as memory:
            memory.offer(rows)
            use(memory)

    def opened(**options: Any) -> None:
        mr.DiskReservoir(**options).close()

    return {
        "Reservoir": Call(mr.Reservoir, {"capacity": 5, "rule": "paper", "storage": None}),
        "Ring": Call(mr.Ring, {"capacity": 5, "tasks": 2, "storage": None}),
        "Recent": Call(mr.Recent, {"capacity": 5, "storage": None}),
        "Balanced": Call(mr.Balanced, {"capacity": 5, "by": "class", "storage": None}),
        "Mixed": Call(mr.Mixed, {"capacity": 5, "recent": 0.5, "storage": None}),
        "DiskReservoir": Call(opened, {"folder": folder / "reservoir", "capacity": 5, "seed": 0}),
        "DiskReservoir.offer": Call(lambda **o: disk(lambda memory: memory.offer(**o)), {"batch": rows, "draws": None}),
        "DiskReservoir.sample": Call(lambda **o: disk(lambda memory: memory.sample(**o)), {"size": 2, "draws": None}),
        "DiskReservoir.return_to": Call(lambda **o: disk(lambda memory: _marked(memory, **o)), {"mark": None}),
        "DiskReservoir.export": Call(lambda **o: disk(lambda memory: memory.export(**o)), {"path": folder / "d.npz"}),
        "Reservoir.export": Call(lambda **o: taught().memory.export(**o), {"path": folder / "saved.npz"}),
        "Reservoir.weigh": Call(lambda **o: taught().memory.weigh(**o), {"weights": [1.0, 2.0, 1.0, 0.0]}),
        "Reservoir.augmented": Call(lambda **o: mr.Reservoir(4).augmented(**o), {"augment": torch.clone}),
        "Reservoir.remove": Call(lambda **o: taught().memory.remove(**o), removed),
        "memories.read_export": Call(mr.memories.read_export, {"path": folder / "right.npz"}),
    }


def _marked(memory: mr.DiskReservoir, mark: Any) -> None:
    """Go back to a mark, by default to one that was just made."""
    made = memory.mark()
    memory.return_to(made if mark is None else mark)


def _networks(_folder: Path) -> dict[str, Call]:
    net: dict[str, Any] = {"inputs": 4, "hidden": (3,), "outputs": 2, "seed": 0}
    tokens = {"tokens": torch.zeros(4, dtype=torch.int64), "others": torch.zeros(2)}

    @final
    class Takes(nn.Module):
        def forward(self, tokens: torch.Tensor, others: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return tokens.sum(1, keepdim=True) + others.sum(1, keepdim=True) + mask.sum(1, keepdim=True)

    packed: dict[str, Any] = {"model": Takes(), "like": tokens, "pad": 0, "mask": "mask"}
    initials = ("glorot", "torch_default", "uniform_by_fan_in")
    return {
        "networks.mlp": Call(mr.networks.mlp, net),
        "networks.separate_mlps": Call(mr.networks.separate_mlps, {**net, "tasks": 2}),
        "networks.task_input_mlp": Call(mr.networks.task_input_mlp, {**net, "tasks": 2}),
        "networks.omniglot_cnn": Call(
            mr.networks.omniglot_cnn, {"seed": 0, "classes": 5, "norm": None, "init": "torch", "resolution": 28}
        ),
        "networks.nature_cnn": Call(mr.networks.nature_cnn, {"seed": 0, "actions": 3, "frames": 1, "size": 36}),
        "networks.MultiHead": Call(
            mr.networks.MultiHead, {"body": mlp(), "features": CLASSES, "classes": (2, 3), "seed": 0}
        ),
        "networks.Separate": Call(mr.networks.Separate, {"nets": [mlp(), mlp()], "classes": CLASSES}),
        "networks.TaskInputs": Call(mr.networks.TaskInputs, {"inputs": [mlp()], "shared": mlp(), "classes": CLASSES}),
        "networks.Structured": Call(
            lambda **o: mr.networks.Structured(**o).pack([{"tokens": [1], "others": [1, 2]}]), packed
        ),
        "networks.Structured.pack": Call(
            lambda **o: mr.networks.Structured(**packed)([o]), {"tokens": [1, 2], "others": [0.5, 1.0]}
        ),
        "networks.Structured.learned": Call(_learned_in_parts, {"tokens": [1, 2], "others": [0.5, 1.0]}),
        **{f"networks.{name}": Call(getattr(mr.networks, name), {"net": mlp(), "seed": 0}) for name in initials},
    }


def _learned_in_parts(**parts: Any) -> None:
    """Let a learner observe a dictionary."""

    @final
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, tokens: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(torch.cat([tokens.to(others.dtype), others], 1))
            return found

    like = {"tokens": torch.zeros(4, dtype=torch.int64), "others": torch.zeros(2)}
    mr.ER(mr.networks.Structured(Takes(), like), memory=mr.Reservoir(3), k=2).observe(parts, 1)


def _streams(_folder: Path) -> dict[str, Call]:
    xs, ys, _ = examples()
    image = {"tasks": 2, "examples": 5, "seed": 0, "images": images(), "shape": (784,), "test_examples": 5}
    drawn: dict[str, Any] = {"tasks": 2, "seed": 0, "characters": _characters(), "examples": 4, "test_examples": 2}
    drawn |= {
        "labels": "alphabet",
        "order": "given",
        "split": "drawings",
        "test_share": 0.25,
        "resolution": 28,
        "pixels": "grey",
    }
    pairs = list(zip(xs, ys, strict=True))
    chunk, tested = Chunk(xs[:3], ys[:3], 0), Examples(xs[:3], ys[:3])

    def read(make: Callable[..., mr.Stream]) -> Callable[..., object]:
        return lambda **o: _read_all(make(**o))

    def ran(shown: Chunk, told: Examples) -> None:
        mr.run(mr.Online(mlp(), engine="torch"), _OneChunk(shown, told))

    return {
        "OwnStream.from_tensors": Call(
            read(mr.OwnStream.from_tensors), {"xs": xs, "ys": ys, "tasks": [0] * len(xs), "test": (xs, ys)}
        ),
        "OwnStream.from_dataset": Call(
            read(mr.OwnStream.from_dataset),
            {"dataset": torch.utils.data.TensorDataset(xs, ys), "tasks": None, "test": None},
        ),
        "OwnStream.from_iterable": Call(read(mr.OwnStream.from_iterable), {"iterable": pairs, "test": (xs, ys)}),
        "Rotations": Call(read(mr.Rotations), image),
        "Permutations": Call(read(mr.Permutations), image),
        "ManyPermutations": Call(read(mr.ManyPermutations), image),
        "Omniglot": Call(read(mr.Omniglot), drawn),
        "streams.FirstTasks": Call(read(FirstTasks), {"stream": stream(), "first": 2}),
        "streams.HeldOut": Call(read(HeldOut), {"stream": stream(), "share": 0.2}),
        "streams.Chunk": Call(lambda **o: ran(Chunk(**o), tested), {"xs": xs[:3], "ys": ys[:3], "task": 0}),
        "streams.Examples": Call(lambda **o: ran(chunk, Examples(**o)), {"xs": xs[:3], "ys": ys[:3]}),
        **{
            f"{kind.__name__}.{method}": Call(lambda kind=kind, method=method, **o: _asked(kind, method, o), right)
            for kind in (mr.Rotations, mr.Permutations)
            for method, right in {"test": {"task": 1}, "chunks": {"start": 3}, "train": {"task": 1}}.items()
        },
        "Rotations.angle": Call(lambda **o: _asked(mr.Rotations, "angle", o), {"task": 1}),
        "OwnStream.test": Call(lambda **o: stream().test(**o), {"task": 1}),
        "OwnStream.chunks": Call(lambda **o: list(stream().chunks(**o)), {"start": 3}),
    }


def _asked(kind: Callable[..., Any], method: str, options: dict[str, Any]) -> None:
    """Ask a stream of images something."""
    found = getattr(kind(2, 5, 0, images=images(), test_examples=5), method)(**options)
    for _ in found if method == "chunks" else ():
        pass


def _data(folder: Path) -> dict[str, Call]:
    made = _characters()
    names = [one.name for one in fields(Characters) if one.init]
    bits: dict[str, Any] = {"images105": made.drawings.reshape(16, -1), "character_alphabet": made.alphabet}
    np.savez(folder / "characters.npz", alphabet_names=["one", "two"], character_names=list("abcd"), **bits)
    (folder / "small").mkdir()
    for name, array in zip(("xs", "ys", "test_xs", "test_ys"), _arrays(images()), strict=True):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / "small" / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "small").iterdir())}
    files = {name: files[name] for name in ("xs", "ys", "test_xs", "test_ys")}
    source: dict[str, Any] = {"name": "small", "files": files, "folders": (str(folder / "small"),), "gzipped": False}
    source |= {"mirrors": (), "npm": None}
    fetched = {"name": Source(**source), "folder": folder, "mirrors": [], "report": None}
    mr.data.provide(Images("mnist", *_arrays(images())))  # so that nothing is downloaded
    return {
        "data.Images": Call(Images, vars(images())),
        "data.Characters": Call(Characters, {name: getattr(made, name) for name in names}),
        "data.Characters.images": Call(lambda **o: _characters().images(**o), {"resolution": 28, "pixels": "grey"}),
        "data.dataset": Call(mr.data.dataset, {"name": "mnist"}),
        "data.load": Call(mr.data.load, {"source": Source(**source)}),
        "data.provide": Call(mr.data.provide, {"found": images()}),
        "data.read_characters": Call(
            lambda path, name: mr.data.read_characters(path, name=name),
            {"path": folder / "characters.npz", "name": "own"},
        ),
        "data.Source": Call(lambda **o: mr.data.load(Source(**o)), source),
        "data.fetch": Call(mr.data.fetch, fetched),
    }


def _arrays(made: Images) -> tuple[NDArray[np.uint8], ...]:
    return made.train_xs, made.train_ys, made.test_xs, made.test_ys


def _runs(folder: Path) -> dict[str, Call]:
    xs, ys, _ = examples()
    mr.run(mr.Online(mlp(), engine="torch"), stream()).write(folder).rename(folder / "right.json")
    learner, pairs = Fresh(lambda: mr.Online(mlp(), engine="torch")), [(x, int(y)) for x, y in zip(xs, ys, strict=True)]
    run: dict[str, Any] = {"full_matrix": False, "training": False, "alignment": 0, "past": "before"}
    run |= {"learner": learner, "stream": stream(), "checkpoint": None}
    scored = {"every": 8, "window": 4, "fading": 0.9, "block": 2, "checkpoint": None, "learner": learner}
    experiment: dict[str, Any] = {"learner": "online", "stream": "rotations", "memory": 5, "memory_kind": None}
    experiment |= {"hidden": (3,), "network": {}, "options": {"lr": 0.1}, "tasks": 2, "examples": 5}
    experiment |= {"stream_options": {}, "test_examples": 5, "seed": 0, "engine": "auto", "full_matrix": False}
    experiment |= {"training": False, "alignment": 0, "past": "before", "held_out": 0.0, "first_tasks": None}
    own: dict[str, Any] = {"build": build, "settings": {"lr": 0.1}, "seed": 0, "engine": "auto"}
    own |= {"held_out": 0.25, "first_tasks": 2}
    record = mr.run(mr.Online(mlp(), engine="torch"), stream())

    def described(make: Callable[..., Any]) -> Callable[..., object]:
        def call(**options: Any) -> object:
            made = make(**options)
            return made.key, made.label, made.work, made.shape, made.start()

        return call

    return {
        "run": Call(mr.run, {**run, "follow": ()}),
        "Run": Call(lambda **o: list(mr.Run(**o).steps()), {**run, "built_by": None}),
        "prequential": Call(mr.prequential, {**scored, "stream": pairs, "follow": ()}),
        "PrequentialRun": Call(lambda **o: list(mr.PrequentialRun(**o).steps()), {**scored, "stream": stream()}),
        "Record.read": Call(mr.Record.read, {"path": folder / "right.json"}),
        "Record.write": Call(record.write, {"folder": folder / "written"}),
        "records": Call(mr.records, {"place": folder / "right.json"}),
        "Rows.where": Call(lambda **o: mr.records(folder / "right.json").where(**o), {"learner": "online", "seed": 0}),
        "Rows.sort": Call(lambda **o: mr.records(folder / "right.json").sort(**o), {"by": "ra", "descending": True}),
        "Metrics.of": Call(mr.Metrics.of, {"accuracy": np.zeros((3, 2))}),
        "Draws": Call(mr.Draws, {"seed": 0}),
        "experiments.Experiment": Call(described(Experiment), experiment),
        "experiments.OwnExperiment": Call(described(OwnExperiment), own),
        "experiments.Records": Call(
            lambda **o: mr.experiments.Records(**o).find("no key"), {"folder": folder, "kind": mr.Record}
        ),
        "experiments.pack": Call(mr.experiments.pack, {"records": [record], "path": folder / "packed.jsonl"}),
        "experiments.unpack": Call(mr.experiments.unpack, {"path": folder / "right.json", "kind": mr.Record}),
        "runners.Threads": Call(mr.runners.Threads, {"jobs": 1}),
        "runners.Processes": Call(mr.runners.Processes, {"jobs": 1}),
        "runners.FleetRunner": Call(mr.runners.FleetRunner, {"device": "cpu", "rest": None}),
        "runners.ArcadeRunner": Call(mr.runners.ArcadeRunner, {"device": "cpu", "rest": None, "most": 3}),
        "runners.RayCluster": Call(mr.runners.RayCluster, {"address": None, "cores_per_run": 1.0, "gpus_per_run": 0.0}),
        "runners.carry_out": Call(
            mr.runners.carry_out,
            {
                "experiment": OwnExperiment(build=build),
                "folder": folder / "carried",
                "fresh": False,
                "stop": None,
                "watcher": mr.runners.Watcher(),
                "shown_in": None,
            },
        ),
        "runners.Threads.run": Call(
            lambda **o: mr.runners.Threads(1).run(**o),
            {
                "experiments": [OwnExperiment(build=build)],
                "folder": folder / "run",
                "fresh": False,
                "keep_going": False,
                "watcher": mr.runners.Watcher(),
            },
        ),
        "runners.forget_failures": Call(
            mr.runners.forget_failures, {"experiments": [OwnExperiment(build=build)], "folder": folder}
        ),
        "runners.without_failures": Call(mr.runners.without_failures, {"found": [record, None]}),
    }


def _loops(folder: Path) -> dict[str, Call]:
    rows, model = torch.zeros(4, INPUTS), mlp()
    with mr.DiskReservoir(folder / "parts" / "part-00000-of-00001", 5) as memory:
        memory.offer({"x": rows})

    def mer() -> mr.PeriodicMER:
        made = mr.PeriodicMER(mlp(), memory=mr.Reservoir(5), share=0.5, every=2)
        made.mix({"x": rows})
        return made

    dealt = iter(range(10**9))

    def deal(**options: Any) -> None:
        target = folder / f"dealt {next(dealt)}"
        mr.loops.deal(**{"target": target, **options})

    def loaded(**parts: Any) -> None:
        made = mer()
        made.load_state_dict({**made.state_dict(), **parts})

    state = mer().state_dict()
    periodic = {"model": mlp(), "memory": Fresh(lambda: mr.Reservoir(5)), "share": 0.5, "every": 2, "rate": 0.5}
    return {
        "PeriodicMER": Call(mr.PeriodicMER, {**periodic, "seed": 0, "copy_on": "device"}),
        "PeriodicMER.mix": Call(lambda **o: mer().mix(**o), {"batch": {"x": rows}}),
        "PeriodicMER.mix a dictionary": Call(lambda **o: mer().mix(o), {"x": rows}),
        "PeriodicMER.alignment": Call(
            lambda **o: mer().alignment(**o), {"batch": {"x": rows}, "loss_of": lambda batch: batch["x"].sum()}
        ),
        "PeriodicMER.load_state_dict": Call(lambda **o: mer().load_state_dict(**o), {"state": state}),
        "PeriodicMER.load_state_dict of parts": Call(loaded, state),
        "loops.ReptileLine": Call(mr.loops.ReptileLine, {"model": mlp(), "rate": 0.5, "copy_on": "device"}),
        "loops.gradient_alignment": Call(
            mr.loops.gradient_alignment,
            {"model": model, "loss_of": lambda some: model(some).sum(), "new": rows, "replayed": rows},
        ),
        "loops.rank_reservoir": Call(
            lambda **o: mr.loops.rank_reservoir(**o).close(), {"folder": folder / "ranks", "capacity": 5}
        ),
        "loops.deal": Call(deal, {"source": folder / "parts", "ranks": 2, "capacity": 4, "states": None, "seed": 0}),
        "loops.agree": Call(mr.loops.agree, {"step": 3}),
    }


def _games(_folder: Path) -> dict[str, Call]:
    seen: dict[str, Any] = {"observation": "state", "frames": 2, "rewards": None, "render_mode": None}
    game: dict[str, Any] = {"learner": "dqn", "game": "catcher", "observation": "state", "memory": 5}
    game |= {"memory_kind": None, "hidden": (3,), "options": {"k": 2}, "order": "published", "task": 1, "frames": 3}
    game |= {"game_options": {}, "every": 3, "episodes": 1, "cap": 3, "seed": 0, "engine": "auto"}

    def catcher() -> CatcherEnv:
        return CatcherEnv(observation="state")

    def agent() -> mr.DQN:
        return mr.DQN(mr.networks.mlp(4, (3,), 3, seed=0), memory=mr.Recent(4), k=2, warmup=0, engine="torch")

    def used(make: Callable[..., Any]) -> Callable[..., object]:
        def call(**options: Any) -> None:
            env = make(**options)
            env.reset(seed=0)
            env.step(0)

        return call

    def described(**options: Any) -> object:
        made = GameExperiment(**options)
        return made.key, made.label, made.work, made.shape, made.start()

    training: dict[str, Any] = {"agent": Fresh(agent), "env": Fresh(catcher), "frames": 3, "about": None}
    training |= {"evaluation": None, "checkpoint": None}
    tested = {"tasks": [catcher], "episodes": 1, "cap": 3, "every": 2, "seed": 0}
    long = {"frames": 5, "episodes": 2, "cap": 5}
    schedule: dict[str, Any] = {"values": (0.06, 0.09), "frames": 2, "order": "published", "seed": 0}
    return {
        "rl.train": Call(mr.rl.train, {**training, "follow": ()}, long),
        "rl.Training": Call(
            lambda **o: list(mr.rl.Training(**o).steps()), {**training, "seed": None, "at_the_end": None}, long
        ),
        "rl.Evaluation": Call(lambda **o: Evaluation(**o).scores(agent()), tested, long),
        "rl.GameExperiment": Call(described, game, long),
        "environments.CatcherEnv": Call(
            used(CatcherEnv), {**seen, "size": None, "screen": 64, "pellet_speed": None, "rounding": "truncate"}
        ),
        "environments.FlappyBirdEnv": Call(
            used(FlappyBirdEnv), {**seen, "size": 84, "pipe_gap": 100, "carry_velocity": True}
        ),
        "environments.CatcherEnv.reset": Call(lambda **o: catcher().reset(**o), {"seed": 0, "options": None}),
        "environments.CatcherEnv.step": Call(_step, {"action": 1}),
        "environments.Catcher": Call(
            lambda **o: mr.environments.Catcher(**o).new_state(0),
            {"rewards": mr.environments.Rewards(), "screen": 64, "pellet_speed": None, "rounding": "truncate"},
        ),
        "environments.FlappyBird": Call(
            lambda **o: mr.environments.FlappyBird(**o).new_state(0),
            {"rewards": mr.environments.Rewards(), "pipe_gap": 100, "carry_velocity": True},
        ),
        "environments.Rewards": Call(
            lambda **o: mr.environments.Catcher(rewards=mr.environments.Rewards(**o)).new_state(0),
            {"tick": 0.0, "positive": 1.0, "negative": -1.0, "loss": -5.0},
        ),
        "environments.Schedule": Call(lambda **o: Schedule(**o).value(3), schedule),
        "environments.Schedule.task": Call(lambda **o: Schedule((1, 2)).task(**o), {"frame": 3}),
        "environments.Schedule.value": Call(lambda **o: Schedule((1, 2)).value(**o), {"frame": 3}),
        "environments.ScheduledEnv": Call(
            lambda **o: ScheduledEnv(**o).reset(seed=0),
            {"env": Fresh(catcher), "schedule": Schedule((0.06, 0.09)), "parameter": "pellet_speed", "start": 0},
        ),
    }


def played() -> GameRecord:
    """Return the record of an agent that has played a few frames."""
    net = mr.networks.mlp(4, (3,), 3, seed=0)
    agent = mr.DQN(net, memory=mr.Recent(4), k=2, warmup=0, engine="torch")
    evaluation = Evaluation([lambda: CatcherEnv(observation="state")], episodes=1, cap=3)
    return mr.rl.train(agent, CatcherEnv(observation="state"), 3, evaluation=evaluation)


def _step(**options: Any) -> None:
    env = CatcherEnv(observation="state")
    env.reset(seed=0)
    env.step(**options)


def _sweeps(folder: Path) -> dict[str, Call]:
    swept: dict[str, Any] = {"what": build, "grid": {"lr": [0.1, 0.2]}, "seeds": 1, "folder": folder / "swept"}
    swept |= {"runner": mr.runners.Threads(1), "select": None, "held_out": 0.25, "halving": None, "retry_failed": False}
    made, record = mr.sweep(**swept), mr.run(mr.Online(mlp(), engine="torch"), stream())
    (folder / "reported").mkdir()
    record.write(folder / "reported")
    template = Experiment(learner="online", tasks=2, examples=5, test_examples=5, hidden=(3,))
    game = GameExperiment(learner="dqn", observation="state", hidden=(3,), frames=3, episodes=1, cap=3)

    def tried(make: Callable[..., mr.sweeps.Subject]) -> Callable[..., object]:
        def call(**options: Any) -> object:
            subject = make(**options)
            return subject.name, subject.at({"lr": 0.1}, 0)

        return call

    return {
        "sweep": Call(mr.sweep, {**swept, "watcher": mr.runners.Watcher()}, {"seeds": 1}),
        "sweep.a grid": Call(lambda **o: mr.sweep(**{**swept, "grid": {"lr": [0.1], **o}}), {"lr": [0.1, 0.2]}),
        "Grid": Call(lambda **o: list(mr.Grid(**o)), {"values": {"lr": [0.1, 0.2], "k": [1, 2]}}),
        "Grid.of fields": Call(lambda **o: list(mr.Grid(o)), {"lr": [0.1, 0.2], "k": [1, 2]}),
        "Grid.random": Call(lambda **o: list(mr.Grid({"lr": [0.1, 0.2]}).random(**o)), {"count": 1, "seed": 0}),
        "Sweep.plot": Call(made.plot, {"path": folder / "sweep.png"}),
        "Sweep.values": Call(made.values, {"metric": "ra"}),
        "sweeps.StreamSubject": Call(tried(mr.sweeps.StreamSubject), {"template": template, "usual": None}),
        "sweeps.GameSubject": Call(tried(mr.sweeps.GameSubject), {"template": game, "usual": None}),
        "sweeps.OwnSubject": Call(tried(mr.sweeps.OwnSubject), {"build": build}),
        "sweeps.Report": Call(
            lambda **o: mr.sweeps.Report(**o).document(), {"sweep": made, "command": None, "published": None}
        ),
        "report": Call(
            mr.report, {"places": [folder / "reported"], "out": folder / "report.html", "title": "some runs"}
        ),
    }


def _languages(folder: Path) -> dict[str, Call]:
    small = lm.Size(width=8, layers=1, heads=2)
    settings: dict[str, Any] = {"size": small, "context": 4, "steps": 2, "rows": 2, "lr": 0.01, "warmup": 1, "every": 1}
    settings |= {"rate": 0.5, "capacity": 5, "measures": 1, "test_rows": 2, "seed": 0}
    languages = lm.made_up(2, 400)
    train: dict[str, Any] = {"arm": lm.ARMS["mer-0.5"], "languages": languages, "settings": lm.LmSettings(**settings)}
    train |= {"folder": folder / "lm", "device": "cpu", "copy_on": "device", "alignment": False, "save_seconds": 60.0}
    train |= {"report": lambda _step, _total: None, "stop": lambda: False}
    (folder / "language").mkdir()
    (folder / "language" / "text").write_bytes(bytes(range(97, 122)) * 30)
    lm.train(**train)

    def trained(settings: Any, arm: Any = lm.ARMS["replay-0.5"], languages: Any = languages) -> None:
        lm.train(arm, languages, settings, folder / "lm settings")

    return {
        "lm.LmSettings": Call(lambda **o: trained(lm.LmSettings(**o)), settings, {"steps": 3, "warmup": 3, "every": 3}),
        "lm.train": Call(lm.train, train),
        "lm.Arm": Call(
            lambda **o: trained(train["settings"], lm.Arm(**o)),
            {"name": "own", "share": 0.25, "has_line": True, "is_joint": False},
        ),
        "lm.Language": Call(
            lambda **o: trained(train["settings"], languages=[lm.Language(**o)]),
            {"name": "own", "train": languages[0].train, "test": languages[0].test},
        ),
        "lm.Size": Call(
            lambda **o: lm.Llama(lm.Size(**o), 4, 0), {"width": 8, "layers": 1, "heads": 2}, {"layers": 3, "width": 64}
        ),
        "lm.Llama": Call(lm.Llama, {"size": small, "context": 4, "seed": 0}),
        "lm.Language.rows": Call(lambda **o: languages[0].rows(**o), {"count": 2, "length": 5, "seed": [1]}),
        "lm.Language.test_rows": Call(lambda **o: languages[0].test_rows(**o), {"count": 2, "length": 5}),
        "lm.made_up": Call(lm.made_up, {"count": 1, "size": 300, "seed": 0}, {"count": 2, "size": 1000}),
        "lm.read_languages": Call(lm.read_languages, {"folders": [folder / "language"], "length": 5}),
        "lm.read_records": Call(lm.read_records, {"folder": folder / "lm"}),
    }


def _others(folder: Path) -> dict[str, Call]:
    from metareplay.integrations import river, scikit_learn

    xs, ys, _ = examples()
    record, records = mr.run(mr.Online(mlp(), engine="torch"), stream()), folder / "pictures"
    aligned = mr.run(mr.Online(mlp(), engine="torch"), stream(), alignment=2, full_matrix=True)
    scored = mr.prequential(mr.Online(mlp(), engine="torch"), stream())
    drawn = {"path": records / "picture.png", "title": "a title"}

    def learned(make: Callable[..., Any], label: Any) -> Callable[..., object]:
        def call(**options: Any) -> None:
            model = make(**options)
            model.learn_one({"a": 1.0, "b": 2.0}, label)
            model.predict_one({"a": 1.0})

        return call

    def fitted(make: Callable[..., Any], few: Any) -> Callable[..., object]:
        return lambda **o: make(**o).fit(xs[:6].numpy().astype(float), few).predict(xs[:2].numpy().astype(float))

    of_river = {"maker": None, "features": 4, "seed": 0}
    of_sklearn = {"maker": None, "passes": 1, "random_state": 0}
    labels, targets = ys[:6].numpy(), ys[:6].numpy().astype(float)
    return {
        "integrations.river.RiverClassifier": Call(learned(river.RiverClassifier, "a"), of_river),
        "integrations.river.RiverRegressor": Call(learned(river.RiverRegressor, 0.5), of_river),
        "integrations.river.RiverClassifier.learn_one": Call(
            lambda **o: river.RiverClassifier(features=4).learn_one(**o), {"x": {"a": 1.0}, "y": "label"}
        ),
        "integrations.river.RiverClassifier.learn_one by features": Call(
            lambda **o: river.RiverClassifier(features=4).learn_one(o, 1), {"a": 1.0, "b": 2}
        ),
        "integrations.river.RiverRegressor.learn_one": Call(
            lambda **o: river.RiverRegressor(features=4).learn_one(**o), {"x": {"a": 1.0}, "y": 0.5}
        ),
        "integrations.scikit_learn.PartialFitClassifier": Call(
            fitted(scikit_learn.PartialFitClassifier, labels), of_sklearn, {"passes": 2}
        ),
        "integrations.scikit_learn.PartialFitRegressor": Call(
            fitted(scikit_learn.PartialFitRegressor, targets), of_sklearn, {"passes": 2}
        ),
        "trackers.TensorBoard": Call(mr.trackers.TensorBoard, {"folder": folder / "tensorboard"}),
        "trackers.MLflow": Call(mr.trackers.MLflow, {"folder": folder / "mlflow", "experiment": "some"}),
        "trackers.WeightsAndBiases": Call(
            mr.trackers.WeightsAndBiases, {"folder": folder / "wandb", "project": "some"}
        ),
        "plots.plot_tasks": Call(plots.plot_tasks, {"records": {"online": record}, **drawn}),
        "plots.plot_matrices": Call(plots.plot_matrices, {"records": {"online": aligned}, **drawn}),
        "plots.plot_alignment": Call(plots.plot_alignment, {"records": {"online": aligned}, **drawn}),
        "plots.plot_prequential": Call(plots.plot_prequential, {"records": {"online": scored}, **drawn}),
        "plots.plot_scores": Call(plots.plot_scores, {"records": {"dqn": [played()]}, "tasks": (), **drawn}),
    }
