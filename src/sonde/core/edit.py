"""Changing a program while it runs: `edit`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.asking import asked_for
from sonde.core.axes import per_example
from sonde.core.capture import check_callable, like, run_with
from sonde.core.context import Looking, look, scope
from sonde.core.handler import Handler
from sonde.core.path import Pattern, check_pattern, glob_matches
from sonde.core.site import Site, View, naming
from sonde.errors import EditError

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """What to put in place of the value at a site, and when.

    Attributes:
        new: A function of the value that returns the new one, or the new value itself.
        calls: Which calls of the site, counted per path from 0 in program order as in `Record.values`: a number or
            several. All, if None.
        iterations: Which iterations of the innermost loop around the site, counted from 0 in the order in which they
            run: a number or several; or a function of the numbers of all loops around it, outermost first, that returns
            a boolean array. All, if None.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def f(x):
        ...     step = lambda c, _: (sonde.sow(c + 1, "c"), None)
        ...     return jax.lax.scan(step, x, length=4)[0]
        >>> print(sonde.edit(f, {"c": sonde.Edit(lambda c: c * 10, iterations=2)})(0))
        31
    """

    new: Any
    calls: int | Collection[int] | None = None
    iterations: int | Collection[int] | Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name in ("calls", "iterations"):
            chosen = getattr(self, name)
            if chosen is None or (name == "iterations" and callable(chosen)):
                continue
            if isinstance(chosen, str) or not all(map(_is_count, _several(chosen))):
                raise TypeError(f"Edit({name}=...) takes numbers counted from 0, one or several, got {chosen!r}")
            object.__setattr__(self, name, tuple(map(int, _several(chosen))))


def edit(f: Callable[P, R], edits: Mapping[Pattern, Any], *, inside: Any = None) -> Callable[P, R]:
    """A function that runs `f` with the values at some sites replaced.

    Works in every transform and composes with `capture`, which sees the new values wherever it stands.

    Args:
        f: Any callable.
        edits: For each pattern, a function of the value that returns a new one, a new value, or an `Edit` that also
            says at which calls and iterations. Where several match, they are applied in order. Under `vmap` a function
            sees one example.
        inside: Code without sites whose values to replace, as in `capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        TypeError: `f` is not callable, or `edits` is no mapping from patterns.
        NoSuchSiteError: When called: a pattern matches no site.
        EditError: When called: a new value has another structure, shape or dtype than the value at the site.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h") + 1
        >>> print(sonde.edit(f, {"h": jnp.zeros_like})(jnp.ones(3)))
        [1. 1. 1.]
    """
    check_callable(f, "edit")
    if not isinstance(edits, Mapping):
        raise TypeError(
            f"edit takes a mapping from patterns to new values, got {edits!r} of type {type(edits).__name__}"
        )
    asked = asked_for(inside)
    chosen = {check_pattern(p): e if isinstance(e, Edit) else Edit(e) for p, e in edits.items()}

    def edit_now(fn: Callable, args: Any, kwargs: Any) -> Any:
        def make(depth: int) -> Editing:
            return Editing(chosen, depth=depth)

        return run_with(make, fn, args, kwargs, edits=True, inside=asked)[0]

    jitted = _jax.jit_options(f)
    if jitted is not None:
        fn, options = jitted
        return jax.jit(like(lambda *args, **kwargs: edit_now(fn, args, kwargs), fn), **options)
    return like(lambda *args, **kwargs: edit_now(f, args, kwargs), f)


class Editing(Handler):
    """Puts new values in the place of old ones."""

    def __init__(self, edits: Mapping[Pattern, Edit], *, depth: int = 1) -> None:
        super().__init__(None, tuple(edits), depth=depth)
        self.edits = edits
        self.counts_iterations = any(e.iterations is not None for e in edits.values())
        self.indices: tuple[Any, ...] = ()
        self.lengths: tuple[int | None, ...] = ()
        self._length: int | None = None  # of the loop that is about to be entered
        self._calls: dict[str, int] = {}  # shared with all children
        self._hit: dict[Pattern, set[int]] = {}  # which calls were replaced; shared with all children

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside; in a loop, it knows the number of the iteration."""
        new = super().child(base, steps, prefix)
        new.indices = (*self.indices, *steps)
        new.lengths = (*self.lengths, *[self._length] * len(steps))
        new._length = None
        return new

    def loop_inputs(self, body: Any, length: int, reverse: bool) -> list[Any]:
        """Nothing; but the length of the loop is known."""
        del body, reverse
        self._length = length
        return []

    def finish(self) -> None:
        """Raises an error for a pattern, or the number of a call, that chose nothing."""
        super().finish()
        for pattern, wanted in self.edits.items():
            missed = set(() if wanted.calls is None else _several(wanted.calls)) - self._hit.get(pattern, set())
            if missed:
                most = max(self._hit_counts(pattern), default=0)
                raise EditError(
                    f"edit of {pattern!r}: it names call {sorted(missed)}, counted from 0, but the site is met {most} "
                    "times"
                )

    def _hit_counts(self, pattern: Pattern) -> list[int]:
        return [n for path, n in self._calls.items() if not isinstance(pattern, str) or glob_matches(pattern, path)]

    def mark_calls(self) -> dict[str, int]:
        """How often each site was met so far."""
        return copy.copy(self._calls)

    def return_to(self, mark: dict[str, int]) -> None:
        """Counts on from there."""
        self._calls.clear()
        self._calls.update(mark)

    def join_calls(self, marks: Sequence[dict[str, int]]) -> None:
        """After a `cond`, a site has been met as often as in the branch that met it most."""
        for mark in marks:
            for path, count in mark.items():
                self._calls[path] = max(count, self._calls.get(path, 0))

    def replace(self, arrays: list[Any], site: Site, path: str, view: View) -> list[Any]:
        """The new arrays, if an edit is for this site."""
        if not view.is_value:
            return arrays
        name, site = site.path, site.at(path)  # the whole path, for the messages
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        for pattern in self.chosen(site, path):
            wanted = self.edits[pattern]
            if wanted.calls is not None and call not in _several(wanted.calls):
                continue
            self._hit.setdefault(pattern, set()).add(call)
            if site.in_place:
                raise EditError(
                    f"edit of {path!r} ({site.source}): the program goes on with the value itself, as after "
                    "`Module.sow`, and not with what the site returns; use `sonde.sow` and its result there, or edit "
                    "the output of a method"
                )
            new = new_arrays(wanted.new, arrays, site, view, self.outside, name)
            if wanted.iterations is not None:
                now = self._is_now(wanted.iterations, site)
                new = [jnp.where(now, a, b) for a, b in zip(new, arrays)]
            arrays = new
        return arrays

    def _is_now(self, iterations: Any, site: Site) -> Any:
        if not self.indices:
            raise EditError(f"edit of {site.path!r} ({site.source}): it names iterations, but the site is in no loop")
        if callable(iterations):
            with naming(site, "the iterations of an edit"):
                return iterations(*self.indices)
        length = self.lengths[-1]
        if length is not None and (beyond := [n for n in _several(iterations) if n >= length]):
            raise EditError(
                f"edit of {site.path!r} ({site.source}): it names iteration {beyond}, counted from 0, but the loop has "
                f"{length}"
            )
        return jnp.isin(self.indices[-1], jnp.asarray(sorted(_several(iterations))))


def _is_count(number: Any) -> bool:
    return not isinstance(number, bool) and hasattr(number, "__index__") and int(number) >= 0


def _several(numbers: int | Collection[int]) -> Collection[int]:
    is_one = not isinstance(numbers, Collection) or getattr(numbers, "ndim", 1) == 0
    return (numbers,) if is_one else numbers  # pyright: ignore[reportReturnType]


def new_arrays(
    new: Any, arrays: list[Any], site: Site, view: View, outside: Looking | None = None, name: str = ""
) -> list[Any]:
    """The arrays of a new value for a site, which is given as such or as a function of the old one.

    What the function marks is seen by the captures around the edit, below the name of the site.
    """
    if not callable(new):
        return [_fitted(x, a, site, view, i) for i, (x, a) in enumerate(zip(_leaves(new, site), arrays))]

    def of_example(*xs: Any) -> list[Any]:
        around = scope(name) if outside is not None else contextlib.nullcontext()
        with look(outside), around, naming(site, "the function of an edit"):
            result = new(site.rebuild(xs))
        return [_checked(x, _jax.typeof(a), site) for x, a in zip(_leaves(result, site), xs)]

    return per_example(of_example, view.axes, len(arrays))(*arrays)


def _leaves(new: Any, site: Site) -> list[Any]:
    """The leaves of a new value that stand where the site has arrays."""
    leaves, tree = jax.tree.flatten(new)
    if tree != site.tree:
        raise EditError(f"edit of {site.path!r} ({site.source}): expected the structure {site.tree}, got {tree}")
    return [x for x, is_array in zip(leaves, site.arrays) if is_array]


def _checked(new: Any, expected: Any, site: Site) -> Any:
    """A new leaf as an array of exactly the expected type; Python numbers take on its dtype."""
    array = jnp.asarray(new, expected.dtype) if isinstance(new, (bool, int, float, complex)) else jnp.asarray(new)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise EditError(
            f"edit of {site.path!r} ({site.source}): expected {expected.dtype}{list(expected.shape)}, got "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def _fitted(new: Any, old: Any, site: Site, view: View, index: int) -> Any:
    """A given leaf for an array that may have mapped axes in front, which the leaf may have or not."""
    expected = _jax.typeof(old)
    mapped = sum(axis.on_leaf(index) for axis in view.axes)
    if mapped and jnp.shape(new) == expected.shape[mapped:]:
        new = jnp.broadcast_to(jnp.asarray(new), expected.shape)
    return _checked(new, expected, site)
