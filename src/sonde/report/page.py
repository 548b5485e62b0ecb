"""The page: one HTML file with its style, script and data inside, which opens from disk without a network.

The style and the script are files of the package, `assets/`. The data is JSON in a script element of a type that
browsers do not run; characters that could end that element, or that break lines in scripts, are escaped. The script
sets every name and number as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

_STYLES = ("theme.css", "parts.css", "layout.css")
_SCRIPTS = (
    "elements.js",
    "colors.js",
    "charts.js",
    "maps.js",
    "tree.js",
    "findings.js",
    "site.js",
    "flow.js",
    "heads.js",
    "page.js",
)
_PARTS = re.compile(r"\{\{(\w+)\}\}")


def page(data: dict[str, Any]) -> str:
    """The text of the file.

    Args:
        data: What `Report.to_json` returns.
    """
    # All files are in one function, so that their names are not global.
    script = "\n".join(['(() => {\n"use strict";', *map(_asset, _SCRIPTS), "})();"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        # Nothing is loaded, and no other script runs, whatever the names of sites contain.
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        "title": html.escape(str(data["title"])),
        "style": "\n".join(map(_asset, _STYLES)),
        "data": script_safe(data),
        "script": script,
    }
    return _PARTS.sub(lambda found: parts[found[1]], _asset("page.html"))


def framed(text: str, instead: str) -> str:
    """The page inside the output of a notebook.

    The page has its own frame, so that its styles and those of the notebook cannot meet, and without the rights of the
    notebook. Where frames are taken out, as on GitHub, the other text is left.

    Args:
        text: The page.
        instead: HTML that says the same without a script.
    """
    source = html.escape(text, quote=True)
    style = "width:100%;height:720px;border:1px solid rgba(128,128,128,.4);resize:vertical"
    return (
        f'<iframe title="report" sandbox="allow-scripts" loading="lazy" style="{style}" srcdoc="{source}"></iframe>'
        f'<details><summary style="cursor:pointer">as text</summary>{instead}</details>'
    )


def script_safe(data: Any) -> str:
    r"""JSON that is safe inside a script element.

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
