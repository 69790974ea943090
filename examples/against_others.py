"""Compare our learners with other libraries.

Our learners, river, deep-river, CapyMOA and Avalanche learn the same streams; accuracy and time are compared. Every
example is predicted before it is learned. In the last stream classes come two by two, and what counts is the accuracy
on all of them in the end. Settings are the libraries' defaults, or those that are written here; none were searched, for
any side. Libraries that are not installed are left out: `pip install 'metareplay[others]'` installs them.
The table in docs/others.md was made with `--examples 4000 --json results/others.json`.

Run it with: python examples/against_others.py
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import metareplay as mr
from metareplay.experiments.record import now, versions

INPUTS, MEMORY, LR = 20, 500, 0.05
WARM_UP = 100  # examples before the clock starts, after which everything is compiled
Stream = tuple[NDArray[np.float32], NDArray[np.int64]]


def steady(count: int) -> Stream:
    """Two classes with a curved border that stays where it is."""
    xs = np.random.default_rng(0).normal(size=(count, INPUTS)).astype(np.float32)
    return xs, (xs[:, 0] * xs[:, 1] + xs[:, 2] > 0).astype(np.int64)


def recurring(count: int) -> Stream:
    """Two classes whose border changes every tenth of the stream, and then changes back."""
    xs = np.random.default_rng(1).normal(size=(count, INPUTS)).astype(np.float32)
    other = np.arange(count) * 10 // count % 2 == 1
    return xs, (np.where(other, xs[:, 0] - xs[:, 1], xs[:, 0] + xs[:, 1]) > 0).astype(np.int64)


def classes_in_turn(count: int) -> Stream:
    """Ten classes, two at a time: five tasks, after which none of the earlier classes comes again."""
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(10, INPUTS)) * 0.6
    ys = np.arange(count) * 5 // count * 2 + rng.integers(2, size=count)
    return (centres[ys] + rng.normal(size=(count, INPUTS))).astype(np.float32), ys


class Contestant:
    """Predict a row, then learn it; the first row is only learned."""

    def __init__(self, predict: Callable[[Any], Any], learn: Callable[[Any, int], Any], prepare: Callable[[Any], Any]):
        self.predict, self.learn, self.prepare = predict, learn, prepare


def network(classes: int) -> nn.Module:
    """Make the network that all libraries with networks learn."""
    return mr.networks.mlp(INPUTS, (64,), classes, seed=0)


def ours(learner: mr.Learner) -> Contestant:
    """Let one of our learners take part."""
    return Contestant(lambda x: int(learner.predict(x)), learner.observe, lambda x: x)


def of_river(model: Any) -> Contestant:
    """Let a model of river take part, or one that has its methods."""
    names = [f"x{number}" for number in range(INPUTS)]
    return Contestant(model.predict_one, model.learn_one, lambda x: dict(zip(names, x.tolist(), strict=True)))


def of_capymoa(make: Callable[..., Any], xs: Any, ys: Any) -> Contestant:
    """Let a model of CapyMOA take part."""
    from capymoa.core import LabeledInstance
    from capymoa.stream import NumpyStream

    schema = NumpyStream(xs[:100], np.resize(np.unique(ys), 100)).get_schema()
    model = make(schema=schema)

    def predict(x: Any) -> Any:
        return model.predict(LabeledInstance.from_array(schema, x, 0))

    def learn(x: Any, y: int) -> None:
        model.train(LabeledInstance.from_array(schema, x, y))

    return Contestant(predict, learn, lambda x: x.astype(np.float64))


def contestants(xs: Any, ys: Any) -> Iterator[tuple[str, str, Callable[[], Contestant]]]:
    """Yield library, name, and what makes the contestant."""
    classes = int(ys.max()) + 1
    options: dict[str, Any] = {"lr": LR, "k": 5, "s": 2, "beta": 0.3}
    yield "metareplay", "Online", lambda: ours(mr.Online(network(classes), lr=LR))
    yield "metareplay", "MER, Reservoir", lambda: ours(mr.MER(network(classes), memory=mr.Reservoir(MEMORY), **options))
    yield "metareplay", "MER, Mixed", lambda: ours(mr.MER(network(classes), memory=mr.Mixed(MEMORY), **options))
    if find_spec("river"):
        from river import forest, linear_model, multiclass, tree

        linear = linear_model.LogisticRegression()  # it knows two classes only
        yield (
            "river",
            "LogisticRegression",
            lambda: of_river(linear if classes == 2 else multiclass.OneVsRestClassifier(linear)),
        )
        yield "river", "HoeffdingAdaptiveTree", lambda: of_river(tree.HoeffdingAdaptiveTreeClassifier(seed=0))
        yield "river", "ARFClassifier", lambda: of_river(forest.ARFClassifier(seed=0))
    if find_spec("deep_river"):
        from deep_river.classification import Classifier

        yield (
            "deep-river",
            "Classifier, same network",
            lambda: of_river(Classifier(module=network(classes), loss_fn="cross_entropy", optimizer_fn="sgd", lr=LR)),
        )
    if find_spec("capymoa"):
        from capymoa.classifier import AdaptiveRandomForestClassifier, HoeffdingTree

        yield "CapyMOA", "HoeffdingTree", lambda: of_capymoa(HoeffdingTree, xs, ys)
        yield "CapyMOA", "AdaptiveRandomForest", lambda: of_capymoa(AdaptiveRandomForestClassifier, xs, ys)


def one_by_one(one: Contestant, xs: Any, ys: Any) -> tuple[float, float]:
    """Return the accuracy on examples before they are learned, in percent, and the microseconds per example."""
    right, start = 0, 0.0
    for number, (row, label) in enumerate(zip([one.prepare(x) for x in xs], ys.tolist(), strict=True)):
        if number == WARM_UP:
            start = time.perf_counter()
        right += number > 0 and one.predict(row) == label
        one.learn(row, label)
    return 100 * right / (len(xs) - 1), 1e6 * (time.perf_counter() - start) / (len(xs) - WARM_UP)


def avalanche_replay(xs: Any, ys: Any, test: Stream) -> tuple[float, float]:
    """Let Avalanche's own replay learn the tasks; return the accuracy on all classes in the end, and the time."""
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Replay

    parts = [(torch.from_numpy(xs[ys // 2 == task]), torch.from_numpy(ys[ys // 2 == task])) for task in range(5)]
    streams = tensors_benchmark(parts, parts, task_labels=[0] * 5)
    model = network(10)
    strategy = Replay(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR), criterion=nn.CrossEntropyLoss(),
        mem_size=MEMORY, train_mb_size=1, train_epochs=1, evaluator=EvaluationPlugin(loggers=None),
    )  # fmt: skip
    start = time.perf_counter()
    for experience in streams.train_stream:
        strategy.train(experience)
    took = time.perf_counter() - start
    found = model(torch.from_numpy(test[0])).argmax(1).numpy()
    return float(100 * (found == test[1]).mean()), 1e6 * took / len(xs)


def compare(count: int) -> dict[str, Any]:
    """Run everything; return the rows of the table with versions and date."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for stream in (steady, recurring, classes_in_turn):
        xs, ys = stream(count)
        test = classes_in_turn(2 * count) if stream is classes_in_turn else None
        for library, name, make in contestants(xs, ys):
            one = make()
            accuracy, us = one_by_one(one, xs, ys)
            if test is not None:  # other examples of the same classes
                picked = np.random.default_rng(3).choice(len(test[0]), min(1000, len(test[0])), replace=False)
                accuracy = float(100 * np.mean([one.predict(one.prepare(test[0][i])) == test[1][i] for i in picked]))
            row = rows.setdefault((library, name), {"library": library, "name": name})
            row[stream.__name__] = accuracy
            row.setdefault("us", us)
        if test is not None and find_spec("avalanche"):
            accuracy, us = avalanche_replay(xs, ys, test)
            row = {"library": "Avalanche", "name": "Replay, same network", stream.__name__: accuracy, "us": us}
            rows["Avalanche", "Replay"] = row
    libraries = ("river", "deep-river", "capymoa", "avalanche-lib")
    installed = {name: version(name) for name in libraries if find_spec(name.replace("-lib", "").replace("-", "_"))}
    return {"examples": count, "rows": list(rows.values()), "versions": versions() | installed, "date": now()}


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table."""
    lines = [
        "| library | model | steady | recurring | classes in turn, in the end | us per example |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        cells = [f"{row[name]:.1f}" if name in row else "" for name in ("steady", "recurring", "classes_in_turn")]
        lines.append(f"| {row['library']} | {row['name']} | {' | '.join(cells)} | {row['us']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("--examples", type=int, default=150, help="how many examples each stream has")
    reader.add_argument("--json", type=Path, help="also write everything into this file")
    given = reader.parse_args()
    if given.examples <= WARM_UP:
        reader.error(f"--examples {given.examples}: use more than {WARM_UP}")
    torch.set_num_threads(1)
    outcome = compare(given.examples)
    if given.json:
        given.json.write_text(json.dumps(outcome, indent=1) + "\n")
    print(table(outcome))
