"""`metareplay data`: download datasets."""

from typing import Annotated

import typer

from metareplay import data as datasets
from metareplay.cli.console import remark, shown
from metareplay.data.sources import SOURCES

data_app = typer.Typer(help="Fetch datasets once, and see where they are.")


@data_app.callback()
def data() -> None:
    """Fetch datasets once, and see where they are."""


@data_app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(help=f"Any of: {', '.join(SOURCES)}.")] = None,
) -> None:
    """Download datasets into the cache and verify them; what is already there is not downloaded again."""
    for name in names or ["mnist"]:
        folder = datasets.fetch(name, report=remark)
        shown.print(f"{name}: {folder}", highlight=False, soft_wrap=True)
