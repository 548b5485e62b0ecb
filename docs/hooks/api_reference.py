"""Makes the pages of the API reference from docstrings when the site is built: one page per public module.

The modules are imported, not read as text: many of their names load on first use.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

MODULES = (
    "sonde",
    "sonde.tools",
    "sonde.nnx",
    "sonde.linen",
    "sonde.models",
    "sonde.store",
    "sonde.dictionaries",
    "sonde.report",
    "sonde.flax.bridge",
    "sonde.flax.struct",
    "sonde.flax.serialization",
    "sonde.flax.traverse_util",
    "sonde.flax.training",
    "sonde.errors",
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?: \([^)]*\))?): +(.*)", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages; called by MkDocs."""
    from mkdocs.structure.files import File  # the test of this file runs without MkDocs

    for name in MODULES:
        files.append(File.generated(config, f"api/{name}.md", content=page(name)))
    return files


def page(module_name: str) -> str:
    """The page of a module, as Markdown."""
    module = importlib.import_module(module_name)
    parts = [f"# {module_name}", _prose(inspect.getdoc(module) or "")]
    parts += [_entry(name, getattr(module, name)) for name in public_names(module)]
    return "\n\n".join(parts) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: `__all__`, or the classes and functions that it defines itself."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return sorted(getattr(module, "__all__", own), key=lambda name: (name.lower(), name))


def _entry(name: str, thing: Any) -> str:
    title = "## " + name.replace("__", r"\_\_")  # which would be bold
    if inspect.ismodule(thing):
        inside = ", ".join(f"`{n}`" for n in public_names(thing))
        return f"{title}\n\nThe module `{thing.__name__}`. {_prose(inspect.getdoc(thing) or '')}\n\n{inside}"
    if not callable(thing):
        return f"{title}\n\n{_constant(thing)}"
    lines = [title, f"```python\n{_signature(name, thing)}\n```", _docstring(thing)]
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            text = inspect.getdoc(member)
            if key.startswith("_") or not text or not (inspect.isfunction(member) or isinstance(member, property)):
                continue
            shown = key if isinstance(member, property) else _signature(key, member)
            lines.append(f"**`{shown}`**\n\n{_docstring(member)}")
    return "\n\n".join(line for line in lines if line)


def _constant(thing: Any) -> str:
    """The value of a plain constant; what its class says of any other object."""
    if isinstance(thing, str):
        return f"The string `{thing}`."
    own = inspect.getdoc(type(thing)) if type(thing).__module__.startswith("sonde") else ""
    return f"A `{type(thing).__name__.lstrip('_')}`. {own}".strip()


class _Plain(str):
    """A text that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _plain(annotation: Any) -> Any:
    """An annotation as it is written in the file."""
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _signature(name: str, thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    arguments = [p.replace(annotation=_plain(p.annotation)) for p in found.parameters.values()]
    shown = found.replace(parameters=arguments, return_annotation=_plain(found.return_annotation))
    return name + re.sub(r" at 0x[0-9a-f]+", "", str(shown))


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
