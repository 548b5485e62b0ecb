"""`nnx.eval_shape`, `nnx.make_jaxpr`, `nnx.get_abstract_model`: what a function would compute. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from sonde.nnx.structure.split_merge import split
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.lifting import take
from sonde.nnx.transforms.options import (
    MISSING,
    Mode,
    also_decorator,
    mode,
    named_like,
)
from sonde.nnx.transforms.prefixes import prepare
from sonde.nnx.variable.sharding import get_named_sharding, sharded_shape
from sonde.nnx.variable.variable import Variable


def eval_shape(
    f: Callable[..., Any],
    *args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **kwargs: Any,
) -> Any:
    """The output of a function with `jax.ShapeDtypeStruct` in place of arrays.

    Args:
        f: The function, such as the class of a model.
        *args: Its arguments; arrays, or shapes in place of them.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.
        **kwargs: Its keyword arguments.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.eval_shape(lambda: nnx.Param(jnp.zeros((10**6, 10**6)))).shape
        (1000000, 1000000)
    """
    run_mode = prepare("eval_shape", f, graph, graph_updates)
    taken = take("eval_shape", run_mode, args, kwargs)
    if run_mode.graph and not run_mode.updates:  # the arguments must be trees; the output need not
        take("eval_shape", Mode(False, False), args, kwargs)
    output = taken.output(jax.eval_shape(taken.pure(f, output_only=True), taken.values))
    if run_mode.updates:
        _place(output)
    return output


def _place(output: object) -> None:
    """Gives the shapes in Variables their shardings, if a mesh is known."""
    mesh = jax.sharding.get_abstract_mesh()
    for leaf in walk(output, graph=True, verb="eval_shape").leaves:
        if isinstance(leaf, Variable) and (value := sharded_shape(leaf, None if mesh.empty else mesh)) is not None:
            leaf.set_raw_value(value)


@also_decorator
def make_jaxpr(
    f: Callable[..., Any] = MISSING,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """`jax.make_jaxpr` for functions of Modules and Variables: the inputs are the leaves of the arguments.

    Args:
        f: The function; leave it out to use `make_jaxpr` as a decorator with options.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.
        static_argnums: Positions of arguments that are not traced.

    Example:
        >>> from sonde import nnx
        >>> nnx.make_jaxpr(lambda w, x: w[...] * x)(nnx.Param(2.0), 3.0)
        { lambda ; a:f32[] b:f32[]. let c:f32[] = mul a b in (c,) }
    """
    run_mode = mode(graph, graph_updates)

    @named_like(f)
    def make(*args: Any, **kwargs: Any) -> Any:
        taken = take("make_jaxpr", run_mode, args, kwargs, static=static_argnums)
        return jax.make_jaxpr(taken.pure(f, output_only=True))(taken.values)

    return make


def get_abstract_model(init_fn: Callable[[], Any], mesh: Mesh, *, graph: bool | None = None) -> tuple[Any, Any]:
    """The structure of a model and its state as shapes, dtypes and shardings, with nothing computed.

    Args:
        init_fn: Makes the model.
        mesh: The mesh for the shardings.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Returns:
        The GraphDef, and a State of `jax.ShapeDtypeStruct` with the shardings that the Variables' metadata give.
    """
    with jax.set_mesh(mesh):
        graphdef, state = eval_shape(lambda: split(init_fn(), graph=graph))
    shardings = get_named_sharding(state, mesh)
    return graphdef, jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, shardings
    )
