"""A slow link to a server on this machine: passes on so many bytes a second, or none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

AT_A_TIME = 0.02  # seconds


class Link:
    """A port that leads to another one.

    Attributes:
        url: Its address.
        rate: How many bytes a second go through in each direction of a connection; 0: the link stalls.
    """

    def __init__(self, port: int, rate: int) -> None:
        self.rate, self._port = rate, port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = False
        self._sockets = [self._listening]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                near = self._listening.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(source, target)))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(max(1, int(self.rate * AT_A_TIME))):
                while not self.rate and not self._closed:
                    time.sleep(AT_A_TIME)
                target.sendall(data)
                time.sleep(len(data) / max(self.rate, 1))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def slow_link(port: int, rate: int) -> Iterator[Link]:
    link = Link(port, rate)
    try:
        yield link
    finally:
        link.close()
