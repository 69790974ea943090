"""A learner as a strategy of Avalanche: what it learns, what it remembers, what Avalanche's metrics say."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import metareplay as mr
from metareplay.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche and what it imports warn of many things
avalanche = pytest.importorskip("avalanche", exc_type=ImportError)


def benchmark() -> Any:
    """Return two experiences with two classes each, which a line can tell apart."""
    from avalanche.benchmarks import tensors_benchmark

    parts = []
    for first in (0, 2):
        ys = first + torch.arange(120) % 2
        parts.append((functional.one_hot(ys, 4).float() + 0.1 * torch.randn(120, 4), ys))
    return tensors_benchmark(parts, parts, task_labels=[0, 0])


def test_experiences_are_learned_and_kept() -> None:
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    from metareplay.integrations.avalanche import LearnerStrategy

    learner = mr.MER(mr.networks.mlp(4, (16,), 4, seed=0), memory=mr.Reservoir(60), lr=0.1, beta=0.5, s=2, k=5)
    metrics = EvaluationPlugin(accuracy_metrics(minibatch=True, experience=True, stream=True), loggers=[])
    strategy = LearnerStrategy(learner=learner, train_mb_size=7, evaluator=metrics)
    streams = benchmark()
    for number, experience in enumerate(streams.train_stream):
        strategy.train(experience)
        assert learner.seen == 120 * (number + 1)
        assert len(learner.memory) == 60
    found = strategy.eval(streams.test_stream)
    (accuracy,) = [value for name, value in found.items() if name.startswith("Top1_Acc_Stream")]
    assert accuracy > 0.95


def test_what_does_not_fit_is_refused() -> None:
    from metareplay.integrations.avalanche import LearnerStrategy

    with pytest.raises(InputError, match="learner is a Linear"):
        LearnerStrategy(learner=torch.nn.Linear(4, 2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Avalanche numbers its classes"):
        LearnerStrategy(learner=mr.Online(torch.nn.Linear(4, 2), classes="grow"))
