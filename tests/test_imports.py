"""Importing: `import sonde` loads JAX, NumPy and itself, and works where nothing optional is installed."""

from __future__ import annotations

import json
import subprocess
import sys

# Everything that Sonde can use and must do without. Of these, optax and rich come with an ordinary installation.
OPTIONAL = ("click", "equinox", "flax", "haiku", "matplotlib", "optax", "orbax", "rich", "safetensors", "treescope")

BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Block())
"""

CAPTURE = """
import jax, jax.numpy as jnp, sonde
f = jax.jit(lambda x: sonde.sow(jnp.sin(x), "h").sum())
_, records = sonde.capture(jax.grad(f), grads=True)(jnp.zeros(3))
assert records["h"].grad.tolist() == [1, 1, 1]
assert repr(records) == "Records(\\n  Record('h', values=float32[3], grads=float32[3]),\\n)"
assert len(sonde.sites(f)(jnp.zeros(3))) == 1
assert sonde.first_nonfinite(f)(jnp.zeros(3)) is None
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = "print(json.dumps([*sys.modules]))"


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


def test_import_loads_jax_and_little_else() -> None:
    """The first capture imports nothing more, except what displays records."""
    steps = ["import sys, json, jax, jax.numpy, numpy", LOADED, "import sonde; sonde.capture", LOADED, CAPTURE, LOADED]
    with_jax, with_sonde, with_capture = (set(json.loads(line)) for line in run("\n".join(steps)).splitlines())
    assert packages(with_sonde) - packages(with_jax) == {"sonde"}
    assert not packages(with_sonde) & set(OPTIONAL)
    heavy = {"sonde.linen", "sonde.nnx", "sonde.ops", "sonde.report", "sonde.tools"}
    assert not with_sonde & heavy
    later = {name for name in with_capture - with_sonde if name.startswith("sonde")}
    later = {name for name in later if not name.startswith(("sonde.why", "sonde.programs"))}
    displays = {"sonde.core.records.display", "sonde.display", *map("sonde.display.{}".format, ("glance", "tree_view"))}
    searches = ("numerics", "numerics.exponents", "numerics.nonfinite", "execution")
    tools = {f"sonde.tools.{name}" for name in (*searches, "execution.host_transfer", "execution.program_order")}
    # Which libraries need changes, if they are loaded.
    library_table = {"sonde.inside", "sonde.inside.libraries", "sonde.inside.libraries.changes"}
    assert later <= displays | {"sonde.tools", *tools} | library_table


def test_engine_works_without_anything_optional() -> None:
    run(BLOCK + CAPTURE)


def test_faces_do_not_need_flax() -> None:
    needed = ("optax", "rich")  # of the core installation
    block = BLOCK.replace(repr(OPTIONAL), repr(tuple(name for name in OPTIONAL if name not in needed)))
    assert "optax" not in block
    run(f"{block}\nfrom sonde import linen, nnx\nassert linen.Module and nnx.Module")
