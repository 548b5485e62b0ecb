"""Comparing `sonde.linen` with `flax.linen`: the same source for both, the same trees and numbers out of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as flax_nn
import jax
import numpy as np
from tests.same_programs import names_in_order, outcomes_that_differ

from sonde import linen as sonde_nn

KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def plain(tree: Any) -> Any:
    """A tree without the classes that only one of the two has: boxes become pairs of value and names."""
    if isinstance(tree, Mapping):  # one by one: `jax.tree.map` would sort the names
        return type(tree)({name: plain(x) for name, x in tree.items()})
    if type(tree) in (tuple, list):
        return type(tree)(plain(x) for x in tree)
    is_box = lambda x: hasattr(x, "names") and hasattr(x, "value")
    return jax.tree.map(lambda x: (x.value, tuple(x.names)) if is_box(x) else x, tree, is_leaf=is_box)


def assert_same(ours: Any, theirs: Any, *, exact: bool = False) -> None:
    """Both trees have the same structure, the same order of names, and the same shapes, dtypes and numbers."""
    ours, theirs = plain(ours), plain(theirs)
    assert names_in_order(ours) == names_in_order(theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs)):
        where = jax.tree_util.keystr(path)
        assert np.shape(a) == np.shape(b), where
        if hasattr(a, "dtype") and hasattr(b, "dtype"):
            assert a.dtype == b.dtype, where
            if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
        if isinstance(a, str):
            assert a == b, where
        elif exact:
            np.testing.assert_array_equal(a, b, err_msg=where)
        else:
            tolerance = 2e-2 if getattr(a, "dtype", None) in ("bfloat16", "float16") else 1e-5
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=where)


def assert_same_runs(run: Callable[[Any], Any], *, exact: bool = False) -> None:
    """What a function does with either library is the same, as in `check`."""
    if (found := outcomes_that_differ(lambda: plain(run(sonde_nn)), lambda: plain(run(flax_nn)))) is not None:
        assert_same(*found, exact=exact)


def check(
    build: Callable[[Any], Any],
    *args: Any,
    grads: bool = False,
    capture: bool = False,
    in_order: bool = True,
    **kwargs: Any,
) -> None:
    """Builds a module from either library; `init` and `apply` of both must be the same, and the gradients if asked.

    Both are traced first: programs that are the same need not run. The names of variables come in the same order,
    unless `in_order` is False.
    """
    options = {"rngs": KEYS, "mutable": True, "capture_intermediates": capture, **kwargs}

    def loss(module: Any, params: Any, rest: Any) -> Any:
        output = module.apply({"params": params, **rest}, *args, rngs=KEYS, mutable=True, **kwargs)[0]
        leaves = [x for x in jax.tree.leaves(output) if np.issubdtype(x.dtype, np.floating) or x.dtype == "bfloat16"]
        return sum((x.astype("float32") ** 2).sum() for x in leaves)

    def run(module: Any) -> Any:
        output, variables = module.init_with_output(KEYS, *args, **kwargs)
        rest = {name: tree for name, tree in variables.items() if name != "params"}
        gradient = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
        found = plain(
            (
                variables,
                (output, module.apply(variables, *args, **options)),
                gradient(module, variables["params"], rest) if grads else None,
            )
        )
        return found if in_order else jax.tree.map(lambda x: x, found)

    ours, theirs = build(sonde_nn), build(flax_nn)
    if (found := outcomes_that_differ(lambda: run(ours), lambda: run(theirs))) is not None:
        for i, (got, expected) in enumerate(zip(*found)):
            assert_same(got, expected, exact=i == 0)
