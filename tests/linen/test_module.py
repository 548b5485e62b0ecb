"""Modules: names, scopes, init, apply, bind, and error messages."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import FlaxError
from tests.linen.against_flax import KEYS, assert_same, assert_same_runs, check

from sonde import errors
from sonde import linen as nn

X = jnp.arange(10.0).reshape(2, 5) / 7
KEY = jax.random.key(0)


def wrapper_of(nn):
    class Wrapper(nn.Module):
        sub: Any

        @nn.compact
        def __call__(self, x):
            x = self.sub(x)
            x = nn.Dense(5)(x)
            x = nn.Dense(5, name="named")(x)
            return nn.Dense(5)(x)

    return Wrapper


def pair_of(nn):
    class Pair(nn.Module):
        first: Any
        second: Any

        def __call__(self, x):
            return self.first(self.second(x))

    return Pair


def in_setup(nn):
    class Model(nn.Module):
        def setup(self):
            self.layers = [nn.Dense(5), nn.Dense(5)]
            self.by_name = {"a": nn.Dense(5), "b": (nn.Dense(5),)}
            self.shared = wrapper_of(nn)(self.layers[0])
            self.own = wrapper_of(nn)(nn.Dense(5))
            self.drop = nn.Dropout(0.5, deterministic=False)
            self.scale = self.param("scale", nn.initializers.normal(), (5,))

        def __call__(self, x):
            x = self.layers[1](self.layers[0](x)) * self.scale
            x = self.by_name["b"][0](self.by_name["a"](x))
            return self.drop(self.own(self.drop(self.shared(x))))

    return Model()


def in_compact(nn):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            wrapper = wrapper_of(nn)(nn.Dense(5))
            x = wrapper(wrapper(x))
            dense = nn.Dense(5)
            y = pair_of(nn)(dense, wrapper_of(nn)(dense))(x)
            mean = self.variable("stats", "mean", jnp.zeros, (5,))
            mean.value = mean.value + x.mean(0)
            noise = jax.random.normal(self.make_rng("dropout"), ()) + jax.random.normal(self.make_rng(), ())
            return y + noise, nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)])(y)

    return Model()


BUILDS = {
    "setup": in_setup,
    "compact": in_compact,
    "one module in two fields": lambda nn: (lambda d: pair_of(nn)(d, d))(nn.Dense(5)),
    "one module in two places": lambda nn: (lambda d: pair_of(nn)(wrapper_of(nn)(d), d))(nn.Dense(5)),
    "named fields": lambda nn: pair_of(nn)(wrapper_of(nn)(nn.Dense(5, name="x")), wrapper_of(nn)(nn.Dense(5))),
    "fields in containers": lambda nn: pair_of(nn)(
        nn.Sequential([nn.Dense(5), nn.Sequential([nn.Dense(5)])]), wrapper_of(nn)(nn.Dense(5))
    ),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_names_and_values_are_those_of_flax(build):
    check(build, X, capture=True)


def test_raw_keys_and_one_key_for_all_streams():
    raw = jax.random.PRNGKey(3)
    for rngs in (raw, {"params": raw}, jax.random.key(3)):
        assert_same_runs(lambda nn, rngs=rngs: in_compact(nn).init(rngs, X), exact=True)


def test_variables_move_both_ways():
    ours, theirs = in_setup(nn), in_setup(flax_nn)
    mine, other = ours.init(KEYS, X), theirs.init(KEYS, X)
    assert_same(ours.apply(other, X, rngs=KEYS), theirs.apply(mine, X, rngs=KEYS))


class Stats(nn.Module):
    @nn.compact
    def __call__(self, x):
        for name in ("a", "b"):
            count = self.variable(name, "count", lambda: jnp.int32(0))
            if self.is_mutable_collection(name):
                count.value += 1
        return nn.Dense(2)(x)


@pytest.mark.parametrize(
    "mutable, expected",
    [
        (True, {"params", "a", "b"}),
        ("a", {"a"}),
        (["a", "b"], {"a", "b"}),
        ({"b"}, {"b"}),
        (nn.DenyList("params"), {"a", "b"}),
        (nn.DenyList(["params", "a"]), {"b"}),
        ([], set()),
        (False, None),
    ],
)
def test_mutable(mutable, expected):
    variables = Stats().init(KEY, X)
    result = Stats().apply(variables, X, mutable=mutable)
    if expected is None:
        assert result.shape == (2, 2)
    else:
        _, changed = result
        assert set(changed) == expected
        assert all(int(changed[name]["count"]) == 2 for name in expected - {"params"})
    assert int(variables["a"]["count"]) == 1


def test_mutable_says_what_a_filter_is():
    with pytest.raises(errors.InvalidFilterError, match=r"a filter of collections .* got 3 of type int"):
        Stats().init(KEY, X, mutable=3)


class Coder(nn.Module):
    def setup(self):
        self.encoder, self.decoder = nn.Dense(3), nn.Dense(5)

    def encode(self, x):
        return jnp.tanh(self.encoder(x))

    def decode(self, z):
        return self.decoder(z)

    def __call__(self, x):
        return self.decode(self.encode(x))


@pytest.mark.parametrize("method", ["encode", Coder.encode, Coder().encode, lambda m, x: m.encode(x)])
def test_method(method):
    variables = Coder().init(KEY, X)
    expected = jnp.tanh(X @ variables["params"]["encoder"]["kernel"])
    np.testing.assert_allclose(Coder().apply(variables, X, method=method), expected, rtol=1e-5)


def test_method_of_a_submodule():
    variables = Coder().init(KEY, X)
    z = Coder().apply(variables, X, method=lambda m, x: m.encoder(x))
    np.testing.assert_allclose(z, X @ variables["params"]["encoder"]["kernel"], rtol=1e-5)


@pytest.mark.parametrize("method, error", [(3, errors.ApplyModuleInvalidMethodError), ("absent", AttributeError)])
def test_method_must_be_one(method, error):
    with pytest.raises(error, match=r"method=(3|'absent')"):
        Coder().init(KEY, X, method=method)


def test_init_with_output_and_lazy_init():
    output, variables = Coder().init_with_output(KEY, X)
    assert_same(output, Coder().apply(variables, X))
    in_order = jax.tree.map(lambda x: x, variables)  # what JAX returns from a transform is sorted by name
    assert_same(Coder().lazy_init(KEY, jax.ShapeDtypeStruct(X.shape, X.dtype)), in_order)
    assert_same(Coder().lazy_init(KEY, X), in_order)


def test_bind_and_unbind():
    variables = Coder().init(KEY, X)
    bound = Coder().bind(variables)
    np.testing.assert_allclose(bound.decode(bound.encode(X)), Coder().apply(variables, X))
    assert bound.path == () and bound.encoder.path == ("encoder",)
    assert bound.encoder.name == "encoder"
    module, its_variables = bound.encoder.unbind()
    assert module.scope is None and module == nn.Dense(3)
    np.testing.assert_allclose(module.apply(its_variables, X), bound.encoder(X))
    assert_same(bound.variables, variables)
    with pytest.raises(errors.CallUnbindOnUnboundModuleError, match="unbind was called on Coder, which is not bound"):
        Coder().unbind()


def test_bound_modules_change_their_own_variables_only():
    variables = Stats().init(KEY, X)
    bound = Stats().bind(variables, mutable=["a"])
    bound(X)
    bound(X)
    assert int(bound.variables["a"]["count"]) == 3
    assert int(variables["a"]["count"]) == 1


def test_clone_and_copy():
    dense = nn.Dense(3, name="d")
    assert dense.clone(features=4) == nn.Dense(4, name="d")
    assert copy.copy(dense) == dense

    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                dense = nn.Dense(5)
                return dense.copy(features=3)(dense.copy(name="second")(dense(x)))

        return Model()

    check(build, X)


def test_what_modules_know_about_themselves():
    seen = {}

    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            seen["path"] = self.path
            seen["initializing"] = self.is_initializing()
            seen["rngs"] = [self.has_rng(name) for name in ("params", "dropout")]
            seen["before"] = self.has_variable("params", "w")
            w = self.param("w", nn.initializers.ones, ())
            seen["after"] = self.has_variable("params", "w")
            if self.is_mutable_collection("notes"):
                self.put_variable("notes", "n", 3)
            seen["notes"] = self.get_variable("notes", "n", "nothing")
            return x * w

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Inner(name="inner")(x)

    variables = Outer().init(KEY, X)
    assert seen == {
        "path": ("inner",),
        "initializing": True,
        "rngs": [True, False],
        "before": False,
        "after": True,
        "notes": 3,
    }
    Outer().apply({"params": variables["params"]}, X)
    assert seen["initializing"] is False and seen["rngs"] == [False, False] and seen["notes"] == "nothing"


def test_interceptors():
    log = []

    def note(tag):
        def interceptor(next_fun, args, kwargs, context):
            log.append((tag, type(context.module).__name__, context.method_name))
            return next_fun(*args, **kwargs)

        return interceptor

    variables = Coder().init(KEY, X)
    with nn.intercept_methods(note("outer")), nn.intercept_methods(note("inner")):
        Coder().apply(variables, X)
    assert log[:6] == [
        ("outer", "Coder", "setup"),
        ("inner", "Coder", "setup"),
        ("outer", "Coder", "__call__"),
        ("inner", "Coder", "__call__"),
        ("outer", "Coder", "encode"),
        ("inner", "Coder", "encode"),
    ]
    assert len(log) == 12


def test_nowrap_and_static_methods():
    class Model(nn.Module):
        size: int = 2

        @nn.nowrap
        def make(self):
            return nn.Dense(self.size)

        @staticmethod
        def double(x):
            return 2 * x

        @property
        def twice(self):
            return 2 * self.size

        @nn.compact
        def __call__(self, x):
            return self.double(self.make()(x)) + self.twice

    assert Model().twice == 4
    assert Model().apply(Model().init(KEY, X), X).shape == (2, 2)


def test_compact_name_scope():
    def build(nn):
        class Model(nn.Module):
            @nn.compact_name_scope
            def up(self, x):
                return nn.Dense(5)(x)

            @nn.compact_name_scope
            def down(self, x):
                return nn.Dense(5)(nn.Dense(5)(x))

            def __call__(self, x):
                return self.down(self.up(x))

        return Model()

    check(build, X)

    class Wider(type(build(nn))):
        def up(self, x):
            return x

    assert set(build(nn)._compact_name_scope_methods) == {"up", "down"}
    assert Wider._compact_name_scope_methods == ("down",)


def test_share_scope():
    def build(nn):
        class Around(nn.Module):
            inner: Any

            def setup(self):
                nn.share_scope(self, self.inner)
                self.extra = self.param("extra", nn.initializers.normal(), ())

            def __call__(self, x):
                return self.inner(x) * self.extra

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Around(nn.Dense(3))(x)

        return pair_of(nn)(Around(nn.Dense(5)), Model())

    ours, theirs = (build(lib).init(KEYS, X[:, :3] @ jnp.ones((3, 5))) for lib in (nn, flax_nn))
    assert_same(ours, theirs)
    with pytest.raises(errors.CallShareScopeOnUnboundModuleError, match=r"nn\.share_scope was given Dense"):
        nn.share_scope(nn.Dense(3), nn.Dense(3))


def test_inheritance_defaults_and_keyword_only():
    class Base(nn.Module):
        width: int = 3
        names: Sequence[str] = ()

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    class Derived(Base, kw_only=True):
        depth: int

        def __call__(self, x):
            return super().__call__(x) * self.depth

    model = Derived(4, depth=2)
    assert (model.width, model.depth) == (4, 2)
    assert model.apply(model.init(KEY, X), X).shape == (2, 4)
    assert hash(model) == hash(Derived(4, depth=2)) and model == Derived(4, depth=2)
    with pytest.raises(TypeError, match="bound to variables and cannot be hashed"):
        hash(model.bind(model.init(KEY, X)))


def test_repr_is_that_of_flax():
    for module in (nn.Dense(3), nn.Sequential([nn.Dense(2), nn.relu])):
        theirs = (
            flax_nn.Dense(3) if isinstance(module, nn.Dense) else flax_nn.Sequential([flax_nn.Dense(2), flax_nn.relu])
        )
        assert repr(module) == repr(theirs)


def test_modules_can_be_pickled():
    module = nn.Dense(3, use_bias=False, kernel_init=nn.initializers.zeros)
    assert pickle.loads(pickle.dumps(module)) == module


def model_with(call=None, setup=None, **members):
    def run(self, x):
        return call(self, x) if call is not None else x

    body = {"__call__": nn.compact(run), **members}
    if setup is not None:
        body["setup"] = setup
    return type("Model", (nn.Module,), body)()


def set_twice(self, x):
    nn.Dense(3, name="a")(x)
    return nn.Dense(3, name="a")(x)


def param_twice(self, x):
    self.param("a", nn.initializers.zeros, ())
    return self.param("a", nn.initializers.zeros, ())


def leak(self, x):
    box = self.variable("notes", "n", lambda: x)

    def keep(x):
        box.value = x
        return x

    return jax.jit(keep)(x)


def set_outside(self, x):
    self.late = 3


GIVEN = {
    "nothing": {},
    "an empty collection": {"params": {}, "c": {}},
    "another layer": {"params": {"Dense_0": {"kernel": jnp.ones((5, 5)), "bias": jnp.ones(5)}}, "c": {"Other": 1}},
    "an empty layer": {"params": {"Dense_0": {}, "Other": {"w": 1}}},
    "a part of the layer": {"params": {"Dense_0": {"kernel": jnp.ones((5, 5))}}, "c": {"v": 1}},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_which_error_a_missing_variable_is(given):
    def error(nn, call):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return call(self, nn, x)

        with pytest.raises((errors.LinenError, FlaxError)) as raised:
            Model().apply(given, X)
        return raised.type.__name__

    for call in (
        lambda model, nn, x: nn.Dense(5)(nn.Dense(5)(x)),
        lambda model, nn, x: nn.remat(nn.Dense)(5)(x),
        lambda model, nn, x: model.variable("c", "count"),
    ):
        assert error(nn, call) == error(flax_nn, call)


WRONG = {
    "submodule twice": (
        lambda: model_with(set_twice).init(KEY, X),
        errors.NameInUseError,
        r"could not create submodule 'a' in Model at /: the name is in use by a submodule",
    ),
    "param twice": (
        lambda: model_with(param_twice).init(KEY, X),
        errors.NameInUseError,
        r"could not create param 'a' in Model at /: the name is in use by a variable",
    ),
    "unbound compact": (
        lambda: nn.Dense(3)(X),
        errors.CallCompactUnboundModuleError,
        r"compact method Dense.__call__ was called on a module without variables",
    ),
    "no params": (
        lambda: nn.Dense(3).apply({}, X),
        errors.ScopeCollectionNotFound,
        r"module / needs parameter 'kernel', but collection 'params' has nothing",
    ),
    "missing param": (
        lambda: nn.Dense(3).apply({"params": {"bias": jnp.ones(3)}}, X),
        errors.ScopeParamNotFoundError,
        r"module / needs parameter 'kernel', .* it has \['bias'\]",
    ),
    "missing variable": (
        lambda: Stats().apply({"params": {}, "a": {"other": 1}}, X),
        errors.ScopeVariableNotFoundError,
        r"module / needs variable 'count', which collection 'a' does not have; it has \['other'\]",
    ),
    "wrong shape": (
        lambda: Coder().apply({"params": {"encoder": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}}, X),
        errors.ScopeParamShapeError,
        r"parameter 'kernel' of module /encoder was given with shape \(4, 3\), .* makes shape \(5, 3\)",
    ),
    "params in params": (
        lambda: nn.Dense(3).apply({"params": {"params": {"kernel": 1}}}, X),
        errors.ApplyScopeInvalidVariablesStructureError,
        r"apply of Dense have one 'params' too many",
    ),
    "no collections": (
        lambda: nn.Dense(3).apply({"kernel": jnp.ones(3)}, X),
        errors.ApplyScopeInvalidVariablesTypeError,
        r"a dict of collections, .* got a dict with keys \['kernel'\]",
    ),
    "not a dict": (lambda: nn.Dense(3).apply(3, X), errors.ApplyScopeInvalidVariablesTypeError, "got <class 'int'>"),
    "not a key": (
        lambda: nn.Dense(3).init(3, X),
        errors.InvalidRngError,
        r"init of Dense takes rngs as .* got 3",
    ),
    "no key": (
        lambda: nn.Dropout(0.5, deterministic=False).apply({}, X),
        errors.InvalidRngError,
        r"module / needs a random key of stream 'dropout', but rngs has no streams",
    ),
    "immutable": (
        lambda: model_with(lambda self, x: self.put_variable("notes", "n", 1)).apply({}, X),
        errors.ModifyScopeVariableError,
        r"cannot set variable 'n' of module /: collection 'notes' is immutable",
    ),
    "frozen": (
        lambda: model_with(set_outside).init(KEY, X),
        errors.SetAttributeFrozenModuleError,
        r"cannot set late=3 on Model at /: a module is frozen outside its setup method",
    ),
    "leak": (
        lambda: model_with(leak).init(KEY, X),
        errors.JaxTransformError,
        r"variable /n in collection 'notes' was set inside a JAX transform",
    ),
    "on the class": (
        lambda: nn.Dense.apply({}, X),
        errors.InvalidInstanceModuleError,
        r"Dense.apply was called on the class: make an instance first",
    ),
    "unbound variables": (lambda: nn.Dense(3).variables, ValueError, "Dense cannot read variables: it is not bound"),
    "unbound setup attribute": (
        lambda: Coder().encoder,
        AttributeError,
        '"Coder" object has no attribute "encoder". Attributes made in setup exist only inside init and apply',
    ),
}


@pytest.mark.parametrize("run, error, message", WRONG.values(), ids=WRONG)
def test_errors(run, error, message):
    with pytest.raises(error, match=message):
        run()


def test_submodules_belong_into_setup_or_compact():
    class Model(nn.Module):
        def helper(self, x):
            return nn.Dense(3)(x)

        def __call__(self, x):
            return self.helper(x)

    with pytest.raises(errors.AssignSubModuleError, match="submodule Dense was made in Model at / outside setup"):
        Model().init(KEY, X)

    class Params(nn.Module):
        def __call__(self, x):
            return self.param("w", nn.initializers.ones, ())

    with pytest.raises(ValueError, match="param 'w' of Params at / was made outside setup"):
        Params().init(KEY, X)


def test_a_class_may_define_the_name_that_every_module_has():
    def run(nn):
        class Named(nn.Module):
            name: str | None = "mine"
            features: int = 2

            @nn.compact
            def __call__(self, x):
                return nn.Dense(self.features)(x)

        class Outer(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Named(3, name="given")(Named()(x))

        return Named().name, Named(4).features, Named(name="a").name, Outer().init(KEY, X)

    assert_same_runs(run)


def test_classes_that_cannot_be():
    with pytest.raises(errors.ReservedModuleAttributeError, match="module class Bad defines the field parent"):

        class Bad(nn.Module):
            parent: Any = None

    class NoSuper(nn.Module):
        def __post_init__(self):
            pass

    with pytest.raises(errors.IncorrectPostInitOverrideError, match="NoSuper overrides __post_init__"):
        NoSuper().init(KEY, X)

    class Resets(nn.Module):
        size: int = 3

        def setup(self):
            self.size = 4

        def __call__(self, x):
            return x

    with pytest.raises(errors.SetAttributeInModuleSetupError, match="setup of Resets at / sets 'size', which"):
        Resets().init(KEY, X)

    class Hides(nn.Module):
        @property
        def shown(self):
            return self.absent

        def __call__(self, x):
            return self.shown

    with pytest.raises(errors.DescriptorAttributeError, match=r"Hides\.shown accesses an attribute"):
        Hides().init(KEY, X)


def test_a_module_is_over_when_its_run_is():
    kept = []

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(3)
            kept.append(dense)
            return dense(x)

    Model().init(KEY, X)
    with pytest.raises(errors.InvalidScopeError, match="module /Dense_0 was used after the init, apply"):
        kept[0](X)


def test_calling_a_jitted_apply_is_calling_jax():
    """The variables are plain dicts, as Flax's: a call of a compiled function costs the same."""
    ours, theirs = Coder().init(KEY, X), in_setup(flax_nn).init(KEYS, X)
    assert type(ours) is type(theirs) is dict
    assert type(ours["params"]["encoder"]) is dict
    calls = []
    step = jax.jit(lambda v, x: calls.append(1) or Coder().apply(v, x))
    step(ours, X), step(ours, X)
    assert len(calls) == 1
