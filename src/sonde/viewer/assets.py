"""The page's files: scripts, styles and HTML, served one by one, or bundled into one page that needs no server.

The parts of the static report (`report/assets/`) are served as one module, `shared.js`; the scripts of this package
import from it and from each other by `/static/NAME.js`. A bundle holds the same scripts as functions of one script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from sonde.report.page import script_safe

_NAME = re.compile(r"[a-z_]+\.(js|css|svg)")
_DECLARED = re.compile(r"^(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
_IMPORT = re.compile(r'^import \{([^}]*)\} from "/static/([\w.]+)";\n', re.MULTILINE)
_SHARED = {
    "shared.js": ("elements.js", "colors.js", "charts.js", "maps.js", "tree.js", "findings.js"),
    "shared.css": ("theme.css", "parts.css", "layout.css"),
}
_STYLES = ("shared.css", "app.css")
ENTRY = "main.js"


def asset(name: str) -> str | None:
    """The text of a file that the page may load; None if there is no such file."""
    if not _NAME.fullmatch(name):
        return None
    if name in _SHARED:
        folder = resources.files("sonde.report").joinpath("assets")
        text = "\n".join(folder.joinpath(part).read_text(encoding="utf-8") for part in _SHARED[name])
        return text if name.endswith(".css") else f"{text}\nexport {{ {', '.join(_DECLARED.findall(text))} }};\n"
    return _file(name)


def index() -> str:
    """The HTML of the served page, which loads the other files."""
    return _file("index.html") or ""


def _file(name: str) -> str | None:
    path = resources.files("sonde.viewer").joinpath("static", name)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def imports(text: str) -> list[tuple[list[str], str]]:
    """What a script imports: the names, and the file they come from."""
    return [([word.strip() for word in words.split(",")], name) for words, name in _IMPORT.findall(text)]


def bundle(entry: str = ENTRY) -> str:
    """A script and all that it imports as one script: each file is a function that returns what it exports."""
    order: list[str] = []

    def visit(name: str) -> None:
        for _, imported in imports(asset(name) or ""):
            if imported not in order:
                visit(imported)
        if name not in order:
            order.append(name)

    visit(entry)
    parts = [_as_function(name, asset(name) or "") for name in order]
    return "\n".join(['(() => {\n"use strict";\nconst modules = {};', *parts, "})();"])


def _as_function(name: str, text: str) -> str:
    exported = _EXPORTED.findall(text)
    listed = re.search(r"^export \{ (.*) \};\n", text, re.MULTILINE)
    if listed is not None:
        exported += listed[1].split(", ")
        text = text.replace(listed[0], "")

    def bound(match: re.Match[str]) -> str:
        return f'const {{ {match[1].strip().replace(" as ", ": ")} }} = modules["{match[2]}"];\n'

    body = re.sub(r"^export ", "", _IMPORT.sub(bound, text), flags=re.MULTILINE)
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exported)} }};\n}})();'


def whole_page(title: str, data: Mapping[str, Any] | None = None) -> str:
    """The page as one HTML file, with its style and script inside, that opens from disk without a network.

    Args:
        title: Its title.
        data: What it shows: `{"answers": ...}`, answers to the questions of the page as `saved_answers` returns them.
            None for a page in a frame of a notebook, which asks its notebook.
    """
    script = bundle()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is loaded, and no other script runs, whatever names and tokens contain.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'sha256-{digest}'"
    style = "\n".join(asset(name) or "" for name in _STYLES)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{html.escape(title)}</title>\n'
        f"<style>{style}</style>\n"
    )
    kept = "" if data is None else f'<script type="application/json" id="saved">{script_safe(data)}</script>\n'
    text = re.sub(r"<title>.*?(?=</head>)", lambda _: head, index(), flags=re.DOTALL)
    return text.replace("</body>", f"{kept}<script>{script}</script>\n</body>")
