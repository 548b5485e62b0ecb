"""Names for Variable types."""


def test_names(same):
    def known(nnx):
        return [nnx.variable_name_from_type(nnx.variable_type_from_name(n)) for n in ("params", "batch_stats", "cache")]

    same(known)

    def own(nnx):
        class Memory(nnx.Variable):
            pass

        nnx.register_variable_name("memory_test", Memory, overwrite=True)
        made = nnx.variable_type_from_name("made_test", allow_register=True)
        derived = nnx.variable_type_from_name("derived_test", base=nnx.Param, allow_register=True)
        return nnx.variable_name_from_type(Memory), made, issubclass(derived, nnx.Param)

    same(own)
    same(lambda nnx: nnx.variable_type_from_name("unheard of"))
    same(lambda nnx: nnx.register_variable_name("params", nnx.Cache))
    same(lambda nnx: nnx.variable_name_from_type(nnx.Variable))
