"""Checkpoints: a model, an optimizer, or several together, written to disk and read back.

Three verbs, `save`, `restore` and `contents`; and `read`, for when there is no model to restore into. A path that ends
in `.safetensors` is a safetensors file, any other an orbax directory. Both packages are extras, loaded when they are
needed: `pip install 'sonde-jax[checkpoints]'`, `pip install 'sonde-jax[safetensors]'`.

The orbax directories are those that orbax writes for `flax.nnx.state(model)` or, with `pure=True`, for
`nnx.to_pure_dict` of it; both are recognized when they are read. So checkpoints move between Sonde and Flax in both
directions.

    from sonde.nnx import checkpoints

    checkpoints.save("run/100", {"model": model, "optimizer": optimizer})
    checkpoints.restore("run/100", {"model": model, "optimizer": optimizer})
    checkpoints.save("model.safetensors", model, only=nnx.Param)
"""

from sonde.nnx.checkpoints.save_restore import contents, read, restore, save

__all__ = ["contents", "read", "restore", "save"]
