"""The page: one HTML file with its style, script and data inside, which opens from disk without a network.

The style and the script are files of the package, `assets/`. The data is JSON in a script element of a type that
browsers do not run; what could end that element, or is a line break in scripts but not in JSON, is escaped. The script
sets every name and number as text, never as markup.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

_SCRIPTS = ("page.js",)


def page(data: dict[str, Any]) -> str:
    """The text of the file.

    Args:
        data: What `Report.to_json` returns.
    """
    parts = {
        "title": html.escape(str(data["title"])),
        "style": _asset("page.css"),
        "data": script_safe(data),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    text = _asset("page.html")
    pieces = text.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [parts[name], rest]
    return "".join(out)


def script_safe(data: Any) -> str:
    r"""JSON that can stand inside a script element.

    Example:
        >>> script_safe("</script><!--")
        '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate cannot be written as UTF-8.
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text) if not text.isascii() else text


def _asset(name: str) -> str:
    return (resources.files("sonde.report") / "assets" / name).read_text(encoding="utf-8")
