"""Takes the arrays out of a function, so that one compiled program serves every function that differs in them alone.

`lambda h: h + direction` is written anew for every direction. Its code is the same; only the array that it closes over
differs. `hoist` gives the arrays, a key for all the remaining parts, and a way to make the function again with other
arrays, such as those that a jitted function takes as arguments.

Arrays are taken out of closures, default arguments, `functools.partial`, bound methods of pytrees, and the tuples,
lists, dicts and pytrees in them. Everything else is part of the key: by value where it can be compared, otherwise by
identity, so that a function that cannot be compared is only equal to itself.

An argument of a program is traced. A function that asks what a number is (`isinstance(scale, float)`) or writes it into
a text would be answered something else than without an edit, so its Python numbers and NumPy arrays stay in the key. A
function that decides by a number (`if scale > 1`) raises `NumbersNeeded`; `edit` then leaves all arrays in the key.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sonde import _jax
from sonde.core.marks.site import Site, naming
from sonde.core.session.closures import is_empty, names_read, same_value
from sonde.errors import EditError

_MOST_PARTS = 1_000

# What answers differently for an argument of a program than for the number itself, and does not raise.
_TELLS_APART = frozenset({"isinstance", "issubclass", "type", "repr", "str", "format", "print", "hasattr", "getattr"})
_FORMATS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})

# How JAX says that Python needs the number of a traced array.
_NUMBER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Hoisted(NamedTuple):
    """A function without its arrays.

    Attributes:
        key: Equal for functions that differ in the numbers in their arrays alone.
        types: The types of the arrays.
        rebuild: Makes the function again with other arrays.
    """

    key: Hashable
    types: tuple[Any, ...]
    rebuild: Callable[[Sequence[Any]], Any]


class NumbersNeeded(EditError):
    """A function of an edit needs numbers in Python that are arguments of the program.

    Attributes:
        key: That of the function.
    """

    todo = "choose by `jnp.where` or `jax.lax.cond`, or edit a jitted function, of which such numbers become a part."

    def __init__(self, message: str, key: Hashable) -> None:
        super().__init__(message)
        self.key = key


@contextlib.contextmanager
def calling(hoisted: Hoisted, site: Site, what: str) -> Iterator[None]:
    """In this block a function of an edit is called; says so in its errors."""
    with naming(site, what):
        try:
            yield
        except _NUMBER_ERRORS as error:
            if not hoisted.types:
                raise
            message = (
                f"{what} at site {site.path!r} ({site.line}) needs the number of an array while the program is traced. "
                "The value and the arrays and floats that the function closes over are arguments of the program"
            )
            raise NumbersNeeded(message, hoisted.key) from error


def whole(function: Any) -> Hoisted:
    """A function with its arrays in it, which make it another function."""
    return Hoisted(("whole", same_value(function)), (), lambda _: function)


def hoist(function: object) -> tuple[Hoisted, list[Any]]:
    """A function, or anything that has arrays in it, without its arrays, and the arrays."""
    search = _Search()
    key, remake = search.part(function)
    types = tuple(map(_jax.plain_type_of, search.arrays))
    return Hoisted((key, types), types, lambda arrays: remake(iter(arrays))), search.arrays


_Remake = Callable[[Iterator[Any]], Any]


class _Search:
    """Collects arrays in the order in which `_Remake` functions take them again."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._open: list[int] = []  # the functions being searched, by identity: a recursive one closes over itself
        self._left = _MOST_PARTS
        self._are_told_apart = 0  # the open functions that ask what their numbers are

    def part(self, value: Any) -> tuple[Hashable, _Remake]:
        """The key of a value, and a function that makes it again from the next arrays."""
        self._left -= 1
        if _is_array(value, exactly=self._are_told_apart > 0):
            self.arrays.append(value)
            return "array", next
        if self._left > 0 and id(value) not in self._open:
            self._open.append(id(value))
            try:
                parts = self._parts(value)
            finally:
                self._open.pop()
            if parts is not None:
                return parts
        return same_value(value), lambda _: value

    def _parts(self, value: Any) -> tuple[Hashable, _Remake] | None:
        asks = _tells_apart(value)
        self._are_told_apart += asks
        try:
            return self._inside(value)
        finally:
            self._are_told_apart -= asks

    def _inside(self, value: Any) -> tuple[Hashable, _Remake] | None:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            key, remake = self.part((value.func, value.args, value.keywords))
            return ("partial", key), lambda arrays: _partial(*remake(arrays))
        if isinstance(value, types.MethodType):
            key, remake = self.part((value.__func__, value.__self__))
            return ("method", key), lambda arrays: types.MethodType(*remake(arrays))
        if type(value) in (tuple, list):
            keys, remakes = self._all(value)
            kind = type(value)
            return (kind, keys), lambda arrays: kind([remake(arrays) for remake in remakes])
        if type(value) is dict:
            names = tuple(value)
            keys, remakes = self._all(value.values())
            return (dict, tuple(map(same_value, names)), keys), lambda arrays: {
                name: remake(arrays) for name, remake in zip(names, remakes)
            }
        return self._pytree(value)

    def _all(self, values: Any) -> tuple[Hashable, list[_Remake]]:
        parts = [self.part(value) for value in values]
        return tuple(key for key, _ in parts), [remake for _, remake in parts]

    def _function(self, function: types.FunctionType) -> tuple[Hashable, _Remake]:
        cells = function.__closure__ or ()
        filled = [not is_empty(cell) for cell in cells]
        inside = (
            [cell.cell_contents for cell, has in zip(cells, filled) if has],
            list(function.__defaults__ or ()),
            dict(function.__kwdefaults__ or {}),
        )
        before = len(self.arrays)
        key, remake = self.part(inside)
        code_and_globals = same_value(function, without_closure=True)  # its code, and the globals that it reads
        if len(self.arrays) == before:
            return ("function", code_and_globals, key), lambda _: function
        code, names, name = function.__code__, function.__globals__, function.__name__  # and not its arrays

        def again(arrays: Iterator[Any]) -> Any:
            contents, defaults, keywords = remake(arrays)
            remaining = iter(contents)
            closure = tuple(types.CellType(next(remaining)) if has else types.CellType() for has in filled)
            rebuilt = types.FunctionType(code, names, name, tuple(defaults) or None, closure or None)
            rebuilt.__kwdefaults__ = keywords or None
            return rebuilt

        return ("function", code_and_globals, tuple(filled), key), again

    def _pytree(self, value: Any) -> tuple[Hashable, _Remake] | None:
        """A registered pytree, such as a module; not a leaf."""
        leaves, tree = jax.tree.flatten(value, is_leaf=lambda x: x is not value)
        if tree == _LEAF:
            return None
        try:
            hash(tree)
        except TypeError:
            return None
        keys, remakes = self._all(leaves)
        return (tree, keys), lambda arrays: jax.tree.unflatten(tree, [remake(arrays) for remake in remakes])


_LEAF = jax.tree.structure(0)


def _partial(function: Any, args: Sequence[Any], keywords: Any) -> Any:
    return functools.partial(function, *args, **keywords)


def _is_array(value: Any, *, exactly: bool) -> bool:
    """Whether a value becomes an argument. Integers are often indices or shapes, which must stay known.

    Args:
        value: Any value.
        exactly: Whether only what is an array of JAX, as an argument is.
    """
    return isinstance(value, (jax.Array, _jax.Tracer)) or (
        not exactly
        and (type(value) is float or (isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.inexact)))
    )


def _tells_apart(function: Any, depth: int = 0) -> bool:
    """Whether a function, or one that it calls, can tell a number from an argument without an error."""
    if isinstance(function, functools.partial):
        return _tells_apart(function.func, depth)
    if isinstance(function, types.MethodType):
        return _tells_apart(function.__func__, depth)
    if not isinstance(function, types.FunctionType) or depth > _DEPTH:
        return False
    if str(function.__module__).partition(".")[0] in _LIBRARIES:  # which treat both alike
        return False
    if _asks(function.__code__):
        return True
    contents = [cell.cell_contents for cell in function.__closure__ or () if not is_empty(cell)]
    names = function.__globals__
    return any(_tells_apart(part, depth + 1) for part in (*contents, *map(names.get, names_read(function.__code__))))


_LIBRARIES = ("jax", "numpy", "sonde")
_DEPTH = 4


@functools.lru_cache(maxsize=1024)
def _asks(code: types.CodeType) -> bool:
    """Whether code names a function that tells numbers apart, or formats a text."""
    if not _TELLS_APART.isdisjoint(code.co_names) or any(i.opname in _FORMATS for i in dis.get_instructions(code)):
        return True
    return any(_asks(const) for const in code.co_consts if isinstance(const, types.CodeType))
