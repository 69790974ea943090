"""Imports that Ctrl-C cannot cut in half, since a module that is half imported stays broken, and of extra packages."""

from importlib import import_module
from threading import Thread, current_thread, main_thread
from typing import Any

from metareplay.errors import TrackerMissingError


def import_whole(*names: str) -> None:
    """Import modules completely, even if Ctrl-C comes; a plain import statement finds them at once afterwards.

    Python interrupts only the main thread, so another one does the work. If Ctrl-C comes, it goes on in the background,
    and whoever needs the modules next waits for it.

    Args:
        names: Their full names.
    """

    def work() -> None:
        try:
            for name in names:
                import_module(name)
        except BaseException as error:
            failed.append(error)

    failed: list[BaseException] = []
    if current_thread() is not main_thread():
        work()
    else:
        thread = Thread(target=work, name="metareplay imports")
        thread.start()
        thread.join()
    if failed:
        raise failed[0]


def needed(module: str, what: str, extra: str) -> Any:
    """Import a package; if it is missing, raise TrackerMissingError, which says what to install.

    Args:
        module: The name of the module.
        what: Who needs it.
        extra: The extra that brings it along.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise TrackerMissingError(
            f"{what} needs {module.partition('.')[0]}: pip install 'metareplay[{extra}]'"
        ) from error
