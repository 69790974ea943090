"""Fill a GPU's memory, for tests of what happens then."""

import torch
from torch import Tensor

PIECE = 2**30  # bytes


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
