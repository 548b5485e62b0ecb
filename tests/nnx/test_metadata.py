"""What a Variable knows beside its value, and the hooks among it."""


def test_metadata(same):
    def use(nnx):
        v = nnx.Param(1.0, a=1)
        v.set_metadata(b=2)
        v.set_metadata("c", 3)
        seen = v.get_metadata(exclude_required=True)
        has = v.has_metadata("b"), v.a, v.get_metadata("c"), v.get_metadata("nope", 4)
        v.del_metadata("a")
        v2 = nnx.Param(0.0)
        v2.set_metadata({"z": 1})
        return v, seen, has, v2

    same(use)


def test_hooks(same):
    def use(nnx):
        v = nnx.Param(
            1,
            on_get_value=lambda var, x: x + 1,
            on_set_value=lambda var, x: x * 2,
            on_create_value=lambda var, x: x + 10,
        )
        seen = [v.get_raw_value(), v.get_value(), v.create_value(4)]
        v.set_value(5)
        return [*seen, v.get_raw_value(), v.get_value()]

    same(use)


def test_hooks_of_a_class(same):
    def use(nnx):
        axes = []

        class Hooked(nnx.Variable):
            def on_get_value(self, x):
                return x + 1

            def on_set_value(self, x):
                return x * 2

            def on_add_axis(self, index, name):
                axes.append((index, name))

        v = Hooked(3)
        v.set_value(4)
        v.add_axis(0, "batch")
        v.remove_axis(0, "batch")
        return v.get_raw_value(), v.get_value(), axes

    same(use)


def test_hooks_with_metadata_wrapper(same):
    def use(nnx):
        init = nnx.with_metadata(lambda: 1, role="bias", on_get_value=lambda var, x: x + 5)
        v = nnx.Param(init())
        return v.role, v.get_value()

    same(use)
