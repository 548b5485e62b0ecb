"""Variables: the objects that hold a model's arrays, their kinds, names, metadata and shardings."""
