import pytest

from metareplay.cli.places import runner_at
from metareplay.errors import InputError
from metareplay.runners import FleetRunner, Processes, RayCluster, Threads


def test_every_place_has_its_runner() -> None:
    threads, processes = (
        runner_at("threads", "3", rest_on_threads=True),
        runner_at("processes", "2", rest_on_threads=True),
    )
    assert isinstance(threads, Threads)
    assert isinstance(processes, Processes)
    assert (threads.jobs, processes.jobs) == (3, 2)
    fleet = runner_at("fleet", "1", rest_on_threads=True)
    assert isinstance(fleet, FleetRunner)
    assert isinstance(fleet.rest, Threads)


@pytest.mark.parametrize(("on", "address"), [("ray", None), ("ray:host:6379", "host:6379"), ("ray:auto", "auto")])
def test_ray_with_and_without_an_address(on: str, address: str | None) -> None:
    ray = runner_at(on, "auto", rest_on_threads=False, cores_per_run=2.0, gpus_per_run=0.5)
    assert isinstance(ray, RayCluster)
    assert (ray.address, ray.cores_per_run, ray.gpus_per_run) == (address, 2.0, 0.5)


@pytest.mark.parametrize("on", ["mars", "", "ray:", "rays", "threads:2"])
def test_a_place_that_is_none(on: str) -> None:
    with pytest.raises(InputError, match=f"^--on {on}: use one of threads, processes, fleet, ray, ray:ADDRESS$"):
        runner_at(on, "auto", rest_on_threads=False)


def test_shares_of_a_machine_are_for_ray() -> None:
    with pytest.raises(InputError, match="are for --on ray, not for --on processes: leave them out"):
        runner_at("processes", "auto", rest_on_threads=False, cores_per_run=2.0)
