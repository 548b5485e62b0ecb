"""How records look: a line of text, a rich table, a notebook cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from sonde._array_text import describe

if TYPE_CHECKING:
    from sonde.core.record import Record, Records


def in_notebook(shown: Any, width: int = 120) -> str:
    """What rich prints, as HTML for a notebook: no script, no network, on light and dark pages.

    Args:
        shown: What rich can print: a table, or an object with `__rich__`.
        width: How many characters a line has.
    """
    import html
    import io

    if isinstance(shown, str):
        return f"<pre>{html.escape(shown)}</pre>"

    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=width, force_jupyter=False, color_system="truecolor")
    console.print(shown)
    style = "overflow-x:auto;white-space:pre;line-height:1.25;font-family:monospace;color:inherit;background:none"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def _kind(tree: Any) -> str:
    leaves = jax.tree.leaves(tree)
    shown = [describe(x) if hasattr(x, "dtype") else repr(x) for x in leaves[:3]]
    return " ".join(shown) + (f" (+{len(leaves) - 3})" if len(leaves) > 3 else "")


def _kinds(trees: Sequence[Any]) -> str:
    """The type of the first value, and how many there are."""
    if not trees:
        return "-"
    return _kind(trees[0]) + (f" x{len(trees)}" if len(trees) > 1 else "")


def record_line(record: Record) -> str:
    """One line that says what a record holds."""
    grads = record.grads
    parts = [repr(record.path), f"values={_kinds(record.values)}"]
    if grads:
        parts.append(f"grads={_kinds(grads)}")
    return f"Record({', '.join(parts)})"


def record_table(record: Record) -> Any:
    """A rich table of the calls of a record."""
    from rich.table import Table

    table = Table("call", "value", "gradient", "axes", title=f"{record.path}  {record.source.rpartition('/')[2]}")
    grads = record.grads or ((),) * len(record.values)
    for i, (value, gradient) in enumerate(zip(record.values, grads)):
        axes = " ".join(map(repr, record.axes[i])) if i < len(record.axes) else ""
        table.add_row(str(i), _kind(value), _kind(gradient) if record.grads else "-", axes)
    return table


def records_text(records: Records) -> str:
    """One line per record."""
    if not records:
        return f"Records({{}})  # {records._reason}"
    lines = "".join(f"  {record!r},\n" for record in records.values())
    return f"Records(\n{lines})"


def records_table(records: Records) -> Any:
    """A rich table."""
    from rich.table import Table

    if not records:
        return records_text(records)
    table = Table("site", "values", "gradients", "axes", "source", title=f"{len(records)} sites")
    for path, record in records.items():
        axes = " ".join(map(repr, record.axes[0])) if record.axes else ""
        place = record.source.rpartition("/")[2]
        table.add_row(path, _kinds(record.values), _kinds(record.grads), axes, place)
    return table


def records_treescope(records: Records, path: str | None, subtree_renderer: Any) -> Any:
    """What treescope shows in a notebook; called by treescope only."""
    from treescope import repr_lib

    content = {name: {"values": record.values, "grads": record.grads} for name, record in records.items()}
    return repr_lib.render_dictionary_wrapper(
        object_type=type(records), wrapped_dict=content, path=path, subtree_renderer=subtree_renderer
    )
