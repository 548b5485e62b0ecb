"""Results by path in a notebook: a tree that folds, whole paths that can be copied, what is wrong in red.

HTML without script and without network: it works in exported notebooks too.
"""

from __future__ import annotations

import collections
import dataclasses
import html
import itertools
from collections.abc import Iterable, Iterator, Sequence

MOST_OPEN = 40  # lines that are seen before a group is opened by hand

FRAME = "font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;color:inherit;background:none;overflow-x:auto"
_LINE = "display:flex;gap:14px;align-items:center;white-space:pre"
_BAD_LINE = "background:rgba(200,16,46,.14)"
_BAD = "background:#c8102e;color:#fff;font-weight:700;border-radius:3px;padding:0 6px"
_ODD = "background:#e8a200;color:#000;font-weight:600;border-radius:3px;padding:0 6px"


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A line of the tree.

    Attributes:
        path: The path.
        cells: What is said about it, in columns.
        last: What is said at the end of the line, where it may be long.
        alarm: What is wrong with it; empty if nothing is.
        is_broken: Whether it is as wrong as can be: NaN and Inf.
        shades: For each of the cells a number from -1 (blue) to 1 (red), the color behind it; none if empty.
        bins: A histogram, drawn as bars.
        more: HTML that is shown when the line is opened.
    """

    path: str
    cells: Sequence[str]
    alarm: str = ""
    is_broken: bool = False
    bins: Sequence[int] = ()
    more: str = ""
    last: str = ""
    shades: Sequence[float] = ()


@dataclasses.dataclass(slots=True)
class _Group:
    """What is below a path: lines, and groups by name, in the order of the program."""

    members: list[Leaf | str] = dataclasses.field(default_factory=list)
    groups: dict[str, _Group] = dataclasses.field(default_factory=dict)

    def below(self, name: str) -> _Group:
        if name not in self.groups:
            self.groups[name] = _Group()
            self.members.append(name)
        return self.groups[name]

    def opened(self) -> set[int]:
        """The ids of the groups that are open at first: the way to the first broken line, then the outer groups.

        Outer ones are opened as long as few lines are seen.
        """
        opened = {id(group) for group in self._way_to_broken()}
        n_seen = len(self.members)
        waiting = collections.deque(self.groups.values())
        while waiting:
            group = waiting.popleft()
            if id(group) in opened or n_seen + len(group.members) <= MOST_OPEN:
                n_seen += len(group.members)
                opened.add(id(group))
                waiting.extend(group.groups.values())
        return opened

    def _way_to_broken(self) -> Iterator[_Group]:
        """The groups around the first broken line, outermost first, up to one that is too long to read."""
        for member in self.members:
            leaves = [member] if isinstance(member, Leaf) else self.groups[member].every()
            if not any(leaf.is_broken for leaf in leaves):
                continue
            if isinstance(member, str) and len(self.groups[member].members) <= MOST_OPEN:
                yield self.groups[member]
                yield from self.groups[member]._way_to_broken()
            return

    def every(self) -> Iterator[Leaf]:
        for member in self.members:
            if isinstance(member, Leaf):
                yield member
            else:
                yield from self.groups[member].every()


@dataclasses.dataclass(frozen=True, slots=True)
class Badges:
    """What is said above folded lines about what is wrong in them, before the number of lines.

    Attributes:
        broken: About lines that are broken.
        odd: About other lines with an alarm.
    """

    broken: str = "not finite at"
    odd: str = "dead or zero at"

    def html(self, leaves: Iterable[Leaf]) -> str:
        """What is wrong below, counted: it must be seen also if the tree is folded."""
        broken = odd = 0
        for leaf in leaves:
            broken += leaf.is_broken
            odd += bool(leaf.alarm) and not leaf.is_broken
        said = f'<span style="{_BAD}">{self.broken} {broken}</span> ' if broken else ""
        return said + (f'<span style="{_ODD}">{self.odd} {odd}</span>' if odd else "")


def tree_html(
    title: str,
    leaves: Iterable[Leaf],
    notes: Sequence[str] = (),
    *,
    headers: Sequence[str] = (),
    badges: Badges | None = None,
) -> str:
    """The tree.

    Args:
        title: What is shown above it.
        leaves: The lines, in order.
        notes: Lines below the title.
        headers: What the columns are.
        badges: What is said about lines with alarms.
    """
    every = list(leaves)
    root = _Group()
    for leaf in every:
        group = root
        for part in leaf.path.split("/")[:-1]:
            group = group.below(part)
        group.members.append(leaf)
    return _Tree.of(every, headers, badges or Badges()).html(title, root, notes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Tree:
    """What all lines of a tree have in common.

    Attributes:
        leaves: All of them.
        headers: What the columns are.
        badges: What is said about lines with alarms.
        path_width: How many characters the longest path has, with its indentation.
        widths: How many characters the columns have; 0 for columns that are empty, which are left out.
        alarm_width: How many characters the longest alarm has.
        has_bars: Whether some lines have a histogram.
    """

    leaves: Sequence[Leaf]
    headers: Sequence[str]
    badges: Badges
    path_width: int
    widths: Sequence[int]
    alarm_width: int
    has_bars: bool

    @classmethod
    def of(cls, leaves: Sequence[Leaf], headers: Sequence[str], badges: Badges) -> _Tree:
        columns = list(itertools.zip_longest(*(leaf.cells for leaf in leaves), fillvalue=""))
        widths = [
            max(map(len, (header, *column))) if any(column) else 0
            for header, column in itertools.zip_longest(headers, columns, fillvalue="")
        ]
        alarm_width = max((len(leaf.alarm) for leaf in leaves), default=0)
        path_width = max((len(leaf.path) + 2 * leaf.path.count("/") for leaf in leaves), default=0)
        return cls(leaves, headers, badges, path_width, widths, alarm_width, any(leaf.bins for leaf in leaves))

    def html(self, title: str, root: _Group, notes: Sequence[str]) -> str:
        head = f'<div style="font-weight:700;white-space:pre-wrap">{html.escape(title)} '
        head += f"{self.badges.html(self.leaves)}</div>"
        below = "".join(f'<div style="opacity:.75">{html.escape(note)}</div>' for note in notes)
        body = "".join(self._lines(root, "", root.opened()))
        return f'<div style="{FRAME}">{head}{below}{self._headers() if self.headers else ""}{body}</div>'

    def _headers(self) -> str:
        named = "".join(
            f'<span style="min-width:{width}ch;opacity:.6">{html.escape(name)}</span>'
            for name, width in zip(self.headers, self.widths)
            if width
        )
        before = f'<span style="min-width:{self.path_width}ch"></span>{self._alarm("", _BAD)}'
        line = f'<span style="{_LINE}">{before}{named}</span>'
        return f'<div style="padding-left:1.3em">{line}</div>'

    def _lines(self, group: _Group, prefix: str, opened: set[int]) -> Iterator[str]:
        for member in group.members:
            every = [member] if isinstance(member, Leaf) else list(group.groups[member].every())
            if isinstance(member, Leaf) or len(every) == 1:  # one line needs no folding
                yield self._line(every[0], self.path_width - 2 * prefix.count("/"))
                continue
            path = f"{prefix}{member}/"
            inner = group.groups[member]
            state = " open" if id(inner) in opened else ""
            count = f'<span style="opacity:.6">{len(every)}</span>'
            said = f"{html.escape(path)} {count} {self.badges.html(every)}"
            inside = "".join(self._lines(inner, path, opened))
            yield (
                f'<details{state}><summary style="cursor:pointer">{said}</summary>'
                f'<div style="padding-left:2ch">{inside}</div></details>'
            )

    def _line(self, leaf: Leaf, path_width: int) -> str:
        before, _, name = leaf.path.rpartition("/")
        faint = f'<span style="opacity:.6">{html.escape(before)}/</span>' if before else ""
        # One click selects the whole path.
        style = f"user-select:all;color:inherit;background:none;font:inherit;padding:0;min-width:{path_width}ch"
        path = f'<code style="{style}">{faint}{html.escape(name)}</code>'
        shades = [*leaf.shades, *[0.0] * (len(leaf.cells) - len(leaf.shades))]
        cells = "".join(
            f'<span style="min-width:{width}ch;{_shaded(shade)}">{html.escape(cell)}</span>'
            for cell, width, shade in zip(leaf.cells, self.widths, shades)
            if width
        )
        bars = _bars(leaf.bins) if self.has_bars else ""
        alarm = self._alarm(leaf.alarm, _BAD if leaf.is_broken else _ODD)
        last = f'<span style="opacity:.65">{html.escape(leaf.last)}</span>'
        look = f"{_LINE};{_BAD_LINE}" if leaf.is_broken else _LINE
        line = f'<span style="{look}">{path}{alarm}{cells}{bars}{last}</span>'
        if not leaf.more:
            return f'<div style="padding-left:1.3em">{line}</div>'
        # The triangle of `summary` needs the line inside to stay on its line.
        line = line.replace("display:flex", "display:inline-flex", 1)
        summary = f'<summary style="cursor:pointer;white-space:nowrap">{line}</summary>'
        return f'<details>{summary}<div style="padding:4px 18px">{leaf.more}</div></details>'

    def _alarm(self, alarm: str, style: str) -> str:
        """What is wrong with a line, beside its path, where it is seen however narrow the page is."""
        said = f'<span style="{style}">{html.escape(alarm)}</span>' if alarm else ""
        return f'<span style="min-width:calc({self.alarm_width}ch + 12px)">{said}</span>' if self.alarm_width else ""


def _shaded(shade: float) -> str:
    """The color behind a cell; half transparent, so that it goes with light and dark pages."""
    if not shade:
        return "opacity:.85"
    color = "224,80,60" if shade > 0 else "60,120,220"
    return f"background:rgba({color},{min(abs(shade), 1.0) * 0.7:.2f})"


def _bars(bins: Sequence[int]) -> str:
    if not bins:
        return '<span style="min-width:56px"></span>'
    most = max(bins) or 1
    heights = [max(1.0 * bool(n), 14 * n / most) for n in bins]
    bars = "".join(f'<rect x="{4 * i}" y="{14 - h:.1f}" width="3" height="{h:.1f}"/>' for i, h in enumerate(heights))
    return f'<svg width="{4 * len(bins)}" height="14" style="fill:currentColor;opacity:.6">{bars}</svg>'
