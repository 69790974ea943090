"""A memory in parts, one for each rank of `torch.distributed`."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

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

    Every row that the earlier ranks have seen is in the new parts with the same probability, also if they saw different
    numbers of rows; the parts of ranks that held more of what they saw are thinned out for it. The rows are shuffled
    over the new parts, and each new part counts its share of all rows seen. The source stays as it is, except that it
    goes back to the marks in `states`.

    Args:
        source: The folder with the parts.
        target: A new folder for the new parts.
        ranks: How many parts to make.
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
    if _parts(new):
        raise InputError(f"{new} holds parts of a memory already: use a new folder")
    random = np.random.default_rng([Draws(seed).seed, ranks])
    with ExitStack() as stack:
        parts = [stack.enter_context(DiskReservoir(_part(old, *one))) for one in found]
        for rank, mark in _marks(states, len(parts)):
            parts[rank].return_to(mark)
        most = sum(part.capacity for part in parts) if capacity is None else whole("capacity", capacity)
        if most < ranks:
            raise InputError(f"capacity={most}: each of the {ranks} ranks holds one row at least; use more")
        chosen = _chosen(parts, most, random)
        seen = sum(part.seen for part in parts)
        for rank in range(ranks):
            room = _capacity(most, rank, ranks)
            made = stack.enter_context(DiskReservoir(_part(new, rank, ranks), room))
            _fill(made, parts, chosen[rank::ranks][:room])
            made.seen = max(len(made), _capacity(seen, rank, ranks))
            made.seen_of[-1] = made.seen
            made.flush()


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


def _marks(states: Sequence[Any] | None, ranks: int) -> list[tuple[int, int]]:
    """Return the rank and the mark of each state; raise InputError for what is no state of a memory on disk."""
    if states is None:
        return []
    wanted = "the list of what state_dict() returned on each rank"
    try:
        found = [
            (whole("rank", one["rank"][0]), whole("mark", one["memory"]["mark"]))
            for one in several("states", states, wanted)
        ]
    except Exception as error:  # mappings and arrays raise almost anything
        raise InputError(f"states={shown(states)}: use {wanted}") from error
    if sorted(rank for rank, _ in found) != list(range(ranks)):
        raise InputError(f"states has those of {len(found)} ranks, not one of each of the {ranks}: use {wanted}")
    return found


def _capacity(total: int, rank: int, ranks: int) -> int:
    return total // ranks + (rank < total % ranks)


def _chosen(parts: list[DiskReservoir], most: int, random: np.random.Generator) -> Ints:
    """Choose rows such that each row ever seen is there with the same probability; return part and slot of each."""
    share = min((len(part) / part.seen for part in parts if part.seen), default=0.0)
    found = [np.zeros((0, 2), np.int64)]
    for number, part in enumerate(parts):
        wanted = share * part.seen
        count = min(len(part), int(wanted) + int(random.random() < wanted % 1))
        slots = random.permutation(len(part))[:count]
        found.append(np.stack([np.full(len(slots), number), slots], axis=1))
    shuffled: Ints = random.permutation(np.concatenate(found))[:most]
    return shuffled


def _fill(made: DiskReservoir, parts: list[DiskReservoir], rows: Ints) -> None:
    """Offer rows of several parts to a new one that has room for all of them."""
    for number, part in enumerate(parts):
        slots = rows[rows[:, 0] == number, 1]
        for start in range(0, len(slots), PIECE):
            made.offer(part.read(slots[start : start + PIECE]))
