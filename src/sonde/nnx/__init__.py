"""Neural networks as Python objects, with the names of `flax.nnx`.

Replace `from flax import nnx` with `from sonde import nnx`: names, arguments, results, initial values and state layouts
are the same. `bridge` mixes these Modules with those of `sonde.linen` and of Flax.

Names are loaded when they are first used (`__init__.pyi` lists them), so that `import sonde.nnx` costs little more
than `import jax`. The import paths of Flax's own files, such as `nnx.nn.linear`, work too
(`flax_names/import_paths.py`).
"""

from sonde._import_paths import hand_on
from sonde._lazy_names import lazy_names
from sonde.nnx import transforms as transforms
from sonde.nnx.flax_names.import_paths import PATHS

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

hand_on(__name__, PATHS)
