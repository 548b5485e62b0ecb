"""A model whose parts have modes, of either implementation."""

import jax.numpy as jnp


def block(nnx):
    class Noise(nnx.Module):
        def __init__(self, deterministic=False):
            self.deterministic = deterministic
            self.rate = 0.5

        def set_view(self, deterministic: bool | None = None):
            """Sets the mode.

            Args:
              deterministic: if True, there is
                no noise.
            """
            if deterministic is not None:
                self.deterministic = deterministic

    class Norm(nnx.Module):
        def __init__(self):
            self.use_running_average = False
            self.scale = nnx.Param(jnp.ones(2))

        def set_view(self, use_running_average: bool, momentum=0.9):
            self.use_running_average = use_running_average

    class Block(nnx.Module):
        def __init__(self):
            self.noise = Noise()
            self.norm = Norm()
            self.more = nnx.List([Noise(), Norm()])

    return Block()


def modes(m):
    return (
        m.noise.deterministic,
        m.norm.use_running_average,
        m.more[0].deterministic,
        m.more[1].use_running_average,
        m.noise.rate,
    )
