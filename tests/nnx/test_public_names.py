from sonde import nnx


def test_names_are_there():
    assert len(set(nnx.__all__)) == len(nnx.__all__)
    for name in nnx.__all__:
        assert getattr(nnx, name) is not None
