"""The server of the page: one page, its files, and a websocket over which it asks its questions.

It listens on the loopback interface unless it is told otherwise. The address has a token, without which nothing is
answered; a request whose `Host` is another name is refused (a foreign page may resolve its own name to this machine),
and so is a websocket opened by a page of another origin. Files are those of the package alone. What the page sends
chooses one of the listed operations and its arguments; nothing of it is run as code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sonde import _extras
from sonde.viewer import notebook
from sonde.viewer.assets import asset, index
from sonde.viewer.conversation import Conversation, threads
from sonde.viewer.operations import Subjects
from sonde.viewer.saved import SavedReport

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PURPOSE = "Serving the page of `sonde view`"
_MOST_BYTES = 1_000_000  # of a message from the page
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


# A report that was opened runs its own script, in a frame without any rights: not even those of this page.
_REPORT_HEADERS = _HEADERS | {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
}
_ANY = ("0.0.0.0", "::")
_MOMENT = 0.5  # seconds between two looks at whether a page is open


@dataclasses.dataclass
class Door:
    """Who may come in.

    Attributes:
        token: What the address must have.
        hosts: The names under which the server may be addressed, without the port.
        by_number: Whether it may be addressed by the number of any interface, too. A page elsewhere that resolves its
            own name to this machine has a name.
    """

    token: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(24))
    hosts: tuple[str, ...] = LOOPBACK
    by_number: bool = False

    def admits(self, headers: Mapping[str, str], token: str) -> bool:
        """Whether a request has the right host, origin and token."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
            if name not in self.hosts and not (self.by_number and _is_number(name)):
                return False
            if origin is not None and urlsplit(origin).netloc != host:
                return False
        except ValueError:  # no address at all
            return False
        return hmac.compare_digest(token.encode(), self.token.encode())


def _is_number(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def application(
    subjects: Subjects,
    door: Door,
    conversations: set[Conversation] | None = None,
    pool: concurrent.futures.Executor | None = None,
) -> Any:
    """The server as an ASGI application.

    Args:
        subjects: What was opened, by name.
        door: Who may come in.
        conversations: Where those with open pages are kept.
        pool: Where questions are answered.
    """
    _extras.load("starlette", extra="view", purpose=_PURPOSE)
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute

    answering = pool or threads()
    open_ones: set[Conversation] = set() if conversations is None else conversations

    def refused() -> Response:
        return Response("Open the address that `sonde view` printed: it has a token.", 403, _HEADERS)

    async def page(request: Any) -> Response:
        if not door.admits(request.headers, request.query_params.get("token", "")):
            return refused()
        return Response(index(), headers=_HEADERS, media_type="text/html")

    async def file(request: Any) -> Response:
        name = request.path_params["name"]
        # The files hold no secret, so they need no token: a script cannot pass one to the modules that it imports.
        if not door.admits(request.headers, door.token):
            return refused()
        text = asset(name)
        if text is None:
            return Response("There is no such file.", 404, _HEADERS)
        return Response(text, headers=_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])

    async def talk(connection: Any) -> None:
        if not door.admits(connection.headers, connection.query_params.get("token", "")):
            await connection.close(4403)
            return
        await connection.accept()
        await _talk(connection, subjects, answering, open_ones)

    async def report(request: Any) -> Response:
        if not door.admits(request.headers, request.query_params.get("token", "")):
            return refused()
        opened = subjects.get(request.query_params.get("subject", ""))
        if not isinstance(opened, SavedReport):
            return Response("There is no such report.", 404, _HEADERS)
        return Response(opened.path.read_bytes(), headers=_REPORT_HEADERS, media_type="text/html")

    routes = [Route("/", page), Route("/static/{name}", file), Route("/report", report), WebSocketRoute("/ws", talk)]
    return Starlette(routes=routes)


async def _talk(
    connection: Any, subjects: Subjects, pool: concurrent.futures.Executor, open_ones: set[Conversation]
) -> None:
    """Answers the questions of one page until it is closed."""
    from starlette.websockets import WebSocketDisconnect

    loop, sending = asyncio.get_running_loop(), asyncio.Lock()

    async def send(text: str) -> None:
        async with sending:
            # The page may have been closed while its question was answered.
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await connection.send_text(text)

    def send_from_thread(message: Mapping[str, Any]) -> None:
        sent = send(json.dumps(message, allow_nan=False))
        try:
            asyncio.run_coroutine_threadsafe(sent, loop)
        except RuntimeError:  # the server has stopped
            sent.close()

    conversation = Conversation(subjects, pool, send_from_thread)
    open_ones.add(conversation)
    try:
        while True:
            text = await connection.receive_text()
            if len(text) > _MOST_BYTES:
                await connection.close(1009)
                break
            conversation.take(text)
    except (WebSocketDisconnect, KeyError):  # closed; or bytes, which our page never sends
        pass
    finally:
        open_ones.discard(conversation)
        conversation.close()


class Served:
    """A server that runs in a thread of its own.

    Attributes:
        address: What to open in a browser.
        subjects: What it shows, by name.
    """

    def __init__(self, subjects: Subjects, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        uvicorn = _extras.load("uvicorn", extra="view", purpose=_PURPOSE)
        _extras.load("websockets", extra="view", purpose=_PURPOSE)
        own = socket.gethostname() if host in _ANY else host
        self.door = Door(token or secrets.token_urlsafe(24), tuple(dict.fromkeys((*LOOPBACK, own))), host in _ANY)
        self.subjects = subjects
        # Bound here and not by uvicorn, which would end its thread without a word if the port is taken.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen()  # who comes before the thread has started waits
        except OSError as error:
            listening.close()
            raise OSError(f"the page cannot be served on {host}, port {port}: {error.strerror}") from error
        self._conversations: set[Conversation] = set()
        self._pool = threads()
        config = uvicorn.Config(
            application(subjects, self.door, self._conversations, self._pool),
            log_level="warning",
            ws_max_size=_MOST_BYTES,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True, name="sonde-view")
        self._thread.start()
        bound = listening.getsockname()[1]
        shown = f"[{own}]" if ":" in own else own
        self.address = f"http://{shown}:{bound}/?token={self.door.token}"

    def wait(self, idle: float | None = None) -> None:
        """Returns when the server has stopped.

        Args:
            idle: After how many seconds without an open page it stops by itself; never, if None.
        """
        unused_since = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_MOMENT)
            if self.open_pages:
                unused_since = time.monotonic()
            elif idle is not None and time.monotonic() - unused_since > idle:
                self.close()

    @property
    def open_pages(self) -> int:
        """How many pages are open."""
        return len(self._conversations)

    def close(self) -> None:
        """Stops the server. A program that runs is not interrupted."""
        self._server.should_exit = True
        self._thread.join(5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        return f"Served({self.address})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return notebook.shown(self.subjects, repr(self))
