"""A memory in parts, one for each rank of `torch.distributed`."""

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

from metareplay._core.batches import batch_of
from metareplay._core.checks import check_count, path_of, several, shown, whole
from metareplay._core.draws import Draws, Ints
from metareplay._core.files import names_in
from metareplay.errors import InputError, MetareplayError
from metareplay.memories import DiskReservoir

PIECE = 4096  # rows to move at a time
PART = re.compile(r"part-(\d{5})-of-(\d{5})")


def rank_and_ranks() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; 0 and 1 without a process group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def seed_of_rank(seed: int, rank: int, ranks: int) -> int:
    """Return a seed for one of several ranks, or the seed itself for a single one."""
    if ranks == 1:
        return seed
    return int(np.random.SeedSequence([seed, rank, ranks]).generate_state(1, np.uint64)[0])


def rank_reservoir(folder: str | Path, capacity: int) -> DiskReservoir:
    """Open this rank's part of a memory that all ranks hold together; without a process group, it is the whole.

    Each rank holds a uniform sample of the rows that it was offered, in a folder of its own inside `folder`. If all
    ranks are offered equally many rows, each row that any of them saw is held with the same probability, so that the
    parts together are a uniform sample of everything. Nothing is communicated. The folder may be on a file system that
    the ranks share, or on each machine's own disk.

    Args:
        folder: Where the parts are.
        capacity: The largest number of rows that all parts hold together.
    """
    place, (rank, ranks) = path_of("folder", folder), rank_and_ranks()
    check_count("capacity", capacity, "a memory holds at least one row")
    if capacity < ranks:
        raise InputError(f"capacity={shown(capacity)}: each of the {ranks} ranks holds one row at least; use more")
    others = {of for _, of in _parts(place)} - {ranks}
    if others:
        raise InputError(
            f"{place} holds the parts of {min(others)} ranks, and now there are {ranks}: deal them into a new folder "
            f"first, metareplay.loops.deal({str(place)!r}, NEW, ranks={ranks}), in one process"
        )
    return DiskReservoir(_part(place, rank, ranks), _capacity(capacity, rank, ranks))


def deal(
    source: str | Path,
    target: str | Path,
    ranks: int,
    *,
    capacity: int | None = None,
    states: Sequence[Any] | None = None,
    seed: int = 0,
) -> None:
    """Deal a memory in parts to another number of ranks, in one process, while none of the parts is in use.

    Every row that the earlier ranks have seen is in the new parts with the same probability p, also if they saw
    different numbers of rows; the parts of ranks that held more of what they saw are thinned out for it. The rows are
    shuffled over the new parts. A new part of capacity c counts c / p rows as seen, unless it has room for every row:
    Algorithm 3 then keeps the next row with the same probability with which the earlier ones are still held, also if
    the parts are not full. The source stays as it is, except that it goes back to the marks in `states`. The target is
    there only when all of it is.

    Args:
        source: The folder with the parts.
        target: A new folder for the new parts.
        ranks: How many parts to make, also as many as before.
        capacity: The largest number of rows that the new parts hold together; None for as many as the old ones.
        states: The states that all earlier ranks saved (`PeriodicMER.state_dict`), in any order, to deal the rows that
            they held then; None for the rows that they hold now.
        seed: Decides which row goes where.
    """
    old, new, ranks = path_of("source", source), path_of("target", target), whole("ranks", ranks)
    check_count("ranks", ranks, "there is one rank at least")
    found = _parts(old)
    if not found or len(found) != found[0][1]:
        raise InputError(
            f"{old} holds {len(found)} parts of a memory, and not all that belong together: check the path"
        )
    if new.exists() and (not new.is_dir() or any(new.iterdir())):
        raise InputError(f"{new} is there already: use a new folder")
    marks = None if states is None else _marks(states, len(found))
    random = np.random.default_rng([Draws(seed).seed, ranks])
    place = new.absolute()
    unfinished = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # a process was killed in here
    with ExitStack() as stack:
        parts = [stack.enter_context(DiskReservoir(_part(old, *one))) for one in found]
        for part, mark in zip(parts, marks or [], strict=marks is not None):
            part.return_to(mark)
        most = sum(part.capacity for part in parts) if capacity is None else whole("capacity", capacity)
        if most < ranks:
            raise InputError(f"capacity={most}: each of the {ranks} ranks holds one row at least; use more")
        chosen, p = _chosen(parts, most, random)
        for rank in range(ranks):
            room = _capacity(most, rank, ranks)
            with DiskReservoir(_part(unfinished, rank, ranks), room) as made:
                _fill(made, parts, chosen[rank::ranks])
                if p < 1:
                    made.seen = round(room / p)
                    made.seen_of[-1] = made.seen
    if place.exists():
        place.rmdir()
    unfinished.rename(place)


def agree(step: int) -> None:
    """Wait for all ranks, and raise MetareplayError unless they all come with the same step; for before checkpoints.

    This communicates, so all ranks must call it. If one of them has died, the others are told so.

    Args:
        step: The number of steps that this rank has taken.
    """
    at, (rank, ranks) = whole("step", step), rank_and_ranks()
    if ranks == 1:
        return
    steps: list[Any] = [None] * ranks
    try:
        distributed.all_gather_object(steps, at)
    except RuntimeError as error:  # gloo and NCCL have no class of their own for this
        raise MetareplayError(
            f"rank {rank} of {ranks} is at step {at}, and another rank has stopped or does not answer: look for its "
            f"message, then start all ranks again from the last checkpoint"
        ) from error
    if len(set(steps)) != 1:
        told = ", ".join(f"rank {one} at step {there}" for one, there in enumerate(steps))
        raise MetareplayError(
            f"the ranks are not at the same step ({told}): let all of them take the same number of steps"
        )


def _part(folder: Path, rank: int, ranks: int) -> Path:
    return folder / f"part-{rank:05d}-of-{ranks:05d}"


def _parts(folder: Path) -> list[tuple[int, int]]:
    """Return rank and number of ranks of each part in a folder, sorted."""
    found = [PART.fullmatch(name) for name in names_in(folder)]
    return sorted((int(one[1]), int(one[2])) for one in found if one)


def _marks(states: Sequence[Any], ranks: int) -> list[int]:
    """Return the marks in the states of all ranks, in the order of the ranks."""
    given = several("states", states, "the list of what state_dict() returned on each rank")
    try:
        found = [
            (whole("rank", one["rank"][0]), whole("ranks", one["rank"][1]), whole("mark", one["memory"]["mark"]))
            for one in given
        ]
    except Exception as error:  # mappings and arrays raise almost anything
        raise InputError("states holds something else: give what each rank's state_dict() returned") from error
    if sorted((rank, of) for rank, of, _ in found) != [(rank, ranks) for rank in range(ranks)]:
        raise InputError(f"states holds {len(found)}, and not one of each of the {ranks} ranks: give all of them")
    return [mark for _, _, mark in sorted(found)]


def _capacity(total: int, rank: int, ranks: int) -> int:
    return total // ranks + (rank < total % ranks)


def _chosen(parts: list[DiskReservoir], most: int, random: np.random.Generator) -> tuple[Ints, float]:
    """Choose rows such that each row ever seen is there with the same probability.

    Rows that were removed do not count; the others are held with probability capacity / seen, as before.

    Returns:
        Part and slot of each row, shuffled, and the probability.
    """
    held_with = [min(1.0, part.capacity / max(1, part.seen)) for part in parts]
    p = min(held_with)
    found = []
    for number, part in enumerate(parts):
        wanted = len(part) * p / held_with[number]
        count = min(len(part), int(wanted) + int(random.random() < wanted % 1))
        slots = random.permutation(len(part))[:count]
        found.append(np.stack([np.full(len(slots), number), slots], axis=1))
    shuffled: Ints = random.permutation(np.concatenate(found))
    return shuffled[:most], p * min(1.0, most / max(1, len(shuffled)))


def _fill(made: DiskReservoir, parts: list[DiskReservoir], rows: Ints) -> None:
    """Offer rows of several parts to a new one that has room for all of them; without any, it still gets its files."""
    for number, part in enumerate(parts):
        slots = rows[rows[:, 0] == number, 1]
        for start in range(0, max(1, len(slots)), PIECE):
            made.offer(batch_of(part.kind, part.read(slots[start : start + PIECE])))
