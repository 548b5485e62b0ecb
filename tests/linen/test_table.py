"""Tables of models, against flax.linen."""

import flax.linen as flax_nn
import jax
import jax.numpy as jnp

from sonde import linen as nn

KEY = jax.random.key(0)
X = jnp.ones((2, 5))


def test_tabulate_and_module_paths():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            x = nn.Dense(4)(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            dense = nn.Dense(4)
            return dense(dense(x)), {"a": x}

    options = {"console_kwargs": {"width": 200, "force_terminal": False}}
    text = Model().tabulate(KEY, X, train=False, **options)
    for part in ("Model Summary", "BatchNorm_0", "float32[5,4]", "train: False", "a: float32[2,4]", "60 (240 B)"):
        assert part in text, part
    assert text.count("Dense_1") == 1
    assert Model().tabulate(KEY, X, show_repeated=True, **options).count("Dense_1") == 2
    shallow = Model().tabulate(KEY, X, depth=0, compute_flops=True, compute_vjp_flops=True, **options)
    assert "Dense_0" not in shallow and "60 (240 B)" in shallow and "vjp_flops" in shallow
    assert list(Model().module_paths(KEY, X)) == ["", "Dense_0", "BatchNorm_0", "Dense_1"]


def test_tables_name_what_a_transform_runs():
    def table(nn):
        class Block(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.Dense(5)(x)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                x = nn.remat(Block)()(x)
                return nn.remat(lambda block, x: block(x))(Block(), x)

        return nn.tabulate(Model(), KEY, console_kwargs={"width": 200, "force_terminal": False})(X)

    assert table(nn) == table(flax_nn)


def test_the_cost_of_a_call_counts_what_it_changes():
    def costs(nn):
        layer = nn.BatchNorm(use_running_average=False)
        options = {"console_kwargs": {"width": 200, "force_terminal": False}}
        text = layer.tabulate(KEY, X, compute_flops=True, compute_vjp_flops=True, **options)
        return [word for word in text.split() if word.isdigit()]

    assert costs(nn) == costs(flax_nn)


def test_rows_as_data_are_those_of_flax():
    def rows(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x, train=True):
                x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x))
                return nn.LSTMCell(5)((x, x), x)

        options = {"depth": None, "show_repeated": True, "compute_flops": False, "compute_vjp_flops": False}
        table = nn.summary._get_module_table(Model(), **options)({"params": KEY}, X, train=False, mutable=True)
        shapes = lambda tree: [x.shape for x in jax.tree.leaves(tree) if hasattr(x, "shape")]
        names = [(row.path, type(row.module_copy).__name__, row.method) for row in table]
        values = [shapes((row.inputs, row.outputs)) for row in table]
        return names, values, [jax.tree.map(jnp.shape, (r.module_variables, r.counted_variables)) for r in table]

    assert rows(nn) == rows(flax_nn)


def test_a_table_keeps_no_tracers():
    with jax.check_tracer_leaks():
        assert "LSTMCell" in nn.RNN(nn.LSTMCell(3)).tabulate(KEY, X[None])
