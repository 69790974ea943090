"""The first thing that is imported: Ctrl-C while a command is still importing torch ends it without a traceback.

Only the `metareplay` command is concerned. Whoever imports the package in a program of their own sees what Python does.
"""

import sys
from pathlib import Path
from types import TracebackType


def is_command(words: list[str]) -> bool:
    """Return whether the words that started Python are those of the command.

    >>> is_command(["python", "/usr/bin/metareplay", "run"]), is_command(["python", "-m", "metareplay"])
    (True, True)
    >>> is_command(["python", "metareplay.py"]), is_command(["python", "-c", "import metareplay"])
    (False, False)

    Args:
        words: What `sys.orig_argv` holds.
    """
    return words[1:3] == ["-m", "metareplay"] or any(Path(word).name == "metareplay" for word in words[:2])


def quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an exception that nothing has caught; for Ctrl-C, show one line.

    Args:
        kind: Its class.
        error: The exception.
        trace: Where it was raised.
    """
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("metareplay: interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


if is_command(sys.orig_argv):
    sys.excepthook = quietly
