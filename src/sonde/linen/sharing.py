"""`nn.share_scope`: two modules with one set of names."""

from __future__ import annotations

from sonde.errors import CallShareScopeOnUnboundModuleError
from sonde.linen.module import Module


def share_scope(module: Module, other: Module, /) -> None:
    """Gives two modules one scope: what either creates gets its name in the scope of the outer one.

    Used in `setup` by a module that wraps another and must not appear in the paths of parameters.

    Args:
        module: One module, usually `self`.
        other: The other module. If it was created by `module`, it takes over the scope of `module`; otherwise `module`
            takes over its scope.

    Raises:
        CallShareScopeOnUnboundModuleError: one of them has no scope yet.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> class Twice(nn.Module):
        ...     layer: nn.Module
        ...     def setup(self):
        ...         nn.share_scope(self, self.layer)
        ...     def __call__(self, x):
        ...         return self.layer(self.layer(x))
        >>> sorted(Twice(nn.Dense(3)).init(jax.random.key(0), jnp.ones(3))["params"])
        ['bias', 'kernel']
    """
    for each in (module, other):
        if each.scope is None:
            raise CallShareScopeOnUnboundModuleError(
                f"nn.share_scope was given {type(each).__name__}, which is not bound to variables; call it in "
                "setup, or in a "
                "compact method"
            )
    mine, theirs = module.scope, other.scope
    assert mine is not None
    assert theirs is not None
    if any(scope.identity == mine.identity for scope in theirs.ancestors()):
        _move(other, to=module)
    elif any(scope.identity == theirs.identity for scope in mine.ancestors()):
        _move(module, to=other)
    else:
        # Siblings: the module that was given from outside keeps its scope.
        _move(module, to=other)


def _move(module: Module, *, to: Module) -> None:
    """Gives a module, and what it has made, the scope of another one."""
    scope = to.scope
    assert scope is not None
    object.__setattr__(module, "scope", scope)
    for name, child in list(module._state.children.items()):
        if child.parent is module and child is not to:
            child_scope = scope.child(name)
            object.__setattr__(child, "scope", child_scope)
            _move_children(child)


def _move_children(module: Module) -> None:
    scope = module.scope
    assert scope is not None
    for name, child in module._state.children.items():
        if child.parent is module:
            object.__setattr__(child, "scope", scope.child(name))
            _move_children(child)
