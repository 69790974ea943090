from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_characters import instead_of_omniglot
from torch import nn

import metareplay as mr
from metareplay.experiments import loop
from metareplay.experiments.benchmarks import BENCHMARKS
from metareplay.experiments.experiment import Experiment
from metareplay.experiments.names import STREAMS_BY_NAME
from metareplay.paper.best import best

SMALL = Experiment(stream="omniglot", tasks=3, examples=72, test_examples=4, memory=12, engine="torch")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_omniglot(monkeypatch)


def heads(model: nn.Module) -> list[int]:
    return [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]


def test_every_stream_has_a_network() -> None:
    assert list(BENCHMARKS) == list(STREAMS_BY_NAME.values())


def test_omniglot_has_a_cnn_with_group_norm_and_a_head_for_each_alphabet() -> None:
    model = SMALL.build()[0].model
    assert isinstance(model, mr.networks.MultiHead)
    assert heads(model) == [4, 4, 4]
    assert sum(isinstance(layer, nn.GroupNorm) for layer in model.modules()) == 4
    assert sum(isinstance(layer, nn.Conv2d) for layer in model.modules()) == 4


def test_labels_over_all_alphabets_have_one_head() -> None:
    one = replace(SMALL, stream_options={"labels": "all"})
    assert heads(one.build()[0].model) == [12]
    assert isinstance(one.build()[0].model, nn.Sequential)


OTHERS: dict[str, dict[str, Any]] = {
    "printed": {"network": {"norm": None}},
    "printed, Glorot": {"network": {"norm": None, "init": "glorot"}},
    "batch norm": {"network": {"norm": "batch"}},
    "first weights by Glorot": {"network": {"init": "glorot"}},
    "shuffled": {"stream_options": {"order": "shuffled"}},
    "by drawers": {"stream_options": {"split": "drawers"}},
    "larger images": {"stream_options": {"resolution": 32}},
    "black and white": {"stream_options": {"pixels": "binary"}},
    "one head": {"stream_options": {"labels": "all"}},
    "training accuracy": {"training": True},
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS.keys())
def test_every_option_is_another_run_whose_key_is_known_before(given: dict[str, Any]) -> None:
    one = replace(SMALL, **given)
    assert one.key != SMALL.key
    assert one.key == one.start().key
    assert len({replace(SMALL, **other).key for other in OTHERS.values()}) == len(OTHERS)


def test_the_defaults_written_down_make_the_same_key() -> None:
    network = {"norm": "group", "init": "torch"}
    stream = {"order": "given", "split": "drawings", "resolution": 28, "pixels": "grey", "labels": "alphabet"}
    assert replace(SMALL, network=network, stream_options=stream).key == SMALL.key


def test_the_seed_decides_the_first_weights() -> None:
    one, again, other = (replace(SMALL, seed=seed).build()[0].weights.theta for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_step_of_the_cnn_is_more_work_than_one_of_the_mlp() -> None:
    assert SMALL.work > 10 * Experiment(tasks=3, examples=72, test_examples=4).work


def test_a_run_learns_and_goes_on_from_its_checkpoint_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    one = replace(SMALL, learner="er", training=True, options=best("er", "omniglot", 500), network={"norm": "batch"})
    whole = one.start()
    list(whole.steps())
    path = tmp_path / "run.ckpt"
    measured = 0
    work = one.start(checkpoint=path)
    for step in work.steps():
        measured += step.doing == "evaluating" and step.finished == 3
        if measured == 5:  # in the middle of the training accuracies
            work.save()
            break
    work = one.start(checkpoint=path)
    list(work.steps())
    record, expected = work.record(), whole.record()
    assert record.weights == expected.weights
    assert record.training == expected.training
    assert record.training is not None
    assert len(record.training) == 3
    assert record.ta > 40
    assert np.array_equal(record.accuracy, expected.accuracy, equal_nan=True)
