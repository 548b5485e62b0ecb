"""Old public names: each works, warns, says its new name, and is on the page about them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import _renames, store, tools

PAGE = (Path(__file__).parents[1] / "docs" / "renamed.md").read_text()
NAMES = [(package, old, new) for package, names in _renames.NAMES.items() for old, new in names.items()]
KEYWORDS = [(where, old, new) for where, names in _renames.KEYWORDS.items() for old, new in names.items()]
FUNCTIONS = [entry for entry in KEYWORDS if entry[0].startswith("sonde.")]
X = jnp.arange(6.0).reshape(2, 3)


def f(x):
    return sonde.sow(sonde.sow(x * 2, "h") + 1, "end")


def total(y):
    return y.sum()


def public(name: str) -> object:
    """The object behind a dotted public name."""
    thing: object = sonde
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize(("package", "old", "new"), NAMES)
def test_an_old_name_is_the_new_one_and_warns_at_each_use(package, old, new):
    module = importlib.import_module(package)
    assert old not in dir(module) and old not in module.__all__
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=re.escape(f"`{package}.{old}` is now `{package}.{new}`")) as caught:
            value = getattr(module, old)
        assert caught[0].filename == __file__
    name, _, argument = new.partition("(")
    assert value is getattr(module, name) or (value.func is getattr(module, name) and value.args[0] in argument)


def test_an_old_name_can_be_imported():
    with pytest.warns(DeprecationWarning, match="partial_records"):
        from sonde import records_before
    assert records_before is sonde.partial_records


@pytest.mark.parametrize(("where", "old", "new"), FUNCTIONS)
def test_the_new_keyword_is_in_the_signature_and_the_old_one_is_not(where, old, new):
    parameters = inspect.signature(public(where)).parameters
    assert new in parameters and old not in parameters


@pytest.mark.parametrize(("where", "old", "new"), FUNCTIONS)
def test_both_keywords_at_once_are_an_error(where, old, new):
    with pytest.raises(TypeError, match=f"{old}= is the old name of {new}=, and both are given"):
        public(where)(**{old: 1, new: 1})


def test_an_old_keyword_does_what_the_new_one_does():
    with pytest.warns(
        DeprecationWarning, match=r"`tools.ablate\(to=...\)` is now `tools.ablate\(value=...\)`"
    ) as caught:
        old = tools.ablate(f, "h", to=5.0)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(old(X), tools.ablate(f, "h", value=5.0)(X))
    sweep = tools.patch_sweep(f, "h", metric=total)(X, -X)
    with pytest.warns(DeprecationWarning, match="tokenizer="):
        assert sweep.html(tokens=[1, 0], names=["a", "b"]) == sweep.html(tokens=[1, 0], tokenizer=["a", "b"])


def test_the_old_attribute_of_an_edit():
    with pytest.warns(DeprecationWarning, match="position_axis="):
        edit = sonde.Edit(jnp.zeros_like, positions=1, axis=0)
    assert edit == sonde.Edit(edit.new, positions=1, position_axis=0)
    with pytest.warns(DeprecationWarning, match=r"`Edit.axis` is now `Edit.position_axis`"):
        assert edit.axis == 0


def test_a_seed_as_the_value_of_a_switch(tmp_path):
    kept = store.harvest(f, [X] * 10, tmp_path / "s", "h", progress=False)

    def rows(**options):
        return [batch["h"].tolist() for batch in kept.batches(4, **options)]

    with pytest.warns(DeprecationWarning, match=r"batches\(shuffle=True, seed=3\)"):
        old = rows(shuffle=3)
    assert old == rows(shuffle=True, seed=3)
    with pytest.warns(DeprecationWarning, match=r"batches\(shuffle=True, seed=0\)"):
        assert rows(shuffle=0) == rows(shuffle=True)
    with pytest.warns(DeprecationWarning, match=r"batches\(shuffle=False\)"):
        assert rows(shuffle=None) == rows()
    with pytest.raises(TypeError, match="shuffle= is True or False if seed= is given, got 3"):
        rows(shuffle=3, seed=4)
    samples = store.statistics(f, [X], samples=2)
    with pytest.warns(DeprecationWarning, match=r"ablate\(resample=True, seed=1\)"):
        old = tools.ablate(f, "h", value=samples, resample=1)(X)
    np.testing.assert_array_equal(old, tools.ablate(f, "h", value=samples, resample=True, seed=1)(X))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, -X, "h", total), {}),
        ((X, -X, ["h"], total, -2), {}),
        (((X,), (-X,), "h"), {"metric": total, "axis": -2}),
        ((), {"clean": X, "corrupt": -X, "sites": "h", "metric": total}),
        ((X, -X), {"sites": "h", "metric": total}),
    ],
)
def test_a_sweep_in_its_old_form(args, kwargs):
    with pytest.warns(DeprecationWarning, match=re.escape(_renames.CALLS["sonde.tools.patch_sweep"][1])):
        old = tools.patch_sweep(f, *args, **kwargs)
    new = tools.patch_sweep(f, "h", metric=total, axis=-2)(X, -X)
    np.testing.assert_array_equal(old.scores["h"], new.scores["h"])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, -X, "h", "end", total), {}),
        ((X, -X), {"senders": "h", "receivers": "end", "metric": total}),
        ((), {"clean": X, "corrupt": -X, "senders": "h", "receivers": "end", "metric": total}),
    ],
)
def test_path_patching_in_its_old_form(args, kwargs):
    with pytest.warns(DeprecationWarning, match=re.escape(_renames.CALLS["sonde.tools.patch_paths"][1])):
        old = tools.patch_paths(f, *args, **kwargs)
    new = tools.patch_paths(f, "h", receivers="end", metric=total)(X, -X)
    np.testing.assert_array_equal(old.scores["h", "end"], new.scores["h", "end"])


@pytest.mark.parametrize(("old", "new"), _renames.MODULES.items())
def test_the_page_has_every_module(old, new):
    assert f"| `{old}` | `{new}` |" in PAGE


@pytest.mark.parametrize(("package", "old", "new"), NAMES)
def test_the_page_has_every_name(package, old, new):
    assert f"| `{package}.{old}` | `{package}.{new}` |" in PAGE


@pytest.mark.parametrize(("where", "old", "new"), KEYWORDS)
def test_the_page_has_every_keyword(where, old, new):
    function = f"`{where}`" if where.startswith("sonde.") else where
    assert f"| {function} | `{old}=` | `{new}=` |" in PAGE


def test_the_page_has_every_switch_and_form_and_nothing_else():
    for where, switch in _renames.SEEDS.items():
        assert (
            f"| `{where}` | `{switch}=seed`, `{switch}=None` | `{switch}=True, seed=seed`, `{switch}=False` |" in PAGE
        )
    for old, new in _renames.CALLS.values():
        assert f"| `{old}` | `{new}` |" in PAGE
    tables = [
        line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| was", "| in"))
    ]
    entries = [*_renames.MODULES, *NAMES, *KEYWORDS, *_renames.SEEDS, *_renames.CALLS]
    assert len(tables) == len(entries)
    assert f"until {_renames.GONE_WITH}" in PAGE
