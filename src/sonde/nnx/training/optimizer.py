"""Optimizers: an optax transformation together with its state.

The state is laid out as optax makes it, with an `OptVariable` where it has one array per parameter and an `OptArray`
for any other array. An `OptVariable` keeps the metadata of its parameter, so that moments are sharded as
their parameters are, or as the entry `optimizer_sharding` of the metadata says.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax

from sonde._key_paths import key_of
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import State
from sonde.nnx.structure import split_merge
from sonde.nnx.structure.mapping import pure
from sonde.nnx.structure.split_merge import state_in
from sonde.nnx.structure.update import update
from sonde.nnx.variable.eager_sharding import place_value
from sonde.nnx.variable.kinds import Param
from sonde.nnx.variable.variable import Variable

M = TypeVar("M")
_MISSING: Any = object()
M = TypeVar("M")


class OptState(Variable[Any]):
    """The state of an optimizer."""

    __slots__ = ()


class OptArray(OptState):
    """Optimizer state that belongs to no parameter, such as a counter."""

    __slots__ = ()


class OptVariable(OptState):
    """Optimizer state of one parameter, such as a moment."""

    __slots__ = ()


class Optimizer(Pytree, Generic[M]):
    """An optax transformation with its state.

    Args:
        model: The model whose parameters will be updated.
        tx: The transformation.
        wrt: Which of the model's Variables; the same filter as for the gradients.
        graph: True allows shared references in the model, False demands a tree. None: the current mode.

    Attributes:
        step: The number of updates so far.
        opt_state: The state of the transformation.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sonde import nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        >>> graphdef, params = nnx.split(model, nnx.Param)
        >>> loss = lambda params: (nnx.merge(graphdef, params)(jnp.ones((1, 2))) ** 2).sum()
        >>> before = loss(params)
        >>> updates = optimizer.update(model, jax.grad(loss)(params))
        >>> bool(loss(nnx.state(model, nnx.Param)) < before), int(optimizer.step)
        (True, 1)
    """

    def __init__(
        self, model: M, tx: optax.GradientTransformation, *, wrt: Filter = _MISSING, graph: bool | None = None
    ):
        if wrt is _MISSING:
            raise TypeError(
                "Missing required argument `wrt`: which Variables of the model to update, such as "
                "nnx.Optimizer(model, tx, wrt=nnx.Param). nnx.ModelAndOptimizer updates nnx.Param by default."
            )
        self.graph = graph
        self.step = OptState(jnp.array(0, dtype=jnp.uint32))
        self.tx = tx
        self.opt_state = data(_as_opt_state(tx.init(split_merge.state(model, wrt, graph=graph))))
        self.wrt = wrt

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise AttributeError(
                f"{type(self).__name__} has no attribute 'model': it does not keep the model it was made for. Use "
                "nnx.ModelAndOptimizer to keep both together."
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def update(self, model: M, grads: Any = _MISSING, /, **kwargs: Any) -> Any:
        """Updates the model's parameters and the optimizer's own state.

        Args:
            model: The model.
            grads: Gradients with respect to the Variables that `wrt` chose; others are ignored.
            **kwargs: For the transformation's `update`, such as `value=loss`.

        Returns:
            The changes of the parameters, as a State of arrays.

        Raises:
            TypeError: Only one argument is given.
            ValueError: A parameter has no gradient, or one of another shape.
        """
        if grads is _MISSING:
            raise TypeError(
                "Missing required argument `grads`: call optimizer.update(model, grads). nnx.ModelAndOptimizer takes "
                "gradients alone."
            )
        params = pure(split_merge.state(model, self.wrt, graph=self.graph))
        grads = state_in(grads)
        grads = pure(split_merge.state(grads, graph=self.graph) if isinstance(grads, Pytree) else grads)
        grads = _checked_gradients(grads, params, self.wrt)
        # a Variable may hold a value without leaves, for example where optax.masked leaves out a parameter
        remembered, form = jax.tree.flatten(self.opt_state, is_leaf=_is_variable)
        old_state = form.unflatten([variable.get_value() for variable in remembered])
        updates, new_state = self.tx.update(grads, old_state, params, **pure(kwargs))
        update(model, optax.apply_updates(params, updates))
        for variable, value in zip(remembered, form.flatten_up_to(new_state)):
            variable.set_value(value)
        self.step.set_value(self.step.get_value() + 1)
        return updates


class ModelAndOptimizer(Optimizer[M]):
    """An optimizer that keeps its model, as `nnx.Optimizer` once did.

    Args:
        model: The model whose parameters will be updated.
        tx: The transformation.
        wrt: Which of the model's Variables; the same filter as for the gradients.

    Example:
        >>> import optax
        >>> from sonde import nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.ModelAndOptimizer(model, optax.sgd(0.1)).model is model
        True
    """

    def __init__(self, model: M, tx: optax.GradientTransformation, *, wrt: Filter = Param):
        super().__init__(model, tx, wrt=wrt)
        self.model = model

    def update(self, grads: Any, /, **kwargs: Any) -> Any:  # type: ignore[override]
        """Updates the model's parameters and the optimizer's own state; see `Optimizer.update`."""
        return super().update(self.model, grads, **kwargs)


def _is_variable(x: object) -> bool:
    return isinstance(x, Variable)


def _as_opt_state(tree: object) -> Any:
    """Turns Variables in optax's state into OptVariables with the same metadata, and arrays into OptArrays."""

    def convert(x: object) -> OptState:
        if not isinstance(x, Variable):
            return OptArray(x)
        metadata = x.get_metadata()
        if metadata.get("optimizer_sharding") is None:
            return OptVariable.from_metadata(x.get_raw_value(), metadata)
        metadata["out_sharding"] = metadata["optimizer_sharding"]
        variable = OptVariable.from_metadata(x.get_raw_value(), metadata)
        # optax has made the moment with the sharding of the parameter.
        variable.set_raw_value(place_value(x.get_raw_value(), variable._metadata))
        return variable

    return jax.tree.map(convert, tree, is_leaf=_is_variable)


def _checked_gradients(grads: object, params: object, wrt: Filter) -> Any:
    """The gradients of the parameters, in the same form; other gradients are left out.

    Raises:
        ValueError: One is missing or has another shape; the first few are named.
    """
    have, want = dict(_leaves(grads)), dict(_leaves(params))
    problems = [f"{p} is missing" for p in want if p not in have]
    problems += [
        f"{p} has shape {jnp.shape(have[p])}, expected {jnp.shape(want[p])}"
        for p in want
        if p in have and jnp.shape(have[p]) != jnp.shape(want[p])
    ]
    if not problems:
        return jax.tree.structure(params).unflatten([have[p] for p in want])
    more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise ValueError(
        f"The gradients given to Optimizer.update do not fit the parameters chosen by wrt={wrt}: "
        f"{', '.join(problems[:5])}{more}. Take them with respect to the same Variables, "
        "nnx.grad(loss, argnums=nnx.DiffState(0, wrt))."
    )


def _leaves(tree: State[Any, Any] | Any) -> list[tuple[str, Any]]:
    return [
        ("/".join(str(key_of(key)) for key in path) or "the gradient", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
