"""A train state for functional code: everything a training step carries, in one immutable pytree."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import optax

from sonde.nnx.structure.split_merge import GraphDef

M = TypeVar("M")


@dataclasses.dataclass(frozen=True)
class TrainState(Generic[M]):
    """Parameters, optimizer state and step count, with the model's structure and the optimizer as the static part.

    Subclasses may add fields, which become part of the pytree; `dataclasses.field(metadata={"pytree_node": False})`
    makes one static.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sonde import nnx
        >>> graphdef, params = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> state = nnx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.1))
        >>> loss = lambda params: (graphdef.apply(params)(jnp.ones((1, 2)))[0] ** 2).sum()
        >>> state = state.apply_gradients(jax.grad(loss)(state.params))
        >>> int(state.step)
        1
    """

    graphdef: GraphDef[M] = dataclasses.field(metadata={"pytree_node": False})
    params: Any
    opt_state: Any
    step: jax.Array
    tx: optax.GradientTransformation = dataclasses.field(metadata={"pytree_node": False})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(dataclasses.dataclass(frozen=True)(cls))

    @classmethod
    def create(
        cls, graphdef: GraphDef[Any], *, params: Any, tx: optax.GradientTransformation, step: int = 0, **kwargs: Any
    ) -> Self:
        """A train state with a fresh optimizer state.

        Args:
            graphdef: The model's structure, from `nnx.split`.
            params: Its parameters.
            tx: The optimizer.
            step: The initial step count.
            **kwargs: The fields of a subclass.

        Returns:
            The train state.
        """
        return cls(graphdef=graphdef, params=params, opt_state=tx.init(params), step=jnp.asarray(step), tx=tx, **kwargs)

    def apply(self, state: Any, *states: Any) -> Any:
        """Calls the model with some of the states, or names of fields that hold them: `state.apply("params")(x)`.

        The object returned is called like the model, and has its methods; see `GraphDef.apply`.
        """
        states_to_merge = (getattr(self, s) if isinstance(s, str) else s for s in (state, *states))
        return self.graphdef.apply(*states_to_merge)

    def apply_gradients(self, grads: Any, **kwargs: Any) -> Self:
        """The train state after one optimizer step on gradients of `params`; `kwargs` are fields to replace as well."""
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        return self.replace(
            step=self.step + 1, params=optax.apply_updates(self.params, updates), opt_state=opt_state, **kwargs
        )

    def replace(self, **updates: Any) -> Self:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **updates)  # type: ignore[type-var]


def _register(cls: type) -> None:
    static = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("pytree_node", True)]
    children = [f.name for f in dataclasses.fields(cls) if f.metadata.get("pytree_node", True)]
    jax.tree_util.register_dataclass(cls, data_fields=children, meta_fields=static)


_register(TrainState)
