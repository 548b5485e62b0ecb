"""What `harvest` stores is what the program computed, row by row; everything else is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from tests.store.bucket import bucket

import sonde
from sonde import nnx, store
from sonde.errors import NoSuchSiteError, StoreError

W = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)), jnp.float32)
XS = [np.random.default_rng(i).standard_normal((4, 3)).astype(np.float32) for i in range(5)]


def program(x):
    h = sonde.sow(jnp.tanh(x @ W), "block/h")
    return sonde.sow(h.sum(), "total")


def harvest(f, batches, folder, *patterns, **options):
    return store.harvest(f, batches, folder, *patterns, progress=False, **options)


def test_rows_are_the_values_of_all_batches(tmp_path):
    kept = harvest(program, XS, tmp_path)
    expected = np.tanh(np.concatenate(XS) @ np.asarray(W))
    np.testing.assert_allclose(kept["block/h"][:], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kept["total"][:], [np.tanh(x @ np.asarray(W)).sum() for x in XS], rtol=1e-4, atol=1e-5)
    assert list(kept) == ["block/h", "total"] and kept.finished and kept.n_batches == 5


def test_any_zarr_reader_opens_it(tmp_path):
    kept = harvest(program, XS, tmp_path, "block/h")
    group = zarr.open_group(str(tmp_path), mode="r")
    np.testing.assert_array_equal(group["values/block.h"][:], kept["block/h"][:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_is_what_the_cast_gives(tmp_path, dtype):
    kept = harvest(program, XS, tmp_path / "cast", "block/h", dtype=dtype)
    plain = harvest(program, XS, tmp_path / "plain", "block/h")
    np.testing.assert_array_equal(kept["block/h"][:], plain["block/h"][:].astype(jnp.dtype(dtype)))


def test_numbers_beyond_the_dtype_are_an_error_that_names_the_site(tmp_path):
    with pytest.raises(StoreError, match=r"1 numbers of 'values/h' in batch 1 do not fit float16 \(up to 6.55e\+04"):
        harvest(lambda x: sonde.sow(x * 1e5, "h"), [np.zeros(2), np.array([0, 1.0])], tmp_path, dtype="float16")
    assert len(store.open(tmp_path)["h"]) in (0, 2)


@pytest.mark.parametrize(
    ("dtype", "fitting", "others"),
    [
        ("int8", [-128, 0, 127], [1000, -129, 128, 0.5, np.inf, np.nan]),
        ("uint8", [0, 255], [-1, 256]),
        ("int32", [-(2.0**31), 2.0**30], [2.0**31, -(2.0**33)]),
        ("bool", [0, 1], [2, 0.5, np.nan]),
        ("float8_e4m3fn", [448, -0.01, np.nan], [np.inf, -np.inf, 1000]),
        ("float8_e5m2", [57344, np.inf, np.nan], [1e6]),
        ("float8_e8m0fnu", [1, 1024], [0, -1, np.inf]),
        ("float4_e2m1fn", [6, -6, 0, 0.5], [100, np.inf, np.nan]),
        ("bfloat16", [3e38, -np.inf, 1e-40], [3.4e38]),
    ],
)
def test_what_does_not_fit_a_dtype_is_an_error(tmp_path, dtype, fitting, others):
    f = lambda x: sonde.sow(x, "h")
    numbers = np.array(fitting, np.float32)
    kept = harvest(f, [numbers], tmp_path / "fits", dtype=dtype)
    np.testing.assert_array_equal(kept["h"][:].astype(np.float32), numbers.astype(jnp.dtype(dtype)).astype("f4"))
    (made,) = store.stream(f, [numbers], len(numbers), dtype=dtype)
    np.testing.assert_array_equal(made["h"].astype(np.float32), numbers.astype(jnp.dtype(dtype)).astype("f4"))
    for i, number in enumerate(others):
        batch = [np.array([fitting[0], number], np.float32)]
        with pytest.raises(StoreError, match=f"1 numbers of 'h' do not fit {dtype}"):
            next(store.stream(f, batch, 1, dtype=dtype))
        if i == 0:
            with pytest.raises(StoreError, match=f"1 numbers of 'values/h' in batch 0 do not fit {dtype}"):
                harvest(f, batch, tmp_path / "other", dtype=dtype)


def test_a_dtype_that_a_store_cannot_hold(tmp_path):
    with pytest.raises(StoreError, match=r"a store cannot hold 'values/h', rows of uint4\[3\]"):
        harvest(lambda x: sonde.sow(x, "h"), [np.ones((2, 3))], tmp_path, dtype="uint4")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "\u200b", "a/" + "é" * 200, "..", "\ud800", "con", "a~1", " "])
def test_odd_names_of_sites(tmp_path, name):
    kept = harvest(lambda x: (sonde.sow(x, name), sonde.sow(2 * x, name + "b")), XS, tmp_path / "store")
    np.testing.assert_array_equal(kept[name][:], np.concatenate(XS))
    np.testing.assert_array_equal(kept[name + "b"][:], 2 * np.concatenate(XS))
    assert os.listdir(tmp_path) == ["store"] and store.check(tmp_path / "store") == []


def test_a_dtype_that_jax_would_narrow(tmp_path):
    with pytest.raises(ValueError, match=r"harvest\(dtype='float64'\): JAX has no 64-bit numbers"):
        harvest(program, XS, tmp_path, dtype="float64")
    with pytest.raises(ValueError, match=r"stream\(dtype='int64'\)"):
        store.stream(program, XS, 2, dtype="int64")


def test_values_without_numbers(tmp_path):
    kept = harvest(lambda x: (sonde.sow(x[:, :0], "none"), sonde.sow(x, "h")), XS, tmp_path)
    assert kept["none"][:].shape == (20, 0) and store.check(tmp_path) == []


def test_infinities_of_the_program_are_stored(tmp_path):
    kept = harvest(lambda x: sonde.sow(1 / x, "h"), [np.zeros(2, np.float32)], tmp_path, dtype="float16")
    assert np.isinf(kept["h"][:]).all()


def test_a_scanned_site_is_one_array_per_layer(tmp_path):
    def layers(x):
        def body(c, w):
            return sonde.sow(jnp.sin(c * w), "resid"), None

        return jax.lax.scan(body, x, jnp.arange(1.0, 4.0))[0]

    kept = harvest(layers, XS, tmp_path)
    assert list(kept) == ["resid[0]", "resid[1]", "resid[2]"]
    row = np.concatenate(XS)
    for i in range(3):
        row = np.sin(row * (i + 1))
        np.testing.assert_allclose(kept[f"resid[{i}]"][:], row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loops", [0, 1])
def test_a_mapped_axis_is_part_of_the_rows_and_an_iteration_is_not(tmp_path, loops):
    def one(x):
        if not loops:
            return sonde.sow(jnp.sin(x), "h")
        return jax.lax.scan(lambda c, i: (c, sonde.sow(jnp.sin(c * i), "h")), x, jnp.arange(1.0, 3.0))[1]

    kept = harvest(jax.vmap(one), XS, tmp_path)
    rows = np.concatenate(XS)
    expected = {"h": np.sin(rows)} if not loops else {f"h[{i}]": np.sin(rows * (i + 1)) for i in range(2)}
    assert {name: kept[name].shape for name in kept} == dict.fromkeys(expected, (20, 3))
    for name in expected:
        np.testing.assert_allclose(kept[name][:], expected[name], rtol=1e-4, atol=1e-5)


def test_calls_and_parts_of_pytrees_are_arrays_of_their_own(tmp_path):
    def f(x):
        for scale in (1, 2):
            sonde.sow({"a": x * scale, "b": (x.sum(1) * scale, "text")}, "h")

    kept = harvest(f, XS, tmp_path)
    assert list(kept) == ["h#0/a", "h#0/b/0", "h#1/a", "h#1/b/0"]
    np.testing.assert_allclose(kept["h#1/b/0"][:], 2 * np.concatenate(XS).sum(1), rtol=1e-4, atol=1e-5)


def test_one_site_below_another(tmp_path):
    def f(x):
        return sonde.sow(sonde.sow(x, "a") * 2, "a/b")

    kept = harvest(f, XS, tmp_path)
    np.testing.assert_array_equal(2 * kept["a"][:], kept["a/b"][:])


def test_names_that_only_differ_in_case_or_have_dots(tmp_path):
    def f(x):
        return sonde.sow(sonde.sow(sonde.sow(x, "h") * 2, "H") * 2, "h.H")

    kept = harvest(f, XS, tmp_path)
    np.testing.assert_array_equal(4 * kept["h"][:], kept["h.H"][:])
    np.testing.assert_array_equal(2 * kept["h"][:], kept["H"][:])
    assert len({folder.name.casefold() for folder in (tmp_path / "values").iterdir() if folder.is_dir()}) == 3


def test_a_branch_that_was_not_taken_says_so(tmp_path):
    def f(x):
        return jax.lax.cond(x.sum() > 0, lambda x: sonde.sow(x * 2, "h"), lambda x: x, x)

    kept = harvest(f, XS, tmp_path)
    np.testing.assert_array_equal(kept.taken["h"][:], [x.sum() > 0 for x in XS])


def test_gradients(tmp_path):
    def loss(w, x):
        return (sonde.sow(x @ w, "h") ** 2).sum()

    kept = harvest(lambda x: jax.grad(loss)(W, x), XS, tmp_path, grads=True)
    np.testing.assert_allclose(kept.grads["h"][:], 2 * kept["h"][:], rtol=1e-6)


def test_reduce(tmp_path):
    kept = harvest(program, XS, tmp_path, "block/h", reduce=lambda h: {"mean": h.mean(-1)})
    expected = np.tanh(np.concatenate(XS) @ np.asarray(W)).mean(-1)
    np.testing.assert_allclose(kept["block/h/mean"][:], expected, rtol=1e-4, atol=1e-5)


def test_keep_drops_padding_and_keys_tell_rows_apart(tmp_path):
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 4, (2, width)) for width in (3, 5, 3)]  # batches of different lengths

    def embed(t):
        return sonde.sow(jax.nn.one_hot(t, 4), "h")

    kept = harvest(embed, tokens, tmp_path, keep=lambda t: t != 0, keys=lambda t: {"token": t})
    flat = np.concatenate([t.reshape(-1) for t in tokens])
    np.testing.assert_array_equal(kept.row_keys["token"][:], flat[flat != 0])
    np.testing.assert_array_equal(kept["h"][:], np.eye(4)[flat[flat != 0]])


def test_a_batch_that_keeps_nothing(tmp_path):
    kept = harvest(lambda x: sonde.sow(x, "h"), [np.zeros(3), np.ones(3)], tmp_path, keep=lambda x: x > 0)
    np.testing.assert_array_equal(kept["h"][:], np.ones(3))


def test_a_mask_that_does_not_fit_names_the_site(tmp_path):
    with pytest.raises(StoreError, match=r"values of 'total' have shape \(\), .* mask that keep= returned, \(4,\)"):
        harvest(program, XS, tmp_path, keep=lambda x: x[:, 0] > 0)


class Marked(nnx.Module):
    def __init__(self, seed):
        self.linear = nnx.Linear(3, 4, rngs=nnx.Rngs(seed))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return sonde.sow(self.dropout(self.linear(x)), "out")


def test_a_model_is_not_changed(tmp_path):
    model = Marked(0)
    kept = harvest(model, XS, tmp_path)
    assert int(model.dropout.rngs.count[...]) == 0
    np.testing.assert_allclose(kept["out"][:4], model(XS[0]), rtol=1e-6)


def test_a_program_that_looks_at_values_runs_uncompiled(tmp_path):
    def f(x):
        return sonde.sow(x if x.sum() > 0 else -x, "h")

    kept = harvest(f, [jnp.asarray(x) for x in XS], tmp_path, compiled=False)
    np.testing.assert_array_equal(kept["h"][:], np.concatenate([x if x.sum() > 0 else -x for x in XS]))


def test_tuples_are_several_arguments_and_dicts_are_one(tmp_path):
    kept = harvest(lambda a, b: sonde.sow(a + b, "h"), [(x, 2 * x) for x in XS], tmp_path / "tuple")
    np.testing.assert_allclose(kept["h"][:], 3 * np.concatenate(XS), rtol=1e-6)
    kept = harvest(lambda d: sonde.sow(d["a"], "h"), ({"a": x} for x in XS), tmp_path / "dict")
    np.testing.assert_array_equal(kept["h"][:], np.concatenate(XS))


MEMORY = """
import sys, threading
import numpy as np
import sonde
from sonde import store

sites, rows = int(sys.argv[3]), int(sys.argv[4])


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def f(x):
    for i in range(sites):
        sonde.sow(x + i, f"s{i}")


def batches():
    for i in range(60):
        if i == 1:  # the program is compiled
            before.append(resident())
        yield np.random.default_rng(i).standard_normal((rows, 128)).astype(np.float32)


def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], resident() if before else 0.0)


before, most, done = [], [0.0], threading.Event()
options = {"keep": lambda x: x[:, 0] > -0.5} if sys.argv[2] == "keep" else {}
watching = threading.Thread(target=watch)
watching.start()
store.harvest(f, batches(), sys.argv[1], progress=False, memory=16 << 20, **options)
done.set()
watching.join()
print(most[0] - before[0])
"""


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("kind", "sites", "rows"), [("all", 80, 32), ("keep", 80, 32), ("all", 4, 1024), ("bucket", 80, 32)]
)
def test_memory_is_a_bound(tmp_path, kind, sites, rows):
    """The whole is 75 or 120 MiB."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_", "JAX_"))}
    with bucket() as server:
        keys = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "word"}
        folder = "s3://acts/run" if kind == "bucket" else str(tmp_path / "store")
        command = [sys.executable, "-c", MEMORY, folder, kind, str(sites), str(rows)]
        environment = {**kept, **keys, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert float(done.stdout) < 1.1 * 16


def test_memory_smaller_than_a_batch_still_works(tmp_path):
    kept = harvest(program, XS, tmp_path, memory=1)
    assert kept["block/h"].shape == (20, 5)


# -- what cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float16"}, "dtype was None, now 'float16'"),
        ({"patterns": ("total",)}, r"patterns was \['block/h'\], now \['total'\]"),
        ({"f": lambda x: sonde.sow(jnp.tanh(x @ W) * 2, "block/h")}, "the program computes something else"),
        ({"batches": [XS[0] + 1, *XS[1:]]}, "the first batch is different"),
        ({"batches": [*XS[:4], XS[4] + 1]}, "batch 4 is not the one that was stored"),
    ],
)
def test_another_call_on_the_same_folder_says_what_differs(tmp_path, change, said):
    call = {"f": program, "batches": XS, "patterns": ("block/h",)}
    harvest(call["f"], call["batches"], tmp_path, *call["patterns"])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    call |= change
    options = {key: value for key, value in call.items() if key not in ("f", "batches", "patterns")}
    with pytest.raises(StoreError, match=said):
        harvest(call["f"], call["batches"], tmp_path, *call["patterns"], **options)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_other_weights_are_noticed(tmp_path):
    harvest(Marked(0), XS, tmp_path)
    harvest(Marked(0), XS, tmp_path)
    with pytest.raises(StoreError, match="weights of the program have changed"):
        harvest(Marked(1), XS, tmp_path)


def test_a_folder_with_something_else_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(StoreError, match="is not empty and holds no store"):
        harvest(program, XS, tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(StoreError, match="is a file"):
        harvest(program, XS, tmp_path / "thesis.tex")


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(StoreError, match="cannot write to the store"):
        harvest(program, XS, Path("/proc/sonde-store"))


def test_addresses(tmp_path):
    kept = harvest(program, XS, f"file://{tmp_path}/there")
    (tmp_path / "there" / "progress" / "0" / "00000.json.__lock").write_text("left by a killed process")
    assert harvest(program, XS, tmp_path / "there").n_batches == 5 == kept.n_batches
    with pytest.raises(StoreError, match="does not keep what is written to it"):
        harvest(program, XS, "memory://there/")


def test_rows_of_another_shape(tmp_path):
    with pytest.raises(StoreError, match=r"rows of 'values/h' are float32\[3\], those of batch 1 are float32\[2\]"):
        harvest(lambda x: sonde.sow(x, "h"), [np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)], tmp_path)
    assert store.open(tmp_path)["h"].shape == (2, 3)


def test_patterns_and_batches_that_choose_nothing(tmp_path):
    with pytest.raises(NoSuchSiteError, match="nearest: 'block/h'"):
        harvest(program, XS, tmp_path, "blok/h")
    with pytest.raises(ValueError, match="there are no batches"):
        harvest(program, [], tmp_path)
    with pytest.raises(StoreError, match="no site to store"):
        harvest(lambda x: x, XS, tmp_path)
    assert not os.listdir(tmp_path)


def twice(x):
    sonde.sow(x, "h#1")
    return sonde.sow(x + 1, "h") + sonde.sow(x + 2, "h")


def looped(x):
    sonde.sow(x, "h[0]")
    return jax.lax.scan(lambda carry, _: (sonde.sow(carry + 1, "h"), None), x, None, length=2)


@pytest.mark.parametrize("f", [twice, looped, lambda x: sonde.sow({"a/b": x, "a": {"b": x + 1}}, "h")])
def test_two_values_that_would_have_one_name(tmp_path, f):
    with pytest.raises(StoreError, match=r"two of the values would be stored as 'h"):
        store.harvest(f, [jnp.ones((2, 3))], tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_links_are_followed_once(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "first")

    def batches():
        for i in range(3):
            yield np.full((2, 3), i, np.float32)
            link.unlink()
            link.symlink_to(tmp_path / "second")

    with pytest.raises(StoreError, match="there is no store"):
        store.harvest(lambda x: sonde.sow(x, "h"), batches(), link, progress=False)
    assert store.open(tmp_path / "first")["h"].shape == (6, 3) and not list((tmp_path / "second").iterdir())


@pytest.mark.parametrize("name", ["", "a\\b", "x" * 300, "a\0b"])
def test_names_that_no_folder_has(tmp_path, name):
    with pytest.raises(StoreError, match="cannot be the name of a folder"):
        store.open(tmp_path / name if name else "")
