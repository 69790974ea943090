"""A Ray cluster of two nodes on this machine: the same records as here, bit for bit, also if a node is lost."""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from small_runs import small_images
from small_sweep import Small

import metareplay as mr
from metareplay.data import images
from metareplay.errors import RayMissingError
from metareplay.experiments import AnyExperiment, Experiment
from metareplay.runners import Failure, RayCluster, Threads, Watcher, ray_cluster, ray_task
from metareplay.runners.claims import Claim
from metareplay.runners.runner import checkpoint_path

FOLDERS = (Path(__file__).parents[1], Path(__file__).parents[2])
DEADLINE = 60.0

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes with one core each; the first is the head."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, FOLDERS)))
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # its sockets must have short names
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("workers")))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def connected(cluster: Any) -> Iterator[Any]:
    """The cluster, which this process has joined already: runners use the connection and leave it as it is."""
    import ray

    with ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False):
        yield cluster
        assert ray.is_initialized()


def result(found: Sequence[Any]) -> list[dict[str, Any]]:
    """All of each record but for the time it took and the date."""
    return [one.to_json() | {"seconds": None, "date": None} for one in found]


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir() if path.is_file())


def named(image: str = "mnist", seed: int = 0, **options: Any) -> Experiment:
    return Experiment(
        learner="mer", memory=8, tasks=2, examples=20, test_examples=20, hidden=(8,), images=image, seed=seed, **options
    )


def test_the_same_records_as_here_with_data_that_only_the_driver_has(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(images._kept, name, small_images(name))
    monkeypatch.setattr(ray_cluster, "AHEAD", 1)
    given = [named(seed=0), named(seed=1), named("fashion-mnist", seed=2), named(seed=0)]
    given[1].start(checkpoint=checkpoint_path(tmp_path, given[1].key)).save()
    ended = list[tuple[int, bool]]()

    class Noting(Watcher):
        def end(self, experiment: AnyExperiment, finished: bool) -> None:
            ended.append((experiment.seed, finished))

    found = RayCluster(cluster.address).run(given, tmp_path, watcher=Noting())
    assert result(found) == result(Threads(1).run(given, tmp_path / "here"))
    assert sorted(ended) == [(0, True), (1, True), (2, True)]
    assert files(tmp_path) == [".json"] * 3
    assert RayCluster("nowhere:1").run(given, tmp_path) == found  # from the records, without a cluster


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_failures_of_every_kind_and_the_others_go_on(tmp_path: Path) -> None:
    given = [
        Small(lr=1.0, trouble="nan"),
        Small(lr=2.0, trouble="error"),
        Small(lr=3.0, trouble="memory"),
        Small(lr=4.0, trouble="killed always"),
        Small(seed=1),
    ]
    found = RayCluster().run(given, tmp_path, keep_going=True)
    failures = [one for one in found if isinstance(one, Failure)]
    assert [one.kind for one in failures] == ["not finite", "error", "memory", "lost"]
    assert failures[1].reason == "TypeError: something"
    assert failures[3].reason.startswith("its worker was lost 3 times (WorkerCrashedError")
    assert result(found[4:]) == result(Threads(1).run(given[4:], tmp_path / "here"))
    assert files(tmp_path) == [".failed"] * 4 + [".json"]
    with pytest.raises(mr.NonFiniteError, match=r"^small, lr 1\.0, seed 0: example 12"):
        RayCluster().run(given[:1], tmp_path)
    assert files(tmp_path) == [".failed"] * 4 + [".json", ".live"]  # which shows until the next attempt why it failed


@pytest.mark.slow
def test_a_node_that_is_killed_takes_no_run_with_it(connected: Any, tmp_path: Path) -> None:
    given = [Small(seed=seed, trouble="slower") for seed in range(6)]
    said = list[str]()

    class Noting(Watcher):
        def remark(self, text: str) -> None:
            said.append(text)

    def run(folder: Path, answers: list[list[Any]]) -> None:
        answers.append(RayCluster().run(given, folder, watcher=Noting()))

    expected = result(Threads(1).run([Small(seed=seed) for seed in range(6)], tmp_path / "here"))
    for attempt in range(3):  # on a busy machine the node may have just ended its work when it is killed
        folder, node, answers = tmp_path / str(attempt), connected.add_node(num_cpus=2), list[list[Any]]()
        thread = Thread(target=run, args=(folder, answers))
        thread.start()
        until(lambda node=node, folder=folder: busy(node) and len(list(folder.glob("*.json"))) > 0)  # type: ignore[misc]
        connected.remove_node(node, allow_graceful=False)
        thread.join(DEADLINE)
        assert result(answers[0]) == expected
        assert files(folder) == [".json"] * 6
        if any("its worker was lost" in text for text in said):
            return
    pytest.fail("no worker was ever lost")


def busy(node: Any) -> bool:
    """Whether a node of the cluster has been given something to do."""
    from ray._private.state import available_resources_per_node

    return bool(available_resources_per_node().get(node.node_id, {}).get("CPU", 0) < 2)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_what_somebody_else_does_is_left_to_them_until_they_give_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [Small(seed=0), Small(seed=1)]
    claim = Claim.take(tmp_path, given[0].key)
    assert claim is not None
    done = list[str]()

    def meanwhile(_seconds: float) -> None:
        assert files(tmp_path) == [".claim", ".json", ".waiting"]
        done.append("given up")
        claim.give_back()

    monkeypatch.setattr("metareplay.runners.ray_cluster.time.sleep", meanwhile)
    found = RayCluster().run(given, tmp_path)
    assert done == ["given up"]
    assert result(found) == result(Threads(1).run(given, tmp_path / "here"))
    assert files(tmp_path) == [".json"] * 2


# Without a cluster


def test_folders_of_workers_that_were_killed_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    alive, other = [tmp_path / f"{ray_task.PREFIX}{one}-x" for one in (os.getpid(), f"x{ended.pid}")]
    killed = tmp_path / f"{ray_task.PREFIX}{ended.pid}-x"
    for folder in (alive, other, killed):
        folder.mkdir()
        (folder / ".key.ckpt").touch()
    answer = ray_task.carry_out_there(Small(), None, tmp_path / "home", ())
    assert isinstance(answer, ray_task.Finished)
    assert {one for one in tmp_path.iterdir() if one.name.startswith("metareplay-")} == {alive, other}


@pytest.mark.parametrize(("cores", "gpus"), [(-1, 0), (1.5, 0), (float("nan"), 0), (0, 0), (1, -0.5)])
def test_wrong_shares_of_a_machine(cores: float, gpus: float) -> None:
    with pytest.raises(mr.InputError, match="per run"):
        RayCluster(cores_per_run=cores, gpus_per_run=gpus)


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissingError, match=r"^Ray is not installed: pip install 'metareplay\[ray\]'$"):
        RayCluster().run([Small()], tmp_path)


def test_an_address_where_nobody_answers_is_named_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(
            mr.InputError, match=rf"^no Ray cluster at 127.0.0.1:{port} \(.*refused\): check the address"
        ):
            RayCluster(f"127.0.0.1:{port}").run([Small()], tmp_path)
    assert not list(tmp_path.iterdir())


def test_importing_the_package_does_not_import_ray() -> None:
    code = "import sys, metareplay.cli, metareplay.runners; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=FOLDERS[1], check=False).returncode == 0
