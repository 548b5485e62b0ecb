"""A program: one `jax.jit` for all calls of one structure.

Models of equal structure share it, and with it the traces and the compiled code. It takes lists of the leaves' values
and the plain arguments. It returns what every transform returns (`sonde.nnx.transforms.outcome`) and, separately, a
plain output, because JAX rebuilds that faster than anything written in Python.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sonde.nnx.transforms.jit.arguments import (
    Arguments,
    Skeleton,
    assemble,
    holds_objects,
    holds_references,
    shardings_along,
)
from sonde.nnx.transforms.lifting import ONE_LIST, Placement, Structure, enter
from sonde.nnx.transforms.options import Mode
from sonde.nnx.transforms.result_lists import Lists

#: While a capture runs and a program is traced: the caller's nodes with their paths.
tracing = threading.local()


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `nnx.jit`.

    Attributes:
        fun: The function.
        mode: The mode it runs in.
        in_shardings: Shardings of the arguments, or None.
        out_shardings: Shardings of the output, or None.
        static: Positions and names of static arguments.
        donated: Positions and names of donated arguments.
        more: Other options of `jax.jit`.
    """

    fun: Callable[..., Any]
    mode: Mode
    in_shardings: Any
    out_shardings: Any
    static: frozenset[Any]
    donated: frozenset[Any]
    more: dict[str, Any]


class Program:
    """One `jax.jit` for all calls of one structure.

    Args:
        options: The options of `nnx.jit`.
        structure: The structure of the roots.
        arguments: The arguments of a call.
        leaves: The leaves of its roots.

    Attributes:
        structure: The structure of the roots.
        run: The jitted function. Its arguments are lists (bare arrays, values of Variables that are kept, values of
            those that are donated; empty lists are left out) and the plain arguments. It returns a tuple of the output,
            if that is plain, and what every transform returns; or the output alone, if there is nothing else and it is
            not a tuple.
        arrays: The leaves that are bare arrays.
        kept: The Variables whose values stay.
        donated: The Variables whose values are donated.
        positions: For each leaf, which list it is in, and its position there.
    """

    __slots__ = ("arrays", "donated", "kept", "positions", "run", "structure")

    def __init__(self, options: Options, structure: Structure, arguments: Arguments, leaves: Sequence[Any]):
        self.structure = structure
        gone = {
            name for name, argument in zip(arguments.names, arguments.root_arguments) if argument in options.donated
        }
        numbers = range(len(structure.kinds))
        variables = [i for i in numbers if structure.kinds[i] is not None]
        self.arrays = [i for i in numbers if structure.kinds[i] is None]  # they get no new values: never donated
        # A shared Variable belongs to the first argument that holds it.
        of_gone = [i for i in variables if structure.paths[i][0] in gone]
        self.donated = [i for i in of_gone if (kind := structure.kinds[i]) and not kind[1].by_reference]
        self.kept = sorted({*variables} - {*self.donated})
        leading = self.lists(numbers)
        n_lead = len(leading)
        self.positions = {
            leaf: (k, i) for k, numbers_in_list in enumerate(leading) for i, leaf in enumerate(numbers_in_list)
        }
        placement, shardings = self._shardings(options, arguments, leaves)
        # a leaf with a requested sharding keeps it afterwards, as do all leaves that graph updates return
        values = placement.in_values if isinstance(placement, Lists) and options.mode.updates else None
        resharded = [i for i in self.kept if values[i] is not None] if values else []
        give_away = [n_lead + i for i, argument in enumerate(arguments.plain_arguments) if argument in options.donated]
        self.run = jax.jit(
            self._traced(options, arguments.skeleton, placement, (*self.donated, *resharded)),
            donate_argnums=tuple([n_lead - 1, *give_away] if self.donated else give_away),
            **shardings,
            **options.more,
        )

    def lists(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """Sorts one value per leaf into the lists that `run` takes."""
        groups = [[leaves[i] for i in numbers] for numbers in (self.arrays, self.kept, self.donated)]
        return [group for group in groups if group] or [[]]

    def _shardings(
        self, options: Options, arguments: Arguments, leaves: Sequence[Any]
    ) -> tuple[Placement, dict[str, Any]]:
        """How results are put into lists, and the options for `jax.jit`."""
        if options.in_shardings is None and options.out_shardings is None:
            return ONE_LIST, {}
        roots, plain = shardings_along(options.in_shardings, arguments.skeleton)
        prefixes = {"arguments": ("in_shardings", tuple(roots)), "output": ("out_shardings", options.out_shardings)}
        lists = Lists("jit", self.structure, leaves, **prefixes)
        jit_options: dict[str, Any] = {"out_shardings": (None, (tuple(lists.kinds), None))}
        if options.in_shardings is not None:
            jit_options["in_shardings"] = (*self.lists(lists.in_values), *plain)
        return lists, jit_options

    def _traced(
        self, options: Options, skeleton: Skeleton, placement: Placement, always: tuple[int, ...]
    ) -> Callable[..., Any]:
        fun, mode, structure = options.fun, options.mode, self.structure
        order = [*self.arrays, *self.kept, *self.donated]
        n_lead = len(self.lists(range(len(order))))

        def traced(*inputs: Any) -> Any:
            values = dict(zip(order, [value for values_in_list in inputs[:n_lead] for value in values_in_list]))
            leaves = [values[i] for i in range(len(order))]
            originals = getattr(tracing, "originals", None)
            entered = enter(structure, leaves, verb="jit", mode=mode, originals=originals)
            args, kwargs = assemble(skeleton, entered.args, inputs[n_lead:])
            out = fun(*args, **kwargs)
            # A plain output leaves as it is: JAX rebuilds it in C++.
            separately = placement is ONE_LIST and not holds_objects(out) and not holds_references(out)
            leaving = entered.leave(out, placement=placement, always=always, separately=separately)
            if leaving[1].nothing and type(out) is not tuple:
                return out
            return out if separately else None, leaving

        traced.__name__ = traced.__qualname__ = getattr(fun, "__name__", "jit")
        return traced
