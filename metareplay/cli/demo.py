"""The main job: five learners on MNIST Rotations with a small memory, a table and a picture."""

from pathlib import Path

from metareplay.experiments.experiment import Experiment

LEARNERS = {"GEM": "gem", "MER": "mer", "ER": "er", "EWC": "ewc", "Online": "online"}  # the longest first
PICTURE = Path("accuracy.png")


def experiments(tasks: int, examples: int, memory: int, seed: int) -> dict[str, Experiment]:
    """What the demo runs: the paper's best settings for each learner."""
    return {
        title: Experiment(learner=name, tasks=tasks, examples=examples, memory=memory, seed=seed)
        for title, name in LEARNERS.items()
    }
