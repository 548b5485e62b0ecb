"""Functional modules."""

from sonde.linen.filters import DenyList as DenyList
from sonde.linen.methods import compact as compact, nowrap as nowrap, intercept_methods as intercept_methods
from sonde.linen.module import Module as Module, merge_param as merge_param
from jax.nn import initializers as initializers, relu as relu
