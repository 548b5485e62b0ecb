"""Neural networks as functions of their variables, with the names of `flax.linen`.

Replace `from flax import linen as nn` with `from sonde import linen as nn`: names, arguments, results, parameter trees
and initial values are the same. What is new: values sown inside any transform, Linen's or JAX's, arrive without
`variable_axes`.

Names are loaded when they are first used (`__init__.pyi` lists them). The import paths of Flax's own files, such as
`linen.linear`, work too (`flax_names/import_paths.py`).
"""

from sonde._import_paths import hand_on
from sonde._lazy_names import lazy_names
from sonde.linen import dtypes as dtypes  # paths of Flax too: `hand_on` must find these two loaded
from sonde.linen import transforms as transforms
from sonde.linen.flax_names.import_paths import PATHS

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

hand_on(__name__, PATHS)
