"""JSON files with a checksum of their own bytes: whatever is changed in them, or cut off, is noticed.

A sealed file is `{"sha256": "...", "contents": {...}}`; the checksum is of the bytes of the contents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sonde.errors import StoreError

_HEAD, _MIDDLE, _END = b'{"sha256": "', b'", "contents": ', b"}\n"
_DIGITS = 64


def seal(contents: Mapping[str, Any]) -> bytes:
    """The bytes of a sealed file."""
    body = json.dumps(contents, separators=(",", ":")).encode()
    return _HEAD + checksum(body).encode() + _MIDDLE + body + _END


def checksum(data: bytes) -> str:
    """The checksum of bytes, as text."""
    return hashlib.sha256(data).hexdigest()


def unseal(data: bytes, name: str, where: str) -> dict[str, Any]:
    """The contents of a sealed file.

    Args:
        data: The bytes of the file.
        name: Its name, for messages.
        where: The folder, for messages.

    Raises:
        StoreError: The bytes are not those that were written.
    """
    start = len(_HEAD) + _DIGITS
    digits, body = data[len(_HEAD) : start], data[start + len(_MIDDLE) : -len(_END)]
    frame = data[: len(_HEAD)], data[start : start + len(_MIDDLE)], data[-len(_END) :]
    if frame != (_HEAD, _MIDDLE, _END) or digits != checksum(body).encode():
        raise damaged(name, where, f"its {len(data)} bytes are not those that were written")
    try:
        contents = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise damaged(name, where, f"it is not valid JSON ({error})") from error
    if not isinstance(contents, dict):
        raise damaged(name, where, f"it holds a {type(contents).__name__}, not an object")
    return contents


def damaged(name: str, where: str, why: str) -> StoreError:
    """The error for a file of metadata that cannot be used."""
    return StoreError(f"{name} of the store {where!r} is damaged: {why}. Restore it from a copy, or harvest again")
