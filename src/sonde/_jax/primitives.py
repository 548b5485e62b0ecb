"""What primitives do with their operands: the one table that all walks over equations read.

A walk asks the table whether a value is passed on, changed or computed. What a primitive without an entry does is
not known, and a walk ends there or runs the operation to find out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sonde._jax.imported import Primitive

__all__ = ["CALLS", "Facts", "facts_of", "moved_operands", "only_moves"]


class Facts(NamedTuple):
    """What a primitive does.

    Attributes:
        data: The operands whose elements are the elements of the result; None stands for all. The other operands say
            which element goes where. Empty if the result is computed.
        one_by_one: Whether each operand is passed on as the result at its position.
        elementwise: Whether an element of the result depends on the elements at the same place of the operands alone.
        exact: Whether the result is not rounded.
        picks: Whether the values of its operands decide which element becomes the result.
        keeps_role: Whether the result is a changed form of each operand, as a scaled weight is still that weight.
    """

    data: tuple[int, ...] | None = ()
    one_by_one: bool = False
    elementwise: bool = False
    exact: bool = False
    picks: bool = False
    keeps_role: bool = False


_UNKNOWN = Facts()
_MOVED = Facts(data=(0,), exact=True, keeps_role=True)
_MOVED_IN_PLACE = _MOVED._replace(elementwise=True)
_ARITHMETIC = Facts(elementwise=True, keeps_role=True)
_FUNCTION = Facts(elementwise=True)  # of one value or several: the result is a new value

_GROUPS: list[tuple[Facts, str]] = [
    (
        _MOVED,
        """
        dynamic_slice expand_dims gather reshape rev slice split squeeze tile transpose unstack broadcast
        broadcast_in_dim
    """,
    ),
    (
        _MOVED_IN_PLACE,
        """
        copy copy_p mesh_cast name pbroadcast pcast pvary reduce_precision reshard sharding_constraint stop_gradient
    """,
    ),
    (_MOVED_IN_PLACE._replace(exact=False), "convert_element_type"),
    (_MOVED_IN_PLACE._replace(one_by_one=True), "device_put"),
    (_MOVED._replace(one_by_one=True), "optimization_barrier opt_barrier"),
    (_MOVED._replace(one_by_one=True, keeps_role=False), "sonde_along sonde_mapped_while"),
    (_MOVED._replace(data=None), "concatenate stack"),
    (_MOVED._replace(data=(0, 1)), "dynamic_update_slice"),
    (_MOVED._replace(data=(0, 1), keeps_role=False), "pad"),
    (_MOVED._replace(data=(0, 2)), "scatter"),
    (Facts(data=None, elementwise=True, exact=True, picks=True, keeps_role=True), "max min"),
    # The bounds of `clamp` and the cases of `select_n` (below) are operands of their own.
    (Facts(data=(1,), elementwise=True, exact=True, picks=True, keeps_role=True), "clamp"),
    (Facts(data=(0,), exact=True, picks=True), "reduce_max reduce_min cummax cummin"),
    (Facts(exact=True), "argmax argmin bitcast_convert_type iota sort top_k sonde_marker"),
    (Facts(exact=True, keeps_role=True), "select_n sonde_site"),
    (_ARITHMETIC._replace(exact=True), "abs neg sign ceil floor round and or not real"),
    (
        _ARITHMETIC,
        """
        add add_any cos div exp expm1 integer_pow log log1p logistic mul pow rsqrt sin sqrt square sub tanh
    """,
    ),
    (_FUNCTION._replace(exact=True), "eq ge gt le lt ne is_finite imag complex conj clz population_count"),
    (
        _FUNCTION,
        """
        acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cosh digamma erf erf_inv erfc exp2 igamma
        igammac igamma_grad_a lgamma mulhi nextafter polygamma random_gamma_grad regularized_incomplete_beta rem
        shift_left shift_right_arithmetic shift_right_logical sinh tan xor zeta
    """,
    ),
    (Facts(keeps_role=True), "scatter-add scatter_add scatter_mul"),
]
_TABLE: Mapping[str, Facts] = {name: facts for facts, names in _GROUPS for name in names.split()}

# Calls that run the one program among their parameters, with their own operands, and return what it returns.
CALLS = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "custom_vmap_call",
    ]
)


def facts_of(primitive: Primitive | str) -> Facts:
    """What a primitive does, given itself or its name."""
    return _TABLE.get(primitive if isinstance(primitive, str) else primitive.name, _UNKNOWN)


def moved_operands(primitive: Primitive | str, position: int, n_operands: int) -> range | tuple[int, ...]:
    """The operands whose elements are the elements of a result; empty if it is computed.

    Args:
        primitive: The primitive, or its name.
        position: Which of its results.
        n_operands: How many operands there are.
    """
    facts = facts_of(primitive)
    if facts.one_by_one:
        return (position,)
    return range(n_operands) if facts.data is None else facts.data


def only_moves(primitive: Primitive | str) -> bool:
    """Whether a primitive puts elements elsewhere, whatever they are: it neither computes nor picks."""
    facts = facts_of(primitive)
    return facts.data != () and not facts.picks
