"""The command `lm`: pre-train a small language model on one language after the other, with and without MER."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from metareplay._core.checks import check_count, choice
from metareplay.cli.console import aside, draw, print_json, print_table, remark
from metareplay.cli.run_options import AsJson
from metareplay.cli.stopping import asked_to_stop
from metareplay.errors import InputError
from metareplay.lm import ARMS, SIZES, LmRecord, LmSettings, made_up, read_languages, read_records, train
from metareplay.lm.report import plot_alignment, plot_losses, table

MINI = LmSettings()


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
    found = list[LmRecord]()
    with asked_to_stop() as asked, aside.status("training") as status:
        for seed in range(seeds):
            for arm in wanted:

                def report(step: int, total: int, name: str = f"{arm.name}, seed {seed}") -> None:
                    status.update(f"{name}: step {step} of {total}")

                record = train(
                    *(arm, languages, replace(settings, seed=seed), out),
                    device=place,
                    copy_on=copy_on,
                    alignment=alignment,
                    report=report,
                    stop=asked.is_set,
                )
                if record is None:
                    break
                found.append(record)
            if asked.is_set():
                break
    if asked.is_set():
        remark("metareplay: stopped; give the same command again to continue")
        raise typer.Exit(130)
    _show(found, out, as_json)


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
