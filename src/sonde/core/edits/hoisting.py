"""Takes the arrays out of a function, so that one compiled program serves every function that differs in them alone.

`lambda h: h + direction` is written anew for every direction. Its code is the same; only the array that it closes over
differs. `hoist` gives the arrays, a key for all the remaining parts, and a way to make the function again with other
arrays, such as those that a jitted function takes as arguments.

Arrays are taken out of closures, globals, default arguments, `functools.partial`, bound methods, and the tuples, lists,
dicts, pytrees and objects in them. Everything else is part of the key (`core/session/closures.py`).

An argument of a program is traced. A function that asks what a number is (`isinstance(scale, float)`) or writes it into
a text would be answered something else than without an edit, so its Python numbers and NumPy arrays stay in the key. A
function that decides by a number (`if scale > 1`) raises `NumbersNeeded`; `edit` then leaves all arrays in the key. A
function that appends to a list must find the list itself, so what it may change is not made again.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax

from sonde import _jax
from sonde.core.marks.site import Site, naming
from sonde.core.session.closures import Search, same_value
from sonde.errors import EditError

# How JAX says that Python needs the number of a traced array.
_NUMBER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Hoisted:
    """A function without its arrays. Functions that differ in the numbers in their arrays alone give the same object.

    Attributes:
        types: The types of the arrays.
        rebuild: Makes the function again with other arrays: the one that was hoisted last, since what an earlier one
            reads may have changed.
        writes: Whether the function may change what it reads.
    """

    __slots__ = ("__weakref__", "rebuild", "types", "writes")

    def __init__(self, types: tuple[Any, ...], writes: bool) -> None:
        self.types, self.writes = types, writes
        self.rebuild: Callable[[Sequence[Any]], Any]

    @staticmethod
    def of(
        key: Hashable, rebuild: Callable[[Sequence[Any]], Any], types: tuple[Any, ...] = (), *, writes: bool = False
    ) -> Hoisted:
        """The function of a key."""
        hoisted = _hoisted.get(key) or _hoisted.setdefault(key, Hoisted(types, writes))
        hoisted.rebuild = rebuild
        return hoisted


_hoisted: weakref.WeakValueDictionary[Hashable, Hoisted] = weakref.WeakValueDictionary()


class NumbersNeeded(EditError):
    """A function of an edit needs numbers in Python that are arguments of the program.

    Attributes:
        function: The function.
    """

    todo = "choose by `jnp.where` or `jax.lax.cond`, or edit a jitted function, of which such numbers become a part."

    def __init__(self, message: str, function: Hoisted) -> None:
        super().__init__(message)
        self.function = function


@contextlib.contextmanager
def calling(hoisted: Hoisted, site: Site, what: str) -> Iterator[None]:
    """In this block a function of an edit is called; says so in its errors."""
    with naming(site, what):
        try:
            yield
        except (*_NUMBER_ERRORS, IndexError, TypeError) as error:
            is_of_a_number = isinstance(error, _NUMBER_ERRORS) or re.search("static|concrete", str(error))
            if not hoisted.types or not is_of_a_number:
                raise
            message = (
                f"{what} at site {site.path!r} ({site.line}) needs the number of an array while the program is traced. "
                "The value and the arrays and floats that the function closes over are arguments of the program"
            )
            raise NumbersNeeded(message, hoisted) from error


def whole(function: Any) -> Hoisted:
    """A function with its arrays in it, which make it another function."""
    return Hoisted.of(("whole", same_value(function)), lambda _: function)


def hoist(function: object) -> tuple[Hoisted, list[Any]]:
    """A function, or anything that has arrays in it, without its arrays, and the arrays."""
    search = Search()
    key, remake = search.part(function)
    is_exact, keeps_containers = search.asks and search.has_numbers, search.writes
    if is_exact or keeps_containers:
        search = Search(exactly=is_exact, keeps_containers=keeps_containers)
        key, remake = search.part(function)
    if search.is_tangled:
        search = Search(hoists=False, keeps_containers=keeps_containers)
        key, remake = search.part(function)
    types = tuple([_jax.plain_type_of(array) for array in search.arrays])
    rebuild = (lambda arrays: function) if remake is None else (lambda arrays: remake(arrays, {}))
    return Hoisted.of(
        (key, *search.of_classes, types), rebuild, types, writes=search.writes or search.assigns
    ), search.arrays
