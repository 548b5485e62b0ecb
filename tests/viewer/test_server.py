"""Who may come in, what is answered, and what the page is told when something fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import sonde
from sonde.viewer import assets
from sonde.viewer.open import subject_of
from sonde.viewer.operations import OPERATIONS
from sonde.viewer.runs import Runs
from sonde.viewer.server import Door, application

NASTY = "</script><img src=x onerror=alert(1)>"


def program(x: Any) -> Any:
    return sonde.sow(x * 2, NASTY).sum()


@pytest.fixture
def door() -> Door:
    return Door("secret")


@pytest.fixture
def client(door: Door) -> Iterator[TestClient]:
    subjects = {NASTY: Runs(subject_of(program, (jnp.ones(3),), title=NASTY))}
    with TestClient(application(subjects, door), headers={"host": "127.0.0.1"}) as opened:
        yield opened


def asked(client: TestClient, name: str, **data: Any) -> dict[str, Any]:
    with client.websocket_connect("/ws?token=secret") as socket:
        socket.send_text(json.dumps({"id": 7, "op": name, "args": data}))
        return json.loads(socket.receive_text())


def test_the_page_needs_the_token(client: TestClient) -> None:
    assert client.get("/?token=secret").status_code == 200
    for address in ("/", "/?token=", "/?token=secre", "/?token=other"):
        assert client.get(address).status_code == 403, address
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(address.replace("/", "/ws", 1)):
            pass


@pytest.mark.parametrize("path", ["/?token=secret", "/static/main.js"])
def test_another_host_is_refused(client: TestClient, path: str) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        assert client.get(path, headers={"host": host}).status_code == 403, host
    assert client.get(path, headers={"host": "localhost:1234"}).status_code == 200


def test_a_page_of_another_origin_gets_no_socket(client: TestClient) -> None:
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("/ws?token=secret", headers={"origin": origin, "host": "127.0.0.1"}),
        ):
            pass
    with client.websocket_connect("/ws?token=secret", headers={"origin": "http://127.0.0.1", "host": "127.0.0.1"}):
        pass


@pytest.mark.parametrize(
    "name", ["../server.py", "..%2fserver.py", "%2e%2e/open.py", "index.html", "nothing.js", "x.py"]
)
def test_no_file_but_those_of_the_page(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_nothing_may_be_loaded_from_elsewhere(client: TestClient) -> None:
    policy = client.get("/?token=secret").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    for name in ("main.js", "shared.js", "shared.css", "app.css", "icon.svg"):
        found = client.get(f"/static/{name}")
        assert found.status_code == 200 and found.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in found.text.replace("http://www.w3.org/", "")
        assert "https://" not in found.text


def test_the_page_runs_listed_operations_alone(client: TestClient) -> None:
    assert set(OPERATIONS) >= {"hello", "read", "sites", "site", "picture", "sweep", "python"}
    for name in ("eval", "__import__", "answer", "clear", "_card", ""):
        assert f"no operation {name!r}" in asked(client, name)["error"]["text"]
    assert "takes" in asked(client, "read", subject=NASTY, code="print()")["error"]["text"]
    assert "there is no program" in asked(client, "read", subject="other")["error"]["text"]


def test_hostile_names_stay_text(client: TestClient) -> None:
    assert NASTY not in client.get("/?token=secret").text
    subject = asked(client, "hello")["result"]["subjects"][0]
    assert subject["name"] == NASTY
    (site,) = asked(client, "sites", subject=NASTY)["result"]["sites"]
    (glance,) = asked(client, "glances", subject=NASTY)["result"]["glances"]
    assert site["path"] == NASTY and glance["rms"] == 2


def test_what_is_no_question_is_not_answered(client: TestClient) -> None:
    with client.websocket_connect("/ws?token=secret") as socket:
        for text in (
            "",
            "{",
            "[]",
            "{}",
            "[" * 5000,
            '{"id": 1e999, "op": "hello"}',
            '{"id": "x", "op": 1}',
            '{"op": "hello"}',
            "null",
        ):
            socket.send_text(text)
        socket.send_text('{"id": 1, "op": "hello", "args": []}')
        assert "are named" in json.loads(socket.receive_text())["error"]["text"]
        socket.send_text('{"id": 2, "op": "hello"}')
        assert json.loads(socket.receive_text())["id"] == 2


def test_a_program_that_raises_is_told_with_its_line(client: TestClient, door: Door) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError(NASTY)

    with TestClient(
        application({"b": Runs(subject_of(broken, (1.0,), title="b"))}, door), headers={"host": "127.0.0.1"}
    ) as opened:
        for _ in range(2):  # the page may ask again
            error = asked(opened, "read", subject="b")["error"]
            assert (error["kind"], error["text"]) == ("RuntimeError", NASTY)
            assert error["source"].rpartition(":")[0] == __file__ and "raise RuntimeError(NASTY)" in error["code"]


def test_without_memory_the_page_is_told_and_what_was_kept_is_forgotten(door: Door, monkeypatch: Any) -> None:
    runs = Runs(subject_of(program, (jnp.ones(3),), title="p"))
    with TestClient(application({"p": runs}, door), headers={"host": "127.0.0.1"}) as opened:
        asked(opened, "read", subject="p")
        assert runs.bytes > 0
        monkeypatch.setitem(OPERATIONS, "lens", _exhausted)
        error = asked(opened, "lens", subject="p")["error"]
        assert error["kind"] == "out of memory" and runs.bytes == 0
        assert asked(opened, "read", subject="p")["result"]["result"] == ["result: 6"]


def _exhausted(job: Any, subject: str) -> None:
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")


def test_a_closed_page_cancels_its_questions(door: Door, monkeypatch: Any) -> None:
    stopped = threading.Event()

    def endless(job: Any) -> None:
        while not job.cancelled.wait(0.01):
            job.progress(0, 1)
        stopped.set()

    monkeypatch.setitem(OPERATIONS, "lens", endless)
    with TestClient(application({}, door), headers={"host": "127.0.0.1"}) as opened:
        with opened.websocket_connect("/ws?token=secret") as socket:
            socket.send_text('{"id": 1, "op": "lens"}')
            assert "news" in json.loads(socket.receive_text())
            socket.send_text('{"id": 2, "op": "hello"}')  # another question is answered meanwhile
            while json.loads(socket.receive_text())["id"] != 2:
                pass
    assert stopped.wait(10)


def test_cancelling_ends_a_question(door: Door, monkeypatch: Any) -> None:
    def endless(job: Any) -> None:
        while True:
            job.progress(0, 1)
            job.cancelled.wait(0.01)

    monkeypatch.setitem(OPERATIONS, "lens", endless)
    with (
        TestClient(application({}, door), headers={"host": "127.0.0.1"}) as opened,
        opened.websocket_connect("/ws?token=secret") as socket,
    ):
        socket.send_text('{"id": 1, "op": "lens"}')
        socket.send_text('{"id": 1, "op": "cancel"}')
        while "news" in (message := json.loads(socket.receive_text())):
            pass
        assert message == {"id": 1, "cancelled": True}


def test_a_real_server_listens_on_the_loopback_alone() -> None:
    served = sonde.view(program, jnp.ones(3))
    try:
        assert served.address.startswith("http://127.0.0.1:") and len(served.door.token) >= 32
        assert b"Sonde" in urllib.request.urlopen(served.address, timeout=5).read()
        sockets = served._server.servers[0].sockets
        assert {socket.getsockname()[0] for socket in sockets} == {"127.0.0.1"}
        taken = sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=f"port {taken}: Address already in use"):
            sonde.view(program, jnp.ones(3), port=taken)
    finally:
        served.close()


def test_every_script_of_the_page_exists_and_names_what_it_imports(client: TestClient) -> None:
    import re

    names, seen = ["main.js"], set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        for words, module in assets.imports(client.get(f"/static/{name}").text):
            names.append(module)
            exported = client.get(f"/static/{module}").text
            for word in (word.partition(" as ")[0] for word in words):
                named = rf"export (async )?(function|const|class) {word}\b|^export \{{.*\b{word}\b"
                assert re.search(named, exported, re.M), (name, word)
    assert {"main.js", "shared.js", "siteview.js", "connection.js"} <= seen
    assert assets._DECLARED.findall("function a() {}\n  const inner = 1;\nconst b = 2;") == ["a", "b"]


def test_a_server_that_is_not_used_ends_by_itself_but_not_while_a_page_is_open() -> None:
    import websockets.sync.client

    served = sonde.view(program, jnp.ones(3))
    waiting = threading.Thread(target=served.wait, args=(0.2,), daemon=True)
    with websockets.sync.client.connect(served.address.replace("http", "ws", 1).replace("/?", "/ws?")) as page:
        page.send('{"id": 1, "op": "hello"}')
        page.recv(timeout=10)
        waiting.start()
        waiting.join(1.5)
        assert served.open_pages == 1 and waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.thorough
def test_ctrl_c_stops_a_server_whose_program_never_ends(tmp_path: Path) -> None:
    import websockets.sync.client

    lines = (
        "import jax, jax.numpy as jnp, sonde",
        "def f(x):",
        "    return jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: sonde.sow(c * 0, 'w'), x).sum()",
        "def main():",
        "    return f, (jnp.zeros(2),)",
    )
    (tmp_path / "endless.py").write_text("\n".join(lines))
    target = f"{tmp_path / 'endless.py'}:main"
    code = f"import sys; sys.argv = ['sonde', 'view', {target!r}]; from sonde.cli.entry import main; main()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with websockets.sync.client.connect(address.replace("http", "ws", 1).replace("/?", "/ws?")) as page:
                page.send(json.dumps({"id": 1, "op": "sites", "args": {"subject": target}}))
                assert "result" in json.loads(page.recv(timeout=100))
                page.send(json.dumps({"id": 2, "op": "read", "args": {"subject": target}}))
                with pytest.raises(TimeoutError):
                    page.recv(timeout=3)
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0
        finally:
            process.kill()
