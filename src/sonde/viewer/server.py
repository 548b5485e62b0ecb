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
import functools
import hmac
import json
import re
import secrets
import socket
import threading
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from sonde import _extras
from sonde.report.failure import failure
from sonde.viewer import experiments, looking, training  # noqa: F401  (they list their operations)
from sonde.viewer.operations import Cancelled, Job, answer

Subjects = dict[str, Any]
"""What is on a page, by name."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PURPOSE = "Serving the page of `sonde view`"
_MOST_BYTES = 1_000_000  # of a message from the page
_THREADS = 4  # questions that are answered at a time; they take turns to compute
_FILES = re.compile(r"[a-z_]+\.(js|css|svg)")
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass
class Door:
    """Who may come in.

    Attributes:
        token: What the address must have.
        hosts: The names under which the server may be addressed, without the port.
    """

    token: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(24))
    hosts: tuple[str, ...] = LOOPBACK

    def admits(self, headers: Mapping[str, str], token: str) -> bool:
        """Whether a request has the right host, origin and token."""
        host = headers.get("host", "")
        if urlsplit(f"//{host}").hostname not in self.hosts:
            return False
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return False
        return hmac.compare_digest(token.encode(), self.token.encode())


def application(subjects: Subjects, door: Door) -> Any:
    """The server as an ASGI application.

    Args:
        subjects: What was opened, by name.
        door: Who may come in.
    """
    _extras.load("starlette", extra="view", purpose=_PURPOSE)
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute

    threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="sonde-view")

    def refused() -> Response:
        return Response("Open the address that `sonde view` printed: it has a token.", 403, _HEADERS)

    async def page(request: Any) -> Response:
        if not door.admits(request.headers, request.query_params.get("token", "")):
            return refused()
        return Response(_asset("index.html"), headers=_HEADERS, media_type="text/html")

    async def file(request: Any) -> Response:
        name = request.path_params["name"]
        # The files hold no secret, so they need no token: a script cannot pass one to the modules that it imports.
        if not door.admits(request.headers, door.token):
            return refused()
        text = _SHARED[name]() if name in _SHARED else _asset(name) if _FILES.fullmatch(name) else None
        if text is None:
            return Response("There is no such file.", 404, _HEADERS)
        return Response(text, headers=_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])

    async def talk(connection: Any) -> None:
        if not door.admits(connection.headers, connection.query_params.get("token", "")):
            await connection.close(4403)
            return
        await connection.accept()
        await _Talk(connection, subjects, threads).run()

    return Starlette(
        routes=[Route("/", page), Route("/static/{name}", file), WebSocketRoute("/ws", talk)],
    )


def _asset(name: str) -> str | None:
    path = resources.files("sonde.viewer").joinpath("static", name)
    return path.read_text(encoding="utf-8") if path.is_file() else None


_NAMES = re.compile(r"^(?:function|const|let|class) (\w+)", re.MULTILINE)


def _of_report(*names: str) -> str:
    """Files of the static report, one after the other."""
    assets = resources.files("sonde.report").joinpath("assets")
    return "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in names)


def _shared_script() -> str:
    """The parts of the static report as one module."""
    text = _of_report("elements.js", "colors.js", "charts.js", "maps.js", "tree.js")
    return f"{text}\nexport {{ {', '.join(_NAMES.findall(text))} }};\n"


def _shared_style() -> str:
    return _of_report("theme.css", "parts.css", "layout.css")


_SHARED = {"shared.js": _shared_script, "shared.css": _shared_style}


class _Talk:
    """The conversation with one open page. When the page closes, what it asked is cancelled."""

    def __init__(self, connection: Any, subjects: Subjects, threads: concurrent.futures.ThreadPoolExecutor) -> None:
        self.socket, self.subjects, self.threads = connection, subjects, threads
        self.jobs: dict[int, Job] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.sending = asyncio.Lock()

    async def run(self) -> None:
        """Answers until the page is closed."""
        from starlette.websockets import WebSocketDisconnect

        try:
            while True:
                text = await self.socket.receive_text()
                if len(text) > _MOST_BYTES:
                    await self.socket.close(1009)
                    break
                self._take(text)
        except WebSocketDisconnect:
            pass
        finally:
            for job in self.jobs.values():
                job.cancelled.set()

    def _take(self, text: str) -> None:
        try:
            message = json.loads(text)
            number, name = int(message["id"]), str(message["op"])
            data = message.get("args", {})
        except (ValueError, KeyError, TypeError):
            return  # not from our page
        if name == "cancel":
            if number in self.jobs:
                self.jobs[number].cancelled.set()
            return
        task = asyncio.get_running_loop().create_task(self._answer(number, name, data))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, number: int, name: str, data: Any) -> None:
        loop = asyncio.get_running_loop()

        def say(news: Mapping[str, Any]) -> None:
            asyncio.run_coroutine_threadsafe(self._send({"id": number, "news": news}), loop)

        job = self.jobs[number] = Job(self.subjects, say)
        try:
            result = await loop.run_in_executor(self.threads, functools.partial(_answered, job, name, data))
            await self._send({"id": number, **result})
        finally:
            self.jobs.pop(number, None)

    async def _send(self, message: Mapping[str, Any]) -> None:
        from starlette.websockets import WebSocketDisconnect

        async with self.sending:
            # The page may have been closed while its question was answered.
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self.socket.send_text(json.dumps(message, allow_nan=False))


def _answered(job: Job, name: str, data: Any) -> dict[str, Any]:
    """The answer, or what went wrong, in a form that the page can show."""
    try:
        if not isinstance(data, dict):
            raise ValueError("the arguments of a question are named")
        return {"result": answer(job, name, data)}
    except Cancelled:
        return {"cancelled": True}
    except Exception as error:
        if _is_out_of_memory(error):
            for subject in job.subjects.values():
                subject.clear()
            return {
                "error": {
                    "kind": "out of memory",
                    "text": "There was not enough memory for this. What was remembered has been forgotten; try a "
                    "shorter prompt, or fewer changes at a time.",
                    "source": "",
                }
            }
        told = failure(error, "", only_compiled=False)
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else told.message
        return {"error": {"kind": told.kind, "text": text, "source": told.source, "code": told.code}}


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


class Served:
    """A server that runs in a thread of its own.

    Attributes:
        address: What to open in a browser.
        subjects: What it shows, by name.
    """

    def __init__(self, subjects: Subjects, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        uvicorn = _extras.load("uvicorn", extra="view", purpose=_PURPOSE)
        _extras.load("websockets", extra="view", purpose=_PURPOSE)
        hosts = LOOPBACK if host in LOOPBACK else (*LOOPBACK, host)
        self.door = Door(hosts=hosts) if token is None else Door(token, hosts)
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
        config = uvicorn.Config(
            application(subjects, self.door),
            log_level="warning",
            ws_max_size=_MOST_BYTES,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True, name="sonde-view")
        self._thread.start()
        bound = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{bound}/?token={self.door.token}"

    def wait(self) -> None:
        """Returns when the server has stopped."""
        self._thread.join()

    def close(self) -> None:
        """Stops the server."""
        self._server.should_exit = True
        self._thread.join(5)

    def __repr__(self) -> str:
        return f"Served({self.address})"
