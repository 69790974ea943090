"""The command line. It reads options and shows results, and has no logic of its own."""

import sys
from typing import Annotated

import torch
import typer

from metareplay._version import __version__
from metareplay.cli.bench import bench
from metareplay.cli.console import fail, fail_on_disk, open_streams, remark, shown
from metareplay.cli.data import data_app
from metareplay.cli.demo import demo
from metareplay.cli.lm import lm
from metareplay.cli.paper import paper
from metareplay.cli.play import play
from metareplay.cli.report import report
from metareplay.cli.run import run_command
from metareplay.cli.sweep import sweep_command
from metareplay.cli.watch import watch
from metareplay.errors import MetareplayError

INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped: typer's own


def version() -> None:
    """Print the version."""
    shown.print(__version__, highlight=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _top(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del show


def make_app(words: list[str]) -> typer.Typer:
    """Make the command line.

    Args:
        words: What was typed; if it names a learner of the user's own, that learner's options are added.
    """
    app = typer.Typer(
        name="metareplay",
        help="Learn from non-stationary streams without forgetting: Meta-Experience Replay (Riemer et al., ICLR 2019).",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_top)
    app.command("run")(run_command(words))
    app.command("sweep")(sweep_command(words))
    for command in (demo, paper, bench, play, lm, report, watch):
        app.command()(command)
    app.add_typer(data_app, name="data")
    app.command()(version)
    return app


def main() -> None:
    """Run the command line; every error is one line on standard error, with exit code 2."""
    open_streams()
    torch.set_num_threads(1)  # the paper's networks are small, and numbers must not depend on the number of cores
    words = sys.argv[1:]
    try:
        code = make_app(words)(words or ["--help"], standalone_mode=False)
    except MetareplayError as error:
        fail(str(error))
    except torch.cuda.OutOfMemoryError:
        fail("not enough GPU memory: use a smaller memory, fewer runs at a time (--jobs 1), or --engine cpu")
    except MemoryError:
        fail("not enough memory: use a smaller memory, smaller numbers, or fewer runs at a time (--jobs 1)")
    except OSError as error:
        fail_on_disk(error)
    except typer.TyperException as error:
        fail(f"{error.format_message().rstrip('.')}; see metareplay --help")
    if code == INTERRUPTED:
        remark("metareplay: interrupted; give the same command again to continue")
    try:
        sys.stdout.flush()
    except OSError as error:
        fail_on_disk(error)
    sys.exit(code if isinstance(code, int) else 0)
