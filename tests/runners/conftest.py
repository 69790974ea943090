from typing import Any

import pytest

import metareplay as mr
from metareplay.experiments import Experiment
from metareplay.runners import threads
from metareplay.runners.runner import carry_out


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that threads carried out, in the order they were begun."""
    begun: list[Experiment] = []

    def noted(experiment: Experiment, *rest: Any, **options: Any) -> mr.Record:
        begun.append(experiment)
        return carry_out(experiment, *rest, **options)

    monkeypatch.setattr(threads, "carry_out", noted)
    return begun
