"""Agents that learn from pictures, many at once on one GPU."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch

from metareplay._core.archive import read_archive
from metareplay._core.checks import check_count, whole
from metareplay._core.files import exists, remove
from metareplay.errors import InputError, NonFiniteError
from metareplay.experiments.base import AnyRecord, BaseExperiment
from metareplay.rl.agent_file import SUFFIX, save_agent
from metareplay.rl.game_experiment import GameExperiment
from metareplay.runners.announcement import Announcement
from metareplay.runners.claims import Claim, allow
from metareplay.runners.failure import Failure
from metareplay.runners.runner import SILENT, Runner, Watcher, checked_run, device_of, rest_of, say_untracked
from metareplay.runners.worklist import OTHERS, Worklist

if TYPE_CHECKING:
    from metareplay.rl.arcade import Arcade
    from metareplay.rl.training import Training

MOST: Final = 32  # agents side by side: as many as an H200 takes with profit
SAVE_EVERY: Final = 60.0  # seconds between checkpoints

Job = tuple[Any, "Training"]  # an experiment, and its run before the first frame


@final
class ArcadeRunner(Runner):
    """Run experiments with games on one GPU, those of one shape side by side, whatever their seeds, rates and tasks.

    Args:
        device: The GPU.
        rest: Runs the experiments that cannot be run side by side; with None they are refused.
        most: How many agents play side by side at most.
    """

    def __init__(self, device: torch.device | str = "cuda", rest: Runner | None = None, most: int = MOST) -> None:
        check_count("most", most, "at least one agent plays")
        self.device, self.rest, self.most = device_of(device), rest_of(rest), whole("most", most)

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        keep_going: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | Failure | None]:
        """Run every experiment that has no record in the folder yet.

        An agent whose weights are no longer finite does not stop the others: an error names it when they have finished.
        """
        experiments, folder, fresh, keep_going = checked_run(experiments, folder, fresh, keep_going, watcher)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("--on fleet needs a CUDA GPU, and torch finds none: use --on threads")
        work = Worklist(experiments, folder, fresh=fresh, keep_going=keep_going, watcher=watcher)
        todo, again = work.due, False
        while todo or work.waits or (todo := work.unreadable()):
            groups, left = self._groups(todo, folder, fresh and not again)
            for group in groups:
                self._take_turn(group, work, keep_going)
            if left:
                assert self.rest is not None, "_groups has refused them"
                found = self.rest.run(left, folder, fresh=fresh and not again, keep_going=keep_going, watcher=watcher)
                for one, outcome in zip(left, found, strict=True):
                    work.settle(one, outcome)
            todo, again = work.free_again(), True
            if work.waits and not todo:
                time.sleep(OTHERS)
        return work.results()

    def _groups(
        self, due: Sequence[BaseExperiment[AnyRecord]], folder: Path, fresh: bool
    ) -> tuple[list[list[Job]], list[BaseExperiment[AnyRecord]]]:
        """Return the experiments that can play side by side, in groups, and the others."""
        from metareplay.rl.arcade.arcade import obstacle, shape_of  # which needs Gymnasium

        groups, left = dict[object, list[Job]](), list[BaseExperiment[AnyRecord]]()
        for one in due:
            game: Any = one
            if not isinstance(game, GameExperiment):
                raise InputError(f"{one.label}: only games can be played side by side")
            run = replace(game, engine="torch").start()
            missing = obstacle(run)
            if missing is None:
                path = checkpoint_path(folder, one.key)
                if fresh:
                    remove(path)
                seen = read_archive(path, ("seen",))[0]["seen"] if exists(path) else 0
                groups.setdefault((shape_of(run), seen), []).append((one, run))
            elif self.rest is None:
                raise InputError(f"{one.label} cannot play side by side with others: {missing}; or use --on threads")
            else:
                left.append(one)
        cut = [group[at : at + self.most] for group in groups.values() for at in range(0, len(group), self.most)]
        return cut, left

    def _take_turn(self, group: list[Job], work: Worklist[AnyRecord], keep_going: bool) -> None:
        """Train the agents of a group that nobody else is training, and note what becomes of them."""
        from metareplay.rl.arcade import Arcade

        allow(len(group))
        with ExitStack() as stack:
            mine: list[Job] = []
            for one, run in group:
                claim = Claim.take(work.folder, one.key)
                outcome = None if claim is None else work.assignment(one).outcome()
                if claim is not None:
                    stack.enter_context(claim)
                if claim is None or outcome is not None:
                    work.settle(one, outcome)
                else:
                    mine.append((one, run))
            if not mine:
                return
            say_untracked(work.watcher, len(mine))
            arcade = Arcade([run for _, run in mine], self.device)
            _train(arcade, [checkpoint_path(work.folder, one.key) for one, _ in mine], work.watcher, work.announcement)
            for number, (one, _) in enumerate(mine):
                if arcade.finite[number]:
                    record: Any = arcade.record(number)
                    record.write(work.folder)
                    save_agent(work.folder / f"{record.name}{SUFFIX}", one, arcade.agents[number].model)
                    work.settle(one, record)
                else:
                    error = NonFiniteError("the weights are no longer finite: use a smaller lr")
                    if keep_going:
                        work.settle(one, work.assignment(one).fail(Failure.of(one, error)))
                    else:
                        work.refuse(one, error)
                remove(checkpoint_path(work.folder, one.key))


def _train(arcade: "Arcade", paths: list[Path], watcher: Watcher, announcement: Announcement) -> None:
    """Let agents play to the end, from their checkpoints if there are any, and save them from time to time."""
    try:
        if exists(paths[0]):
            watcher.remark(f"{len(paths)} agents: continuing from {paths[0].parent}")
            arcade.restore(paths)
        saved = time.monotonic()
        for seen in arcade.steps():
            watcher.together(len(paths), seen, arcade.frames)
            announcement.together(len(paths), seen, arcade.frames)
            if time.monotonic() - saved > SAVE_EVERY:
                arcade.save(paths)
                saved = time.monotonic()
    except BaseException:  # above all Ctrl-C
        if arcade.whole and 0 < arcade.seen < arcade.frames:
            arcade.save(paths)
        raise
    finally:
        arcade.close()


def checkpoint_path(folder: Path, key: str) -> Path:
    """Return the path of the checkpoint of an agent that plays side by side with others."""
    return folder / f".{key}.arcade.ckpt"
