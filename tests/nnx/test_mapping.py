"""Copies of a model with other leaves or other nodes."""

from tests.nnx.graphs import shared, tree


def test_mapping(same):
    same(lambda nnx: nnx.map(lambda path, x: x * 2, shared(nnx)))
    same(lambda nnx: nnx.map(lambda path, x: x * 2, tree(nnx), graph=False))
    same(lambda nnx: nnx.map(lambda path, x: path, tree(nnx), recreate_variables=False).w)

    def recursive(nnx, **options):
        seen = []

        def f(path, value):
            if not any(str(k).startswith("_") for k in path):
                seen.append((path, type(value).__name__))
            return value

        m = tree(nnx)
        out = nnx.recursive_map(f, m, **options)
        return seen, out is m, out.w is m.w

    same(recursive)
    same(lambda nnx: recursive(nnx, graph=False))


def test_set_metadata_and_with_vars(same):
    def use(nnx):
        m = tree(nnx)
        nnx.set_metadata(m, frozen=True, only=nnx.BatchStat)
        nnx.set_metadata(m, seen=1)
        other = nnx.with_vars(m)
        return m, other, other.w is m.w

    same(use)
