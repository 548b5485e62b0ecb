"""Trees of parameters: what is missing, surplus, transposed, permuted, of another dtype, different."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.tools import assert_same_program, compare, compare_parameters, map_parameters

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(4, 6)).astype(np.float32) for _ in range(2))
BIAS = RNG.normal(size=6).astype(np.float32)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"a": A, "b": B}, []),
        ({"layers": {"x": A, "y": B}}, []),
        ({"stacked": np.stack([A, B])}, []),
        ({"a": A.T, "b": B}, ["a | a: transposed (1, 0)"]),
        ({"kernel": A.T, "b": B}, ["a | kernel: transposed (1, 0)"]),
        ({"a": A[:, ::-1], "b": B}, ["a | a: permuted along axis 1"]),
        ({"a": A.astype(jnp.bfloat16), "b": B}, ["a | a: dtype float32 against bfloat16"]),
        ({"a": A}, ["b | -: missing in the second: float32[4, 6]"]),
        ({"a": A, "b": B, "c": BIAS}, ["- | c: surplus in the second: float32[6]"]),
        ({"a": A * 2, "b": B}, [f"a | a: 24 of 24 elements differ, by up to {np.abs(A).max():.3g}"]),
        ({"a": A[:2], "b": B}, ["a | a: shape [4, 6] against [2, 6]"]),
    ],
)
def test_differences(second, expected):
    assert list(map(str, compare_parameters({"a": A, "b": B}, second))) == expected


def test_constants_are_matched_by_shape():
    assert (
        compare_parameters({"zero": np.zeros(3), "one": np.ones(3)}, {"bias": np.zeros(3), "scale": np.ones(3)}) == ()
    )
    assert len(compare_parameters({"zero": np.zeros(3)}, {"bias": np.zeros(4)})) == 2


def test_for_pytest():
    assert assert_same_program(lambda x: x + x, lambda x: 2 * x, (BIAS,)).first is None
    with pytest.raises(AssertionError, match=r"first difference at the result(.|\n)*with mul by 2 in place of 3"):
        assert_same_program(lambda x: x * 2, lambda x: x * 3, (BIAS,), grads=False)


def test_files_and_arrays_are_sides(tmp_path):
    net = lambda x: jnp.tanh(x @ A)
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    expected = np.tanh(x @ A)
    np.savez(tmp_path / "run.npz", logits=expected)
    for side in (tmp_path / "run.npz", str(tmp_path / "run.npz"), {"logits": expected}):
        found = compare(side, net)(x)
        assert found.first is None and found.names == {"logits": "the result"}
    wrong = compare({"logits": expected * 1.1}, net)(x)
    assert wrong.first is not None and wrong.first.by == "order"
    with pytest.raises(ValueError, match="nothing to compare"):
        compare({"other": expected[:1]}, net)(x)
    with pytest.raises(ValueError, match="is no file of named arrays"):
        compare("model.json", net)


def test_the_map_makes_one_checkpoint_of_the_other():
    q, k, v = (RNG.normal(size=(6, 4)).astype(np.float32) for _ in range(3))
    layers = RNG.normal(size=(3, 5, 2)).astype(np.float32)
    first = {
        "q": q, "k": k, "v": v, "bias": BIAS, "zeros": np.zeros(7, np.float32), "extra": A,
        **{f"layers.{i}": layer.T for i, layer in enumerate(layers)}, "qk": np.concatenate([v[::-1] + 1, q + 1]),
    }  # fmt: skip
    second = {
        "qkv": np.concatenate([q.T, k.T, v.T], 1),
        "heads": BIAS.reshape(2, 3),
        "stacked": layers,
        "nothing": np.zeros(7, np.float32),
        "apart": {"v": (v[::-1] + 1).T.reshape(4, 2, 3), "q": q + 1},
        "own": B[:3],
    }
    found = map_parameters(first, second)
    assert found.missing == ("extra",) and found.surplus == ("own",)
    namespace = {"np": np}
    exec(found.code(), namespace)
    made = namespace["ported"](first)
    assert made.keys() == {"qkv", "heads", "stacked", "nothing", "apart/v", "apart/q"}
    np.testing.assert_array_equal(made["apart/v"], second["apart"]["v"])
    for name in ("qkv", "heads", "stacked", "nothing"):
        np.testing.assert_array_equal(made[name], second[name])


def test_gradients_of_fused_weights_are_compared():
    q, k = (jnp.asarray(RNG.normal(size=(4, 4)), jnp.float32) for _ in range(2))
    fused = jnp.concatenate([q, k], 1)

    def apart(x):
        return jnp.tanh(x @ q) * (x @ k)

    def together(x, stopped=False):
        w = fused.at[:, :4].set(jax.lax.stop_gradient(fused[:, :4])) if stopped else fused
        a, b = jnp.split(x @ w, 2, 1)
        return jnp.tanh(a) * b

    x = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    right = compare(apart, together)(x)
    assert right.first is None and not right.unchecked and sum(d.gradient for d in right.results) == 3
    wrong = compare(apart, lambda x: together(x, stopped=True))(x)
    assert wrong.first is not None and wrong.first.gradient and "weight" in wrong.first.path


def test_fused_arrays_in_a_stack():
    """A scan over layers whose queries and keys are one projection, as in a port of separate modules."""
    named = {f"layers.{i}.{part}.weight": RNG.normal(size=(3, 4)).astype(np.float32) for i in range(2) for part in "qk"}
    named |= {f"layers.{i}.{part}.bias": RNG.normal(size=3).astype(np.float32) for i in range(2) for part in "qk"}
    fused = {
        "kernel": np.stack([np.concatenate([named[f"layers.{i}.{part}.weight"] for part in "qk"]).T for i in range(2)]),
        "bias": np.stack([np.concatenate([named[f"layers.{i}.{part}.bias"] for part in "qk"]) for i in range(2)]),
    }
    found = map_parameters(named, fused)
    assert found.missing == found.surplus == ()
    assert ("layers.1.k.weight", "kernel[1][:, 3:6]", "transposed (1, 0)") in found.rows()
    run: dict = {"np": np}
    exec(found.code(), run)
    for name, array in run["ported"](named).items():
        np.testing.assert_array_equal(array, fused[name])

    def separate(x):
        for i in range(2):
            q, k = (x @ named[f"layers.{i}.{p}.weight"].T + named[f"layers.{i}.{p}.bias"] for p in "qk")
            x = jnp.concatenate([jnp.tanh(q) * k, x[:, 3:]], -1)
        return x

    def scanned(x):
        def layer(x, w):
            q, k = jnp.split(x @ w["kernel"] + w["bias"], 2, -1)
            return jnp.concatenate([jnp.tanh(q) * k, x[:, 3:]], -1), None

        return jax.lax.scan(layer, x, fused)[0]

    same = compare(separate, scanned)(RNG.normal(size=(5, 4)).astype(np.float32))
    assert same.first is None and not same.unchecked and sum(d.gradient for d in same.results) == 9
