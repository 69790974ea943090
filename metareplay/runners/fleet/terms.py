"""What the fleet's kernel needs to know about a learner, and which learners it supports."""

from dataclasses import dataclass
from typing import final

import torch

from metareplay.engines.chain import Chain, LossKind
from metareplay.errors import InputError
from metareplay.learners import MER, Learner, MERCurrentRate, MEROneBigBatch, Online
from metareplay.memories import Reservoir
from metareplay.runners.fleet.layout import LONGEST, SHORTEST, WIDEST, Floats, Integers, Place, padded


@final
@dataclass(frozen=True)
class Terms:
    """Describe a learner in numbers: each batch has `drawn` rows from memory and `copies` of the current example.

    Args:
        memory: Slots of the reservoir; 0 if there is no memory.
        drawn: Rows from memory in each batch.
        copies: Copies of the current example in each batch.
        batches: Batches per example.
        place: Where the current example stands in a batch, a `Place`.
        odds: After N examples the reservoir draws a slot from 0 .. N + odds - 1.
        rate: Rate of a step on an example from memory.
        current_rate: Rate of a step on the current example.
        beta: How far the weights move towards those at the end of a batch.
    """

    memory: int
    drawn: int
    copies: int
    batches: int
    place: int
    odds: int
    rate: float
    current_rate: float
    beta: float

    @staticmethod
    def of(learner: Learner) -> "Terms":
        """Return the terms of a learner; raise InputError, which says why, if a fleet does not support it."""
        if learner.regression or learner.clip is not None:
            raise InputError("a fleet neither clips gradients nor does regression: use --on threads")
        if learner.classes is not None:
            raise InputError("a fleet takes labels 0, 1, 2, ...: leave classes out, or use --on threads")
        if learner.loss is not None and LossKind.of(learner.loss) is not LossKind.CROSS_ENTROPY:
            raise InputError("a fleet learns with cross-entropy: leave the loss out, or use --on threads")
        match learner:
            case Online(steps=steps) if steps > 1:
                raise InputError(f"a fleet takes Online with steps=1, not steps={steps}: use --on threads")
            case Online():
                return Terms(
                    memory=0, drawn=0, copies=1, batches=1, place=Place.FIRST, odds=1, rate=learner.lr,
                    current_rate=learner.lr, beta=1.0,
                )  # fmt: skip
            case MER():
                batches, copies, place = learner.s, 1, Place.FIRST
            case MEROneBigBatch():
                batches, copies, place = 1, learner.s, Place.LAST
            case MERCurrentRate():
                batches, copies, place = 1, 1, Place.ANYWHERE
            case _:
                name = type(learner).__name__
                raise InputError(
                    f"a fleet takes MER, MEROneBigBatch, MERCurrentRate and Online, not {name}: use --on threads"
                )
        memory, rates, drawn = learner.memory, learner.rates(), copies * (learner.k - 1)
        if not isinstance(memory, Reservoir):
            raise InputError(f"a fleet remembers with a Reservoir, not with {type(memory).__name__}: use --on threads")
        if batches > 1 and rates.across != 1:
            raise InputError(f"a fleet takes MER with gamma=1 or s=1, not gamma={rates.across} and s={batches}")
        if drawn + copies > LONGEST:
            raise InputError(f"a batch of {drawn + copies} examples: a fleet takes up to {LONGEST}")
        return Terms(
            memory=memory.capacity,
            drawn=drawn,
            copies=copies,
            batches=batches,
            place=place,
            odds=1 if memory.rule == "paper" else 2,
            rate=rates.memory,
            current_rate=rates.current,
            beta=rates.within * rates.across,
        )

    @property
    def length(self) -> int:
        """Return the steps of one batch, once the memory holds enough examples."""
        return self.drawn + self.copies

    @property
    def limit(self) -> int:
        """Return the most steps in one block; it depends on this run alone, so results do not vary with the fleet."""
        return max(SHORTEST, padded(self.length))

    def integers(self, stream: int) -> Integers:
        """Return what the kernel reads as whole numbers; `stream` is the row with the first example of the stream."""
        return Integers(
            memory=self.memory,
            drawn=self.drawn,
            copies=self.copies,
            batches=self.batches,
            place=self.place,
            odds=self.odds,
            limit=self.limit,
            stream=stream,
        )

    def floats(self) -> Floats:
        """Return what the kernel reads as real numbers."""
        return Floats(rate=self.rate, current_rate=self.current_rate, beta=self.beta)


def chain_of(learner: Learner) -> Chain:
    """Return the layers of a learner's net; raise InputError if the kernel does not support such a net."""
    chain = Chain.of(learner.model)
    if (
        chain is None
        or len(chain.layers) != 3
        or max(chain.widths[1:]) > WIDEST
        or learner.weights.dtype != torch.float32
    ):
        raise InputError(
            f"a fleet takes float32 nets of Linear and ReLU with two hidden layers of up to {WIDEST} units: "
            f"use --on threads for others"
        )
    return chain
