"""`compare` runs two programs and finds the first site at which they differ.

Made for programs that should do the same: in another precision, ported, jitted. Sites are matched by path and call, and
by `matching.py` where the programs name them differently. All values of both programs are in memory at once; choose
sites with patterns if that is too much.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.arrays import arrays_in
from sonde.core.asking import asked_for
from sonde.core.capture import check_callable, like
from sonde.core.collect import Collect
from sonde.core.item import expand
from sonde.core.path import Pattern
from sonde.core.record_making import make_records
from sonde.core.run import run_with
from sonde.tools.drawn import Drawn, Heat
from sonde.tools.matching import matching_names
from sonde.tools.program_order import ProgramOrder, numbered_calls
from sonde.tools.reading import Seen, each_seen, on_host

_Key = tuple[str, int, bool]  # path, call, gradient


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """How much two programs differ at one site, call and iteration.

    Attributes:
        path: The path of the site.
        part: Which array of the pytree that was sown; `""` if it was an array.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        gradient: Whether these are gradients.
        size: How many elements there are.
        beyond: How many of them differ by more than the tolerance.
        max_abs: The largest difference of two finite elements.
        max_rel: That difference, relative to the largest finite element of the second program.
        rel_norm: The norm of the difference of the finite elements, relative to that of the second program's; infinite
            if one program has a finite element where the other has none.
        limit: If not None, the programs differ where `rel_norm` is larger; else, where one element is beyond the
            tolerance.
        note: Why the elements cannot be compared, such as different shapes; `""` if they can.
        source: The line of the first program.
    """

    path: str
    part: str
    call: int
    iteration: tuple[int, ...]
    gradient: bool
    size: int
    beyond: int
    max_abs: float
    max_rel: float
    rel_norm: float
    limit: float | None
    note: str
    source: str

    @property
    def differs(self) -> bool:
        """Whether the programs differ by more than the tolerance."""
        beyond = self.beyond > 0 if self.limit is None else not self.rel_norm <= self.limit
        return beyond or bool(self.note)

    @property
    def place(self) -> str:
        """The path, with part, call and iteration."""
        part = self.part and "." + self.part
        iteration = f", iteration {', '.join(map(str, self.iteration))}" if self.iteration else ""
        return f"{self.path}{part}{' (gradient)' * self.gradient}, call {self.call}{iteration}"

    def __str__(self) -> str:
        if self.note:
            return f"{self.place}: {self.note}"
        return (
            f"{self.place}: {self.beyond} of {self.size} elements differ, by up to {self.max_abs:.3g} "
            f"({self.max_rel:.3g} of the largest; {self.rel_norm:.3g} of the norm)"
        )

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(f"{self} ({self.source})", style="red" if self.differs else "")

    def _repr_html_(self) -> str:
        from sonde.core.display import in_notebook

        return in_notebook(self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Comparison(Drawn):
    """What `compare` found.

    Attributes:
        drifts: One per site, call and iteration that both programs have, in the order of the first program: forward
            before backward; in a loop, one iteration after the other.
        only_first: Path and call of the sites that only the first program has.
        only_second: Path and call of the sites that only the second program has.
        names: The paths of the second program by those of the first, where they are not the same.
    """

    drifts: tuple[Drift, ...]
    only_first: tuple[tuple[str, int], ...]
    only_second: tuple[tuple[str, int], ...]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def first(self) -> Drift | None:
        """Where they differ first; None if nowhere."""
        return next((d for d in self.drifts if d.differs), None)

    def jumps(self, n: int = 5) -> list[tuple[Drift, float]]:
        """Where the error grows most from one value to the next, in the order of the first program.

        Args:
            n: How many.

        Returns:
            The value after each jump, and how many times its relative norm is that of the values before it.
        """
        found, before = [], 0.0
        for drift in self.drifts:
            if drift.gradient or not np.isfinite(drift.rel_norm):
                continue
            # Rounding alone is not a jump.
            floor = max(before, float(np.finfo(np.float32).eps) if drift.limit is None else drift.limit / 8)
            if drift.rel_norm > floor:
                found.append((drift, drift.rel_norm / floor))
            before = max(before, drift.rel_norm)
        return sorted(found, key=lambda jump: -jump[1])[:n]

    def _heat(self) -> Heat:
        columns = ("rel_norm", "max_rel")
        values = np.array([[getattr(d, c) for c in columns] for d in self.drifts], float).reshape(-1, 2)
        return Heat(values, [d.place for d in self.drifts], columns, str(self))

    def __repr__(self) -> str:
        return f"Comparison({len(self.drifts)} values, first difference: {self.first})"

    def __str__(self) -> str:
        first = "no difference" if self.first is None else f"first difference at {self.first} ({self.first.source})"
        lines = [f"{first}; {len(self.drifts)} values compared"]
        for which, found in (("first", self.only_first), ("second", self.only_second)):
            if found:
                lines.append(f"only in the {which}: " + ", ".join(f"{path}[{call}]" for path, call in found))
        if self.names:
            lines.append("matched: " + ", ".join(f"{a} = {b}" for a, b in self.names.items()))
        return "\n".join(lines)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        jumps = {id(drift): times for drift, times in self.jumps()}
        columns = ("site", "iteration", "kind", "beyond", "of", "max abs", "max rel", "rel norm", "jump", "")
        table = Table(*columns, title=str(self))
        for d in self.drifts:
            name = f"{d.path}{d.part and '.' + d.part}[{d.call}]"
            kind = "gradient" if d.gradient else "value"
            cells = [name, ",".join(map(str, d.iteration)), kind, str(d.beyond), str(d.size)]
            style = "red" if d.differs else ""
            jump = f"x{jumps[id(d)]:.3g}" if id(d) in jumps else ""
            cells += [f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", f"{d.rel_norm:.3g}", jump, d.note]
            table.add_row(*map(Text, cells), style=style)
        return table


def compare(
    f: Callable,
    g: Callable,
    *patterns: Pattern,
    rtol: float | None = None,
    atol: float = 1e-6,
    norm: float | None = None,
    names: Mapping[str, str] | None = None,
    grads: bool = False,
    inside: Any = None,
) -> Callable[..., Comparison]:
    """A function that runs `f` and `g` with the same arguments and returns where they differ.

    Two elements differ if they are further apart than `atol + rtol * abs(second)`; NaN is equal to NaN. If one of the
    programs has values of less than 32 bits, single elements may differ by any amount, so values are compared by the
    norm of their difference. The same is done if `norm` is given.

    Args:
        f: A callable.
        g: Another, with the same arguments. Results may differ; they are dropped.
        *patterns: Which sites, as in `sonde.capture`; each must match in both programs. All, if none are given.
        rtol: The tolerance relative to the elements of `g`. If it is given, elements are compared one by one. Otherwise
            they are compared with 1e-4, unless a value of either program has less than 32 bits.
        atol: The absolute tolerance.
        norm: How large the norm of a difference may be, relative to that of the value of `g`. Without `rtol`, values of
            less than 32 bits are allowed eight times the precision of the coarsest dtype: 0.06 for bfloat16.
        names: For paths of `f`, the corresponding paths of `g`. Not needed if they are unambiguous: sites that only one
            program has are paired in order, if both programs have the same number with the same last name and shape.
        grads: Whether to compare gradients too.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `Comparison`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site of one of the programs.
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import compare
        >>> def model(x, dtype=jnp.float32):
        ...     x = sonde.sow(x.astype(dtype) * 2, "double")
        ...     return sonde.sow(x + 1 / 3, "shifted")
        >>> found = compare(lambda x: model(x, jnp.bfloat16), model, rtol=1e-4)(jnp.ones(4))
        >>> found.first.path, found.first.beyond
        ('shifted', 4)
        >>> print(compare(lambda x: model(x, jnp.bfloat16), model)(jnp.ones(4)).first)
        None
    """
    check_callable(f, "compare")
    check_callable(g, "compare")
    asked = asked_for(inside)

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        ours, order = _run(f, patterns, grads, asked, args, kwargs)
        theirs, _ = _run(g, patterns, grads, asked, args, kwargs)
        matched = matching_names(ours, theirs, names or {})
        other = {v: k for k, v in matched.items()}
        theirs = {(other.get(path, path), call, gradient): s for (path, call, gradient), s in theirs.items()}
        limit = norm if norm is not None else _limit(ours, theirs) if rtol is None else None
        rows = []
        for key, seen in ours.items():
            if key in theirs:
                each = _drifts(seen, theirs[key], 1e-4 if rtol is None else rtol, atol, limit)
                rows += [(order(seen, d.iteration), d) for d in each]
        rows.sort(key=lambda row: row[0])
        only = [tuple(dict.fromkeys(k[:2] for k in a if k not in b)) for a, b in ((ours, theirs), (theirs, ours))]
        return Comparison(tuple(d for _, d in rows), *only, names=matched)

    return like(compared, f)


def _run(
    f: Callable, patterns: Any, grads: bool, inside: Any, args: Any, kwargs: Any
) -> tuple[dict[_Key, Seen], Callable]:
    """The recorded values, and a sort key: a function of a value and an iteration that gives program order."""

    def make(depth: int) -> Collect:
        handler = Collect(patterns, grads=grads, donates=False, depth=depth)
        handler.tells_loops_apart = True
        return handler

    _, handler = run_with(make, f, args, kwargs, grads=grads, inside=inside)
    items = expand(handler.items)
    records = make_records(items, handler.met)
    program = ProgramOrder(items)
    calls = {(call.path, call.number): call.positions[0] for call in numbered_calls(items)}

    def order(seen: Seen, iteration: tuple[int, ...]) -> Any:
        path, call, numbers = seen.path, seen.call, ()
        if seen.row is not None:
            path, call, numbers = seen.row.path, seen.row.call, seen.row.numbers
        position = calls.get((path, call), -1)
        axes = [axis for axis in items[position].view.axes if axis.is_loop] if position >= 0 else []
        rows, rest = iter(numbers), iter(iteration)
        key = program.key(
            position, [axis.loop for axis in axes], [next(rest if a.rows is None else rows, 0) for a in axes]
        )
        # The backward pass runs in the opposite order.
        return (1, [(-a, -b) for a, b in key]) if seen.gradient else (0, list(key))

    return {(s.path, s.call, s.gradient): s for s in each_seen(records)}, order


def _limit(*runs: dict[_Key, Seen]) -> float | None:
    """How much values may differ if some have less than 32 bits; None if none have."""
    kinds = {t.dtype for run in runs for seen in run.values() for t in seen.types}
    found = [jnp.finfo(kind).eps for kind in kinds if jnp.issubdtype(kind, jnp.floating) and kind.itemsize < 4]
    return 8 * float(max(found)) if found else None


def _drifts(a: Seen, b: Seen, rtol: float, atol: float, limit: float | None) -> Iterator[Drift]:
    ours, theirs = _arrays(a), _arrays(b)
    if len(ours) != len(theirs):
        yield _noted(a, f"{len(ours)} arrays against {len(theirs)}")
        return
    extras = on_host((a.taken, b.taken, a.count, b.count), "compare")
    taken = [None if t is None else np.asarray(t) for t in extras[:2]]
    counts = [None if c is None else np.asarray(c) for c in extras[2:]]
    for part, x, y in zip(a.parts, ours, theirs):
        if x.shape != y.shape:
            yield _noted(a, f"shape {list(x.shape)} against {list(y.shape)}", part)
            continue
        beyond, apart, relative, norms = on_host(_difference(x, y, rtol, atol, loops=a.loops), "compare")
        for index in np.ndindex(x.shape[: a.loops]):
            if all(t is not None and not np.any(t[index[: t.ndim]]) for t in taken):
                continue
            last = [() if c is None else (int(np.max(c[index[: c.ndim]])) - 1,) for c in counts]
            note = "" if last[0] == last[1] else f"{_times(last[0])} of the loop against {_times(last[1])}"
            size = int(np.prod(x.shape[a.loops :]))
            numbers = int(beyond[index]), float(apart[index]), float(relative[index]), float(norms[index]), limit
            yield Drift(
                a.path, part, a.call, (*index, *last[0]), a.gradient, size, *numbers, note, a.site.source
            )  # fmt: skip


def _times(last: tuple[int, ...]) -> str:
    return f"{last[0] + 1} iterations" if last else "no iterations"


def _noted(seen: Seen, note: str, part: str = "") -> Drift:
    return Drift(
        seen.path, part, seen.call, (), seen.gradient, 0, 0, np.nan, np.nan, np.nan, None, note, seen.site.source
    )


def _arrays(seen: Seen) -> list[Any]:
    leaves = arrays_in(seen.value)
    is_key = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [jax.random.key_data(x) if key else jnp.asarray(x) for x, key in zip(leaves, is_key)]


@functools.partial(jax.jit, static_argnames="loops")
def _difference(a: Any, b: Any, rtol: float, atol: float, loops: int) -> Sequence[Any]:
    """Per iteration: how many elements differ, the largest difference, that relative to the largest, and by norm."""
    kind = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    unequal = a != b  # integers may be too large for floating point
    a, b = a.astype(kind), b.astype(kind)
    axes = tuple(range(loops, a.ndim))
    finite = jnp.isfinite(a) & jnp.isfinite(b)
    apart = jnp.where(finite & unequal, jnp.abs(a - b), 0)
    same = jnp.where(finite, apart <= atol + rtol * jnp.abs(b), (a == b) | (jnp.isnan(a) & jnp.isnan(b)))
    largest = jnp.max(jnp.where(finite, jnp.abs(b), 0), axes, initial=0)
    most = jnp.max(apart, axes, initial=0)
    # Scaled by the largest, so that squares neither overflow nor vanish.
    scale = jnp.where(largest > 0, largest, 1)
    wide = jnp.expand_dims(scale, axes)
    norm = jnp.sqrt(jnp.sum((apart / wide) ** 2, axes))
    size = jnp.sqrt(jnp.sum(jnp.where(finite, jnp.abs(b) / wide, 0) ** 2, axes))
    relative = jnp.where(norm > 0, norm / jnp.where(size > 0, size, 1), 0)
    broken = jnp.any(~finite & ~same, axes)
    return jnp.sum(~same, axes), most, most / scale, jnp.where(broken, jnp.inf, relative)
