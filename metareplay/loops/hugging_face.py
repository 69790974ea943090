"""PeriodicMER in Hugging Face's `transformers.Trainer`; `pip install 'metareplay[lm]'`."""

from collections.abc import Callable
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, final

from torch import nn
from transformers import Trainer, TrainerCallback

from metareplay._core.checks import function, instance
from metareplay._core.state_file import read_state, write_state
from metareplay.errors import CheckpointError, InputError
from metareplay.loops.periodic_mer import PeriodicMER
from metareplay.loops.ranks import rank_and_ranks


@final
class MERCallback(TrainerCallback):  # type: ignore[misc]  # transformers need not be installed
    """Make a PeriodicMER when training begins, count the optimizer's steps, and save it with the Trainer's checkpoints.

    Each rank writes `metareplay-RANK.pt` into the folder of the checkpoint. `add_mer` makes this callback.

    Args:
        maker: Takes the model, on its device, and returns a PeriodicMER.
    """

    def __init__(self, maker: Callable[[nn.Module], PeriodicMER]) -> None:
        self._maker = function("maker", maker)
        self._mer: PeriodicMER | None = None
        self._checkpoint: Path | None = None

    @property
    def mer(self) -> PeriodicMER:
        """What the maker returned when training began."""
        if self._mer is None:
            raise InputError("training has not begun, so there is no PeriodicMER yet: call trainer.train() first")
        return self._mer

    def go_on_from(self, checkpoint: object) -> None:
        """Say from which checkpoint the Trainer will go on; without that, it is the one of its step in `output_dir`.

        Args:
            checkpoint: What `train` is given as `resume_from_checkpoint`: a folder, True, False or None.
        """
        self._checkpoint = Path(checkpoint) if isinstance(checkpoint, str | PathLike) else None

    def on_train_begin(self, args: Any, state: Any, _control: Any, model: Any = None, **_others: Any) -> None:
        """Make the PeriodicMER; when the Trainer goes on from a checkpoint, go on from it as well.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            model: The model.
        """
        if self._mer is None:
            self._mer = instance("what the maker returned", self._maker(model), PeriodicMER, "a PeriodicMER")
        if state.global_step and state.global_step != self._mer.steps:
            path = (self._checkpoint or _folder(args, state)) / _name()
            if not path.exists():
                raise CheckpointError(f"{path} is missing: go on from a checkpoint that was saved with this callback")
            self._mer.load_state_dict(read_state(path))

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_others: Any) -> None:
        """Count an optimizer step."""
        self.mer.step()

    def on_save(self, args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Save the state beside the Trainer's checkpoint, whole or not at all.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
        """
        write_state(_folder(args, state) / _name(), self.mer.state_dict())


def add_mer(trainer: Trainer, maker: Callable[[nn.Module], PeriodicMER]) -> MERCallback:
    """Let a Trainer, or any class derived from it, train with PeriodicMER.

    Batches are mixed in the training process after the data loader has made them, so that loaders may have workers, and
    before the Trainer counts their labels, so that losses are averaged over new and replayed rows alike. Pad all
    batches to one length. The batch size of the Trainer counts the new rows. A reservoir on disk can go back to its two
    newest checkpoints.

    Args:
        trainer: The Trainer, before training.
        maker: Takes the model, on its device, and returns a PeriodicMER.

    Returns:
        The callback, which has the PeriodicMER as `mer`.
    """
    callback = MERCallback(maker)
    plain = instance("trainer", trainer, Trainer, "a transformers.Trainer").get_batch_samples

    def mixed(epoch_iterator: Any, *others: Any, **named: Any) -> Any:
        return plain(map(callback.mer.mix, epoch_iterator), *others, **named)

    plain_train = trainer.train

    @wraps(plain_train)
    def train(resume_from_checkpoint: Any = None, *others: Any, **named: Any) -> Any:
        callback.go_on_from(resume_from_checkpoint)
        return plain_train(resume_from_checkpoint, *others, **named)

    trainer.get_batch_samples, trainer.train = mixed, train
    trainer.add_callback(callback)
    return callback


def _folder(args: Any, state: Any) -> Path:
    """Return the Trainer's checkpoint of the present step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _name() -> str:
    """Return the name of the file with this rank's state."""
    return f"metareplay-{rank_and_ranks()[0]:05d}.pt"
