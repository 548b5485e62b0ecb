"""`nn.vjp`, `nn.jvp`, `nn.value_and_grad`, `nn.grad` and `nn.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from sonde.linen.modules.attach import describe
from sonde.linen.modules.module import Module
from sonde.linen.transforms.lift import Body, Bridge, Lifting, lift
from sonde.linen.variables.filters import Filter


def _alone(groups: tuple[dict[str, Any], ...], many: bool) -> Any:
    """The variables of the module itself, or with `many` those of each module that was packed."""
    return list(groups) if many else groups[0]


def _packed_alone(lifting: Lifting, label: str, module: Module, many: bool = False) -> None:
    if len(lifting.packed) != 1 and not many:
        raise NotImplementedError(
            f"nn.{label} of {describe(module)} holds modules that belong to other parts of the model, and there is no "
            "way to say which derivative belongs to which; differentiate with respect to a module that owns all its "
            "submodules"
        )


def vjp(
    fn: Callable[..., Any],
    mdl: Module,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    vjp_variables: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
    multi_scope: bool = False,
) -> Any:
    """`jax.vjp` of a function of a module, with respect to variables and arguments.

    Args:
        fn: `(module, *primals) -> output`, or with `has_aux` a pair of that and anything else.
        mdl: The module.
        *primals: The arguments.
        has_aux: Whether `fn` returns a pair.
        reduce_axes: Must be empty; JAX no longer has this option.
        vjp_variables: The collections to differentiate with respect to.
        variables: The other collections that `fn` sees.
        rngs: The random streams that `fn` sees.
        multi_scope: Whether cotangents of variables come as a list, one entry for each module involved.

    Returns:
        The output, a function from its cotangent to the cotangents of the variables and of the arguments, and with
        `has_aux` the second part of the pair.
    """
    _no_reduce_axes(reduce_axes, "vjp")
    bridge = Bridge(mdl, primals)
    lifting = Lifting(bridge.scopes, "vjp", variables=(vjp_variables, variables), changes=(variables,), rngs=(rngs,))
    _packed_alone(lifting, "vjp", mdl, multi_scope)
    chosen, other_groups = lifting.variables
    body = bridge.body(fn)

    def pure(chosen: tuple[dict[str, Any], ...], *primals: Any) -> Any:
        output, changes = lifting.call(body, (chosen, other_groups), lifting.rngs, *primals)
        if has_aux:
            return output[0], (output[1], changes)
        return output, (None, changes)

    output, pullback, (aux, changes) = jax.vjp(pure, chosen, *bridge.args, has_aux=True)
    lifting.publish(changes)

    # A pytree, so that it can leave a transform.
    backward = jax.tree_util.Partial(_call_backward, pullback, multi_scope)
    return (output, backward, aux) if has_aux else (output, backward)


def _call_backward(pullback: Callable[..., Any], multi_scope: bool, cotangent: object) -> Any:
    of_variables, *of_arguments = pullback(cotangent)
    return (_alone(of_variables, multi_scope), *of_arguments)


def _no_reduce_axes(reduce_axes: Sequence[Hashable], label: str) -> None:
    if reduce_axes:
        raise ValueError(f"nn.{label}(reduce_axes={reduce_axes!r}): JAX no longer has reduce_axes; use jax.lax.psum")


def value_and_grad(
    fn: Callable[..., Any],
    mdl: Module,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """The value of a scalar function of a module and its gradients with respect to all arguments.

    Args:
        fn: `(module, *primals) -> scalar`, or with `has_aux` a pair of that and anything else.
        mdl: The module.
        *primals: The arguments.
        has_aux: Whether `fn` returns a pair.
        reduce_axes: Must be empty; JAX no longer has this option.
        variables: The collections that `fn` sees.
        rngs: The random streams that `fn` sees.

    Returns:
        What `fn` returns, and a tuple of gradients.
    """
    _no_reduce_axes(reduce_axes, "value_and_grad")
    bridge = Bridge(mdl, primals)
    lifting = Lifting(bridge.scopes, "value_and_grad", variables=(variables,), changes=(variables,), rngs=(rngs,))
    body = bridge.body(fn)

    def pure(*primals: Any) -> Any:
        output, changes = lifting.call(body, lifting.variables, lifting.rngs, *primals)
        value = output[0] if has_aux else output
        return value, (output, changes)

    gradient = jax.value_and_grad(pure, argnums=tuple(range(len(bridge.args))), has_aux=True)
    (_, (output, changes)), gradients = gradient(*bridge.args)
    lifting.publish(changes)
    return output, gradients


def grad(
    fn: Callable[..., Any],
    mdl: Module,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """The gradients of a scalar function of a module with respect to all arguments.

    Arguments as in `nn.value_and_grad`; with `has_aux` the second output of the function comes after the gradients.
    """
    output, gradients = value_and_grad(
        fn, mdl, *primals, has_aux=has_aux, reduce_axes=reduce_axes, variables=variables, rngs=rngs
    )
    return (gradients, output[1]) if has_aux else gradients


def jvp(
    fn: Callable[..., Any],
    mdl: Module,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    variable_tangents: Mapping[str, Any],
    variables: Filter = True,
    rngs: Filter = True,
) -> tuple[Any, Any]:
    """`jax.jvp` of a function of a module.

    Args:
        fn: `(module, *primals) -> output`.
        mdl: The module.
        primals: The arguments.
        tangents: Their tangents.
        variable_tangents: Tangents of variables, by collection. Collections that are left out do not vary.
        variables: The collections that `fn` sees.
        rngs: The random streams that `fn` sees.

    Returns:
        The output and its tangent.
    """
    bridge = Bridge(mdl, primals)
    lifting = Lifting(
        bridge.scopes, "jvp", variables=(tuple(variable_tangents), variables), changes=(variables,), rngs=(rngs,)
    )
    _packed_alone(lifting, "jvp", mdl)
    chosen, other_groups = lifting.variables
    body = bridge.body(fn)

    def pure(chosen: dict[str, Any], args: tuple[Any, ...]) -> Any:
        output, changes = lifting.call(body, ((chosen,), other_groups), lifting.rngs, *args)
        return output, changes

    along = {name: tree for name, tree in variable_tangents.items() if name in chosen[0]}
    output, tangent, changes = jax.jvp(pure, (chosen[0], bridge.args), (along, tuple(tangents)), has_aux=True)
    lifting.publish(changes)
    return output, tangent


def custom_vjp(
    fn: Callable[..., Any],
    forward_fn: Callable[..., Any],
    backward_fn: Callable[..., Any],
    grad_vars: Filter = "params",
    nondiff_argnums: int | Sequence[int] = (),
) -> Any:
    """A function of a module with its own backward pass.

    Args:
        fn: `(module, *args) -> output`.
        forward_fn: `(module, *args) -> (output, residuals)`; residuals may hold what `nn.vjp` returned.
        backward_fn: `(*nondiff_args, residuals, cotangent) -> (cotangents of variables, *cotangents of arguments)`.
        grad_vars: The collections that are differentiated.
        nondiff_argnums: Arguments that are not differentiated, not counting the module; they must not be arrays.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> def run(layer, x):
        ...     return layer(x)
        >>> def forward(layer, x):
        ...     return nn.vjp(run, layer, x)
        >>> def halved(pull_back, cotangent):
        ...     of_variables, of_x = pull_back(cotangent)
        ...     return jax.tree.map(lambda g: g / 2, of_variables), of_x
        >>> class Slow(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.custom_vjp(run, forward_fn=forward, backward_fn=halved)(nn.Dense(2), x)
        >>> x = jnp.ones(3)
        >>> variables = Slow().init(jax.random.key(7), x)
        >>> jax.grad(lambda v: Slow().apply(v, x).sum())(variables)["params"]["Dense_0"]["bias"].tolist()
        [0.5, 0.5]
    """
    skipped = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)

    def run(bridge: Bridge, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lifting = Lifting(
            bridge.scopes, "custom_vjp", variables=(grad_vars, True), changes=(grad_vars, True), rngs=(True,)
        )
        _packed_alone(lifting, "custom_vjp", bridge.module)
        forward = bridge.body(forward_fn)
        chosen, other_groups = lifting.variables

        def call(body: Body, chosen: tuple[dict[str, Any], ...], args: tuple[Any, ...]) -> Any:
            return lifting.call(body, (chosen, other_groups), lifting.rngs, *args, **kwargs)

        def plain(chosen: tuple[dict[str, Any], ...], *args: Any) -> Any:
            return call(body, chosen, args)

        def fwd(chosen: tuple[dict[str, Any], ...], *args: Any) -> Any:
            (output, residuals), changes = call(forward, chosen, args)
            return (output, changes), residuals

        # The cotangent of the changed variables is dropped: the user's rule does not know them.
        def bwd(*args: Any) -> Any:
            *static, residuals, (cotangent, _) = args
            of_variables, *of_arguments = backward_fn(*static, residuals, cotangent)
            return ((of_variables,), *of_arguments)

        pure = jax.custom_vjp(plain, nondiff_argnums=tuple(i + 1 for i in skipped))
        pure.defvjp(fwd, bwd)
        output, changes = pure(chosen, *args)
        lifting.publish(changes)
        return output

    return lift(fn, run, label="custom_vjp")
