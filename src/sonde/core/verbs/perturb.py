"""Adding arrays to the values at sites, to differentiate with respect to these arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.edits.editing import Supplied
from sonde.core.edits.new_values import arrays_to_add
from sonde.core.edits.plan import ADDED
from sonde.core.interpret.where import Where
from sonde.core.marks.named_loops import Row, row_path, rows_chosen
from sonde.core.marks.path import STAR, Pattern, glob_matches, no_such_site
from sonde.core.marks.site import Site
from sonde.core.records.record import Record
from sonde.core.session.functionalize import shapes_of_call
from sonde.core.session.inside_protocol import inside_request
from sonde.core.verbs.capture import capture, check_callable, wrapped_like
from sonde.core.verbs.edit import run_by_rule
from sonde.core.verbs.sow import PERTURBED
from sonde.errors import EditError

P = ParamSpec("P")
R = TypeVar("R")


class _Perturbed:
    """Chooses the sites that are marked with `sonde.perturb`."""

    no_site = "no value is marked with sonde.perturb: mark one, or name the sites, such as zero_perturbations(f, 'h')"

    def __call__(self, site: Site) -> bool:
        return site.tag == PERTURBED


_is_perturbed = _Perturbed()


def zero_perturbations(f: Callable[P, R], *patterns: Pattern, inside: object = None) -> Callable[P, dict[str, Any]]:
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
    request = inside_request(inside)
    capture(f, *patterns, inside=request)  # for its checks

    def shapes(f: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        captured = capture(f, *patterns, inside=request)
        # As in `with_perturbations`, values pass through the sites where possible.
        (_, records), _ = run_by_rule(captured, Deltas({}), args, kwargs, ADDED, paths=())
        _check_any_passes(patterns, records)
        by_name = {}
        for path, record in records.stacked.items():
            if _only_looked_at(record) is None:
                rows = _some_rows(path, record, patterns)
                by_name |= {name: _differentiable(records[name].values[0]) for name in rows} or {
                    path: _differentiable(record.values[0])
                }
        return by_name

    def zeros(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes_of_call(shapes, f, args, kwargs, request))

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
        f"perturbation of {path!r} ({site.line}): {site.why_in_place}; perturb an array that is computed from it"
    )


def _is_inexact(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _differentiable(tree: Any) -> Any:
    return jax.tree.map(lambda x: x if _is_inexact(x) else None, tree)


def with_perturbations(f: Callable[P, R], *, inside: object = None) -> Callable[Concatenate[Mapping[str, Any], P], R]:
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
    request = inside_request(inside)

    def with_deltas(deltas: Mapping[str, Any], *args: P.args, **kwargs: P.kwargs) -> R:
        rule = Deltas(deltas)
        result, handler = run_by_rule(f, rule, args, kwargs, ADDED, paths=deltas, counts_calls=False, inside=request)
        for path in deltas:
            if path not in rule.used and path not in handler.met.paths:
                raise no_such_site(path, handler.met.paths)
        return result

    return wrapped_like(with_deltas, f)


class _Rows(NamedTuple):
    """What to add to some rows of named loops.

    Attributes:
        numbers: The rows.
        arrays: What to add, with an axis for the rows in front.
    """

    numbers: tuple[Row, ...]
    arrays: Any

    @classmethod
    def of(cls, deltas: Mapping[Row, Any]) -> _Rows:
        """Puts together what belongs to single rows."""
        return cls(tuple(deltas), jax.tree.map(lambda *parts: jnp.stack(parts), *deltas.values()))

    def at(self, where: Where) -> tuple[Any, Any]:
        """What belongs to the row that runs, and whether it is one of these rows; None: it is."""
        positions = np.zeros(where.lengths, np.int32)
        for position, row in enumerate(self.numbers):
            positions[row] = position
        position = jnp.asarray(positions)[tuple(where.loops[i].index for i in where.named)]
        part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, position, keepdims=False), self.arrays)
        return part, where.is_in(self.numbers)


@jax.tree_util.register_pytree_node_class
class Deltas:
    """The rule that supplies what is added at a site, from a mapping of paths.

    Attributes:
        deltas: What to add, by the path of a site or of one row of it.
        used: The paths at which something was added so far.
    """

    def __init__(self, deltas: Mapping[str, Any]) -> None:
        self.deltas = dict(deltas)
        self.used: set[str] = set()
        # Rows are put together here and not in the loop, where it would be done in every iteration.
        by_path: dict[str, dict[Row, Any]] = {}
        for path, delta in deltas.items():
            parts = path.split("/")
            numbers = tuple(int(part) for part in parts if part.isdecimal())
            if numbers:
                starred_path = "/".join(STAR if part.isdecimal() else part for part in parts)
                by_path.setdefault(starred_path, {})[numbers] = delta
        self._rows = {path: _Rows.of(rows) for path, rows in by_path.items() if _are_alike(rows.values())}

    def tree_flatten(self) -> tuple[Any, Any]:
        """The arrays, and everything else; the handler gives back other arrays where a function is traced later."""
        arrays = {path: rows.arrays for path, rows in self._rows.items()}
        return (self.deltas, arrays), ({path: rows.numbers for path, rows in self._rows.items()}, self.used)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Deltas:
        """The rule with these arrays."""
        records = object.__new__(cls)
        (records.deltas, arrays), (numbers, records.used) = children, static
        records._rows = {path: _Rows(numbers[path], arrays[path]) for path in numbers}
        return records

    def __call__(self, arrays: Sequence[Any], where: Where) -> Supplied | None:
        """The arrays to add."""
        path, applies = where.path, None
        if path in self.deltas:
            delta, paths = self.deltas[path], [path]
        else:
            by_row = {row: row_path(path, row) for row in np.ndindex(*where.lengths)} if where.named else {}
            by_row = {row: name for row, name in by_row.items() if name in self.deltas}
            if not by_row:
                return None
            rows = self._rows.get(path)
            if rows is None or set(rows.numbers) != set(by_row):
                rows = _Rows.of({row: self.deltas[name] for row, name in by_row.items()})
            (delta, applies), paths = rows.at(where), list(by_row.values())
            # What belongs to a row has no axes for the loops whose numbers are in its path.
            where = where.without_names()
        self.used.update(paths)
        return added_at(delta, arrays, where, applies)


def added_at(delta: Any, arrays: Sequence[Any], where: Where, applies: Any = None) -> Supplied | None:
    """What a rule supplies that adds something to the value at a site."""
    if not where.site.in_place:
        return Supplied([arrays_to_add(delta, arrays, where)], applies)
    if jax.tree.leaves(delta):
        raise _only_looks(where.path, where.site)
    return None


def _are_alike(trees: Iterable[Any]) -> bool:
    """Whether pytrees of arrays can be stacked."""
    kinds = [(jax.tree.structure(t), [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(t)]) for t in trees]
    return all(kind == kinds[0] for kind in kinds)
