"""Test, then train: every example is predicted by a learner that has not seen it, and what is learned is the same."""

import itertools
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metareplay as mr
from metareplay.experiments import Experiment, Prequential, PrequentialExperiment, Records
from metareplay.experiments import prequential_run as module
from metareplay.plots import plot_prequential

COUNT = 90


def net() -> nn.Sequential:
    return mr.networks.mlp(6, (8,), 3, seed=1)


def learner(**more: Any) -> mr.Learner:
    return mr.MER(net(), memory=mr.Reservoir(9), lr=0.1, beta=0.3, s=2, k=4, **more)


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    xs = torch.rand(COUNT, 6, generator=generator)
    return xs, xs[:, :3].argmax(1)


def stream() -> mr.Stream:
    return mr.OwnStream.from_tensors(*examples(), tasks=torch.arange(COUNT) // 40)


def test_predictions_come_from_a_learner_that_has_not_seen_the_example() -> None:
    plain, right, loss = learner(), 0, 0.0
    for x, y in zip(*examples(), strict=True):
        right += int(plain.predict(x[None])[0] == y)
        loss -= math.log(plain.predict_proba(x[None])[0, y])
        plain.observe(x, y)
    scored = learner()
    record = mr.prequential(scored, zip(*examples(), strict=True), every=20)
    assert torch.equal(plain.weights.theta, scored.weights.theta)
    assert record.accuracy == pytest.approx(100 * right / COUNT)
    assert record.log_loss == pytest.approx(loss / COUNT, rel=1e-5)
    assert record.points["examples"] == [20, 40, 60, 80, 90]
    assert record.examples == COUNT
    assert sum(one["examples"] for one in record.classes) == COUNT
    assert math.isnan(record.mae)


@pytest.mark.parametrize("engine", ["torch", "cpu"])
def test_blocks_and_streams_give_the_same_weights(engine: Any) -> None:
    one, other, plain = (learner(engine=engine) for _ in range(3))
    first = mr.prequential(one, stream(), every=30)
    second = mr.prequential(other, stream(), every=30, block=15)
    mr.run(plain, stream())
    assert first.weights == second.weights
    assert torch.equal(one.weights.theta, plain.weights.theta)
    assert first.key != second.key
    assert first.engine == engine


def test_blocks_are_predicted_before_any_of_their_examples_is_learned() -> None:
    plain, right = learner(), 0
    xs, ys = examples()
    for start, end in ((0, 30), (30, 40), (40, 60), (60, 80), (80, 90)):  # a block ends where the task changes
        right += int((plain.predict(xs[start:end]) == ys[start:end]).sum())
        plain.observe_many(xs[start:end], ys[start:end])
    record = mr.prequential(learner(), stream(), every=30, block=30)
    assert record.accuracy == pytest.approx(100 * right / COUNT)


@pytest.mark.parametrize("block", [1, 15])
@pytest.mark.parametrize("when", [1, 3, 5])
def test_an_interrupted_run_ends_with_the_same_record(
    block: int, when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOW_EVERY", -1.0)
    options: dict[str, Any] = {"every": 45, "window": 33, "block": block}
    whole = mr.prequential(learner(classes="grow"), stream(), **options)
    path = tmp_path / "run.ckpt"
    stopped = mr.PrequentialRun(learner(classes="grow"), stream(), checkpoint=path, **options)
    for _ in itertools.islice(stopped.steps(), when):
        pass
    stopped.save()
    again = mr.prequential(learner(classes="grow"), stream(), checkpoint=path, **options)
    assert again.points == whole.points
    assert again.classes == whole.classes
    assert again.weights == whole.weights
    with pytest.raises(mr.CheckpointError, match=r"prequential\.window=33"):
        mr.prequential(learner(classes="grow"), stream(), checkpoint=path, **options | {"window": 5})


class Interrupting(nn.Module):
    """Sends Ctrl-C in one of its forward passes."""

    def __init__(self, when: int) -> None:
        super().__init__()
        self.net, self.left = net(), when

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return self.net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("when", [1, 2, 9, 10, 11, 222])
def test_ctrl_c_leaves_a_run_that_can_be_saved_and_continued(when: int, tmp_path: Path) -> None:
    def made(at: int) -> mr.Learner:
        return mr.MER(Interrupting(at), memory=mr.Reservoir(9), lr=0.1, beta=0.3, s=2, k=4, engine="torch")

    stopped = mr.PrequentialRun(made(when), stream(), every=30, checkpoint=tmp_path / "run.ckpt")
    with pytest.raises(KeyboardInterrupt):
        list(stopped.steps())
    assert stopped.scores.count == stopped.learner.seen < COUNT
    stopped.save()
    again = mr.prequential(made(0), stream(), every=30, checkpoint=tmp_path / "run.ckpt")
    whole = mr.prequential(made(0), stream(), every=30)
    assert (again.points, again.weights) == (whole.points, whole.weights)


def test_labels_that_were_never_seen_are_wrong_and_have_no_probability() -> None:
    names = ["zero", "one", "two"]
    xs, ys = examples()
    record = mr.prequential(learner(classes="grow"), [(x, names[y]) for x, y in zip(xs, ys, strict=True)], every=30)
    numbers = mr.prequential(learner(), stream(), every=30)
    assert {one["label"] for one in record.classes} == set(names)
    assert record.log_loss > numbers.log_loss  # three examples had a label that was new
    assert 0 < record.kappa < 1


def test_regression() -> None:
    xs, _ = examples()
    targets = xs.sum(1, keepdim=True)
    plain, errors = mr.Online(mr.networks.mlp(6, (8,), 1, seed=1), lr=0.05, regression=True), []
    for x, y in zip(xs, targets, strict=True):
        errors.append(float((plain.predict(x[None])[0] - y).abs()))
        plain.observe(x, y)
    scored = mr.Online(mr.networks.mlp(6, (8,), 1, seed=1), lr=0.05, regression=True)
    record = mr.prequential(scored, mr.OwnStream.from_tensors(xs, targets), every=45)
    assert record.mae == pytest.approx(sum(errors) / COUNT, rel=1e-5)
    assert record.rmse == pytest.approx(math.sqrt(sum(e * e for e in errors) / COUNT), rel=1e-5)
    assert record.classes == []
    assert math.isnan(record.accuracy)


def test_the_record_is_a_file_a_row_and_a_picture(tmp_path: Path) -> None:
    record = mr.prequential(learner(), stream(), every=30)
    path = record.write(tmp_path)
    assert mr.PrequentialRecord.read(path) == record
    assert Records(tmp_path, mr.PrequentialRecord).find(record.key) == record
    [row] = mr.records(tmp_path)
    assert row["accuracy"] == record.accuracy
    assert row["learner"] == "mer"
    plot_prequential({"MER": record}, tmp_path / "picture.png", "MER")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert mr.Record.kind != record.kind
    with pytest.raises(mr.MetareplayError, match="not of a run"):
        mr.Record.read(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0"),
        ({"window": 0}, "window=0"),
        ({"fading": 0.0}, "use 0 < fading <= 1"),
        ({"fading": 1.5}, "use 0 < fading <= 1"),
        ({"block": 7}, "a block that divides"),
        ({"every": "x"}, "every='x'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        mr.prequential(learner(), stream(), **options)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the stream is empty"),
        ([(torch.zeros(6), 1), 3], "example 1 of the stream is 3"),
        ([(torch.zeros(6), [0.1, 0.2, 0.7])], "one label per example"),
        ([(torch.zeros(6), 9)], "out of range"),
        (7, "stream is an int"),
    ],
)
def test_streams_that_cannot_be_used(items: Any, message: str) -> None:
    with pytest.raises(mr.InputError, match=message):
        mr.prequential(learner(), items)


def test_a_learner_that_has_learned_is_refused() -> None:
    used = learner()
    used.observe(examples()[0][0], 1)
    with pytest.raises(mr.InputError, match="already seen 1 examples"):
        mr.prequential(used, stream())


def test_an_experiment_knows_the_key_of_its_record() -> None:
    known = PrequentialExperiment.of(Experiment(tasks=2, examples=10), Prequential(every=10))
    assert known.start().key == known.key
    assert known.key != Experiment(tasks=2, examples=10).key
    with pytest.raises(mr.InputError, match="no test sets"):
        PrequentialExperiment.of(Experiment(alignment=5), Prequential())
