"""The main job in small: three learners on MNIST Rotations, a table and a picture."""

from pathlib import Path

from metareplay.experiment import Experiment

LEARNERS = {"Online": "online", "ER": "er", "MER": "mer"}
PICTURE = Path("accuracy.png")


def experiments(tasks: int, examples: int, memory: int, seed: int) -> dict[str, Experiment]:
    """What the demo runs. Online gets a larger rate than the paper's, which was found for longer tasks."""
    options = {"online": {"lr": 0.01}}
    return {
        title: Experiment(
            learner=name, tasks=tasks, examples=examples, memory=memory, seed=seed, options=options.get(name, {})
        )
        for title, name in LEARNERS.items()
    }
