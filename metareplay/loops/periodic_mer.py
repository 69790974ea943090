"""MER for training loops with batches: replay in each batch, and a Reptile line every few hundred steps."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from metareplay._core.batches import batch_like, columns_of
from metareplay._core.checks import check_count, check_room, function, instance, real, shown, whole
from metareplay._core.draws import Draws
from metareplay._core.interrupts import HeldBack
from metareplay.errors import InputError
from metareplay.loops.alignment import GradientAlignment, gradient_alignment
from metareplay.loops.ranks import rank_and_ranks, seed_of_rank
from metareplay.loops.reptile_line import ReptileLine
from metareplay.loops.row_memories import row_memory
from metareplay.memories import Memory


@final
class PeriodicMER:
    """Add Meta-Experience Replay to a training loop: call `mix` on each batch, and `step` after each optimizer step.

    This is MER as Abbes et al. (2025, arXiv 2508.01908) use it for language models. Two things are added to the loop,
    and the optimizer, its state and the loss stay as they are: rows from a memory are mixed into each batch, and every
    `every` optimizer steps the weights go back part of the way to where they were, theta <- before + rate * (theta -
    before). With share=0 and rate=1, training is what it was, bit for bit.

    In a process group of `torch.distributed`, each rank has a memory of its own (see `loops.rank_reservoir`), and draws
    of its own from the same seed. `mix` and `step` never communicate.

    Args:
        model: The model, on its device, and wrapped or sharded already. Only what is trained is copied and moved.
        memory: Holds the rows for replay: a DiskReservoir, or a Reservoir, Recent or Mixed in RAM; None for no replay.
        share: The share of replayed rows in what `mix` returns: 0 <= share < 1.
        every: How many calls of `step` lie between two Reptile lines.
        rate: How far a Reptile line goes from the old weights to the new ones: 0 < rate <= 1.
        seed: Decides which rows are kept and which are replayed.
        copy_on: Where the old weights are kept: "device" for beside the weights, "host" for the host's memory.

    >>> model = nn.Linear(4, 2)
    >>> mer = PeriodicMER(model, memory=None, every=2, rate=0.5)
    >>> [mer.step() for _ in range(4)]
    [False, True, False, True]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: Memory | None,
        share: float = 0.0,
        every: int = 500,
        rate: float = 0.1,
        seed: int = 0,
        copy_on: Literal["device", "host"] = "device",
    ) -> None:
        if memory is not None:
            instance("memory", memory, Memory, "a memory, such as DiskReservoir('replay', capacity=100_000), or None")
        self.share = _checked_share(share, has_memory=memory is not None)
        check_count("every", every, "a Reptile line comes after one step at least")
        self.every = whole("every", every)
        self.rank, self.ranks = rank_and_ranks()
        self.seed = Draws(seed).seed
        self._draws = Draws(seed_of_rank(self.seed, self.rank, self.ranks))
        self._model, self._line = model, ReptileLine(model, rate, copy_on)
        self._memory = row_memory(memory) if memory is not None else None
        self.steps, self.new_rows, self.replayed_rows = 0, 0, 0
        self._owed = Fraction(0)  # replayed rows that the share still asks for; always less than one between batches
        self._parts: tuple[int, int] | None = None  # how many rows of the latest batch are new, and replayed

    @property
    def rate(self) -> float:
        """How far a Reptile line goes from the old weights to the new ones."""
        return self._line.rate

    def mix(self, batch: Any) -> Any:
        """Return a batch with replayed rows after its own, and offer its own rows to the memory.

        All n rows of the batch come out, first and in order. After them come replayed rows, drawn uniformly and with
        replacement from what the memory held before this batch: n * share / (1 - share) of them. Where that is no whole
        number, the rest is carried over to the next batch, so that the share is exact over time; batches of 48 with
        share=0.25 come out as 48 + 16 every time. While the memory is empty, a batch comes out as it went in, and this
        is not made up for later.

        Args:
            batch: A dictionary, a tuple, a list or a single tensor; all parts have the same first dimension, and their
                rows the same form in every batch. Replayed rows come to the device that the part is on.
        """
        kind, columns = columns_of(batch)
        count = len(next(iter(columns.values())))
        if self._memory is None or not count:
            self._parts = count, 0
            return batch
        self._memory.check_offer(columns)
        size, owed = 0, self._owed
        if len(self._memory):
            size, owed = divmod(owed + count * self.share / (1 - self.share), 1)
            check_room("share", float(self.share), size * sum(values[:1].nbytes for values in columns.values()))
        with HeldBack():  # Ctrl-C comes when all of this is done, and `new_rows` says that it is
            replayed = self._memory.sample(size, self._draws) if size else {}
            try:  # the rows are counted last, since a GPU may be full
                mixed = _joined(batch, columns, replayed)
                self._memory.offer(kind, columns, self._draws)
            except BaseException:
                if size:
                    self._memory.take_back()
                raise
            self._owed = owed
            self.new_rows += count
            self.replayed_rows += size
            self._parts = count, size
        return mixed

    def step(self) -> bool:
        """Count one optimizer step, and draw the Reptile line if it is due; return whether it was.

        With gradient accumulation, call this after `optimizer.step()`, not after each backward pass.
        """
        is_due = (self.steps + 1) % self.every == 0
        with HeldBack():  # Ctrl-C comes when all weights have moved, and `steps` says that they have
            if is_due:
                self._line.move()
            self.steps += 1
        return is_due

    def alignment(self, batch: Any, loss_of: Callable[[Any], Tensor]) -> GradientAlignment | None:
        """Compare the gradients of the new and of the replayed rows of a batch, without any effect on training.

        `loops.gradient_alignment` says what is measured. It takes about as long as the forward and backward passes of a
        training step, so call it once in a while. On several ranks, each compares the rows of its own batch.

        Args:
            batch: What the latest `mix` returned, on any device.
            loss_of: Takes rows as a batch of the same kind, and returns their mean loss.

        Returns:
            Dot product and cosine, or None if the batch has no replayed rows.
        """
        _, columns = columns_of(batch)
        function("loss_of", loss_of)
        if self._parts is None or len(next(iter(columns.values()))) != sum(self._parts):
            raise InputError("alignment looks at the batch that the latest mix returned: call mix first, and give that")
        new, replayed = self._parts
        if not new or not replayed:
            return None
        parts = [{name: values[rows] for name, values in columns.items()} for rows in (slice(new), slice(new, None))]
        one, other = (batch_like(batch, part) for part in parts)
        return gradient_alignment(self._model, loss_of, one, other)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs in order to go on exactly from here, together with model and optimizer.

        As with torch's own state_dicts, tensors are not cloned: save it, or copy it, before training goes on. A memory
        on disk is committed, and its mark is in the state; a memory in RAM is in the state with its rows. Each rank
        saves its own.
        """
        return {
            "steps": self.steps,
            "rows": [self.new_rows, self.replayed_rows],
            "owed": [self._owed.numerator, self._owed.denominator],
            "rank": [self.rank, self.ranks],
            "before": self._line.state(),
            "memory": {} if self._memory is None else self._memory.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, dealt: bool = False) -> None:
        """Go on from a state, after model and optimizer were loaded.

        With the same number of ranks, each rank loads its own state, and training goes on exactly. With another number,
        each may load the state of any rank: steps and weights are taken over, and the memory is left as it is, since
        `loops.deal` has already dealt the rows of all earlier ranks to the present ones.

        Args:
            state: What `state_dict` returned.
            dealt: Whether `loops.deal` has dealt the rows anew to as many ranks as before. The memory is then left as
                it is, and the state may be that of any rank, as with another number of ranks.
        """
        try:
            (rank, ranks), (new_rows, replayed_rows), (up, down) = (
                [whole(name, one) for one in state[name]] for name in ("rank", "rows", "owed")
            )
            steps, before, memory = whole("steps", state["steps"]), state["before"], dict(state["memory"])
            if min(steps, rank, ranks, new_rows, replayed_rows, up) < 0 or not 0 <= (owed := Fraction(up, down)) < 1:
                raise ValueError("counts that cannot be")
        except Exception as error:  # mappings and arrays raise almost anything
            raise InputError("this is no state of PeriodicMER: give what its state_dict() returned") from error
        is_same = ranks == self.ranks and not dealt
        if is_same and rank != self.rank:
            raise InputError(f"this is rank {self.rank}, and the state is of rank {rank}: let each rank load its own")
        if is_same and bool(memory) != (self._memory is not None):
            raise InputError(f"the state was saved {'with' if memory else 'without'} a memory: do the same here")
        copies = self._line.fitting(before)
        with HeldBack():  # Ctrl-C comes when all of this is done
            if is_same and self._memory is not None:
                self._memory.load(memory)  # if this fails, all is as it was; nothing after it can fail
            self._line.take(copies)
            self.steps = steps
            self.new_rows, self.replayed_rows = (new_rows, replayed_rows) if is_same else (0, 0)
            self._owed = owed if is_same else Fraction(0)


def _joined(batch: Any, columns: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> Any:
    """Return a batch with replayed rows after its own; the batch itself if there are none."""
    if not replayed:
        return batch
    return batch_like(
        batch,
        {
            name: torch.cat([values, replayed[name].to(values.device, non_blocking=True)])
            for name, values in columns.items()
        },
    )


def _checked_share(share: float, has_memory: bool) -> Fraction:
    """Return the share as an exact fraction, such as 1/4; raise InputError for what is none."""
    if not 0 <= real("share", share) < 1:
        raise InputError(f"share={shown(share)}: some rows of each batch must be new; use 0 <= share < 1")
    if share and not has_memory:
        raise InputError(f"share={shown(share)} needs rows to replay: give a memory, or share=0")
    exact = Fraction(real("share", share))
    near = exact.limit_denominator(10_000)
    return near if float(near) == float(exact) else exact
