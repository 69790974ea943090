"""Dropout's masks, drawn before anything is computed: the same draws that torch makes in its forward passes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class MaskMaker:
    """Draw masks for the Dropout layers of a chain.

    In a forward pass, torch's Dropout fills a tensor of its inputs' size with `bernoulli_` from its generator, layer
    after layer. What it draws does not depend on the weights, so the same calls in the same order can be made ahead.

    Args:
        widths: How many inputs each Dropout layer has.
        kept: The share of them that each layer keeps.
        dtype: The dtype of the weights.
    """

    widths: tuple[int, ...]
    kept: tuple[float, ...]
    dtype: torch.dtype

    @property
    def numbers_per_row(self) -> int:
        """How many numbers are drawn for one input."""
        return sum(self.widths)

    @torch.inference_mode()
    def draw(
        self, rows: int, passes: Iterable[tuple[int, int]], seeds: dict[int, int], source: torch.Generator
    ) -> Tensor:
        """Draw the masks of all inputs: pass after pass, and in each of them layer after layer.

        Args:
            rows: How many inputs there are.
            passes: The first input of each forward pass, and the first that is no longer in it.
            seeds: For inputs with which the generator starts from a seed, that seed.
            source: Where draws come from; another generator draws what torch's default one would with the same seed.
        """
        found, each = torch.empty(rows * self.numbers_per_row, dtype=self.dtype), self.numbers_per_row
        if len(set(self.kept)) == 1 and draws_follow_one_another():  # then one call draws what many calls would
            for start, end in pairwise(sorted({0, *seeds, rows})):
                if start in seeds:
                    source.manual_seed(seeds[start])
                found[start * each : end * each].bernoulli_(self.kept[0], generator=source)
            return found
        for start, end in passes:
            if start in seeds:
                source.manual_seed(seeds[start])
            at = start * each
            for width, kept in zip(self.widths, self.kept, strict=True):
                found[at : at + (end - start) * width].bernoulli_(kept, generator=source)
                at += (end - start) * width
        return found


@cache
def draws_follow_one_another() -> bool:
    """Return whether two calls of `bernoulli_` draw what one call would for both; it depends on the CPU's maker."""
    source = torch.Generator()
    source.manual_seed(0)
    whole = torch.empty(1000).bernoulli_(0.7, generator=source)
    source.manual_seed(0)
    parts = [torch.empty(size).bernoulli_(0.7, generator=source) for size in (3, 50, 900, 47)]
    return torch.equal(whole, torch.cat(parts))
