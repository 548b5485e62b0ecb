"""Programs as lists of equations with numbers: flattened, run, unrolled. `sonde.why` and `sonde.port` walk on them."""
