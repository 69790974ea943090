"""Train a small language model on one language after the other, with PeriodicMER; after a stop, go on exactly."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from metareplay._core.checks import (
    check_count,
    check_rate,
    check_room,
    check_share,
    flag,
    function,
    instance,
    place_of,
    real,
    several,
    shown,
)
from metareplay._core.fields import check_fields
from metareplay._core.files import make_folder
from metareplay._core.state_file import read_state, write_state
from metareplay.errors import CheckpointError, InputError
from metareplay.experiments.record import now, versions
from metareplay.learners.input_checks import one_line
from metareplay.lm.arms import Arm
from metareplay.lm.llama import SIZES, Llama, Size
from metareplay.lm.record import LmRecord
from metareplay.lm.stopwatch import Watch
from metareplay.lm.text import Language
from metareplay.loops import PeriodicMER
from metareplay.memories import DiskReservoir
from metareplay.networks.initial import checked_seed


@final
@dataclass(frozen=True, kw_only=True)
class LmSettings:
    """Say how to train; the defaults are a miniature for two cores.

    Args:
        size: How large the model is.
        context: How many bytes the model sees at a time.
        steps: How many optimizer steps each language gets.
        rows: How many new rows each batch has, the same in every arm; replayed rows come on top.
        lr: The largest learning rate of AdamW; it rises to it over `warmup` steps.
        warmup: How many steps the learning rate rises for, once.
        every: How many steps lie between two Reptile lines.
        rate: How far a Reptile line goes.
        capacity: The largest number of rows in the memory.
        measures: How often losses are measured while each language is learned.
        test_rows: How many rows of each language are tested.
        seed: Decides first weights, rows and replay.
    """

    size: Size = SIZES["mini"]
    context: int = 32
    steps: int = 60
    rows: int = 16
    lr: float = 3e-3
    warmup: int = 20
    every: int = 10
    rate: float = 0.3
    capacity: int = 100_000
    measures: int = 4
    test_rows: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what was given."""
        check_fields(self)
        instance("size", self.size, Size, "a Size, for instance SIZES['mini']")
        checked_seed(self.seed)
        check_share("rate", self.rate)
        for name in ("context", "steps", "rows", "warmup", "every", "capacity", "measures", "test_rows"):
            check_count(name, getattr(self, name), "there is one at least")
        check_rate("lr", self.lr)
        for name in ("rows", "test_rows"):
            check_room(name, getattr(self, name), 8 * getattr(self, name) * (self.context + 1))
        if self.measures > self.steps:
            raise InputError(f"measures={self.measures} in {self.steps} steps: measure at most once per step")


def train(
    arm: Arm,
    languages: Sequence[Language],
    settings: LmSettings,
    folder: str | Path,
    *,
    device: str = "cpu",
    copy_on: Any = "device",
    alignment: bool = False,
    compiled: bool = False,
    report: Callable[[int, int], object] = lambda _step, _total: None,
    stop: Callable[[], bool] = lambda: False,
    save_seconds: float = 60.0,
) -> LmRecord | None:
    """Train one arm, or return the record if it has been trained in this folder already.

    Args:
        arm: How to train.
        languages: The languages, in order.
        settings: All numbers.
        folder: Where the record is written, and a checkpoint until then.
        device: "cpu" or "cuda".
        copy_on: Where the Reptile line keeps its copy: "device" or "host".
        alignment: Whether to compare the gradients of new and replayed rows whenever losses are measured, in an arm
            that has replayed rows. Training stays the same.
        compiled: Whether to compile the model with `torch.compile`, which takes seconds to minutes in the first steps.
            It computes the same up to rounding. The run has the same name either way.
        report: Is told the step and the number of all steps.
        stop: Says whether to stop; training then goes on from there when it is called again.
        save_seconds: How many seconds lie between two checkpoints.

    Returns:
        The record; None if training was stopped.
    """
    instance("arm", arm, Arm, "an Arm, for instance ARMS['mer-0.5']")
    instance("settings", settings, LmSettings, "LmSettings(...)")
    languages = several("languages", languages, "a list of languages")
    for one in languages:
        instance("languages", one, Language, "a list of languages, for instance made_up()")
        one.check_length(settings.context + 1)
    if not languages:
        raise InputError("languages=[]: use at least one language")
    for name, value in (("report", report), ("stop", stop)):
        function(name, value)
    folder, device = place_of("folder", folder), checked_device(device)
    seconds = real("save_seconds", save_seconds)
    has_alignment = flag("alignment", alignment) and arm.share > 0
    is_compiled = flag("compiled", compiled)
    plain = _plain(arm, languages, settings, has_alignment)
    place = folder / _name(arm, settings, plain)
    path = folder / f"{place.name}.json"
    if path.exists():
        return LmRecord.load(path)
    with ExitStack() as stack:
        training = _Training(arm, languages, settings, place, device, copy_on, has_alignment, is_compiled, stack)
        training.resume()
        total, saved = settings.steps * len(languages), time.monotonic()
        while training.step < total:
            training.take_step()
            report(training.step, total)
            is_over = stop()
            if is_over or time.monotonic() - saved > seconds:
                training.save()
                saved = time.monotonic()
            if is_over and training.step < total:
                return None
        record = training.record(plain)
        record.save(path)
    shutil.rmtree(place)
    return record


def run_name(arm: Arm, languages: Sequence[Language], settings: LmSettings, *, alignment: bool = False) -> str:
    """Return what the files of a run are called: all that decides its result decides the name.

    Args:
        arm: How to train.
        languages: The languages, in order.
        settings: All numbers.
        alignment: Whether gradients of new and replayed rows are compared.
    """
    return _name(arm, settings, _plain(arm, languages, settings, alignment and arm.share > 0))


def _plain(arm: Arm, languages: Sequence[Language], settings: LmSettings, has_alignment: bool) -> dict[str, Any]:
    """Return all that decides the result of a run, as it stands in the record."""
    plain = {**asdict(settings), "arm": asdict(arm), "texts": {one.name: one.fingerprint() for one in languages}}
    return plain | {"alignment": True} if has_alignment else plain


def _name(arm: Arm, settings: LmSettings, plain: dict[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
    return f"{arm.name}-{settings.seed}-{key}"


def checked_device(device: str) -> str:
    """Return the name of a device that training can use; raise InputError for any other.

    Args:
        device: "cpu", or "cuda" if there is a GPU.
    """
    try:
        kind = torch.device(device).type
    except Exception as error:  # torch raises almost anything
        raise InputError(f"device={shown(device)}: use 'cpu' or 'cuda'") from error
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"device={shown(device)}: use 'cpu'" + ("" if kind == "cuda" else " or 'cuda'"))
    return str(device)


@contextmanager
def _compiling() -> Iterator[None]:
    """Turn an error of `torch.compile` inside into one line that says what to do."""
    from torch._dynamo.exc import TorchDynamoException  # which takes seconds to import

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)
        said = next((line.strip() for line in str(cause).splitlines() if "error:" in line), one_line(cause))
        raise InputError(
            f"compiled=True, or --compile: torch.compile does not work here ({said}); install what it needs, usually a "
            f"C++ compiler, or train without it"
        ) from error


class _Training:
    """A model, its optimizer, and what was measured so far."""

    def __init__(
        self,
        arm: Arm,
        languages: Sequence[Language],
        settings: LmSettings,
        place: Path,
        device: str,
        copy_on: Any,
        has_alignment: bool,
        is_compiled: bool,
        stack: ExitStack,
    ) -> None:
        self.arm, self.languages, self.settings, self.place, self.device = arm, languages, settings, place, device
        if not (place / "checkpoint.pt").exists():
            shutil.rmtree(place, ignore_errors=True)  # rows that a killed process offered before its first checkpoint
        make_folder(place)
        self.model = Llama(settings.size, settings.context, settings.seed).to(device)
        self.is_compiled = is_compiled
        if is_compiled:
            torch.compiler.reset()  # torch compiles a function at most eight times per process
            self.model.compile_blocks()
        options: Any = {"lr": settings.lr, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **options)
        memory = DiskReservoir(place / "replay", settings.capacity) if arm.share else None
        if memory is not None:
            stack.enter_context(memory)
        rate = settings.rate if arm.has_line else 1.0
        options = {"every": settings.every, "rate": rate, "seed": settings.seed, "copy_on": copy_on}
        self.mer = PeriodicMER(self.model, memory=memory, share=arm.share, **options)
        self.step, self.watch = 0, Watch(device)
        self.steps, self.losses, self.ends = list[int](), list[list[float]](), list[int]()
        self.alignment: dict[str, list[float | None]] | None = {"dot": [], "cosine": []} if has_alignment else None
        self.tests = [one.test_rows(settings.test_rows, settings.context + 1).to(device) for one in languages]

    def take_step(self) -> None:
        """Learn one batch; measure if it is time to."""
        self.watch.start()
        is_due, rows = self._is_due(self.step + 1), self._batch()
        with self.watch.mer():
            batch = self.mer.mix(rows)
        batch = batch.to(self.device, non_blocking=True)
        if is_due and self.alignment is not None:
            self._compare(batch, self.alignment)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * min(1.0, (self.step + 1) / self.settings.warmup)
        self._loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with self.watch.mer():
            self.mer.step()
        self.step += 1
        if is_due:
            self._measure()

    def _is_due(self, step: int) -> bool:
        """Say whether losses are measured after this step."""
        of_language, measures, steps = step % self.settings.steps, self.settings.measures, self.settings.steps
        return of_language == 0 or of_language * measures // steps != (of_language - 1) * measures // steps

    def _loss(self, rows: Tensor) -> Tensor:
        compiling = _compiling() if self.is_compiled else nullcontext()
        precision = torch.autocast("cuda", torch.bfloat16) if self.device.startswith("cuda") else nullcontext()
        with compiling, precision:
            return self.model.loss(rows)

    def _compare(self, batch: Tensor, found: dict[str, list[float | None]]) -> None:
        """Compare the gradients of new and replayed rows, with the weights before they are learned."""
        self.watch.pause()
        alignment = self.mer.alignment(batch, self._loss)
        found["dot"].append(alignment.dot if alignment else None)
        found["cosine"].append(alignment.cosine if alignment else None)
        self.watch.start()

    def _batch(self) -> Tensor:
        """Return the new rows of this step; they depend on nothing but the seed and the step."""
        rows, length = self.settings.rows, self.settings.context + 1
        if not self.arm.is_joint:
            return self.languages[self.step // self.settings.steps].rows(rows, length, [self.settings.seed, self.step])
        return torch.cat(
            [
                language.rows(len(range(number, rows, len(self.languages))), length, [self.settings.seed, self.step, i])
                for i, language in enumerate(self.languages)
                for number in [(i + self.step) % len(self.languages)]  # whoever comes first has a row more
            ]
        )

    @torch.no_grad()
    def _measure(self) -> None:
        self.watch.pause()
        losses = [
            float(torch.stack([self._loss(some) * len(some) for some in rows.split(64)]).sum()) / len(rows)
            for rows in self.tests
        ]
        if self.step % self.settings.steps == 0:
            self.ends.append(len(self.steps))
        self.steps.append(self.step)
        self.losses.append(losses)

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        self.watch.pause()
        counts = {"step": self.step, "steps": self.steps, "losses": self.losses, "ends": self.ends}
        times = {"seconds": self.watch.seconds, "mer_seconds": self.watch.mer_seconds, "alignment": self.alignment}
        weights = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state = {**counts, **times, **weights, "mer": self.mer.state_dict()}
        write_state(self.place / "checkpoint.pt", state)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        path = self.place / "checkpoint.pt"
        if path.exists():
            state = read_state(path, self.device)
            try:
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.mer.load_state_dict(state["mer"])
                self.step, self.steps, self.losses, self.ends = (state[n] for n in ("step", "steps", "losses", "ends"))
                self.watch.seconds, self.watch.mer_seconds = state["seconds"], state["mer_seconds"]
                self.alignment = state.get("alignment")
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{path} does not fit ({one_line(error)}): delete its folder, and start again"
                ) from error

    def record(self, plain: dict[str, Any]) -> LmRecord:
        """Return the record of all this."""
        is_gpu = self.device.startswith("cuda")
        return LmRecord(
            arm=self.arm.name,
            settings=plain,
            languages=[language.name for language in self.languages],
            steps=self.steps,
            losses=self.losses,
            ends=self.ends,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            seconds=self.watch.seconds,
            mer_seconds=self.watch.mer_seconds,
            device=torch.cuda.get_device_name() if is_gpu else "cpu",
            compiled=self.is_compiled,
            alignment=self.alignment,
            versions=versions(),
            date=now(),
        )
