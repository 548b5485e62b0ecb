"""What rich prints, as text and as HTML. `rich` is imported when the first thing is shown: that takes a while."""

from __future__ import annotations

import html
import io
import shutil
from typing import Any

from sonde.display.path_table import WholePaths, table_html


def as_text(shown: Any) -> str:
    """What rich prints, as text without colors that is as wide as the terminal."""
    from rich.console import Console

    # A fixed form on every machine: no colors, no terminal codes.
    console = Console(file=io.StringIO(), width=shutil.get_terminal_size().columns, force_jupyter=False, no_color=True)
    with console.capture() as printed:
        console.print(shown, soft_wrap=False)
    return printed.get().rstrip("\n")


def in_notebook(shown: Any, width: int = 120) -> str:
    """What rich prints, as HTML for a notebook: no script, no network, on light and dark pages.

    Args:
        shown: What rich can print: a table, or an object with `__rich__`; or a text.
        width: How many characters a line has, if it is not a table.
    """
    if isinstance(shown, str):
        return f"<pre>{html.escape(shown)}</pre>"

    from rich.console import Console
    from rich.table import Table

    shown = shown.__rich__() if hasattr(shown, "__rich__") else shown
    shown = shown.table if isinstance(shown, WholePaths) else shown
    if isinstance(shown, Table):
        return table_html(shown)
    console = Console(file=io.StringIO(), record=True, width=width, force_jupyter=False, color_system="truecolor")
    console.print(shown)
    style = "overflow-x:auto;white-space:pre;line-height:1.25;font-family:monospace;color:inherit;background:none"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


class InNotebook:
    """A base class of results that a notebook shows as rich prints them."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return in_notebook(self)
