"""Agents that learn from pictures, many at once on one GPU."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import torch

from metareplay._core.archive import read_archive
from metareplay._core.files import exists, remove
from metareplay.engines.choose import check_gpu
from metareplay.errors import InputError, NonFiniteError
from metareplay.experiments.base import AnyRecord, BaseExperiment
from metareplay.experiments.record import versions
from metareplay.rl.agent_file import SUFFIX, save_agent
from metareplay.rl.game_experiment import GameExperiment
from metareplay.rl.game_record import GameRecord
from metareplay.runners.runner import SILENT, Runner, Watcher, finished
from metareplay.runners.threads import Threads

if TYPE_CHECKING:
    from metareplay.rl.training import Training

MOST: Final = 32  # agents side by side: more of them fill an H200, and take longer
SAVE_EVERY: Final = 60.0  # seconds between checkpoints


@final
class ArcadeRunner(Runner):
    """Run experiments with games on one GPU, those of one shape side by side, whatever their seeds, rates and tasks.

    Args:
        device: The GPU.
        rest: Runs the experiments that cannot be run side by side; with None they are refused.
        most: How many agents play side by side at most.
    """

    def __init__(self, device: torch.device | str = "cuda", rest: Threads | None = None, most: int = MOST) -> None:
        self.device, self.rest, self.most = torch.device(device), rest, most

    def run(
        self,
        experiments: Sequence[BaseExperiment[AnyRecord]],
        folder: Path,
        *,
        fresh: bool = False,
        watcher: Watcher = SILENT,
    ) -> list[AnyRecord | None]:
        """Run every experiment that has no record in the folder yet.

        An agent whose weights are no longer finite does not stop the others: an error names it when they have finished.
        """
        versions()  # notes the commit now, in case the files change while this runs
        if self.device.type == "cuda":
            check_gpu()
        done = {} if fresh else finished(experiments, folder)
        due = list({one.key: one for one in experiments if one.key not in done}.values())
        failed: list[str] = []
        groups, left = self._groups(due, folder, fresh)
        for group in groups:
            watcher.begin([one for one, _ in group])
            failed += _play(group, folder, self.device, watcher)
        if left:
            assert self.rest is not None, "_groups has refused them"
            self.rest.run(left, folder, fresh=fresh, watcher=watcher)
        if failed:
            others = f" (and {len(failed) - 1} other runs likewise)" if len(failed) > 1 else ""
            raise NonFiniteError(f"{failed[0]}: the weights are no longer finite; use a smaller lr{others}")
        done = finished(experiments, folder)
        return [done.get(one.key) for one in experiments]

    def _groups(
        self, due: Sequence[BaseExperiment[AnyRecord]], folder: Path, fresh: bool
    ) -> tuple[list["list[Job]"], list[BaseExperiment[AnyRecord]]]:
        """Return the experiments that can play side by side, in groups, and the others."""
        from metareplay.rl.arcade.arcade import obstacle, shape_of  # which needs Gymnasium

        groups: dict[object, list[Job]] = {}
        left: list[BaseExperiment[AnyRecord]] = []
        for one in due:
            if not isinstance(one, GameExperiment):
                raise InputError(f"{one.label}: only games can be played side by side")
            work = replace(one, engine="torch").start()
            missing = obstacle(work)
            if missing is not None and self.rest is None:
                raise InputError(f"{one.label} cannot play side by side with others: {missing}; or use --on threads")
            if missing is not None:
                left.append(one)
                continue
            path = checkpoint_path(folder, one.key)
            if fresh:
                remove(path)
            seen = read_archive(path, ("seen",))[0]["seen"] if exists(path) else 0
            groups.setdefault((shape_of(work), seen), []).append((one, work))
        cut = [group[at : at + self.most] for group in groups.values() for at in range(0, len(group), self.most)]
        return cut, left


Job = tuple[GameExperiment, "Training"]


def _play(group: list[Job], folder: Path, device: torch.device, watcher: Watcher) -> list[str]:
    """Train agents side by side and write their records; return the labels of those that did not stay finite."""
    from metareplay.rl.arcade import Arcade

    paths = [checkpoint_path(folder, one.key) for one, _ in group]
    arcade = Arcade([work for _, work in group], device)
    try:
        if exists(paths[0]):
            watcher.remark(f"{len(group)} agents: continuing from {folder}")
            arcade.restore(paths)
        saved = time.monotonic()
        for seen in arcade.steps():
            watcher.together(len(group), seen, arcade.frames)
            if time.monotonic() - saved > SAVE_EVERY:
                arcade.save(paths)
                saved = time.monotonic()
    except BaseException:  # above all Ctrl-C
        if 0 < arcade.seen < arcade.frames:
            arcade.save(paths)
        raise
    finally:
        arcade.close()
    failed = []
    for run, (one, work) in enumerate(group):
        if arcade.finite[run]:
            record: GameRecord = arcade.record(run)
            record.write(folder)
            save_agent(folder / f"{record.name}{SUFFIX}", one, work.agent.model)
        else:
            failed.append(one.label)
        watcher.end(one, finished=arcade.finite[run])
        remove(paths[run])
    return failed


def checkpoint_path(folder: Path, key: str) -> Path:
    """Return the path of the checkpoint of an agent that plays side by side with others."""
    return folder / f".{key}.arcade"
