"""`inside=` on every tool: the same answer as for the function with its sites sown by hand."""

from __future__ import annotations

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import dictionaries, store, tools
from sonde.report import examine

X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)


def plain(x):
    hidden = jnp.tanh(x @ x.T)
    return (hidden**2).sum()


def sown(x):
    hidden = sonde.sow(jnp.tanh(x @ x.T), "plain/hidden")
    return (hidden**2).sum()


SITE = "plain/hidden"
AT = {"inside": plain}


def test_summarize_compare_extract_lens():
    (mine,), (hand,) = tools.summarize(plain, SITE, **AT)(X), tools.summarize(sown, SITE)(X)
    assert (mine.path, mine.statistics.mean, mine.statistics.norm) == (SITE, hand.statistics.mean, hand.statistics.norm)
    assert tools.compare(plain, lambda x: plain(x * 1.001), SITE, **AT)(X).first.path == SITE
    extracted = tools.extract(plain, {SITE: "h"}, **AT)(X)["h"]
    np.testing.assert_allclose(extracted, jnp.tanh(X @ X.T), rtol=1e-6)
    lens = tools.logit_lens(plain, SITE, readout=lambda h: h, k=1, **AT)(X)
    assert SITE in lens


def test_ablate_steer_attribute_and_patches():
    assert float(tools.ablate(plain, SITE, **AT)(X)) == 0.0
    pushed = tools.steer(plain, {SITE: jnp.ones(2)}, **AT)(X)
    np.testing.assert_allclose(pushed, ((jnp.tanh(X @ X.T) + 1) ** 2).sum(), rtol=1e-6)
    for method in ("gradient", "integrated"):
        got = tools.attribute(plain, SITE, method=method, steps=4, **AT)(X)[SITE][0]
        np.testing.assert_allclose(got, tools.attribute(sown, SITE, method=method, steps=4)(X)[SITE][0], rtol=1e-5)
    sweeps = [
        tools.patch_sweep(f, SITE, metric=jnp.sum, **k)(X, X * 0).scores[SITE] for f, k in ((plain, AT), (sown, {}))
    ]
    np.testing.assert_allclose(*sweeps, rtol=1e-6)


class Attending(eqx.Module):
    """A model of Equinox: examples, positions and heads are mapped."""

    table: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention

    def __call__(self, tokens):
        x = jax.vmap(self.table)(tokens)
        return x + self.attention(x, x, x)


def test_tools_that_need_the_whole_batch_of_a_mapped_model():
    keys = jax.random.split(jax.random.key(0))
    model = Attending(eqx.nn.Embedding(7, 4, key=keys[0]), eqx.nn.MultiheadAttention(2, 4, key=keys[1]))
    tokens = jnp.array([[1, 2, 3, 1], [4, 5, 4, 5], [6, 6, 2, 0]])  # as many positions as the model is wide
    run = jax.vmap(model)
    weights = "**/dot_product_attention_weights/weights"
    inside = [model, eqx.nn.MultiheadAttention, "equinox.nn._attention:dot_product_attention*"]
    _, records = sonde.capture(run, weights, "table/out", "attention/out", "out", inside=inside)(tokens)
    values = {path.rpartition("/")[0]: record.value for path, record in records.items()}
    (heads,) = [value for path, value in values.items() if path.endswith("weights")]

    def by_hand(tokens):
        sonde.sow(heads, "heads")
        a, b = sonde.sow(values["table"], "a"), sonde.sow(values["attention"], "b")
        return sonde.sow(a + b, "end")

    mine, hand = tools.attention_heads(run, weights, inside=inside)(tokens), tools.attention_heads(by_hand, "heads")
    for kind in ("previous", "duplicate", "induction"):
        np.testing.assert_allclose(mine[kind], hand(tokens)[kind], rtol=1e-6)
    read = {"readout": lambda x: x @ model.table.weight.T, "metric": lambda logits: logits[:, 3].sum(), "position": 1}
    mine = tools.logit_attribution(run, "table/out", "attention/out", residual="out", inside=model, **read)(tokens)
    hand = tools.logit_attribution(by_hand, "a", "b", residual="end", **read)(tokens)
    np.testing.assert_allclose(list(mine.totals.values()), list(hand.totals.values()), rtol=1e-5)
    with pytest.raises(ValueError, match="several values, of a loop"):
        looped = jax.vmap(lambda t: jax.lax.scan(lambda x, _: (model(t), None), model(t), length=2)[0])
        tools.logit_attribution(looped, "out", residual="out", inside=model, **read)(tokens)


def test_monitor_and_examine():
    step = tools.monitor(jax.jit(jax.grad(plain)), {SITE: ["mean", "grad_norm"]}, every=1, **AT)
    step(X)
    assert set(step.flush()) == {f"{SITE}/mean", f"{SITE}/grad_norm"}
    report = examine(lambda x: plain(x * 1e30), **AT)(X)
    assert any(site.path == "plain/x" for site in report.sites)


def test_every_tool_that_looks_at_sites_has_the_keyword():
    # These are given values or programs of other libraries, hand their options on, or look at no site.
    others = ("probe", "example_grad_norms", "assert_same_program", "compare_parameters", "torch_records")
    others += ("compare_training", "saved_residuals", "logit_effects", "map_parameters")
    names = [name for name in tools.__all__ if name[0].islower() and name not in others]
    verbs = [getattr(tools, name) for name in names]
    core = [
        sonde.capture,
        sonde.edit,
        sonde.sites,
        sonde.zero_perturbations,
        sonde.with_perturbations,
        sonde.first_nonfinite,
    ]
    on_disk = [store.harvest, store.statistics, store.stream, dictionaries.splice, dictionaries.loss_recovered]
    for verb in [*verbs, *core, *on_disk, examine]:
        assert "inside" in inspect.signature(verb).parameters, verb


def test_command_line(tmp_path):
    from click.testing import CliRunner

    from sonde.cli.program import sonde_command

    program = tmp_path / "overflows.py"
    program.write_text(
        "import jax.numpy as jnp\n\ndef step(x):\n    big = x * 1e30\n    square = big * big\n    return square\n\n"
        "def main():\n    return step, (jnp.ones(3),)\n"
    )
    result = CliRunner().invoke(sonde_command, ["nonfinite", f"{program}:main", "--inside", str(program), "--json"])
    assert '"step/square"' in result.output.replace("main/", ""), result.output
    assert f"{program}:5" in result.output


PROGRAM = """
import jax, jax.numpy as jnp

def step(x):
    big = jnp.tanh(x) * 2
    return (big ** 2).sum()

def main():
    return jax.grad(step), (jnp.ones(3),)

def other():
    return jax.grad(lambda x: step(x * 1.5)), (jnp.ones(3),)

def forward():
    return step, (jnp.ones(3),)

def batches():
    return step, [jnp.ones((2, 3)), jnp.zeros((2, 3))]
"""
COMMANDS = {
    "sites": ["FILE:main"],
    "nonfinite": ["FILE:main"],
    "report": ["FILE:main", "--out", "FOLDER/page.html"],
    "compare": ["FILE:main", "FILE:other"],
    "port": ["FILE:main", "FILE:other"],
    "harvest": ["FILE:batches", "FOLDER/kept", "--sites", "step/big"],
    "summarize": ["FILE:main"],
    "trace-back": ["FILE:forward", "--where", "> 1"],
}


@pytest.mark.every(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_looks_at_sites_has_the_option(command, tmp_path):
    from click.testing import CliRunner

    from sonde.cli.program import sonde_command

    program = tmp_path / "looked_into.py"
    program.write_text(PROGRAM)
    given = [x.replace("FILE", str(program)).replace("FOLDER", str(tmp_path)) for x in COMMANDS[command]]
    result = CliRunner().invoke(sonde_command, [command, *given, "--inside", f"{program}:step", "--json"])
    assert result.exit_code in (0, 1), result.output
    if command != "nonfinite":  # of which nothing is found
        assert "step/big" in result.output, result.output


def test_every_command_is_tried():
    from sonde.cli.program import sonde_command

    takes = {
        name for name, command in sonde_command.commands.items() if any(p.name == "inside" for p in command.params)
    }
    # `run` is given a script, and is tried in tests/cli/test_run.py; `view` serves a page: tests/viewer/test_open.py.
    assert takes == {*COMMANDS, "run", "view"}
    without = {name for name in sonde_command.commands if name not in takes}
    assert without == {"check-move", "demo", "explain", "mcp", "replay", "store"}


@pytest.mark.parametrize("wrong", ["nothing.py", "nothing.py:f"])
def test_a_file_that_is_not_there(wrong):
    with pytest.raises(sonde.errors.InsideError, match="there is no Python file"):
        sonde.capture(plain, inside=wrong)
