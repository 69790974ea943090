"""Each tracker with its real package, which writes to a folder; what it has written is read back."""

import json
import logging
import pickle
import struct
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from small_runs import EXAMPLES, TASKS, rotations
from torch import nn

import metareplay as mr
from metareplay.errors import MetareplayError
from metareplay.experiments.base import Curves
from metareplay.trackers import MLflow, TensorBoard, WeightsAndBiases
from metareplay.trackers.points import NewPoints, flat

pytestmark = pytest.mark.filterwarnings("ignore")  # these packages warn of each other


def net() -> nn.Module:
    return mr.networks.mlp(784, (8,), 10, seed=0)


def run(follow: list[mr.Follower], lr: float = 0.05) -> mr.Record:
    made = [mr.ER(model, memory=mr.Reservoir(8), lr=lr, k=2, seed=0) for model in (net(), net())]
    record = mr.run(made[0], rotations(0), follow=follow)
    assert record.weights == mr.run(made[1], rotations(0)).weights
    return record


def accuracies(record: mr.Record, task: int) -> list[float]:
    column = record.accuracy[:, task]
    return [value for value in column.tolist() if value == value]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    record = run([TensorBoard(tmp_path)])
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    found = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    (name,) = found.Runs()
    assert name.endswith(record.key)
    points = found.Scalars(name, "accuracy/task_01")
    assert [point.value for point in points] == pytest.approx(accuracies(record, 0))
    assert points[-1].step == TASKS * EXAMPLES
    assert found.Scalars(name, "result/ra")[0].value == pytest.approx(record.ra)


def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    record = run([MLflow(tmp_path)])
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("metareplay")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert (found.data.params["settings.k"], found.data.params["stream.tasks"]) == ("2", str(TASKS))
    assert found.data.tags["metareplay.key"] == record.key
    assert found.data.metrics["result/ra"] == record.ra
    history = client.get_metric_history(found.info.run_id, "accuracy/task_01")
    assert [point.value for point in history] == accuracies(record, 0)
    with pytest.raises(ValueError, match="lr"):
        run([MLflow(tmp_path)], lr=float("inf"))
    assert len(client.search_runs([experiment.experiment_id])) == 1  # it was refused before it began


def test_only_one_process_at_a_time_opens_the_database_of_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    locks = pytest.importorskip("fcntl")
    waited = list[bool]()

    class Client:
        """Tries to open the database a second time, as another process would."""

        def __init__(self, _: str) -> None:
            with (tmp_path / ".opening").open("w") as file:
                try:
                    locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
                except BlockingIOError:
                    waited.append(True)

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    run([MLflow(tmp_path)])
    assert waited == [True]


def test_weights_and_biases(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    record = run([WeightsAndBiases(tmp_path)])
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    items = list(contents(path))
    logged = [item for kind, item in items if kind == "history"]
    assert [item["accuracy/task_01"] for item in logged if "accuracy/task_01" in item] == accuracies(record, 0)
    assert logged[-1]["examples"] == TASKS * EXAMPLES
    summary = {name: value for kind, item in items if kind == "summary" for name, value in item.items()}
    assert summary["result/ra"] == record.ra


def contents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What an offline run of Weights & Biases holds."""
    protocol = import_module("wandb.proto.wandb_internal_pb2")
    for message in messages(path.read_bytes()):
        item = protocol.Record()
        item.ParseFromString(message)
        kind = item.WhichOneof("record_type")
        if kind == "history":
            yield kind, {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in item.history.item}
        if kind == "summary":
            yield kind, {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in item.summary.update}


def messages(content: bytes) -> Iterator[bytes]:
    """The messages of a file in LevelDB's log format: pieces with a header of 7 bytes, in blocks of 32 KiB."""
    block, at, message = 1 << 15, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
        size, kind = struct.unpack_from("<HB", content, at + 4)
        message += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield message
            message = b""


@pytest.mark.parametrize("kind", [TensorBoard, MLflow, WeightsAndBiases])
def test_a_tracker_can_be_sent_to_another_process(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip({TensorBoard: "tensorboard", MLflow: "sqlalchemy", WeightsAndBiases: "wandb"}[kind])
    assert pickle.loads(pickle.dumps(partial(kind, tmp_path)))().folder == tmp_path


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [(TensorBoard, "tensorboard", "tensorboard"), (MLflow, "mlflow", "mlflow"), (WeightsAndBiases, "wandb", "wandb")],
)
def test_a_missing_package_is_named_at_once(
    kind: Any, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MetareplayError, match=rf"needs {package}: pip install 'metareplay\[{extra}\]'"):
        kind(tmp_path)


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "metareplay"):
        record = run([TensorBoard(tmp_path / "file")])
    assert record.examples == TASKS * EXAMPLES
    assert ["TensorBoard does not follow" in line for line in caplog.messages] == [True]


def test_each_point_is_written_once() -> None:
    points, curves = NewPoints(), dict[str, list[tuple[int, float]]]()
    shown: Curves = curves
    curves["accuracy of task 1"] = [(0, 10.0)]
    assert list(points.of(shown)) == [("accuracy/task_01", 0, 10.0)]
    assert list(points.of(shown)) == []
    curves["accuracy of task 1"].append((5, 20.0))
    assert list(points.of(shown)) == [("accuracy/task_01", 5, 20.0)]


def test_settings_become_one_list() -> None:
    assert flat({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None}) == {"a.b": 1, "a.c.d": "[1, 2]", "e": "None"}
