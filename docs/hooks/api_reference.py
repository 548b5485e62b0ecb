"""Makes the pages of the API reference from docstrings when the site is built: one page per public module.

The modules are imported, not read as text: many of their names load on first use.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

from mkdocs.structure.files import File, Files

MODULES = ("sonde", "sonde.tools", "sonde.store", "sonde.dictionaries", "sonde.models", "sonde.nnx", "sonde.linen")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?: \([^)]*\))?): +(.*)", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages; called by MkDocs."""
    for name in MODULES:
        files.append(File.generated(config, f"api/{name}.md", content=page(name)))
    return files


def page(module_name: str) -> str:
    """The page of a module, as Markdown."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    parts = [f"# {module_name}", _prose(inspect.getdoc(module) or "")]
    for name in sorted(names, key=lambda n: (n.lower(), n)):
        thing = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(thing) or not (callable(thing) or inspect.isclass(thing)):
            continue
        parts.append(_entry(name, thing))
    return "\n\n".join(parts) + "\n"


def _entry(name: str, thing: Any) -> str:
    lines = [f"## {name}", f"```python\n{_signature(name, thing)}\n```", _docstring(thing)]
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            text = inspect.getdoc(member)
            if key.startswith("_") or not text or not (inspect.isfunction(member) or isinstance(member, property)):
                continue
            shown = key if isinstance(member, property) else _signature(key, member)
            lines.append(f"**`{shown}`**\n\n{_docstring(member)}")
    return "\n\n".join(line for line in lines if line)


def _signature(name: str, thing: Any) -> str:
    try:
        return name + re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return name


def _docstring(thing: Any) -> str:
    """A Google-style docstring as Markdown."""
    pieces = _SECTION.split(inspect.getdoc(thing) or "")
    parts = [_prose(pieces[0])]
    for title, body in zip(pieces[1::2], pieces[2::2]):
        body = textwrap.dedent(body).strip()
        if title.startswith("Example"):
            parts.append(f"```pycon\n{body}\n```")
        else:
            parts.append(f"**{title}**\n\n{_list(body)}")
    return "\n\n".join(parts)


def _list(body: str) -> str:
    """Entries of `name: text`, with indented lines that go on, as a list; anything else as it is."""
    entries = re.split(r"\n(?=\S)", body)
    if not all(_ENTRY.match(entry) for entry in entries):
        return body
    return "\n".join(
        "- `{}`: {}".format(*[re.sub(r"\s+", " ", part) for part in match.groups()])
        for match in map(_ENTRY.match, entries)
        if match
    )


def _prose(text: str) -> str:
    """Paragraphs; indented blocks, such as tables of names, as they are."""
    blocks = []
    for block in text.strip().split("\n\n"):
        is_table = bool(re.search(r"^ {2,}\S|\S {3,}\S|^[├└]", block, re.MULTILINE))
        blocks.append(f"```text\n{textwrap.dedent(block)}\n```" if is_table else block)
    return "\n\n".join(blocks)
