"""Random Linen modules, as source for either library: layers with random arguments, in random lifted transforms.

`module(nn, seed)` draws from the seed alone, never from the library, so that both build the same thing.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FEATURES = 4
SHAPE = (2, 6, FEATURES)  # batch, time, features
DTYPES = (None, None, jnp.float32, jnp.bfloat16)


class Draw:
    """Random choices; `precise` makes every array one of doubles."""

    def __init__(self, seed: int, precise: bool):
        self._random = np.random.default_rng(seed)
        self.precise = precise

    def pick(self, *choices: Any) -> Any:
        """One of them."""
        return choices[self._random.integers(len(choices))]

    def flag(self, chance: float = 0.5) -> bool:
        """True with this chance."""
        return bool(self._random.random() < chance)

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self._random.integers(low, high + 1))


def _dtypes(draw: Draw) -> dict[str, Any]:
    drawn = {"dtype": draw.pick(*DTYPES), "param_dtype": draw.pick(jnp.float32, jnp.float32, jnp.bfloat16)}
    return {"param_dtype": jnp.float64} if draw.precise else drawn


def _dense(nn: Any, draw: Draw) -> Any:
    return nn.Dense(FEATURES, use_bias=draw.flag(), **_dtypes(draw))


def _dense_general(nn: Any, draw: Draw) -> Any:
    # contracts the features, or time and features together
    axis, batch = draw.pick((-1, ()), ((-1,), ()), (-1, (0,)))
    return nn.DenseGeneral(FEATURES, axis=axis, batch_dims=batch, use_bias=draw.flag(), **_dtypes(draw))


def _einsum(nn: Any, draw: Draw) -> Any:
    return nn.Einsum(
        (FEATURES, FEATURES), draw.pick("btd,de->bte", "...d,de->...e"), use_bias=draw.flag(), **_dtypes(draw)
    )


def _conv(nn: Any, draw: Draw) -> Any:
    kind = draw.pick(nn.Conv, nn.Conv, nn.ConvLocal)
    options = {"padding": draw.pick("SAME", "CIRCULAR", "CAUSAL", "REFLECT", ((1, 1),), 1), "kernel_size": (3,)}
    if kind is nn.Conv:
        options.update(feature_group_count=draw.pick(1, 2), kernel_dilation=draw.pick(1, 2))
        options["kernel_size"] = draw.pick((3,), 2, (1,))
    return kind(FEATURES, use_bias=draw.flag(), **options, **_dtypes(draw))


def _conv_transpose(nn: Any, draw: Draw) -> Any:
    options = {"padding": draw.pick("SAME", "CIRCULAR"), "strides": draw.pick(None, (1,), (2,))}
    return nn.ConvTranspose(
        FEATURES, draw.pick((2,), (3,)), transpose_kernel=draw.flag(), use_bias=draw.flag(), **options, **_dtypes(draw)
    )


def _norm(nn: Any, draw: Draw) -> Any:
    options = {"epsilon": draw.pick(1e-6, 1e-3), "use_fast_variance": draw.flag(), **_dtypes(draw)}
    which = draw.number(0, 4)
    if which == 0:
        reduced, features = draw.pick(-1, (-2, -1)), draw.pick(-1, (-1, -2))
        return nn.LayerNorm(
            use_bias=draw.flag(), use_scale=draw.flag(), reduction_axes=reduced, feature_axes=features, **options
        )
    if which == 1:
        return nn.RMSNorm(use_scale=draw.flag(), feature_axes=draw.pick(-1, (-1, -2)), **options)
    if which == 2:
        return nn.GroupNorm(**draw.pick({"num_groups": 2}, {"num_groups": None, "group_size": 2}), **options)
    if which == 3:
        return nn.InstanceNorm(use_bias=draw.flag(), **options)
    return nn.BatchNorm(
        use_running_average=draw.flag(0.3),
        momentum=draw.pick(0.9, 0.5),
        axis=draw.pick(-1, -2, (-1, -2)),
        use_bias=draw.flag(),
        use_scale=draw.flag(),
        **options,
    )


def _attention(nn: Any, draw: Draw) -> Any:
    options = {
        "dropout_rate": draw.pick(0.0, 0.3),
        "normalize_qk": draw.flag(),
        "use_bias": draw.flag(),
        **_dtypes(draw),
    }
    layer = nn.MultiHeadDotProductAttention(num_heads=2, deterministic=draw.flag(), **options)
    causal = draw.flag()

    class Attend(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(x[..., 0]) if causal else None
            return self.inner(x, mask=mask)

    return Attend(layer)


def _recurrent(nn: Any, draw: Draw) -> Any:
    kind = draw.pick(nn.LSTMCell, nn.GRUCell, nn.SimpleCell, nn.OptimizedLSTMCell, nn.MGUCell)
    # orthogonal initial values in bfloat16 are more than XLA can compute
    dtypes = lambda: _dtypes(draw) if draw.precise else {**_dtypes(draw), "param_dtype": jnp.float32}
    make = lambda **more: nn.RNN(kind(FEATURES, **dtypes()), keep_order=draw.flag(), **more)
    if draw.flag(0.3):
        return nn.Sequential([nn.Bidirectional(make(), make()), nn.Dense(FEATURES, **_dtypes(draw))])
    return make(reverse=draw.flag(), variable_broadcast=draw.pick("params", ("params",)))


def _dropout(nn: Any, draw: Draw) -> Any:
    return nn.Dropout(
        draw.pick(0.1, 0.5, 0.0, 1.0), broadcast_dims=draw.pick((), (1,), (-1,)), deterministic=draw.flag(0.2)
    )


def _normalized_weight(nn: Any, draw: Draw) -> Any:
    kind = {"param_dtype": jnp.float64 if draw.precise else jnp.float32}
    inner = nn.Dense(FEATURES, use_bias=draw.flag(), **kind)
    if draw.flag():
        return nn.WeightNorm(inner, use_scale=draw.flag(), feature_axes=draw.pick(-1, None, (-1, -2)), **kind)
    layer = nn.SpectralNorm(inner, n_steps=draw.number(1, 2), **kind)

    class Spectral(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            return self.inner(x, update_stats=True)

    return Spectral(layer)


def _function(nn: Any, draw: Draw) -> Any:
    name = draw.pick("relu", "gelu", "silu", "elu", "tanh", "softmax", "log_softmax", "leaky_relu", "softplus", "PReLU")
    if name == "PReLU":
        return nn.PReLU(param_dtype=jnp.float64 if draw.precise else jnp.float32)
    if draw.flag(0.3):
        return functools.partial(draw.pick(nn.avg_pool, nn.max_pool), window_shape=(2,), padding="SAME")
    return getattr(nn, name)


def _embedding(nn: Any, draw: Draw) -> Any:
    class Tokens(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            found = self.inner(jnp.arange(x.shape[-2]) % 7)
            return self.inner.attend(x)[..., :FEATURES] + found

    return Tokens(nn.Embed(7, FEATURES, **_dtypes(draw)))


LAYERS = (
    _dense,
    _dense_general,
    _einsum,
    _conv,
    _conv_transpose,
    _norm,
    _norm,
    _attention,
    _recurrent,
    _dropout,
    _normalized_weight,
    _function,
    _embedding,
)


def _own(nn: Any, draw: Draw, depth: int) -> Any:
    """A module of the user's: parameters, a variable that counts, values that are sown, random numbers, children."""
    named, by_setup, counts, sows, noisy, shared = (draw.flag() for _ in range(6))
    # the layers of a module are made inside it, from a seed: twice the same for `init` and `apply`
    seeds = [draw.number(0, 10**6) for _ in range(draw.number(1, 2))]
    dtype = jnp.float64 if draw.precise else jnp.float32
    scale = draw.pick(nn.initializers.ones, nn.initializers.normal(0.5), nn.initializers.lecun_normal())

    def parts() -> list[Any]:
        return [_part(nn, Draw(seed, draw.precise), depth) for seed in seeds]

    class Common(nn.Module):
        def run(self, x: Any, layers: list[Any], matrix: Any) -> Any:
            for layer in layers:
                x = layer(x)
                if shared and x.shape[1:] == SHAPE[1:]:
                    x = layer(x)
            x = x @ matrix.astype(x.dtype)
            if noisy:
                x = x + 0.1 * jax.random.normal(self.make_rng("dropout"), x.shape, dtype).astype(x.dtype)
            if sows:
                self.sow("intermediates", "h", x)
            return self.perturb("p", x) if sows else x

    class BySetup(Common):
        def setup(self) -> None:
            self.layers = parts()
            self.scale = self.param("scale", scale, (FEATURES, FEATURES), dtype)

        def __call__(self, x: Any) -> Any:
            return self.run(x, self.layers, self.scale)

    class Compact(Common):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            matrix = self.param("scale", scale, (FEATURES, FEATURES), dtype)
            if counts:
                count = self.variable("counters", "n", lambda: jnp.zeros((), jnp.int32))
                if not self.is_initializing():
                    count.value += 1
            return self.run(x, parts(), matrix)

    return (BySetup if by_setup else Compact)(name="mine" if named and depth == 0 else None)


def _part(nn: Any, draw: Draw, depth: int) -> Any:
    """A layer, or a module with layers inside; a lifted transform around it now and then."""
    if depth and draw.flag(0.4):
        return _lifted(nn, draw, depth - 1)
    return draw.pick(*LAYERS)(nn, draw)


def _lifted(nn: Any, draw: Draw, depth: int) -> Any:
    inner_seed, which = draw.number(0, 10**6), draw.number(0, 11)
    length, axis = draw.number(2, 3), draw.pick(0, 0, 1)
    split = {"params": draw.flag(), "dropout": draw.flag()}
    inside = lambda: _own(nn, Draw(inner_seed, draw.precise), depth)
    if which == 0:
        return nn.jit(type(inside()))()
    if which == 1:
        return nn.remat(type(inside()), **draw.pick({}, {"prevent_cse": False}))()
    if which == 7:
        return _intercepted(nn, inside)
    collections = ("params", "batch_stats", "counters", "intermediates", "perturbations")
    axes = {name: (axis if name == "params" and split["params"] else 0) for name in collections}
    if not split["params"]:
        axes["params"] = None
    shared_counters = draw.flag()

    class Around(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer, before = inside(), x
            if which == 2:
                step = lambda module, carry, _: (module(carry).astype(x.dtype), None)
                shared = [
                    name
                    for name in ("params", "counters")
                    if axes[name] is None or (name == "counters" and shared_counters)
                ]
                run = nn.scan(
                    step,
                    variable_axes={name: axis for name, axis in axes.items() if name not in shared},
                    variable_broadcast=shared,
                    split_rngs=split,
                    length=length,
                )
                return run(layer, x, None)[0]
            if which == 3:
                run = nn.vmap(lambda module, x: module(x), in_axes=0, variable_axes=axes, split_rngs=split)
                return run(layer, jnp.stack([x, x * 2])).mean(0)
            if which == 4:
                return nn.map_variables(
                    lambda module, x: module(x),
                    "params",
                    trans_in_fn=lambda tree: jax.tree.map(jnp.abs, tree),
                    init=self.is_initializing(),
                    mutable=self.is_initializing(),
                )(layer, x)
            if which == 5:
                return nn.jit(lambda module, x: module(x) + 1)(layer, x)
            if which == 8:  # twice the same variables, seen in another form
                run = nn.map_variables(
                    lambda module, x: module(x),
                    "params",
                    trans_in_fn=lambda tree: jax.tree.map(lambda p: p / 2, tree),
                    trans_out_fn=lambda tree: jax.tree.map(lambda p: p * 2, tree),
                    init=self.is_initializing(),
                    mutable=True,
                )
                x = run(layer, x)
                return run(layer, x) if x.shape == before.shape else x
            if which == 9:
                if self.is_initializing():
                    layer(x)
                return nn.switch(length - 1, [lambda module, x: module(x) * i for i in range(3)], layer, x)
            if which == 10:
                return nn.fold_rngs(lambda module, x: module(x))(layer, x)
            if which == 11:
                loss = lambda module, x: (module(x).astype(jnp.float32) ** 2).sum()
                value, pullback = nn.vjp(loss, layer, x)
                return x + pullback(jnp.ones_like(value))[1].astype(x.dtype)
            return nn.checkpoint(lambda module, x: module(x) * 2)(layer, x)

    return Around()


def _intercepted(nn: Any, inside: Any) -> Any:
    """A module in a lifted class, with an interceptor around its call."""

    def more(run: Any, args: Any, kwargs: Any, context: Any) -> Any:
        output = run(*args, **kwargs)
        return output + 1 if context.method_name == "__call__" else output

    class Intercepted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            with nn.intercept_methods(more):
                return nn.remat(type(inside()))()(x)

    return Intercepted()


def module(nn: Any, seed: int, *, precise: bool) -> Any:
    """The module of a seed."""
    draw = Draw(seed, precise)
    return _own(nn, draw, depth=draw.number(0, 2))


def inputs(seed: int, *, precise: bool) -> Any:
    """What it is called with."""
    draw = Draw(seed, precise)
    dtype = draw.pick(jnp.float32, jnp.float32, jnp.bfloat16)
    return jnp.asarray(np.random.default_rng(seed).normal(size=SHAPE), jnp.float64 if precise else dtype)


def everything(nn: Any, seed: int, *, precise: bool, rngs: Any) -> Any:
    """What a module does: its initial values, its outputs, what it changes, its gradients. One traced program."""
    built = module(nn, seed, precise=precise)

    @jax.jit
    def run(x: Any) -> dict[str, Any]:
        first, variables = built.init_with_output(rngs, x)
        output, changed = built.apply(variables, x, rngs=rngs, mutable=True)
        rest = {name: tree for name, tree in variables.items() if name != "params"}

        def loss(params: Any, x: Any) -> Any:
            y, changed = built.apply({"params": params, **rest}, x, rngs=rngs, mutable=True)
            leaves = jax.tree.leaves((y, {name: tree for name, tree in changed.items() if name != "params"}))
            squares = [x.astype(jnp.float64 if precise else jnp.float32) ** 2 for x in leaves]
            return sum(x.mean() for x in squares)

        grads = jax.grad(loss, argnums=(0, 1))(variables["params"], x)
        return {"init": variables, "first": first, "output": output, "changed": changed, "grads": grads}

    return run.trace(inputs(seed, precise=precise))
