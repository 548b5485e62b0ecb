"""What is recorded by hand, and the perturbations whose derivatives are the gradients at sites."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

SiteKind = Literal["array", "itself", "through", "unused", "scalar", "tree", "pair", "half", "mixed"]


class Front(NamedTuple):
    """The number of axes before the mapped ones."""

    loops: int
    mesh: int


NO_AXES = Front(0, 0)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "taken", "count", "grads"],
    meta_fields=["path", "kind", "front", "mapped", "mapped_inside", "mesh_inside", "taken_front", "count_front"],
)
@dataclasses.dataclass(frozen=True)
class Rec:
    """One value, by hand: arrays, and the number of leading axes of each kind.

    `grads` holds, innermost differentiation first, what corresponds to the floating-point arrays of `value`.
    `mapped_inside` says for each of them how many of the mapped axes were inside the differentiation, `mesh_inside`
    how many of those of meshes. Flags and
    counts may come from outside of some of the loops that the value is in, so their axes are counted apart.
    """

    value: list[Any]
    path: str
    kind: SiteKind
    taken: Any = None
    count: Any = None
    grads: tuple[list[Any], ...] = ()
    front: Front = NO_AXES
    mapped: int = 0
    mapped_inside: tuple[int, ...] = ()
    mesh_inside: tuple[int, ...] = ()
    taken_front: Front = NO_AXES
    count_front: Front = NO_AXES

    @property
    def floats(self) -> list[Any]:
        """The arrays that can be perturbed."""
        return [x for x in self.value if jnp.issubdtype(x.dtype, jnp.floating)]

    @property
    def n_front(self) -> int:
        return self.front.loops + self.front.mesh + self.mapped

    def with_gradient(self, gradient: list[Any]) -> Rec:
        """The same, differentiated once more."""
        return dataclasses.replace(
            self,
            grads=(*self.grads, gradient),
            mapped_inside=(*self.mapped_inside, self.mapped),
            mesh_inside=(*self.mesh_inside, self.front.mesh),
        )

    def inside(self, *, loops: int = 0, mesh: int = 0, mapped: int = 0) -> Rec:
        """The same, with more leading axes."""
        fronts = {
            name: Front(front.loops + loops, front.mesh + mesh)
            for name in ("front", "taken_front", "count_front")
            for front in [getattr(self, name)]
        }
        return dataclasses.replace(self, mapped=self.mapped + mapped, **fronts)

    def out_axes(self, *, over_mesh: bool) -> Rec:
        """Where a new mapped axis goes, in the form that `jax.vmap(out_axes=...)` takes."""
        at = lambda front: front.loops if over_mesh else front.loops + front.mesh
        axes: Any = jax.tree.map(lambda _: at(self.front), self)
        return dataclasses.replace(
            axes,
            taken=None if self.taken is None else at(self.taken_front),
            count=None if self.count is None else at(self.count_front),
        )


Perts = list[list[Any]] | None


def zeros_like(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def no_perts(recs: Sequence[Rec]) -> list[list[Any]]:
    """A zero perturbation for each of the values."""
    return zeros_like([rec.floats for rec in recs])


def plus(a: list[list[Any]], b: Perts) -> list[list[Any]]:
    return a if b is None else jax.tree.map(jnp.add, a, b)


@jax.custom_jvp
def gated(value: Any, pert: Any) -> Any:
    """A perturbation of what depends on a value.

    A differentiation that does not concern the value does not concern the perturbation either: there is a gradient at
    a site only where its value depends on what the program is differentiated by.
    """
    del value
    return pert


@functools.partial(gated.defjvp, symbolic_zeros=True)
def _gated_jvp(primals: Any, tangents: Any) -> Any:
    of_value, of_pert = tangents
    if isinstance(of_value, SymbolicZero):
        of_pert = SymbolicZero(jax.typeof(primals[1]).to_tangent_aval())
    return gated(*primals), of_pert


_puts_back: list[bool] = []


@contextlib.contextmanager
def putting_back() -> Iterator[None]:
    """In this block, what passes a site by hand is what is given for it, instead of the sum of both.

    NaN stands for what was not recorded, in a branch that was not taken.
    """
    _puts_back.append(True)
    try:
        yield
    finally:
        _puts_back.pop()


def nudged(value: Any, pert: Any) -> Any:
    """A value plus its perturbation, or instead of it."""
    if _puts_back:
        return jnp.where(jnp.isnan(pert), value, pert)
    return value + gated(value, pert)
