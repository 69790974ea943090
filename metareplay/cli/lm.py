"""The command `lm`: pre-train a small language model on one language after the other, with and without MER."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import torch
import typer
from rich.table import Table

from metareplay._core.checks import check_count, choice
from metareplay.cli.console import aside, draw, print_json, print_table, remark
from metareplay.cli.run_options import AsJson
from metareplay.cli.stopping import asked_to_stop
from metareplay.errors import InputError
from metareplay.lm import ARMS, SIZES, Arm, LmRecord, LmSettings, made_up, read_languages, read_records, train
from metareplay.lm.report import plot_alignment, plot_losses, table
from metareplay.lm.training import run_name
from metareplay.runners.claims import Claim
from metareplay.runners.worklist import OTHERS

MINI = LmSettings()

Run = tuple[Arm, LmSettings]


def lm(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders with text, one per language, in order; without any, four made-up languages."),
    ] = None,
    arms: Annotated[str, typer.Option(help=f"What to compare: {', '.join(ARMS)}.")] = ",".join(ARMS),
    size: Annotated[str, typer.Option(help=f"How large the model is: {', '.join(SIZES)} parameters.")] = "mini",
    context: Annotated[int, typer.Option(help="How many bytes the model sees at a time.")] = MINI.context,
    steps: Annotated[int, typer.Option(help="Optimizer steps for each language.")] = MINI.steps,
    rows: Annotated[int, typer.Option(help="New rows per batch; replayed rows come on top.")] = MINI.rows,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = MINI.lr,
    every: Annotated[int, typer.Option(help="Steps between two Reptile lines.")] = MINI.every,
    rate: Annotated[float, typer.Option(help="How far a Reptile line goes.")] = MINI.rate,
    memory: Annotated[int, typer.Option(help="The largest number of rows in the memory.")] = MINI.capacity,
    test_rows: Annotated[int, typer.Option(help="Rows of each language to test.")] = MINI.test_rows,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    copy_on: Annotated[str, typer.Option(help="Where the Reptile line keeps old weights: device or host.")] = "device",
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Compare gradients of new and replayed rows; draw a picture.")
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the model with torch.compile, which needs a C++ compiler; for long runs."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where records, checkpoints and pictures are kept.")] = Path("runs/lm"),
    only_records: Annotated[
        bool, typer.Option("--only-records", help="Train nothing: show what is in --out already; no text is needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Pre-train a small Llama-like model on one language after the other, byte by byte, with and without MER."""
    if only_records:
        _show(read_records(out), out, as_json)
        return
    wanted = [ARMS[choice("--arms", name.strip(), list(ARMS))] for name in arms.split(",")]
    model = SIZES[choice("--size", size, list(SIZES))]
    check_count("--seeds", seeds, "there is one seed at least")
    place = choice("--device", device, ("auto", "cpu", "cuda"))
    if place == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; use --device cpu")
    place = ("cuda" if torch.cuda.is_available() else "cpu") if place == "auto" else place
    settings = LmSettings(
        size=model,
        context=context,
        steps=steps,
        rows=rows,
        lr=lr,
        every=every,
        rate=rate,
        capacity=memory,
        test_rows=test_rows,
    )
    languages = read_languages(folders, context + 1) if folders else made_up()
    runs = [(arm, replace(settings, seed=seed)) for seed in range(seeds) for arm in wanted]
    names = [run_name(*(arm, languages, one), alignment=alignment) for arm, one in runs]
    with asked_to_stop() as asked, aside.status("training") as status:

        def train_one(arm: Arm, settings: LmSettings) -> LmRecord | None:
            def report(step: int, total: int) -> None:
                status.update(f"{arm.name}, seed {settings.seed}: step {step} of {total}")

            return train(
                *(arm, languages, settings, out),
                device=place,
                copy_on=copy_on,
                alignment=alignment,
                compiled=compiled,
                report=report,
                stop=asked.is_set,
            )

        found = _shared(dict(zip(names, runs, strict=True)), out, train_one, asked, status.update)
    if asked.is_set():
        remark("metareplay: stopped; give the same command again to continue")
        raise typer.Exit(130)
    _show([found[name] for name in names], out, as_json)


def _shared(
    runs: Mapping[str, Run],
    out: Path,
    train_one: Callable[[Arm, LmSettings], LmRecord | None],
    asked: Event,
    say: Callable[[str], None],
) -> dict[str, LmRecord]:
    """Do the runs that no other process is doing in this folder, then wait for the others; return all records by name.

    Args:
        runs: What to train, by name.
        out: The folder.
        train_one: Trains one arm, or returns its record if there is one; None if it was stopped.
        asked: Is set when this process has been asked to stop.
        say: Is told that other processes are being waited for.
    """
    found, left = dict[str, LmRecord](), dict(runs)
    while left and not asked.is_set():
        for name, run in runs.items():
            claim = Claim.take(out, name) if name in left and not asked.is_set() else None
            if claim is not None:
                with claim:
                    record = train_one(*run)
                if record is not None:
                    found[name] = record
                    del left[name]
        if left:
            say(f"waiting for other processes, which train {', '.join(left)}")
            asked.wait(OTHERS)
    return found


def _show(found: Sequence[LmRecord], out: Path, as_json: bool) -> None:
    """Show records as a table and as pictures, or print them."""
    if as_json:
        print_json({"records": [record.plain() for record in found]})
        return
    heading, *lines = table(found)
    shown = Table(title="loss in nats per byte, on text that was not learned")
    for number, name in enumerate(heading):
        shown.add_column(name, justify="right" if number else "left")
    for line in lines:
        shown.add_row(*line)
    print_table(shown)
    draw(partial(plot_losses, found), out / "losses.png")
    if any(record.cosine is not None for record in found):
        draw(partial(plot_alignment, found), out / "alignment.png")
