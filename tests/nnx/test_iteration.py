"""Looking through a model: what is met, in which order, and what is there twice."""

from tests.nnx.graphs import shared, tree


def test_iteration(same):
    def paths(nnx, **options):
        mine = [(p, type(v).__name__) for p, v in nnx.iter_graph(tree(nnx), **options)]
        return [x for x in mine if not any(str(k).startswith("_") for k in x[0])]

    same(paths)
    same(lambda nnx: paths(nnx, graph=False))
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(shared(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx), graph=False)])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_module_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in tree(nnx).iter_children()])
    same(lambda nnx: [p for p, m in tree(nnx).iter_modules()])


def test_duplicates(same):
    same(lambda nnx: nnx.find_duplicates(shared(nnx)))
    same(lambda nnx: nnx.find_duplicates(shared(nnx), only=nnx.Module))
    same(lambda nnx: nnx.find_duplicates(tree(nnx)))
