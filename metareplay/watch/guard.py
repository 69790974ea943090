"""Who may look at the live page: only browsers of this machine that were given its link, and only to read."""

import hmac
from typing import Final, final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

EMPTY: Final = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"  # the empty style element that plotly.js adds
HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY}; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token in it
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@final
class Guard:
    """Refuse what does not come from the link, and send strict headers with every answer.

    The Host header is checked so that no other site can reach the page by giving its own name this machine's address
    (DNS rebinding). The token is the first part of the path.

    Args:
        app: Answers what is let through, without the token in its path.
        token: The token.
        port: The port that the page is served at.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            inside = {**scope, "path": scope["path"][1 + len(self._token) :]}
            inside["raw_path"] = inside["path"].encode()
            await self._app(inside, receive, send_strictly)
        else:
            await refusal(scope, receive, send_strictly)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not let through; None for one that is."""
        if Headers(scope=scope).getlist("host") not in [[host] for host in self._hosts]:
            return PlainTextResponse("open the link that metareplay printed: this host is not served here", 403)
        if scope["method"] != "GET":
            return PlainTextResponse("this page can only be read", 405, {"Allow": "GET"})
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            return PlainTextResponse("open the link that metareplay printed: the token is missing or wrong", 403)
        return None if slash else RedirectResponse(f"/{self._token}/")
