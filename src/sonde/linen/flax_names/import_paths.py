"""Import paths of Flax's own files, and the modules of Sonde that have their names.

Code in the wild imports `flax.linen.linear`, `flax.linen.spmd` and the like. See `sonde._import_paths`.
"""

PATHS: dict[str, tuple[str, ...]] = {
    "activation": ("layers.combinators", "sonde.ops.activations"),
    "attention": ("layers.attention", "layers.linear", "layers.norm", "sonde.ops.masks"),
    "batch_apply": ("layers.combinators",),
    "combinators": ("layers.combinators",),
    "dtypes": (),
    "fp8_ops": ("layers.fp8", "sonde.ops.fp8", "sonde.ops.max_gradient"),
    "linear": (
        "layers.linear",
        "layers.conv",
        "sonde.ops.padding",
        "sonde.ops.default_initializers",
        "flax_names.private_names",
    ),
    "module": (
        "modules.module",
        "flax_names.private_names",
    ),
    "normalization": ("layers.norm", "layers.weight_norm", "sonde.ops.norm"),
    "partitioning": ("sharding.partitioning",),
    "pooling": ("sonde.ops.pooling",),
    "recurrent": ("layers.recurrent", "layers.rnn", "sonde.ops.sequence", "sonde.ops.default_initializers"),
    "spmd": ("sharding.logical", "sharding.meta"),
    "stochastic": ("layers.stochastic",),
    "summary": ("modules.table", "flax_names.private_names"),
    "transforms": ("flax_names.private_names",),
}
