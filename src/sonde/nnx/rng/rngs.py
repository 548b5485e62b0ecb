"""Random numbers: streams of keys that count the keys they give.

An `RngStream` holds a key and a counter; calling it folds the counter into the key and increments it. `Rngs` holds
several streams by name; a name it does not have falls back to the stream `default`. Both are Pytrees, so the counters
are part of a model's state: the same seed gives the same keys as in Flax, and checkpoints move both ways.

Every function of `jax.random` that takes a key, and the initializers of `jax.nn.initializers`, are methods of both,
without the key: `rngs.normal((2, 3))`, `rngs.params.lecun_normal()((2, 3))`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from sonde._jax import Tracer
from sonde.nnx.modules.pytree import Pytree, attributes
from sonde.nnx.states.filters import to_predicate
from sonde.nnx.variable.variable import Variable

RngValue: TypeAlias = "int | jax.Array"
Shape: TypeAlias = "int | tuple[int, ...]"
ShapeByFilter: TypeAlias = "Shape | Mapping[Any, Shape | None] | None"

_DISTRIBUTIONS = """
    ball bernoulli beta binomial bits categorical cauchy chisquare choice dirichlet double_sided_maxwell exponential f
    gamma generalized_normal geometric gumbel laplace loggamma logistic lognormal maxwell multinomial
    multivariate_normal normal orthogonal pareto permutation poisson rademacher randint rayleigh t triangular
    truncated_normal uniform wald weibull_min
"""
_INITIALIZERS = """
    delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal
    lecun_uniform variance_scaling xavier_normal xavier_uniform
"""


class RngState(Variable[jax.Array]):
    """The state of a stream of random keys."""

    __slots__ = ()
    tag: str


class RngCount(RngState):
    """How many keys a stream has given."""

    __slots__ = ()


class RngKey(RngState):
    """The key of a stream."""

    __slots__ = ()


class _KeySource(Pytree):
    """Gives a new key when called; the methods are made below."""

    def __call__(self) -> jax.Array:
        """A new key."""
        raise TypeError(f"{type(self).__name__} gives no keys")

    def __getattr__(self, name: str) -> Any:  # for type checkers: the methods named above
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


def _drawing(name: str) -> Callable[..., Any]:
    draw = getattr(jax.random, name)

    @functools.wraps(draw)
    def method(self: _KeySource, *args: Any, **kwargs: Any) -> Any:
        return draw(self(), *args, **kwargs)

    return method


def _initializing(name: str) -> Callable[..., Any]:
    make = getattr(jax.nn.initializers, name)

    @functools.wraps(make)
    def method(self: _KeySource, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        initializer = make(*args, **kwargs)
        return lambda shape, *more, **options: initializer(self(), shape, *more, **options)

    return method


for _name in _DISTRIBUTIONS.split():
    setattr(_KeySource, _name, _drawing(_name))
for _name in _INITIALIZERS.split():
    setattr(_KeySource, _name, _initializing(_name))


def as_key(value: object) -> jax.Array:
    """A typed key from a seed, a typed key or an old-style one.

    Raises:
        ValueError: It is none of them.
    """
    if isinstance(value, Variable):
        value = value.get_value()
    if isinstance(value, int) and not isinstance(value, bool):
        return jax.random.key(value)
    if isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return value
        if value.dtype == jnp.uint32 and value.ndim:
            return jax.random.wrap_key_data(value)
        if value.ndim == 0 and isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.integer):
            return jax.random.key(value)
    raise ValueError(
        f"Not a seed: {value!r}. A stream is made from an int, from jax.random.key(...), or from another stream."
    )


class RngStream(_KeySource):
    """A stream of keys.

    Args:
        key: A seed or a key.
        tag: The name of the stream.

    Example:
        >>> from sonde import nnx
        >>> stream = nnx.RngStream(0, tag="noise")
        >>> a, b = stream(), stream()
        >>> int(stream.count)
        2
    """

    def __init__(self, key: RngValue, *, tag: str):
        key = as_key(key)
        self.tag = tag
        self.key = RngKey(key, tag=tag)
        self.count = RngCount(jnp.zeros(key.shape, jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """A new key.

        Raises:
            ValueError: The stream was split and is called outside a function mapped over it.
            TraceContextError: The stream was made at another trace level.
        """
        # Counting at another level would be lost, and the next call would give the same key.
        self.count._check_level()
        count = self.count.get_value()
        if self.key.shape:
            raise ValueError(
                f"The stream '{self.tag}' holds {self.key.shape} keys, because it was split; call it inside a function "
                f"mapped over it (nnx.vmap, nnx.scan), where it holds one."
            )
        key = jax.random.fold_in(self.key.get_value(), count)
        self.count.set_value(count + 1)
        return key

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """A new stream that starts from a key of this one; with `split`, the same as `split(...)`."""
        return RngStream(self(), tag=self.tag) if split is None else self.split(split)

    def split(self, k: Shape) -> RngStream:
        """A new stream that holds an array of keys of the given shape."""
        return RngStream(jax.random.split(self(), k), tag=self.tag)

    def broadcast(self, k: Shape) -> RngStream:
        """A new stream that holds the same key many times."""
        return RngStream(jnp.broadcast_to(self(), (k,) if isinstance(k, int) else tuple(k)), tag=self.tag)


class Rngs(_KeySource):
    """Streams of keys by name.

    Args:
        default: The seed of the stream `default`, or a mapping from names to seeds.
        **rngs: Seeds by name. A seed is an int, a key or a stream.

    Example:
        >>> from sonde import nnx
        >>> rngs = nnx.Rngs(0, dropout=1)
        >>> rngs.params().shape, list(rngs)  # there is no stream `params`, so `default` answers
        ((), ['dropout', 'default'])
    """

    def __init__(self, default: RngValue | RngStream | Mapping[str, Any] | None = None, **rngs: Any):
        if isinstance(default, Mapping):
            rngs = {**default, **rngs}
        elif default is not None:
            rngs["default"] = default
        for name, seed in rngs.items():
            if isinstance(seed, Rngs):
                raise ValueError(f"Not a seed: Rngs for the stream '{name}'. Pass one of its streams, or an int.")
            # A stream given as a seed is copied from its start: it gives the same keys again.
            stream = seed.key.get_value() if isinstance(seed, RngStream) else seed
            setattr(self, name, RngStream(stream, tag=name))

    def _stream(self, name: str, error: type[Exception]) -> RngStream:
        streams = attributes(self)
        if name in streams:
            return streams[name]
        if "default" in streams:
            return streams["default"]
        raise error(
            f"Rngs has no stream '{name}' and no default, only {list(streams)}. Make it: "
            f"nnx.Rngs({name}=seed), or nnx.Rngs(seed) for a default that serves every name."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._stream(name, AttributeError)

    def __getitem__(self, name: str) -> RngStream:
        return self._stream(name, KeyError)

    def __call__(self) -> jax.Array:
        """A new key of the stream `default`."""
        return self._stream("default", AttributeError)()

    def __iter__(self) -> Iterator[str]:
        return iter(attributes(self))

    def __len__(self) -> int:
        return len(attributes(self))

    def __contains__(self, name: object) -> bool:
        return name in attributes(self)

    def keys(self) -> KeysView[str]:
        """The names."""
        return attributes(self).keys()

    def items(self) -> ItemsView[str, RngStream]:
        """Pairs of name and stream."""
        return attributes(self).items()

    def fork(self, /, *, split: ShapeByFilter = None) -> Rngs:
        """New streams, each started from a key of one of these; those that `split` names hold several keys."""
        return self._replaced(split, "split", otherwise=RngStream.fork)

    def split(self, k: ShapeByFilter) -> Rngs:
        """New streams that hold arrays of keys.

        Args:
            k: The shape, for all streams or by filters such as names; streams that no filter matches are kept as
                copies.
        """
        return self._replaced(k, "split", otherwise=_kept)

    def broadcast(self, k: ShapeByFilter) -> Rngs:
        """New streams that hold the same key many times; see `split` for the argument."""
        return self._replaced(k, "broadcast", otherwise=_kept)

    def _replaced(self, shapes: ShapeByFilter, how: str, *, otherwise: Callable[[RngStream], RngStream]) -> Rngs:
        shape_of = shape_by_stream(shapes)
        new_rngs = Rngs()
        for name, stream in attributes(self).items():
            shape = shape_of((name,), stream)
            setattr(new_rngs, name, otherwise(stream) if shape is None else getattr(stream, how)(shape))
        return new_rngs


def _kept(stream: RngStream) -> RngStream:
    return stream


def shape_by_stream(shapes: ShapeByFilter) -> Callable[[tuple[Any, ...], RngStream], Shape | None]:
    """A function from path and stream to the shape requested for it, or None."""
    if shapes is None:
        return lambda path, stream: None
    if not isinstance(shapes, Mapping):
        return lambda path, stream: shapes
    rules: list[tuple[Any, Any]] = [(to_predicate(f), shape) for f, shape in shapes.items()]
    return lambda path, stream: next((shape for match, shape in rules if match(path, stream)), None)
