"""Fill a GPU's memory, for tests of what happens then."""

import gc

import torch
from torch import Tensor

PIECE = 2**30  # bytes
LEAST = 512  # bytes that torch takes for any tensor


def all_but(room: int) -> list[Tensor]:
    """Take the GPU's memory except for some of it, until what is returned is deleted.

    It is taken in pieces: torch gives a piece back only if nothing else has been put into what was left of its block.

    Args:
        room: How many bytes to leave.
    """
    torch.cuda.empty_cache()
    left = max(1, torch.cuda.mem_get_info()[0] - room)
    sizes = [PIECE] * (left // PIECE) + [max(1, left % PIECE)]
    return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]


def all_of_it() -> list[Tensor]:
    """Take all of the GPU's memory, until what is returned is deleted: no tensor finds any room.

    `all_but` leaves what torch has reserved for this process and does not use, which is enough for small networks.
    Here, ever smaller pieces are taken until not even the smallest is left.

    Returns:
        What was taken, the largest pieces first.
    """
    gc.collect()
    torch.cuda.empty_cache()
    taken, size = list[Tensor](), 8 * PIECE
    while size >= LEAST:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            size //= 2
    return taken
