"""How records look: a line of text, a table in a terminal, a tree in a notebook."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from sonde._array_text import counted, describe, human_size, short_place, size_and_bytes
from sonde.display.glance import Glance, bars, glance, picture
from sonde.display.path_table import MOST_LINES, WholePaths, family_of, family_path
from sonde.display.rich_output import in_notebook
from sonde.display.tree_view import Leaf, tree_html

if TYPE_CHECKING:
    from sonde.core.records.record import Record, Records
    from sonde.core.verbs.sites import SiteInfo, Sites

_MOST_READ = 2000  # arrays whose numbers are shown; reading more would take long
_MOST_PICTURES = 60


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


def _glances(trees: Sequence[Any]) -> list[Glance]:
    return [leaf_glance for leaf in jax.tree.leaves(trees) if (leaf_glance := glance(leaf)) is not None]


def _together(glances: Sequence[Glance]) -> Glance | None:
    """What several arrays are like, as one: whatever is wrong with one of them is wrong."""
    if len(glances) < 2:
        return glances[0] if glances else None
    lows = [g.low for g in glances if g.low is not None]
    highs = [g.high for g in glances if g.high is not None]
    return Glance(
        min(lows, default=None),
        max(highs, default=None),
        sum(g.nans for g in glances),
        sum(g.infs for g in glances),
        all(g.zeros for g in glances),
        max(g.dead for g in glances),
        max(glances, key=lambda g: g.dead).units,
        (),
    )


def record_table(record: Record) -> Any:
    """A rich table of the calls of a record."""
    from rich.table import Table
    from rich.text import Text

    table = Table("call", "value", "range", "gradient", "its range", "axes", "wrong")
    table.title = f"{record.path}  {short_place(record.source)}"
    grads = record.grads or ((),) * len(record.values)
    for i, (value, gradient) in enumerate(zip(record.values, grads)):
        axes = " ".join(map(repr, record.axes[i])) if i < len(record.axes) else ""
        value_glance, gradient_glance = _together(_glances([value])), _together(_glances([gradient]))
        alarm = "; ".join(g.alarm for g in (value_glance, gradient_glance) if g is not None and g.alarm)
        ranges = ["" if g is None else g.range for g in (value_glance, gradient_glance)]
        kinds = _kind(value), _kind(gradient) if record.grads else "-"
        cells = [str(i), kinds[0], ranges[0], kinds[1], ranges[1], axes, alarm]
        table.add_row(*map(Text, cells), style="bold red" if alarm else "")
    return table


def records_text(records: Records) -> str:
    """One line per record."""
    if not records:
        return f"Records({{}})  # {records._reason}"
    types = records.types
    if len(types) > MOST_LINES:
        return f"Records(  # {_title(records)}\n{''.join(_folded(types))})"
    lines = "".join(f"  {record!r},\n" for record in types.values())
    return f"Records(\n{lines})"


def _folded(records: Records) -> Iterator[str]:
    """A line for the records of all layers that are alike: `30 x Record('blocks/{0..29}/out', ...)`."""
    families: dict[tuple[str, str], list[str]] = {}
    for path, record in records.items():
        family, number = family_of(path)
        kinds = record_line(record).partition(", ")[2]
        families.setdefault((family, kinds), []).append(number)
    for (family, kinds), numbers in families.items():
        count = f"{len(numbers)} x " if len(numbers) > 1 else ""
        yield f"  {count}Record({family_path(family, numbers)!r}, {kinds},\n"


def _title(records: Records) -> str:
    _, n_bytes = size_and_bytes([(record.values, record.grads) for record in records.stacked.values()])
    return f"{counted(len(records), 'site')}, {human_size(n_bytes)}"


def records_table(records: Records) -> Any:
    """A rich table."""
    from rich.table import Table
    from rich.text import Text

    if not records:
        return records_text(records)
    table = Table("site", "values", "range", "", "gradient", "axes", "source", "wrong", title=_title(records))
    for leaf, record in _leaves(records, with_pictures=False):
        kind, value_range, gradient_range = leaf.cells
        axes = " ".join(map(repr, record.axes[0])) if record.axes else ""
        cells = [kind, value_range, bars(leaf.bins), gradient_range, axes, short_place(record.source), leaf.alarm]
        style = "bold red" if leaf.is_broken else "yellow" if leaf.alarm else ""
        table.add_row(*map(Text, (leaf.path, *cells)), style=style)
    return WholePaths(table)


def record_html(record: Record) -> str:
    """The table of the calls of a record in a notebook, with pictures."""
    return f"{in_notebook(record_table(record))}{_pictures(record)}"


def records_html(records: Records) -> str:
    """The tree of records in a notebook."""
    if not records:
        return in_notebook(records_text(records))
    notes = [f"the numbers of the first {_MOST_READ} are shown"] if len(records) > _MOST_READ else []
    notes.append("click a path to select it, a triangle to open it; records[path] is one of them")
    leaves = [leaf for leaf, _ in _leaves(records)]
    return tree_html(_title(records), leaves, notes, headers=("value", "range", "gradient"))


def _leaves(records: Records, *, with_pictures: bool = True) -> Iterator[tuple[Leaf, Record]]:
    """What a tree and a table say about each record: its type, the ranges of values and gradients, what is wrong."""
    for n, (path, record) in enumerate(records.items()):
        values = _glances(record.values) if n < _MOST_READ else []
        gradients = _glances(record.grads) if n < _MOST_READ else []
        value_glance, gradient_glance = _together(values), _together(gradients)
        alarms = [value_glance.alarm] if value_glance is not None and value_glance.alarm else []
        if gradient_glance is not None and gradient_glance.alarm:
            alarms.append(f"gradient: {gradient_glance.alarm}")
        ranges = ["" if g is None else g.range for g in (value_glance, gradient_glance)]
        cells = [_kinds(record.values), *ranges]
        last = " ".join([*(map(repr, record.axes[0]) if record.axes else ()), short_place(record.source)])
        broken = any(g.is_broken for g in (*values, *gradients))
        more = _pictures(record) if with_pictures and n < _MOST_PICTURES else ""
        bins = values[0].bins if len(values) == 1 else ()
        yield Leaf(path, cells, "; ".join(alarms), broken, bins, more, last), record


def _pictures(record: Record) -> str:
    parts = [("value", record.values), ("gradient", record.grads)]
    drawn = [
        f'<figure style="display:inline-block;margin:0 12px 0 0"><img src="{source}" alt="{name}" '
        'style="image-rendering:pixelated;min-height:48px;max-height:192px;min-width:96px;max-width:384px">'
        f'<figcaption style="opacity:.7">{name} {html.escape(describe(array))}</figcaption></figure>'
        for name, trees in parts
        for array in jax.tree.leaves(trees)[:2]
        if (source := picture(array))
    ]
    return "".join(drawn)


def sites_html(sites: Sites) -> str:
    """The tree of sites in a notebook."""
    if not len(sites):
        return in_notebook(repr(sites))
    title = f"{counted(len(sites.paths), 'site')}, {human_size(sites.bytes)} if captured"
    calls = itertools.groupby(sites, lambda info: (info.path, info.call))
    lines = [_site_cells(list(views)) for _, views in calls]
    headers = ("array", "size", "call", "gradient", "axes", "line")
    return tree_html(title, [Leaf(path, cells) for path, cells in lines], headers=headers)


def _site_cells(views: list[SiteInfo]) -> tuple[str, tuple[str, ...]]:
    """The path of a call, and what is said about it: its value and its gradient are one line."""
    first = views[0]
    arrays, axes = " ".join(map(describe, first.arrays)), " ".join(map(repr, first.axes))
    gradient = " ".join(human_size(info.bytes) for info in views if info.gradient)
    size = "" if first.gradient else human_size(first.bytes)
    call = str(first.call) if first.call else ""
    return first.path, (arrays, size, call, gradient, axes, short_place(first.source))


def records_treescope(records: Records, path: str | None, subtree_renderer: Any) -> Any:
    """What treescope shows in a notebook; called by treescope only."""
    from treescope import repr_lib

    content = {name: {"values": record.values, "grads": record.grads} for name, record in records.items()}
    return repr_lib.render_dictionary_wrapper(
        object_type=type(records), wrapped_dict=content, path=path, subtree_renderer=subtree_renderer
    )
