"""The server of the live page: on this machine alone, in a thread of its own."""

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from metareplay._core.files import write_atomically
from metareplay._core.imports import needed
from metareplay.errors import DiskError, InputError, MetareplayError
from metareplay.watch.plain import read_document

HOST: Final = "127.0.0.1"
KEPT: Final = ".watch"  # the file that keeps the address of a folder's page, so that a page that is open finds it again
PATIENCE: Final = 10.0  # seconds that the server may take to start


@contextmanager
def serving(folder: Path, port: int | None = None) -> Iterator[str]:
    """Serve the live page of a folder; yield its address, which opens only for those who know it.

    A folder keeps its address as far as possible, so that a page that is open goes on after a restart.

    Args:
        folder: The folder with the runs; it need not exist yet.
        port: The port; None for the one that the folder had before, or any that is free.
    """
    for name in ("plotly", "starlette", "uvicorn"):
        needed(name, "the live page", "watch")
    import uvicorn

    from metareplay.watch.folder import WatchedFolder
    from metareplay.watch.site import make_site

    token, before = _kept(folder)
    listening = _listen(port, before)
    number = listening.getsockname()[1]
    site = make_site(WatchedFolder(folder), token, number, closing=lambda: server.should_exit)
    config = uvicorn.Config(
        site,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        server_header=False,
        limit_concurrency=100,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="live page", daemon=True)
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        if not server.started:
            raise MetareplayError("the live page could not be started: try again, or run without --watch")
        _keep(folder, token, number)
        yield f"http://{HOST}:{number}/{token}/"
    finally:
        _keep(folder, token, number)  # the first run may have made the folder meanwhile
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()


def _listen(port: int | None, before: int) -> socket.socket:
    """Open a port of this machine that other machines cannot reach."""
    for wanted in [port] if port is not None else [before, 0]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, wanted))
            listening.listen()
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            refused = error
    raise InputError(f"--port {port}: {getattr(refused, 'strerror', None) or refused}; use another one") from refused


def _kept(folder: Path) -> tuple[str, int]:
    """Return the token and the port that the folder's page had before, or new ones.

    A file that somebody else may have written or read is not trusted.
    """
    path = folder / KEPT
    try:
        about = path.lstat()
        own = about.st_uid == os.getuid() and about.st_mode & 0o177077 == 0o100000
    except (OSError, AttributeError):  # Windows has no owners: there the address changes
        own = False
    found = read_document(path) if own else None
    token, port = (found or {}).get("token"), (found or {}).get("port")
    if isinstance(token, str) and re.fullmatch(r"[\w-]{32,100}", token, re.ASCII) and isinstance(port, int):
        return token, port if 0 < port < 65536 else 0
    return secrets.token_urlsafe(32), 0


def _keep(folder: Path, token: str, port: int) -> None:
    """Keep the address for the next time, in a file that only its owner can read."""
    path = folder / KEPT
    if folder.is_dir() and hasattr(os, "getuid"):
        with suppress(DiskError), write_atomically(path, sync=False) as file:
            os.fchmod(file.fileno(), 0o600)  # before there is anything in it
            file.write(json.dumps({"token": token, "port": port}).encode())
