"""Options that several commands have in common: the engine, the folder of the records, and what is printed."""

from pathlib import Path
from typing import Annotated

import typer

Engine = Annotated[str, typer.Option(help="What does the arithmetic: auto, torch, cpu or cuda.")]
Kept = Annotated[Path, typer.Option("--records", help="Folder for the records of finished runs.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again what has a record or was interrupted.")]
Seeds = Annotated[int, typer.Option(help="How many seeds to run.")]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="Print the record(s) as one JSON document.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
