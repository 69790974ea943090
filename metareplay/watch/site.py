"""The answers of the live page: its files, and what is going on as server-sent events."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from metareplay.watch.folder import WatchedFolder
from metareplay.watch.guard import Guard

LOOK: Final = 1.0  # seconds between two looks at the folder
BEAT: Final = 5.0  # seconds after which the page is told that there is nothing new
FILES: Final = {"page.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
PLACE: Final = b"<!-- what plotly.js would add styles for -->"


def make_site(folder: WatchedFolder, token: str, port: int, closing: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Make the application that serves the live page of a folder.

    Args:
        folder: The folder.
        token: What the address must begin with.
        port: The port that it is served at.
        closing: Says whether the server is about to end, so that no answer goes on.
    """
    answers = _Answers(folder, closing)
    routes = [Route("/", _file("page.html", (PLACE, _without_styles())))]
    routes += [Route(f"/{name}", _file(name)) for name in FILES if name != "page.html"]
    routes += [Route("/plotly.js", _plotly), Route("/state.json", answers.state), Route("/events", answers.events)]
    return Guard(Starlette(routes=routes), token, port)


@final
class _Answers:
    """Answer what is going on; all who ask within a second get the same answer."""

    def __init__(self, folder: WatchedFolder, closing: Callable[[], bool]) -> None:
        self._folder, self._closing = folder, closing
        self._lock = asyncio.Lock()
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def state(self, request: Request) -> Response:
        """Answer once."""
        return JSONResponse(await self._look(request.query_params.get("run", "")))

    async def events(self, request: Request) -> Response:
        """Answer again whenever something has changed."""
        chosen = request.query_params.get("run", "")[:300]
        return StreamingResponse(self._stream(chosen), media_type="text/event-stream")

    async def _stream(self, chosen: str) -> AsyncIterator[str]:
        last, told = "", 0.0
        while not self._closing():
            now = json.dumps(await self._look(chosen), allow_nan=False, separators=(",", ":"))
            if now != last:
                last, told = now, time.monotonic()
                yield f"retry: 1000\nevent: news\ndata: {now}\n\n"
            elif time.monotonic() - told > BEAT:
                told = time.monotonic()
                yield "event: beat\ndata: {}\n\n"
            await asyncio.sleep(LOOK)

    async def _look(self, chosen: str) -> dict[str, Any]:
        async with self._lock:
            at, found = self._known.get(chosen, (0.0, {}))
            if time.monotonic() - at > LOOK / 2:
                found = await run_in_threadpool(self._folder.look, chosen)
                self._known = {key: one for key, one in self._known.items() if time.monotonic() - one[0] < LOOK}
                self._known[chosen] = (time.monotonic(), found)
            return found


def _file(name: str, replaced: tuple[bytes, bytes] = (b"", b"")) -> Callable[[Request], Response]:
    """Return what answers with one of the page's own files, in which one piece of text is replaced by another."""
    content = (files("metareplay.watch") / "page" / name).read_bytes()
    content = content.replace(*replaced) if replaced[0] else content

    def answer(_: Request) -> Response:
        return Response(content, media_type=FILES[name])

    return answer


def _plotly_path() -> Path:
    """Return where the plotly.js is that the Python package brings along."""
    return Path(str(files("plotly"))) / "package_data" / "plotly.min.js"


def _without_styles() -> bytes:
    """Return elements whose presence keeps plotly.js from adding styles for its maps, which the page's rules forbid."""
    names = re.findall(rb'getElementById\("([0-9a-f]{64})"\)', _plotly_path().read_bytes())
    return b"".join(b'<span id="%s" hidden></span>' % name for name in dict.fromkeys(names))


def _plotly(_: Request) -> Response:
    """Answer with plotly.js."""
    return FileResponse(
        _plotly_path(), media_type="text/javascript", headers={"Cache-Control": "private, max-age=3600"}
    )
