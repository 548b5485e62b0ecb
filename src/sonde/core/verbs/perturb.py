"""Adding arrays to the values at sites, to differentiate with respect to these arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.edits.new_values import of_shard
from sonde.core.interpret.handler import Handler
from sonde.core.marks.named_loops import NamedLoop, row_path, rows_chosen, starred
from sonde.core.marks.path import Pattern, glob_matches, no_such_site
from sonde.core.marks.scopes import LoopName, path_under
from sonde.core.marks.site import Site, View
from sonde.core.marks.site_search import FoundSite, sites_inside
from sonde.core.records.record import Record
from sonde.core.session.functionalize import shapes_of_call
from sonde.core.session.inside_protocol import inside_request
from sonde.core.session.run import run_with
from sonde.core.verbs.capture import capture, check_callable, wrapped_like
from sonde.core.verbs.sow import PERTURBED
from sonde.errors import EditError


class _Perturbed:
    """Chooses the sites that are marked with `sonde.perturb`."""

    no_site = "no value is marked with sonde.perturb: mark one, or name the sites, such as zero_perturbations(f, 'h')"

    def __call__(self, site: Site) -> bool:
        return site.tag == PERTURBED


_is_perturbed = _Perturbed()


def zero_perturbations(f: Callable, *patterns: Pattern, inside: Any = None) -> Callable[..., dict[str, Any]]:
    """A function that returns zeros for every site that can be perturbed, without running `f`.

    Args:
        f: Any callable.
        *patterns: Which sites; those marked with `sonde.perturb`, if none are given.
        inside: Functions, modules or packages whose values become sites, as in `capture`.

    Returns:
        A function with the arguments of `f` that returns a dict from paths to zeros, for `sonde.with_perturbations`:
        shaped like the value of the site's record, so one slice per iteration of a loop; if patterns choose some rows
        of a named loop, one entry for each row, such as `blocks/3/out`. Parts that cannot be differentiated are None.
        Sites that can only be read are left out.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        EditError: When called: all sites that a pattern matches can only be read.
    """
    check_callable(f, "zero_perturbations")
    patterns = patterns or (_is_perturbed,)
    asked = inside_request(inside)
    capture(f, *patterns, inside=asked)  # for its checks

    def shapes(f: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        captured = capture(f, *patterns, inside=asked)
        # As in `with_perturbations`, values pass through the sites where possible.
        (_, records), _ = run_with(lambda depth: Adding({}, depth=depth), captured, args, kwargs, edits=True)
        _check_any_passes(patterns, records)
        found = {}
        for path, record in records.stacked.items():
            if _only_looked_at(record) is None:
                rows = _some_rows(path, record, patterns)
                found |= {name: _differentiable(records[name].values[0]) for name in rows} or {
                    path: _differentiable(record.values[0])
                }
        return found

    def zeros(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes_of_call(shapes, f, args, kwargs, asked))

    return wrapped_like(zeros, f)


def _some_rows(path: str, record: Record, patterns: Sequence[Pattern]) -> list[str]:
    """The paths of the rows of a record, if patterns choose some rows of named loops and not all; none otherwise."""
    view = next(iter(record.calls()))[0].value.view
    lengths = tuple(len(axis.rows) for axis in view.axes if axis.rows is not None)
    if view.rows is None or not lengths:
        return []
    site = next(iter(record.sites))

    def goes_on(i: int) -> bool:
        """Whether the patterns would choose more rows if a loop had one more iteration: then they choose all."""
        longer = tuple(n + (i == j) for j, n in enumerate(lengths))
        return len(rows_chosen(patterns, site, path, longer)) > len(view.rows or ())

    if sorted(view.rows) == list(np.ndindex(*lengths)) and all(map(goes_on, range(len(lengths)))):
        return []
    return [row_path(path, row) for row in view.rows]


def _only_looked_at(record: Record) -> Site | None:
    """The first site of a record at which the program continues with the value itself, if it has floats."""
    stuck = (c.site for c, _ in record.calls() if c.site.in_place and any(map(_is_inexact, c.types)))
    return next(stuck, None)


def _check_any_passes(patterns: Sequence[Pattern], records: Mapping[str, Record]) -> None:
    for pattern in patterns:
        matched = {p: r for p, r in records.items() if not isinstance(pattern, str) or glob_matches(pattern, p)}
        stuck = [(path, site) for path, record in matched.items() if (site := _only_looked_at(record)) is not None]
        if stuck and len(stuck) == len(matched):
            raise _only_looks(*stuck[0])


def _only_looks(path: str, site: Site) -> EditError:
    return EditError(
        f"perturbation of {path!r} ({site.source}): {site.why_in_place}; perturb an array that is computed from it"
    )


def _is_inexact(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _differentiable(tree: Any) -> Any:
    return jax.tree.map(lambda x: x if _is_inexact(x) else None, tree)


def with_perturbations(f: Callable, *, inside: Any = None) -> Callable:
    """A function that takes the arrays to add at sites, then the arguments of `f`.

    The gradient with respect to what is added is the gradient of the value at the site.

    Args:
        f: Any callable.
        inside: Code without sites whose values to add to, as in `capture`.

    Returns:
        A function `g(deltas, *args, **kwargs)` with the results of `f`. `deltas` is a mapping from paths to pytrees
        like the values there, as `sonde.zero_perturbations` returns it. In a loop, an array with the loop's axis in
        front gives each iteration its slice; one without is added in every iteration. At a site that runs several
        times, the same is added every time.

    Raises:
        NoSuchSiteError: When called: a path is not that of a site.
        EditError: When called: an array to add does not fit the value.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def loss(x):
        ...     return jnp.sum(sonde.perturb(jnp.sin(x), "h") ** 2)
        >>> g = sonde.with_perturbations(loss)
        >>> print(jax.grad(g)({"h": jnp.zeros(2)}, jnp.zeros(2))["h"])
        [0. 0.]
    """
    check_callable(f, "with_perturbations")
    asked = inside_request(inside)

    def with_deltas(deltas: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        def make(depth: int) -> Adding:
            return Adding(deltas, depth=depth)

        return run_with(make, f, args, kwargs, edits=True, inside=asked)[0]

    return wrapped_like(with_deltas, f)


class Adding(Handler):
    """Adds given arrays to the values at sites."""

    def __init__(self, deltas: Mapping[Any, Any], *, depth: int = 1) -> None:
        super().__init__(None, (), depth=depth)
        self.deltas = dict(deltas)
        self._sliced: list[Any] = []
        self._rows_met: set[Any] = set()  # shared with all children

    def finish(self) -> None:
        """Raises NoSuchSiteError for a path that was not met."""
        for path in self.deltas:
            if path not in self.met.paths and path not in self._rows_met:
                raise no_such_site(path, self.met.paths)

    def key_of(self, site: Site, path: str) -> Any:
        """The key of the deltas of a site."""
        del site
        return path

    def loop_inputs(self, body: Any, length: int, reverse: bool) -> list[Any]:
        """The deltas that have this loop's axis in front and so give each iteration its slice."""
        self._sliced = []
        slices = []
        inside = self.entering(length)
        for found in sites_inside(body):
            # The names of the body count from the body.
            prefix = path_under(found.names, self.prefix_here(), self.depth)
            named = self._named_loops(found, inside)
            path, above = starred(prefix + found.site.path, [loop for loop in named if loop is not None])
            key = self.key_of(found.site, path)
            if key == path and key not in self.deltas:
                lengths = [length, *[n for _, n in found.loops]]
                named_at = [i for i, loop in enumerate(named[-len(lengths) :]) if loop is not None]
                self._put_rows_together(path, lengths, named_at if len(named_at) == len(above) else [])
            if key not in self.deltas or key in self._sliced or not found.view.is_value or not self.sees(found.site):
                continue
            leaves = jax.tree.leaves(self.deltas[key])
            inner = [len(found.loops) + t.ndim for t in found.types if jnp.issubdtype(t.dtype, jnp.inexact)]
            if leaves and all(jnp.ndim(x) > n and jnp.shape(x)[0] == length for x, n in zip(leaves, inner)):
                self._sliced.append(key)
                slices.append([jnp.flip(x, 0) if reverse else x for x in leaves])
        return [x for leaves in slices for x in leaves]

    def _named_loops(self, found: FoundSite, inside: Handler) -> list[NamedLoop | None]:
        """The loops around a site in the body of a loop, outermost first, None for one without a name.

        Loops without a name come after all loops around the body.
        """
        loops: list[NamedLoop | None] = list(inside.named_loops)
        if len(loops) == len(self.named_loops):
            loops.append(None)
        name, start = inside.loop_name, 0
        for stop, length in found.loops:
            for i in range(start, stop):
                if isinstance(found.names[i], LoopName):
                    name = path_under(found.names[: i + 1], self.prefix_here(), self.depth).rstrip("/")
            loops.append(None if name is None else NamedLoop(name, length))
            name, start = None, stop
        return loops

    def _put_rows_together(self, path: str, lengths: Sequence[int], named_at: Sequence[int]) -> None:
        """Combines the deltas of single rows of named loops into one array, with zeros for the other rows.

        Args:
            path: The starred path of the site.
            lengths: The lengths of the loops around it that are being entered, outermost first.
            named_at: Which of them have a name.
        """
        rows = {row: row_path(path, row) for row in np.ndindex(*(lengths[i] for i in named_at))} if named_at else {}
        rows = {row: name for row, name in rows.items() if name in self.deltas}
        if not rows:
            return
        self._rows_met.update(rows.values())

        def whole(*parts: Any) -> Any:
            others = iter(jnp.shape(parts[0]))
            front = [n if i in named_at else next(others) for i, n in enumerate(lengths)]
            full = jnp.zeros((*front, *others), jnp.result_type(parts[0]))
            for row, part in zip(rows, parts):
                at: list[Any] = [slice(None)] * len(lengths)
                for axis, number in zip(named_at, row):
                    at[axis] = number
                full = full.at[tuple(at)].set(part)
            return full

        self.deltas[path] = jax.tree.map(whole, *[self.deltas[name] for name in rows.values()])

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside, with this iteration's slices."""
        new = super().child(base, steps, prefix)
        new.deltas = dict(self.deltas)
        rest = list(steps)
        for key in self._sliced if steps else ():
            leaves, tree = jax.tree.flatten(self.deltas[key])
            new.deltas[key] = jax.tree.unflatten(tree, rest[: len(leaves)])
            rest = rest[len(leaves) :]
        new._sliced = []
        return new

    def replace(self, arrays: list[Any], site: Site, path: str, view: View) -> list[Any]:
        """The values with the deltas added."""
        key = self.key_of(site, path)
        if not view.is_value or key not in self.deltas:
            return arrays
        parts, tree = jax.tree.flatten(self.deltas[key], is_leaf=lambda x: x is None)
        if tree != site.tree:
            raise EditError(f"perturbation of {path!r} ({site.source}): expected the structure {site.tree}, got {tree}")
        parts = [x for x, is_array in zip(parts, site.arrays) if is_array]
        if site.in_place and any(x is not None for x in parts):
            raise _only_looks(path, site)
        whole = site.at(path)
        return [
            a if d is None else _sum(a, d, whole, view, i, self.mesh_axes)
            for i, (a, d) in enumerate(zip(arrays, parts))
        ]


def _sum(array: Any, delta: Any, site: Site, view: View, index: int, mesh_axes: Sequence[tuple[str, int]]) -> Any:
    expected = _jax.typeof(array)
    mapped = sum(axis.on_leaf(index) for axis in view.axes)
    delta = of_shard(delta, array, (expected.shape, expected.shape[mapped:]), mesh_axes)
    got = jnp.shape(delta)
    if got not in (expected.shape, expected.shape[mapped:]):
        raise EditError(f"perturbation of {site.path!r} ({site.source}): expected shape {expected.shape}, got {got}")
    delta = jnp.asarray(delta)
    return array + (delta if delta.dtype == expected.dtype else delta.astype(expected.dtype))  # weak types stay weak
