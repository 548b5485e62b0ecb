"""Faults that people make with other packages: an epsilon of zero, an empty mask, a weight of zero, a value at a bound.

Each has the truth beside it, read from the source of the package: the operation that makes the first NaN or Inf, the
file, and a piece of the line.
"""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

KEY = jax.random.key(0)
Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Misuse:
    """A program with a fault.

    Attributes:
        make: Makes the function and its arguments.
        operations: The operation that makes the first NaN or Inf; two names where versions of JAX differ.
        file: The end of the path of the file in which it is.
        text: A piece of the line.
    """

    make: Callable[[], Program]
    operations: tuple[str, ...]
    file: str
    text: str

    def is_named(self, operation: str, source: str) -> bool:
        """Whether an answer with this operation and `file:line` is right."""
        file, _, line = source.rpartition(":")
        return operation in self.operations and file.endswith(self.file) and self.has_line(file, int(line or 0))

    def has_line(self, file: str, line: int) -> bool:
        """Whether a line of a file is the one."""
        return file.endswith(self.file) and self.text in linecache.getline(file, line)


MISUSES: dict[str, Misuse] = {}
"""By name; the part before the first underscore is the package."""


def fault(operations: str, file: str, text: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Registers a program with a fault, with what is to be named."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        MISUSES[make.__name__] = Misuse(make, tuple(operations.split()), file, text)
        return make

    return register


# -- optax -------------------------------------------------------------------------------------------------------------


def _two_updates(optimizer: Any, loss: Callable[..., Any] = lambda w: jnp.sum(w[1:] ** 2)) -> Program:
    """Two steps of an optimizer; the first weight has no gradient."""
    import optax

    def run(w: jax.Array) -> jax.Array:
        state = optimizer.init(w)
        for _ in range(2):
            updates, state = optimizer.update(jax.grad(loss)(w), state, w)
            w = optax.apply_updates(w, updates)
        return w

    return jax.jit(run), (jnp.array([1.0, 2.0, 3.0]),)


@fault("div", "optax/_src/transform.py", "m / (jnp.sqrt(v + eps_root) + eps)")
def optax_adam_without_eps() -> Program:
    import optax

    return _two_updates(optax.adam(0.1, eps=0.0))


@fault("rsqrt", "optax/_src/transform.py", "jax.lax.rsqrt(n + eps)")
def optax_rmsprop_without_eps() -> Program:
    import optax

    return _two_updates(optax.rmsprop(0.1, eps=0.0))


@fault("div", "optax/_src/transform.py", "1 / (jnp.sqrt(n) + eps)")
def optax_rmsprop_eps_outside() -> Program:
    import optax

    return _two_updates(optax.rmsprop(0.1, eps=0.0, eps_in_sqrt=False))


@fault("div", "optax/contrib/_sam.py", "g / g_norm")
def optax_sam_at_minimum() -> Program:
    import optax

    return _two_updates(
        optax.contrib.sam(optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.1))),
        lambda w: jnp.sum(w * 0.0),
    )


@fault("div", "optax/losses/_self_supervised.py", "_regression.cosine_similarity(")
def optax_ntxent_temperature_zero() -> Program:
    import optax

    labels = jnp.array([0, 0, 1, 1])
    return jax.jit(lambda x: optax.losses.ntxent(x, labels, temperature=0.0)), (jax.random.normal(KEY, (4, 3)),)


@fault("mul", "optax/losses/_classification.py", "targets * (")
def optax_kl_of_log_zero() -> Program:
    import optax

    log_predictions = jnp.array([0.0, -jnp.inf])
    return lambda p: optax.losses.kl_divergence(p, jnp.array([1.0, 0.0])), (log_predictions,)


@fault("div", "optax/projections/_projections.py", "scale / optax.tree.norm(tree)")
def optax_project_zero_to_sphere() -> Program:
    import optax

    return lambda w: optax.projections.projection_l2_sphere(w), (jnp.zeros(3),)


@fault("div", "optax/projections/_projections.py", "optax.tree.vdot(x, a)) / optax.tree.vdot(a, a)")
def optax_project_without_normal() -> Program:
    import optax

    return lambda a: optax.projections.projection_hyperplane(jnp.ones(3), a, 1.0), (jnp.zeros(3),)


@fault("square integer_pow", "optax/losses/_regression.py", "errors**2")
def optax_squared_error_overflow() -> Program:
    import optax

    return jax.jit(lambda x: optax.losses.squared_error(x).mean()), (jnp.array([1.0, 1e25]),)


# -- distrax, TensorFlow Probability, numpyro: densities at bounds and bad scales --------------------------------------


@fault("log", "distrax/_src/distributions/beta.py", "(self._alpha - 1.) * jnp.log(value)")
def distrax_beta_at_zero() -> Program:
    import distrax

    return lambda x: distrax.Beta(2.0, 3.0).log_prob(x), (jnp.array([0.0, 0.5]),)


@fault("log", "distrax/_src/distributions/normal.py", "jnp.log(self._scale)")
def distrax_normal_negative_scale() -> Program:
    import distrax

    return jax.jit(lambda s: distrax.Normal(0.0, s).log_prob(1.0)), (jnp.array([1.0, -0.5]),)


@fault("div", "distrax/_src/distributions/laplace.py", "(value - self._loc) / self._scale")
def distrax_laplace_scale_zero() -> Program:
    import distrax

    return lambda s: distrax.Laplace(0.0, s).cdf(0.0), (jnp.array([1.0, 0.0]),)


@fault("log", "distrax/_src/bijectors/sigmoid.py", "jnp.log(y)")
def distrax_inverse_sigmoid_of_zero() -> Program:
    import distrax

    return lambda y: distrax.Sigmoid().inverse(y), (jnp.array([0.5, 0.0]),)


@fault("log", "distrax/_src/distributions/dirichlet.py", "jnp.log(value)")
def distrax_dirichlet_on_edge() -> Program:
    import distrax

    return lambda x: distrax.Dirichlet(jnp.array([2.0, 2.0])).log_prob(x), (jnp.array([1.0, 0.0]),)


@fault("div", "distrax/_src/bijectors/scalar_affine.py", "1. / scale")
def distrax_affine_scale_zero() -> Program:
    import distrax

    return lambda s: distrax.ScalarAffine(0.0, s).inverse(jnp.ones(2)), (jnp.float32(0.0),)


@fault("div", "numpyro/distributions/continuous.py", "(value - self.loc) / self.scale")
def numpyro_gumbel_scale_zero() -> Program:
    import numpyro.distributions as dist

    return lambda s: dist.Gumbel(0.0, s, validate_args=False).log_prob(0.0), (jnp.array([1.0, 0.0]),)


@fault("log", "numpyro/distributions/continuous.py", "jnp.log(value) * (self.concentration - 1.0)")
def numpyro_dirichlet_on_edge() -> Program:
    import numpyro.distributions as dist

    return lambda x: dist.Dirichlet(jnp.ones(2)).log_prob(x), (jnp.array([1.0, 0.0]),)


@fault("log", "numpyro/distributions/continuous.py", "jnp.log(self.rate) - self.rate * value")
def numpyro_exponential_negative_rate() -> Program:
    import numpyro.distributions as dist

    return jax.jit(lambda r: dist.Exponential(r, validate_args=False).log_prob(1.0)), (jnp.array([2.0, -1.0]),)


@fault("log", "numpyro/distributions/transforms.py", "jnp.log(y)")
def numpyro_inverse_exp_of_zero() -> Program:
    import numpyro.distributions as dist

    return lambda y: dist.transforms.ExpTransform()._inverse(y), (jnp.array([1.0, 0.0]),)


@fault("log1p", "numpyro/distributions/discrete.py", "jnp.log1p(-probs)")
def numpyro_geometric_certain() -> Program:
    import numpyro.distributions as dist

    return lambda p: dist.GeometricProbs(p).entropy(), (jnp.array([0.5, 1.0]),)


@fault("div", "numpyro/distributions/continuous.py", "self.concentration / self.rate")
def numpyro_gamma_mean_rate_zero() -> Program:
    import numpyro.distributions as dist

    return lambda r: dist.Gamma(2.0, r, validate_args=False).mean, (jnp.array([1.0, 0.0]),)


@fault("log", "numpyro/distributions/continuous.py", "jnp.log(self.scale)")
def numpyro_model_negative_scale() -> Program:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    def model(x: jax.Array) -> None:
        slope = numpyro.param("slope", jnp.float32(0.1))
        numpyro.sample("x", dist.Cauchy(0.0, slope * x, validate_args=False), obs=x)

    return lambda x: log_density(model, (x,), {}, {"slope": jnp.float32(0.1)})[0], (jnp.array([1.0, -2.0]),)


@fault("div", "tensorflow_probability/substrates/jax/distributions/normal.py", "self.loc / scale")
def tfp_normal_scale_zero() -> Program:
    import tensorflow_probability.substrates.jax as tfp

    return lambda s: tfp.distributions.Normal(0.0, s).log_prob(0.0), (jnp.array([1.0, 0.0]),)


# -- reinforcement learning --------------------------------------------------------------------------------------------


@fault("div", "rlax/_src/transforms.py", "1. / x - 1.")
def rlax_logit_of_zero() -> Program:
    import rlax

    return lambda x: rlax.logit(x), (jnp.array([0.5, 0.0]),)


@fault("div", "rlax/_src/pop_art.py", "(unnormalized - shift) / scale")
def rlax_pop_art_scale_zero() -> Program:
    import rlax

    state = rlax.PopArtState(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
    return lambda y: rlax.normalize(state, y, jnp.array([0])), (jnp.array([0.0]),)


@fault("div", "rlax/_src/mpo_ops.py", "sample_q_values / temperature")
def rlax_mpo_temperature_zero() -> Program:
    import rlax

    def run(t: jax.Array) -> Any:
        return rlax.mpo_compute_weights_and_temperature_loss(
            jnp.arange(6.0).reshape(3, 2), rlax.LagrangePenalty(t, 0.1), lambda x: x, sample_axis=0
        )

    return run, (jnp.float32(0.0),)


@fault("log", "rlax/_src/losses.py", "jnp.log(likelihood(predictions, targets))")
def rlax_likelihood_zero() -> Program:
    from rlax._src import losses

    return lambda p: losses.log_loss(p, jnp.ones(2)), (jnp.array([0.5, 0.0]),)


@fault("div", "gymnax/environments/classic_control/pendulum.py", "3 * params.g / (2 * params.l)")
def gymnax_pendulum_without_length() -> Program:
    import gymnax

    env, params = gymnax.make("Pendulum-v1")
    _, state = env.reset(KEY, params)
    params = params.replace(l=jnp.float32(0.0))
    return lambda a: env.step(KEY, state, a, params)[0], (jnp.array([0.5]),)


@fault("div", "gymnax/environments/classic_control/cartpole.py", "temp = (")
def gymnax_cartpole_without_mass() -> Program:
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    _, state = env.reset(KEY, params)
    params = params.replace(total_mass=jnp.float32(0.0))
    return lambda a: env.step(KEY, state, a, params)[0], (jnp.int32(1),)


@fault("div", "distrax/_src/utils/math.py", "probs / probs.sum(axis=-1, keepdims=True)")
def distrax_greedy_of_nan_free_mask() -> Program:
    import distrax

    # No action is the best one, as where the maximum is computed in another precision.
    return lambda q: distrax.Greedy(q).probs, (jnp.array([jnp.nan, jnp.nan]),)


# -- graphs, molecules, rotations --------------------------------------------------------------------------------------


@fault("sub", "jraph/_src/utils.py", "logits = logits - maxs[segment_ids]")
def jraph_softmax_of_masked_segment() -> Program:
    import jraph

    run = lambda x: jraph.segment_softmax(x, jnp.array([0, 0, 1]), num_segments=2)
    return run, (jnp.array([1.0, 2.0, -jnp.inf]),)


@fault("div", "jax_md/energy.py", "idr = sigma / dr")
def jaxmd_lennard_jones_without_distance() -> Program:
    from jax_md import energy

    return jax.grad(lambda r: jnp.sum(energy.lennard_jones(r, 1.0, 1.0))), (jnp.array([1.0, 0.0]),)


@fault("div", "jax_md/energy.py", "dr = dr / sigma")
def jaxmd_soft_sphere_without_size() -> Program:
    from jax_md import energy

    return lambda s: energy.soft_sphere(jnp.zeros(2), s), (jnp.array([1.0, 0.0]),)


@fault("div", "jax_md/energy.py", "qqr2e * Q_sq / r * (erfc(alpha * r)")  # the first of three terms with a pole
def jaxmd_bks_without_distance() -> Program:
    from jax_md import energy

    def run(r: jax.Array) -> jax.Array:
        return energy.bks(r, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    return run, (jnp.array([1.0, 0.0]),)


@fault("div", "jaxlie/_so3.py", "self.wxyz / jnp.linalg.norm(self.wxyz")
def jaxlie_normalize_zero() -> Program:
    import jaxlie

    return lambda q: jaxlie.SO3(q).normalize().wxyz, (jnp.zeros(4),)


@fault("div", "jaxlie/_so2.py", "unit_complex=self.unit_complex")
def jaxlie_normalize_plane_zero() -> Program:
    import jaxlie

    return lambda q: jaxlie.SO2(q).normalize().unit_complex, (jnp.zeros(2),)


@fault("div", "brax/math.py", "s = 2 / d")
def brax_rotation_of_zero() -> Program:
    from brax import math

    return lambda q: math.quat_to_3x3(q), (jnp.zeros(4),)


@fault("div", "e3nn_jax/_src/irreps_array.py", "1.0 / other")
def e3nn_divide_by_zero() -> Program:
    import e3nn_jax as e3nn

    return lambda n: (e3nn.IrrepsArray("1o", jnp.ones((2, 3))) / n[:, None]).array, (jnp.array([1.0, 0.0]),)


# -- optimization and transport ----------------------------------------------------------------------------------------


@fault("integer_pow", "jaxopt/_src/prox.py", "1 - l2reg * scaling / l2_norm")  # in the derivative of 1 / x
def jaxopt_group_lasso_of_zero() -> Program:
    import jaxopt

    return jax.grad(lambda w: jnp.sum(jaxopt.prox.prox_group_lasso(w, 1.0))), (jnp.zeros(3),)


@fault("div", "jaxopt/_src/broyden.py", "1 / tree_vdot(v, delta_g)")
def jaxopt_broyden_stands_still() -> Program:
    import jaxopt

    solver = jaxopt.Broyden(lambda w: w * 0.0 + 1.0, maxiter=3)
    return lambda w: solver.run(w).params, (jnp.ones(2),)


@fault("div", "ott/math/matrix_square_root.py", "y = x / norm_x")
def ott_root_of_zero_matrix() -> Program:
    from ott.math import matrix_square_root

    return lambda m: matrix_square_root.sqrtm(m)[0], (jnp.zeros((2, 2)),)


@fault("div", "ott/geometry/costs.py", "jnp.vdot(x, y) / (x_norm * y_norm + self._ridge)")
def ott_cosine_without_ridge() -> Program:
    from ott.geometry import costs

    return lambda x: costs.Cosine(ridge=0.0)(x, jnp.ones(3)), (jnp.zeros(3),)


@fault("arccos acos", "ott/geometry/costs.py", "theta = jnp.arccos(cosine_similarity)")
def ott_arccos_gradient() -> Program:
    from ott.geometry import costs

    return lambda x: costs.Arccos(n=0, ridge=-1e-3)(x, x), (jnp.array([1.0, 0.0]),)


@fault("exp", "ott/math/unbalanced_functions.py", "jnp.exp(h / rho) - 1")
def ott_unbalanced_overflow() -> Program:
    from ott.math import unbalanced_functions

    return jax.jit(lambda h: unbalanced_functions.phi_star(h, 0.01)), (jnp.array([0.1, 5.0]),)


@fault("div", "ott/math/unbalanced_functions.py", "(epsilon * tau) / (1.0 - tau)")
def ott_rho_of_balanced() -> Program:
    from ott.math import unbalanced_functions

    return lambda tau: unbalanced_functions.rho(0.1, tau), (jnp.float32(1.0),)


# -- networks ----------------------------------------------------------------------------------------------------------


@fault("rsqrt", "equinox/nn/_normalisation.py", "jax.lax.rsqrt(variance + self.eps)")
def equinox_layer_norm_of_constant() -> Program:
    import equinox as eqx

    norm = eqx.nn.LayerNorm(4, eps=0.0)
    return eqx.filter_jit(lambda x: jax.vmap(norm)(x)), (jnp.ones((2, 4)),)


@fault("rsqrt", "equinox/nn/_normalisation.py", "jax.lax.rsqrt(jnp.mean(x**2) + self.eps)")
def equinox_rms_norm_of_zero() -> Program:
    import equinox as eqx

    norm = eqx.nn.RMSNorm(4, eps=0.0)
    return jax.vmap(norm), (jnp.array([[1.0, 2.0, 3.0, 4.0], [0.0] * 4]),)


@fault("rsqrt", "flax/linen/normalization.py", "lax.rsqrt(var + epsilon)")
def flax_layer_norm_of_constant() -> Program:
    from flax import linen as nn

    norm = nn.LayerNorm(epsilon=0.0)
    return lambda p, x: norm.apply(p, x), (norm.init(KEY, jnp.ones((2, 4))), jnp.ones((2, 4)))


@fault("rsqrt", "flax/nnx/nn/normalization.py", "lax.rsqrt(var + epsilon)")
def flax_batch_norm_nnx() -> Program:
    from flax import nnx

    norm = nnx.BatchNorm(3, epsilon=0.0, rngs=nnx.Rngs(0))
    return lambda x: norm(x), (jnp.ones((4, 3)),)


@fault("rsqrt", "haiku/_src/group_norm.py", "(x - mean) * jax.lax.rsqrt(var + self.eps)")
def haiku_group_norm_of_constant() -> Program:
    import haiku as hk

    net = hk.without_apply_rng(hk.transform(lambda x: hk.GroupNorm(2, eps=0.0)(x)))
    x = jnp.ones((2, 3, 4))
    return jax.jit(net.apply), (net.init(KEY, x), x)


@fault("rsqrt", "keras/src/backend/jax/math.py", "jax.lax.rsqrt(x)")
def keras_group_norm_of_constant() -> Program:
    import keras

    layer = keras.layers.GroupNormalization(2, epsilon=0.0)
    layer.build((None, 4))
    return lambda x: layer(x), (jnp.ones((2, 4)),)


@fault("div", "optax/losses/_self_supervised.py", "matches.sum()")
def optax_ntxent_without_positives() -> Program:
    import optax

    run = lambda x: optax.losses.ntxent(x, jnp.arange(4))
    return run, (jax.random.normal(KEY, (4, 3)),)


@fault("div", "dm_pix/_src/metrics.py", "alpha = a_dot_b / b_dot_b")
def dmpix_simse_of_black() -> Program:
    import dm_pix

    return lambda b: dm_pix.simse(jnp.ones((1, 4, 4, 3)), b), (jnp.zeros((1, 4, 4, 3)),)


@fault("log", "dm_pix/_src/metrics.py", "jnp.log(mse(a, b")
def dmpix_psnr_of_same() -> Program:
    import dm_pix

    x = jnp.ones((1, 4, 4, 3))
    return lambda a: dm_pix.psnr(a, x), (x,)


@fault("div", "dm_pix/_src/color_conversion.py", "(c_max - red) / c_diff")
def dmpix_hsl_of_gray() -> Program:
    import dm_pix

    return lambda x: dm_pix.rgb_to_hsl(x), (jnp.full((2, 2, 3), 0.5),)


# -- solvers and simulators --------------------------------------------------------------------------------------------


@fault("log", "package_misuses.py", "jnp.log(y)")
def diffrax_field_leaves_domain() -> Program:
    import diffrax

    def field(t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        return -1.0 + 0.0 * jnp.log(y)

    run = lambda y: diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Euler(), 0.0, 2.0, 0.25, y, throw=False).ys
    return run, (jnp.array([1.1]),)


@fault("div", "package_misuses.py", "1 / jnp.abs(y)")
def diffrax_field_singular() -> Program:
    import diffrax

    def field(t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        return -1 / jnp.abs(y)

    controller = diffrax.PIDController(rtol=1e-3, atol=1e-6)

    def run(y: jax.Array) -> jax.Array:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, 0.1, y, stepsize_controller=controller, max_steps=60
        ).ys

    return run, (jnp.array([0.0]),)


@fault("div", "diffrax/_step_size_controller/pid.py", "_y_error / (self.atol + _y * self.rtol)")
def diffrax_without_tolerance() -> Program:
    import diffrax

    controller = diffrax.PIDController(rtol=0.0, atol=0.0)

    def run(y: jax.Array) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, args: 0.0 * y)
        return diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, stepsize_controller=controller, max_steps=20
        ).stats["num_steps"] * jnp.float32(1.0)

    return run, (jnp.array([1.0]),)


@fault("div", "blackjax/diagnostics.py", "between_chain_variance / within_chain_variance")
def blackjax_rhat_of_constant_chains() -> Program:
    import blackjax

    return lambda x: blackjax.diagnostics.potential_scale_reduction(x), (jnp.ones((2, 5)),)


@fault("cholesky", "tinygp/solvers/direct.py", "cholesky")
def tinygp_same_points() -> Program:
    import tinygp

    def run(x: jax.Array) -> jax.Array:
        gp = tinygp.GaussianProcess(tinygp.kernels.ExpSquared(), x, diag=-0.1)
        return gp.log_probability(jnp.ones(3))

    return jax.jit(run), (jnp.zeros(3),)


# -- Gaussian processes, flows, quantum, cosmology, evolution ----------------------------------------------------------


@fault("div", "tinygp/kernels/stationary.py", "self.distance.squared_distance(X1, X2) / jnp.square(self.scale)")
def tinygp_scale_zero() -> Program:
    import tinygp

    def run(scale: jax.Array) -> jax.Array:
        gp = tinygp.GaussianProcess(tinygp.kernels.ExpSquared(scale), jnp.arange(3.0), diag=0.1)
        return gp.log_probability(jnp.ones(3))

    return jax.jit(run), (jnp.float32(0.0),)


@fault("div", "coix/util.py", "cummulative_weight / cummulative_weight[-1]")
def coix_resample_without_weight() -> Program:
    from coix import util

    # Softmax of weights that are all zero makes the first NaN, inside of JAX, called from the line before.
    return lambda w: util.get_systematic_resampling_indices(w, KEY, 4), (jnp.full(4, -jnp.inf),)


MISUSES["coix_resample_without_weight"] = dataclasses.replace(
    MISUSES["coix_resample_without_weight"], operations=("sub",), text="jax.nn.softmax(log_weights, axis=0)"
)


@fault("div", "flowjax/bijections/power.py", "self.exponent * y / x")
def flowjax_power_of_zero() -> Program:
    from flowjax.bijections import Power

    return lambda x: Power(2.0).transform_and_log_det(x), (jnp.float32(0.0),)


@fault("log", "flowjax/bijections/exp.py", "x = jnp.log(y)")
def flowjax_inverse_exp_of_negative() -> Program:
    from flowjax.bijections import Exp

    return lambda y: Exp((2,)).inverse_and_log_det(y), (jnp.array([1.0, -1.0]),)


@fault("div", "flowjax/bijections/affine.py", "(y - self.loc) / self.scale")
def flowjax_affine_at_zero_scale() -> Program:
    import equinox as eqx
    from flowjax.bijections import Affine

    affine = eqx.tree_at(lambda a: a.scale, Affine(jnp.zeros(2), jnp.ones(2)), jnp.array([1.0, 0.0]))
    return lambda y: affine.inverse_and_log_det(y), (jnp.array([1.0, 0.0]),)


@fault("div", "gpjax/kernels/nonstationary/arccosine.py", "cos_theta = x_y / jnp.sqrt(x_x * y_y)")
def gpjax_arccosine_of_zero() -> Program:
    import gpjax

    kernel = gpjax.kernels.ArcCosine(bias_variance=0.0)
    return lambda x: kernel.cross_covariance(x, x), (jnp.array([[0.0], [1.0]]),)


@fault("div", "mctx/_src/qtransforms.py", "(value_score - min_value) / ((max_value - min_value))")
def mctx_equal_values() -> Program:
    import mctx
    from mctx._src import qtransforms

    del mctx
    import types

    tree = types.SimpleNamespace(
        qvalues=lambda i: jnp.zeros(3), children_visits=jnp.ones((1, 3), jnp.int32), node_values=jnp.zeros(1)
    )

    def run(low: jax.Array) -> jax.Array:
        return qtransforms.qtransform_by_min_max(tree, 0, min_value=low, max_value=low)

    return run, (jnp.float32(0.0),)


@fault("div", "dynamiqs/qarrays/qarray.py", "return self * (1 / y)")
def dynamiqs_unit_of_zero() -> Program:
    import dynamiqs

    return lambda x: dynamiqs.unit(x).to_jax(), (jnp.zeros((2, 1), jnp.complex64),)


@fault("div", "qdax/tasks/brax/descriptor_extractors.py", "descriptors / jnp.sum(1.0 - mask, axis=1)")
def qdax_episode_without_steps() -> Program:
    import importlib.util
    import types

    spec = importlib.util.find_spec("qdax")
    assert spec is not None and spec.submodule_search_locations is not None
    from qdax.tasks.brax import descriptor_extractors

    mask = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    run = lambda x: descriptor_extractors.get_feet_contact_proportion(types.SimpleNamespace(state_desc=x), mask)
    return run, (jnp.ones((2, 2, 4)),)


@fault("sqrt", "qdax/tasks/arm.py", "f = jnp.sqrt(jnp.mean(jnp.square(x - jnp.mean(x))))")
def qdax_arm_gradient_at_rest() -> Program:
    raise ImportError


MISUSES["qdax_arm_gradient_at_rest"] = dataclasses.replace(
    MISUSES["qdax_arm_gradient_at_rest"],
    operations=("div",),
    make=lambda: (jax.grad(lambda x: __import__("qdax.tasks.arm", fromlist=["x"]).arm(x)[0]), (jnp.full(3, 0.5),)),
)


@fault("div", "evosax/learned_evolution/fitness_shaping.py", "ranks / (fitness.size - 1) - 0.5")
def evosax_rank_of_one() -> Program:
    from evosax.learned_evolution import fitness_shaping

    return fitness_shaping.centered_rank, (jnp.ones(1),)


@fault("div", "kfac_jax/_src/utils/math.py", "inner_product(v1, v2) / (norm(v1) * norm(v2))")
def kfac_cosine_of_zero() -> Program:
    import kfac_jax

    return kfac_jax.utils.cosine_similarity, ({"a": jnp.zeros(3)}, {"a": jnp.ones(3)})


@fault("div", "kfac_jax/_src/utils/math.py", "lambda x: x / scalar, obj")
def kfac_divide_by_zero() -> Program:
    import kfac_jax

    return kfac_jax.utils.scalar_div, ({"a": jnp.ones(3)}, jnp.float32(0.0))


@fault("div", "folx/wrapped_functions.py", "/ y")
def folx_abs_of_complex_zero() -> Program:
    from folx import wrapped_functions

    run = lambda x: jax.jvp(wrapped_functions.complex_abs, (x,), (jnp.ones(2, jnp.complex64),))
    return run, (jnp.array([1.0 + 1j, 0.0]),)


@fault("cholesky", "dynamax/nonlinear_gaussian_ssm/inference_ukf.py", "jnp.linalg.cholesky(cov)")
def dynamax_points_of_negative_covariance() -> Program:
    from dynamax.nonlinear_gaussian_ssm import inference_ukf

    run = lambda c: inference_ukf._compute_sigmas(jnp.zeros(2), c, 2, 1.0)
    return run, (jnp.array([[1.0, 2.0], [2.0, 1.0]]),)


@fault("div", "augmax/colorspace.py", "(pixel - self.mean) / self.std")
def augmax_normalize_without_std() -> Program:
    import augmax

    transform = augmax.Chain(augmax.Normalize(mean=jnp.ones(3), std=jnp.array([1.0, 0.0, 1.0])))
    return lambda x: transform(KEY, x), (jnp.ones((2, 2, 3)),)


# -- numbers that are too large for their type, data with holes, sampling without weight -------------------------------


@fault("convert_element_type", "package_misuses.py", "x.astype(jnp.float16)")
def flax_half_precision_overflow() -> Program:
    from flax import linen as nn

    layer = nn.Dense(4)
    params = layer.init(KEY, jnp.ones((2, 3)))

    def run(p: Any, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float16)
        return layer.apply(p, x)

    return jax.jit(run), (params, jnp.array([[1.0, 2.0, 3.0], [1.0, 1e6, 3.0]]))


@fault("dot_general", "flax/linen/linear.py", "y = dot_general(")
def flax_half_precision_dot() -> Program:
    from flax import linen as nn

    layer = nn.Dense(4, dtype=jnp.float16, kernel_init=nn.initializers.constant(100.0))
    params = layer.init(KEY, jnp.ones((2, 3)))
    return jax.jit(lambda p, x: layer.apply(p, x)), (params, jnp.full((2, 3), 1000.0))


@fault("argument", "", "")
def equinox_data_with_hole() -> Program:
    import equinox as eqx

    model = eqx.nn.MLP(3, 1, 8, 2, key=KEY)
    loss = lambda m, x, y: jnp.mean((jax.vmap(m)(x)[:, 0] - y) ** 2)
    x = jnp.ones((4, 3)).at[2, 1].set(jnp.nan)
    return eqx.filter_jit(eqx.filter_grad(loss)), (model, x, jnp.ones(4))


@fault("div", "package_misuses.py", "total / jnp.sum(mask)")
def haiku_masked_mean_of_nothing() -> Program:
    import haiku as hk

    def forward(x: jax.Array, mask: jax.Array) -> jax.Array:
        total = jnp.sum(hk.Linear(4)(x) * mask[:, None])
        return total / jnp.sum(mask)

    net = hk.without_apply_rng(hk.transform(forward))
    params = net.init(KEY, jnp.ones((3, 2)), jnp.ones(3))
    return jax.jit(net.apply), (params, jnp.ones((3, 2)), jnp.zeros(3))


@fault("sub", "flax/linen/attention.py", "jax.nn.softmax(attn_weights)")
def flax_attention_masked_whole() -> Program:
    from flax import linen as nn

    x = jnp.ones((1, 3, 2, 4))
    bias = jnp.full((1, 1, 3, 3), -jnp.inf).at[:, :, :2].set(0.0)
    return jax.jit(lambda x: nn.dot_product_attention(x, x, x, bias=bias)), (x,)


@fault("sqrt div", "package_misuses.py", "jnp.sqrt(jnp.sum(delta**2, -1))")
def jaxmd_gradient_of_own_distance() -> Program:
    from jax_md import space

    displacement, _ = space.periodic(4.0)

    def energy(r: jax.Array) -> jax.Array:
        delta = jax.vmap(jax.vmap(displacement, (None, 0)), (0, None))(r, r)
        distance = jnp.sqrt(jnp.sum(delta**2, -1))
        return jnp.sum(jnp.where(jnp.eye(3, dtype=bool), 0.0, distance))

    return jax.jit(jax.grad(energy)), (jax.random.uniform(KEY, (3, 2)),)


@fault("log", "package_misuses.py", "jnp.log(rate)")
def numpyro_potential_leaves_support() -> Program:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import potential_energy

    def model(x: jax.Array) -> None:
        rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
        numpyro.factor("likelihood", jnp.sum(jnp.log(rate) - rate * x))

    run = lambda rate: jax.value_and_grad(lambda r: potential_energy(model, (jnp.ones(3),), {}, {"rate": r}))(rate)
    return jax.jit(run), (jnp.float32(-0.3),)


@fault("div", "package_misuses.py", "x / jnp.linalg.norm(x)")
def lineax_direction_of_zero() -> Program:
    import lineax

    def run(x: jax.Array) -> jax.Array:
        operator = lineax.MatrixLinearOperator(jnp.eye(3) * 2)
        direction = lineax.linear_solve(operator, x / jnp.linalg.norm(x), throw=False)
        return direction.value

    return jax.jit(run), (jnp.zeros(3),)


@fault("pow", "package_misuses.py", "jnp.power(c, 1.5)")
def exponax_reaction_of_negative() -> Program:
    import exponax

    step = exponax.stepper.Diffusion(1, 1.0, 16, 0.01)

    def run(u: jax.Array) -> jax.Array:
        def body(u: jax.Array, _: None) -> tuple[jax.Array, None]:
            u = step(u)
            c = u - 0.5
            return u + 0.01 * jnp.power(c, 1.5), None

        return jax.lax.scan(body, u, length=3)[0]

    return run, (jnp.ones((1, 16)).at[0, 3].set(0.1),)


@fault("div", "package_misuses.py", "advantages / jnp.std(advantages)")
def rlax_advantages_all_equal() -> Program:
    import rlax

    def run(values: jax.Array) -> jax.Array:
        advantages = jax.vmap(rlax.td_learning)(values[:-1], jnp.zeros(3), jnp.ones(3), values[1:])
        advantages = advantages / jnp.std(advantages)
        return rlax.policy_gradient_loss(jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), advantages, jnp.ones(3))

    return jax.jit(run), (jnp.ones(4),)
