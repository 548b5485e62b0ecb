"""`TrainState`: everything a training step of a functional model carries, in one immutable pytree.

For models of `sonde.linen`; for those of `sonde.nnx` there are `nnx.Optimizer` and `nnx.TrainState`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from sonde.flax import struct

if TYPE_CHECKING:
    import optax

#: The collection whose values are replaced by their gradients, not updated: the scales of 8-bit floating point layers.
OVERWRITE_WITH_GRADIENT = "_overwrite_with_gradient"


class TrainState(struct.PyTreeNode):
    """Parameters, optimizer state and step count, with the model and the optimizer as the static part.

    Subclasses may add fields: batch statistics, keys.

    Attributes:
        step: The number of updates so far.
        apply_fn: The model, usually `model.apply`.
        params: The parameters.
        tx: The optimizer, of optax.
        opt_state: Its state.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from sonde import linen
        >>> from sonde.flax import training
        >>> model = linen.Dense(3)
        >>> params = model.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
        >>> state = training.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))
        >>> loss = lambda params: (state.apply_fn({"params": params}, jnp.ones((1, 2))) ** 2).sum()
        >>> state = state.apply_gradients(grads=jax.grad(loss)(state.params))
        >>> int(state.step)
        1
    """

    step: Any
    apply_fn: Callable[..., Any] = struct.field(pytree_node=False)
    params: Any = struct.field(pytree_node=True)
    tx: Any = struct.field(pytree_node=False)
    opt_state: Any = struct.field(pytree_node=True)

    def apply_gradients(self, *, grads: Any, **kwargs: Any) -> Self:
        """The train state after one optimizer step.

        Args:
            grads: Gradients with respect to `params`.
            **kwargs: Fields to replace as well.

        Returns:
            The new train state.
        """
        import optax

        overwrites = isinstance(grads, Mapping) and OVERWRITE_WITH_GRADIENT in grads
        trained_grads, old_params = (grads["params"], self.params["params"]) if overwrites else (grads, self.params)
        updates, opt_state = self.tx.update(trained_grads, self.opt_state, old_params)
        params = optax.apply_updates(old_params, updates)
        if overwrites:
            params = {"params": params, OVERWRITE_WITH_GRADIENT: grads[OVERWRITE_WITH_GRADIENT]}
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **kwargs)

    @classmethod
    def create(
        cls, *, apply_fn: Callable[..., Any], params: Any, tx: optax.GradientTransformation, **kwargs: Any
    ) -> Self:
        """A train state with a fresh optimizer state, at step 0.

        Args:
            apply_fn: The model, usually `model.apply`.
            params: The parameters.
            tx: The optimizer.
            **kwargs: The fields of a subclass.

        Returns:
            The train state.
        """
        trained = params["params"] if isinstance(params, Mapping) and OVERWRITE_WITH_GRADIENT in params else params
        return cls(step=0, apply_fn=apply_fn, params=params, tx=tx, opt_state=tx.init(trained), **kwargs)
