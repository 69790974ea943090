"""Memories as training loops use them: they are offered batches of rows, and return batches of rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.batches import batch_of, columns_of
from metareplay._core.checks import whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Purpose
from metareplay._core.row_form import RowForm
from metareplay._core.table import Table, TensorStorage
from metareplay.errors import InputError
from metareplay.memories import Balanced, DiskReservoir, Memory, Ring

UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)


class RowMemory(ABC):
    """Offer rows to a memory and draw rows from it, with draws that are handed in."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows held."""

    @abstractmethod
    def check_offer(self, columns: Mapping[str, Tensor]) -> None:
        """Raise InputError for rows of another form than those held, and DiskError if earlier ones cannot be written.

        After this, `offer` takes the rows.
        """

    @abstractmethod
    def offer(self, kind: str, columns: Mapping[str, Tensor], draws: Draws) -> None:
        """Offer rows, in order; `kind` is the kind of the batch that they came in."""

    @abstractmethod
    def sample(self, size: int, draws: Draws) -> dict[str, Tensor]:
        """Draw rows, uniformly and with replacement."""

    @abstractmethod
    def take_back(self) -> None:
        """Forget that the latest rows were drawn: the next draw is the same again."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what `load` needs in order to go on exactly from here."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Go back to a state; if this raises an exception, all is as it was."""


@final
class OnDisk(RowMemory):
    """A DiskReservoir: its state is a mark."""

    def __init__(self, reservoir: DiskReservoir) -> None:
        self._reservoir = reservoir

    def __len__(self) -> int:
        """Count the rows held."""
        return len(self._reservoir)

    def check_offer(self, columns: Mapping[str, Tensor]) -> None:
        """Raise InputError for rows of another form than those held, DiskError if earlier ones cannot be written."""
        self._reservoir.check_offer(columns)

    def offer(self, kind: str, columns: Mapping[str, Tensor], draws: Draws) -> None:
        """Offer rows, in order."""
        self._reservoir.offer(batch_of(kind, columns), draws)

    def sample(self, size: int, draws: Draws) -> dict[str, Tensor]:
        """Draw rows, uniformly and with replacement."""
        return columns_of(self._reservoir.sample(size, draws))[1]

    def take_back(self) -> None:
        """Forget that the latest rows were drawn."""
        self._reservoir.take_back()

    def state(self) -> dict[str, Any]:
        """Return a mark; the reservoir keeps its two newest ones."""
        return {"mark": self._reservoir.saved_apart()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go back to a mark."""
        if "mark" not in state:
            raise InputError("this state holds the rows of a memory in RAM: use the memory that it was saved with")
        self._reservoir.return_to(state["mark"])


@final
class InRam(RowMemory):
    """Any other memory that needs neither tasks nor labels: its rows are in RAM, and in its state."""

    def __init__(self, memory: Memory) -> None:
        if isinstance(memory, (Balanced, Ring)):
            raise InputError(
                f"memory is a {type(memory).__name__}, which looks at labels or tasks: use DiskReservoir, Reservoir, "
                f"Recent or Mixed"
            )
        self._memory, self._sampled = memory, 0

    def __len__(self) -> int:
        """Count the rows held."""
        return len(self._memory)

    def check_offer(self, columns: Mapping[str, Tensor]) -> None:
        """Raise InputError for rows of another form than those held, and for those that torch cannot copy singly."""
        for name, values in columns.items():
            if values.dtype in UNSIGNED:
                raise InputError(
                    f"part {name!r} of a batch has dtype {values.dtype}, of which torch copies no single rows: use "
                    f"signed numbers, or a DiskReservoir"
                )
        if self._memory.table is not None:
            RowForm.of(dict(self._memory.table.gather(torch.zeros(0, dtype=torch.int64)).items())).check(columns)

    def offer(self, kind: str, columns: Mapping[str, Tensor], draws: Draws) -> None:
        """Offer rows, in order."""
        del kind
        memory, count = self._memory, len(next(iter(columns.values())))
        tasks = np.full(count, -1)
        slots = memory.place(draws, tasks)
        last = {slot: row for row, slot in enumerate(slots.tolist()) if slot >= 0}
        to, rows = torch.tensor(list(last), dtype=torch.int64), torch.tensor(list(last.values()), dtype=torch.int64)
        new = {name: values[rows.to(values.device)].cpu() for name, values in columns.items()}  # a GPU may be full
        table = self._new_table(new) if memory.table is None else memory.table
        for name, values in new.items():
            table.fill(name, to, values)
        memory.table = table  # only now, since the table fixes the form of the rows
        memory.keep(slots, tasks)

    def sample(self, size: int, draws: Draws) -> dict[str, Tensor]:
        """Draw rows, uniformly and with replacement."""
        assert self._memory.table is not None, "whoever asks has seen that there are rows"
        drawn = draws.integers(Purpose.REPLAY, self._sampled, size, len(self._memory))
        found = dict(self._memory.table.gather(torch.from_numpy(self._memory.filled[drawn])).items())
        self._sampled += 1
        return found

    def take_back(self) -> None:
        """Forget that the latest rows were drawn."""
        self._sampled -= 1

    def state(self) -> dict[str, Any]:
        """Return the rows and the counts."""
        memory = self._memory
        filled = torch.from_numpy(memory.filled.copy())
        rows = {} if memory.table is None else dict(memory.table.gather(filled).items())
        counts = {"seen": memory.seen, "sampled": self._sampled}
        return {"settings": memory.settings(), "filled": filled, **counts, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over rows and counts."""
        if "rows" not in state:
            raise InputError("this state refers to a memory on disk: use the DiskReservoir that it was saved with")
        no_state = InputError("this is no state of a memory in RAM: give what state_dict() returned")
        try:
            settings, rows, filled = dict(state["settings"]), dict(state["rows"]), state["filled"]
            seen, sampled, slots = whole("seen", state["seen"]), whole("sampled", state["sampled"]), filled.tolist()
            lengths = {len(values) for values in rows.values()}
        except Exception as error:  # mappings and tensors raise almost anything
            raise no_state from error
        if settings != self._memory.settings():
            raise InputError(
                f"this state is of a memory with {_listed(settings)}, and the one here has "
                f"{_listed(self._memory.settings())}: make the memory as it was"
            )
        right = filled.dtype == torch.int64 and all(0 <= slot < self._memory.capacity for slot in slots)
        right = right and len(set(slots)) == len(slots) <= seen and sampled >= 0
        if not right or (slots and lengths != {len(slots)}):
            raise no_state
        table = None
        if slots:
            table = self._new_table(rows)
            for name, values in rows.items():
                table.fill(name, filled, values)
        self._memory.restore(filled.numpy(), {-1: seen}, seen, table)
        self._sampled = sampled

    def _new_table(self, columns: Mapping[str, Tensor]) -> Table:
        """Make a table for rows of this form."""
        like = Columns({name: values[:0].cpu() for name, values in columns.items()})
        storage = self._memory.storage or TensorStorage(torch.device("cpu"))
        return Table(self._memory.capacity, 0, like, storage)


def _listed(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def row_memory(memory: Memory) -> RowMemory:
    """Return a memory as training loops use it, and reserve it for one of them."""
    found = OnDisk(memory) if isinstance(memory, DiskReservoir) else InRam(memory)
    memory.claim()
    return found
