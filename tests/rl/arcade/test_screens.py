"""What agents have seen on its way to the GPU."""

import numpy as np
import pytest
import torch

from metareplay.rl.arcade.screens import Frames


def test_what_the_gpu_may_not_have_read_yet_cannot_be_changed() -> None:
    frames = Frames(2, 1, 4, (3, 3), 5, torch.device("cpu"))
    frames.arrays["rows"][:] = np.arange(10).reshape(2, 5)
    frames.send()
    with pytest.raises(ValueError, match="read-only"):
        frames.arrays["rows"][:] = 0
    assert frames.answer(frames.there["rows"] + 1).tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    frames.arrays["rows"][:] = 0
    frames.send()
    assert not frames.there["rows"].any()
