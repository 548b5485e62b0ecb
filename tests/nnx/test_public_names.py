from sonde import nnx


def test_names_are_there():
    assert len(set(nnx.__all__)) == len(nnx.__all__)
    for name in nnx.__all__:
        assert getattr(nnx, name) is not None


def test_every_example_runs():
    import doctest
    import importlib
    import pkgutil

    for info in pkgutil.iter_modules(nnx.__path__):
        if info.ispkg or info.name.startswith("capture"):
            continue
        module = importlib.import_module(f"sonde.nnx.{info.name}")
        assert doctest.testmod(module, raise_on_error=True).failed == 0
