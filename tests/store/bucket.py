"""A small S3 server on this machine, for tests: it can be slow, busy or strict."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from xml.sax.saxutils import escape


class Bucket(http.server.ThreadingHTTPServer):
    """Objects by name, for any bucket.

    Attributes:
        objects: The contents.
        busy: How many of the next requests are answered with 503.
        seconds: How long each request takes.
        denies: Whether the credentials have expired.
        written: How many objects were written.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.busy = self.written = 0
        self.seconds = 0.0
        self.denies = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error of the server."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def bucket() -> Iterator[Bucket]:
    with Bucket() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refused(self) -> bool:
        time.sleep(self.server.seconds)
        with self.server.lock:
            busy = self.server.busy > 0
            self.server.busy -= busy
        if busy or self.server.denies:
            code = "SlowDown" if busy else "ExpiredToken"
            said = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self._answer(503 if busy else 403, said)
        return busy or self.server.denies

    def _key(self) -> str:
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)

    def _tag(self, data: bytes) -> str:
        return f'"{hashlib.md5(data).hexdigest()}"'

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        with self.server.lock:
            old = self.server.objects.get(self._key())
            wanted, absent = self.headers.get("If-Match"), self.headers.get("If-None-Match") == "*"
            if (wanted and (old is None or self._tag(old) != wanted)) or (absent and old is not None):
                self._answer(412)
                return
            self.server.objects[self._key()] = data
            self.server.written += 1
        self._answer(200, ETag=self._tag(data))

    def do_DELETE(self) -> None:
        if not self._refused():
            with self.server.lock:
                self.server.objects.pop(self._key(), None)
            self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self._refused():
            return
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if "list-type" in asked:
            bucket, prefix = self._key().rstrip("/") + "/", asked.get("prefix", [""])[0]
            names = sorted(key.removeprefix(bucket) for key in self.server.objects if key.startswith(bucket + prefix))
            parts = "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(self.server.objects[bucket + name])}</Size></Contents>"
                for name in names
            )
            told = f"<ListBucketResult><IsTruncated>false</IsTruncated>{parts}</ListBucketResult>"
            self._answer(200, told.encode(), Content_Type="application/xml")
            return
        data = self.server.objects.get(self._key())
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-None-Match") == self._tag(data):
            self._answer(304, ETag=self._tag(data))
        elif part := re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = part[1], part[2]
            start = int(first) if first else len(data) - int(last)
            stop = min(int(last) + 1, len(data)) if first and last else len(data)
            span = f"bytes {start}-{stop - 1}/{len(data)}"
            self._answer(206, data[start:stop], ETag=self._tag(data), Content_Range=span)
        else:
            self._answer(200, data, ETag=self._tag(data))
