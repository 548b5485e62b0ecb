"""The package gcp-storage-emulator as a server for TensorStore, with what it lacks: `python gcs_server.py PORT`.

It keeps generations of objects but does not check or send them, and ignores ranges of names and of the last bytes.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

NUMBERS = itertools.count(1)
ONE_AT_A_TIME = threading.Lock()


def _query(request: Any, name: str) -> str | None:
    return request.query[name][0] if name in request.query else None


def _generation(storage: Any, request: Any, name: str) -> str:
    try:
        return str(storage.get_file_obj(request.params["bucket_name"], name)["generation"])
    except NotFound:
        return "0"


def _if_as_asked(handle: Callable[..., Any], name_of: Callable[[Any], str]) -> Callable[..., Any]:
    """A handler that answers 412 or 304 if the object is not the generation that the request names."""

    def handler(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        with ONE_AT_A_TIME:
            now = _generation(storage, request, name_of(request))
            if _query(request, "ifGenerationMatch") not in (None, now):
                response.status = 412
            elif _query(request, "ifGenerationNotMatch") == now:
                response.status = 304
            else:
                response["x-goog-generation"] = now
                handle(request, response, storage, *args, **kwargs)

    return handler


def _with_last_bytes(handle: Callable[..., Any]) -> Callable[..., Any]:
    def handler(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        last = re.fullmatch(r"bytes=-(\d+)", request.get_header("range", "") or "")
        if last:
            try:
                size = len(storage.get_file(request.params["bucket_name"], request.params["object_id"]))
            except NotFound:
                size = 0
            ask = request.get_header
            span = f"bytes={max(size - int(last[1]), 0)}-"
            request.get_header = lambda key, default=None: span if key.lower() == "range" else ask(key, default)
        handle(request, response, storage, *args, **kwargs)

    return handler


def _numbered(make: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda *args, **kwargs: {**make(*args, **kwargs), "generation": str(next(NUMBERS))}


def _between(handle: Callable[..., Any]) -> Callable[..., Any]:
    def handler(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        first, end = _query(request, "startOffset") or "", _query(request, "endOffset")
        answer = response.json

        def json(listed: dict[str, Any]) -> None:
            items = [i for i in listed["items"] if first <= i["name"] and (end is None or i["name"] < end)]
            answer({**listed, "items": items})

        response.json = json
        handle(request, response, storage, *args, **kwargs)

    return handler


def main() -> None:
    of_path = lambda request: request.params["object_id"]
    objects._make_object_resource = _numbered(objects._make_object_resource)
    objects.get = _if_as_asked(_with_last_bytes(objects.get), of_path)
    objects.delete = _if_as_asked(objects.delete, of_path)
    objects.insert = _if_as_asked(objects.insert, lambda request: _query(request, "name") or "")
    objects.ls = _between(objects.ls)
    from gcp_storage_emulator.server import create_server  # takes the handlers as they are now

    create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="acts").run()


if __name__ == "__main__":
    main()
