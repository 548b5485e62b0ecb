"""What the tables of both faces have in common."""

import jax
import jax.numpy as jnp

from sonde._model_table import estimated_flops, new_table, printed


def test_a_table_has_the_name_of_the_model_and_the_look_that_is_asked_for():
    table = new_table({}, {"show_lines": False})
    assert (table.title, table.show_lines, table.show_footer) == ("dict Summary", False, True)
    table.add_column("path")
    table.add_row("blocks/0")
    assert "blocks/0" in printed(table, {"force_terminal": False})


def test_operations_are_those_of_a_product():
    left, right = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)
    assert estimated_flops(jnp.dot, left, right) == 2 * 8 * 16 * 4
