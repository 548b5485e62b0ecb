"""Module: the base class of layers and models."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from sonde.core import SESSIONS
from sonde.flax.flags import flag
from sonde.nnx.modules import module_sites
from sonde.nnx.modules.pytree import Pytree, PytreeMeta
from sonde.nnx.modules.recording import captures_of
from sonde.nnx.states.filters import Filter, PathParts, to_predicate
from sonde.nnx.structure import iteration
from sonde.nnx.variable import type_names
from sonde.nnx.variable.kinds import Perturbation
from sonde.nnx.variable.variable import Variable

T = TypeVar("T")

A = TypeVar("A")
_GUIDE = "Wrap the call: `nnx.capture(model, nnx.Intermediate)(x)` returns the output and what was recorded."


def _append(seen: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    return (*seen, value)


class ModuleMeta(PytreeMeta):
    """The metaclass of Modules."""


class Module(Pytree, metaclass=ModuleMeta):
    """The base class of layers and models.

    Submodules, Variables and arrays are assigned as attributes in `__init__`; any method may be the forward pass.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> class Scale(nnx.Module):
        ...     def __init__(self, size):
        ...         self.factor = nnx.Param(jnp.full(size, 2.0))
        ...     def __call__(self, x):
        ...         return x * self.factor
        >>> Scale(2)(jnp.ones(2))
        Array([2., 2.], dtype=float32)
    """

    #: Whether the methods in a class body are prepared for `capture(..., method_outputs=...)`; False for containers.
    _observes_methods = True
    _is_module = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls._observes_methods:
            cls._observes_methods = True  # for subclasses of this class
            return
        # Prepared once for each class: a call outside of captures then costs one more comparison.
        methods = {name: member for name, member in vars(cls).items() if _is_observed(name, member)}
        for name, member in _mixed_in(cls).items():
            if _is_observed(name, member):
                methods[name] = _from_bases(cls, name, member)
        for name, member in methods.items():
            setattr(cls, name, module_sites.observed(name, member))

    # -------------------------------------------------------------------------------------------- captures

    def sow(
        self,
        variable_type: type[Variable[Any]] | str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
        capture_noop: bool | None = None,
    ) -> bool:
        """Records a value under a name, for `nnx.capture` to return.

        Outside a capture the value is stored in the Module, as a Variable in the attribute `name`; this is deprecated.

        Args:
            variable_type: The type of Variable to record it as, or a name of one.
            name: The name.
            value: What to record; any pytree.
            reduce_fn: Combines what was recorded before with the value; appends to a tuple by default.
            init_fn: Makes the initial value for `reduce_fn`.
            capture_noop: Whether to do nothing outside a capture; None: as the flag `nnx_sow_capture_noop` says.

        Returns:
            Whether the value was recorded.

        Raises:
            ValueError: The attribute exists and is not a Variable of that type.
        """
        variable_type = _variable_type(variable_type)
        combine = None if reduce_fn is _append else reduce_fn
        recorded = module_sites.sow(self, variable_type, name, value, combine, init_fn)
        if recorded is not None:
            return recorded
        if _does_nothing(capture_noop):
            return False
        held = _held(self, name, variable_type, "sow")
        if held is None:
            setattr(self, name, variable_type(reduce_fn(init_fn(), value)))
        elif type(held) is variable_type:
            held.set_value(reduce_fn(held.get_value(), value))
        else:
            raise _taken(self, name, held, variable_type, "sow")
        _warn_of_storing(self, name, "sow")
        return True

    def perturb(
        self,
        name: str,
        value: T,
        variable_type: type[Variable[Any]] | str = Perturbation,
        capture_noop: bool | None = None,
    ) -> T:
        """Marks a value whose gradient is wanted; use the value that it returns.

        Within `nnx.capture`, the value that the capture holds under `name` is added, so the gradient with respect to it
        is the gradient at this point. Outside a capture a zero is stored in the Module, as a Variable in the attribute
        `name`; this is deprecated.

        Args:
            name: The name.
            value: The value; any pytree of arrays.
            variable_type: The type of Variable to record it as, or a name of one.
            capture_noop: Whether to do nothing outside a capture; None: as the flag `nnx_sow_capture_noop` says.

        Raises:
            ValueError: The attribute exists and is not a Variable of that type.
        """
        variable_type = _variable_type(variable_type)
        perturbed = module_sites.perturb(self, name, value, variable_type)
        if perturbed is not None:
            return perturbed
        if _does_nothing(capture_noop):
            return value
        held = _held(self, name, variable_type, "perturb")
        shift = jax.tree.map(jnp.zeros_like, value) if held is None else held.get_value()
        if held is None:
            setattr(self, name, variable_type(shift))
        _warn_of_storing(self, name, "perturb")
        return jax.tree.map(jnp.add, shift, value)

    @property
    def __captures__(self) -> tuple[Variable[Any], ...]:
        """What `nnx.capture` has recorded in this Module so far: one Variable per type, with a dict by name.

        The attribute exists only while an `nnx.capture` runs, and only on Modules of its model. Changing it changes
        nothing else.
        """
        captures = captures_of(self) if SESSIONS.threads else None
        if captures is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute '__captures__': no nnx.capture is running"
            )
        return captures

    # ------------------------------------------------------------------------------------------- iteration

    def iter_modules(self) -> Iterator[tuple[PathParts, Module]]:
        """The same as `nnx.iter_modules(self)`, which is preferred."""
        _warn_of_method("iter_modules")
        return iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Any, Any]]:
        """The same as `nnx.iter_children(self)`, which is preferred."""
        _warn_of_method("iter_children")
        return iteration.iter_children(self)

    # ------------------------------------------------------------------------------------------ attributes

    def set_attributes(
        self, *filters: Filter, raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
    ) -> None:
        """Sets attributes of this Module and all Modules in it that have them.

        Args:
            *filters: Which Modules; all by default.
            raise_if_not_found: Whether an attribute that no chosen Module has is an error.
            graph: True allows shared references, False demands a tree. None: the current mode.
            **attributes: The attributes.

        Raises:
            ValueError: No chosen Module has an attribute of that name. Nothing is set then.
        """
        matches = [to_predicate(f) for f in filters] or [to_predicate(True)]
        # Collected before anything is set, because a setter may change the structure that is walked.
        chosen = [m for path, m in iter_modules(self, graph=graph) if any(match(path, m) for match in matches)]
        set_existing_attributes(chosen, attributes, raise_if_not_found=raise_if_not_found)

    def train(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` of all Modules in this one to False.

        Args:
            **attributes: More attributes for `set_attributes`.
        """
        self.set_attributes(deterministic=False, use_running_average=False, **attributes, raise_if_not_found=False)

    def eval(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` of all Modules in this one to True.

        Args:
            **attributes: More attributes for `set_attributes`.
        """
        self.set_attributes(deterministic=True, use_running_average=True, **attributes, raise_if_not_found=False)


def _mixed_in(cls: type[Module]) -> dict[str, Any]:
    """What a class gets from bases that are not prepared: no Modules, and not of Python's own library."""
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        if issubclass(base, Pytree):
            # a Module that comes earlier in the order of bases overrides the mixin, or has prepared its methods
            for name in vars(base):
                members.pop(name, None)
        elif base.__module__.partition(".")[0] not in sys.stdlib_module_names:
            members.update(vars(base))
    return {name: member for name, member in members.items() if name not in vars(cls)}


def _from_bases(cls: type[Module], name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the one of the bases; which one that is depends on the class of the object."""

    @functools.wraps(member)
    def method(self: Module, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(cls, self), name)(*args, **kwargs)

    return method


def _is_observed(name: str, member: object) -> bool:
    return isinstance(member, types.FunctionType) and (not name.startswith("_") or name == "__call__")


def _held(module: Module, name: str, variable_type: type[Variable[Any]], verb: str) -> Variable[Any] | None:
    """The Variable that an attribute holds from an earlier call, None when there is no such attribute yet."""
    if not hasattr(module, name):
        return None
    held = getattr(module, name)
    if isinstance(held, variable_type):
        return held
    raise _taken(module, name, held, variable_type, verb)


def _taken(module: Module, name: str, held: object, variable_type: type[Variable[Any]], verb: str) -> ValueError:
    requirement = f"of type '{variable_type.__name__}', found '{type(held).__name__}'"
    if not isinstance(held, Variable):
        requirement = f"a Variable, got {type(held).__name__}"
    return ValueError(
        f"{type(module).__name__}.{verb}({name!r}) stores its value, and needs that attribute to be {requirement}. Use "
        f"another name, or capture: {_GUIDE}"
    )


def _does_nothing(capture_noop: bool | None) -> bool:
    return flag("nnx_sow_capture_noop") if capture_noop is None else capture_noop


def _warn_of_storing(module: Module, name: str, verb: str) -> None:
    cls = type(module).__name__
    warnings.warn(
        f"{cls}.{verb}({name!r}) is called without nnx.capture and stores its value in the {cls}, which is "
        f"deprecated. {_GUIDE}",
        DeprecationWarning,
        stacklevel=3,
    )


def _warn_of_method(name: str) -> None:
    warnings.warn(f"Module.{name} is deprecated: write nnx.{name}(m) for m.{name}().", DeprecationWarning, stacklevel=3)


def _variable_type(variable_type: type[Variable[Any]] | str) -> type[Variable[Any]]:
    if isinstance(variable_type, str):
        return type_names.variable_type_from_name(variable_type, allow_register=True)
    return variable_type


def set_existing_attributes(modules: list[Any], attributes: dict[str, Any], *, raise_if_not_found: bool) -> None:
    """Sets attributes of the Modules that have them.

    Raises:
        ValueError: No Module has an attribute of that name and `raise_if_not_found` is True. Nothing is set then.
    """
    missing = [name for name in attributes if not any(hasattr(module, name) for module in modules)]
    if missing and raise_if_not_found:
        raise ValueError(
            f"Could not find {sorted(missing)} in any of the {len(modules)} chosen Modules "
            f"({', '.join(sorted({type(m).__name__ for m in modules})) or 'none'}). Choose others, or pass "
            "raise_if_not_found=False to set only what exists."
        )
    for module in modules:
        for name, value in attributes.items():
            if hasattr(module, name):
                setattr(module, name, value)


def iter_modules(module: object, /, *, graph: bool | None = None) -> Iterator[tuple[PathParts, Module]]:
    """Pairs of path and Module for every Module in a model, children first, the model itself last.

    Args:
        module: A Module, any other node, or a pytree of them.
        graph: True allows shared references (each is visited once), False demands a tree. None: the current mode.

    Example:
        >>> from sonde import nnx
        >>> [path for path, _ in nnx.iter_modules(nnx.Dict(a=nnx.Dict(), b=nnx.Dict()))]
        [('a',), ('b',), ()]
    """
    for path, node in iteration.iter_nodes(module, graph=graph, verb="iter_modules"):
        if isinstance(node, Module):
            yield path, node


def iter_module_children(node: object, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Module]]:
    """Pairs of name and Module for the Modules right below a node."""
    for name, child in iteration.iter_children(node, graph=graph):
        if isinstance(child, Module):
            yield name, child
