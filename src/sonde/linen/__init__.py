"""Functional modules."""

from sonde.linen.filters import DenyList as DenyList
from sonde.linen.frozen_dict import *
from sonde.linen.meta import *
from sonde.linen.logical import *
from sonde.linen.methods import compact as compact, nowrap as nowrap, intercept_methods as intercept_methods
from sonde.linen.module import Module as Module, merge_param as merge_param
from sonde.linen.run import apply, init, init_with_output
from sonde.linen.transforms.axes import broadcast
from sonde.linen.transforms.branched import *
from sonde.linen.transforms.compiled import jit, fold_rngs
from sonde.linen.transforms.differentiated import vjp, jvp, value_and_grad, grad, custom_vjp
from sonde.linen.transforms.looped import scan, remat_scan, while_loop
from sonde.linen.transforms.mapped import vmap
from sonde.linen.transforms.recomputed import checkpoint, remat
from sonde.linen.transforms.rewritten import *
from jax.nn import initializers as initializers, relu as relu
