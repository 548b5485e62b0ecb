"""`sites`: what a capture would record, and how many bytes, without running the program."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from sonde import _jax
from sonde._array_text import counted, describe, indexed, short_place, size_and_bytes
from sonde.core.marks.axes import Axis
from sonde.core.marks.path import NOTHING_MARKED, Pattern, check_patterns
from sonde.core.records.collections import Rows
from sonde.core.records.layout import CallSpec
from sonde.core.records.record import Records
from sonde.core.session.functionalize import shapes_of_call
from sonde.core.session.inside_protocol import inside_request
from sonde.core.verbs.capture import capture, check_callable, wrapped_like
from sonde.core.verbs.uncalled import Uncalled, explains_arguments, nothing_recorded
from sonde.display import WholePaths, as_text
from sonde.display.path_table import MOST_LINES


@dataclasses.dataclass(frozen=True, slots=True)
class SiteInfo:
    """One value that a capture would record.

    Attributes:
        path: The path of the site.
        call: Which of the calls under that path, from 0.
        arrays: Shape and dtype of each array, with the axes that loops and maps put in front; and its sharding, if the
            program says how it is laid out over the explicit axes of a mesh.
        axes: Those axes, outermost first.
        bytes: How many bytes the arrays have.
        gradient: Whether this is a gradient.
        source: The line of the user's code.
    """

    path: str
    call: int
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    axes: tuple[Axis, ...]
    bytes: int
    gradient: bool
    source: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first array."""
        return self.arrays[0].shape if self.arrays else ()

    @property
    def dtype(self) -> Any:
        """The dtype of the first array; None if there is none."""
        return self.arrays[0].dtype if self.arrays else None

    @property
    def spec(self) -> jax.P | None:
        """How the first array is laid out over the explicit axes of a mesh; None where the program does not say."""
        sharding = self.arrays[0].sharding if self.arrays else None
        return sharding.spec if isinstance(sharding, jax.NamedSharding) else None

    @property
    def loops(self) -> tuple[int | None, ...]:
        """The lengths of the loops around the site, outermost first."""
        return tuple(a.size for a in self.axes if a.is_loop)


class Sites(Rows[SiteInfo]):
    """All values that a capture would record, in program order."""

    def __init__(self, rows: Iterable[SiteInfo], reason: str = NOTHING_MARKED) -> None:
        super().__init__(rows)
        self._reason = reason  # why there is nothing, if there is nothing

    @property
    def bytes(self) -> int:
        """How many bytes a capture of all of them would hold."""
        return sum(info.bytes for info in self)

    @property
    def paths(self) -> tuple[str, ...]:
        """The distinct paths."""
        return tuple(dict.fromkeys(info.path for info in self))

    def __repr__(self) -> str:
        if not len(self):
            return f"0 values: {self._reason}\n"
        if len(self) > MOST_LINES:
            return f"{as_text(self)}\n"
        return "\n".join([f"{len(self)} values, {self.bytes} bytes", *_tree(self), ""])

    def _repr_html_(self) -> str:
        from sonde.core.records.display import sites_html

        return sites_html(self)

    def __rich__(self) -> Any:
        from rich.table import Table

        if not len(self):
            return repr(self)
        table = Table("site", "call", "kind", "arrays", "axes", "bytes", "source")
        table.title = f"{counted(len(self.paths), 'site')}, {self.bytes:,} bytes"
        for i in self:
            kind = "gradient" if i.gradient else ""
            axes = " ".join(map(repr, i.axes))
            table.add_row(
                i.path, str(i.call) if i.call else "", kind, _types(i), axes, f"{i.bytes:,}", short_place(i.source)
            )
        return WholePaths(table)


def _tree(infos: Iterable[SiteInfo]) -> Iterator[str]:
    """A line for every value, indented below the scopes and functions that it is in."""
    around: list[str] = []
    for i in infos:
        *scopes, name = i.path.split("/")
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(scopes, around)))
        around = scopes
        yield from ("  " * (n + 1) + f"{scopes[n]}/" for n in range(same, len(scopes)))
        line = f"{name}[{i.call}] {_types(i)}{' gradient' * i.gradient}, {i.bytes} bytes"
        yield "  " * (len(scopes) + 1) + f"{line}, {short_place(i.source)}"


def _types(info: SiteInfo) -> str:
    return " ".join(map(_type, info.arrays))


def _type(x: jax.ShapeDtypeStruct) -> str:
    """A type with the axes of the mesh that each of its axes is laid out over: `float32[8@data,4]`."""
    if not isinstance(x.sharding, jax.NamedSharding):
        return describe(x)
    names = [*x.sharding.spec, *[None] * len(x.shape)]
    laid_out = [name if name is None or isinstance(name, str) else "+".join(name) for name in names]
    return indexed(x.dtype, [n if name is None else f"{n}@{name}" for n, name in zip(x.shape, laid_out)])


@explains_arguments
def sites(f: Callable, *patterns: Pattern, grads: bool = False, inside: object = None) -> Callable[..., Sites]:
    """A function that lists what `capture` would record, without running anything.

    Args:
        f: Any callable.
        *patterns: Which sites, as in `capture`.
        grads: Whether to list gradients too.
        inside: Functions, modules or packages whose values become sites, as in `capture`.

    Returns:
        A function with the arguments of `f` (arrays or `jax.ShapeDtypeStruct`) that returns `Sites`.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def f(x):
        ...     return jax.lax.scan(lambda c, _: (sonde.sow(c * 2, "h"), None), x, length=5)[0]
        >>> (site,) = sonde.sites(f)(jnp.ones(3))
        >>> site.path, site.shape, site.loops, site.bytes
        ('h', (5, 3), (5,), 60)
    """
    check_callable(f, "sites")
    request = inside_request(inside)
    patterns = check_patterns(patterns, "sites")
    capture(f, *patterns, grads=grads, inside=request)  # for its checks

    def listed(*args: Any, **kwargs: Any) -> Sites:
        infos = list(_infos(shapes_of_call(records, f, args, kwargs, request)))
        return Sites(infos, nothing_recorded(f, request))

    def records(fn: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Records:
        return capture(fn, *patterns, grads=grads, inside=request)(*args, **kwargs)[1]

    return Uncalled("sites", wrapped_like(listed, f))


def _infos(records: Records) -> Iterator[SiteInfo]:
    for path, record in records.items():
        for number, (call, arrays) in enumerate(record.calls()):
            value, _, grads = call.parts(arrays)
            yield _info(path, number, call, value, call.value.view.axes, not call.value.view.is_value)
            for spec, grad_arrays in grads:
                if spec is not None:
                    yield _info(path, number, call, grad_arrays, spec.view.axes, True)


def _info(
    path: str, number: int, call: CallSpec, arrays: Sequence[Any], axes: tuple[Axis, ...], gradient: bool
) -> SiteInfo:
    structs = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_jax.explicit_sharding(x)) for x in arrays)
    return SiteInfo(path, number, structs, axes, size_and_bytes(structs)[1], gradient, call.site.source)
