"""Programs of other packages, each with a place where a fault can be planted.

A program is a function of a `fault`, which it applies to a number somewhere inside the package's loop: in a vector
field, an objective, a density, a layer. The fault is the identity until its argument is beyond a threshold. Solvers and
samplers have Infs that are meant, such as first step sizes and best losses, and checks of their own.
"""

import importlib.util

import jax
import jax.numpy as jnp

KEY = jax.random.key(0)


def log_fault(x):
    return x + jnp.log(jnp.where(x > -1e9, -1.0, 1.0))  # planted


def div_fault(x):
    return x * (jnp.where(x > -1e9, 0.0, 1.0) / jnp.where(x > -1e9, 0.0, 1.0))  # planted


def sqrt_fault(x):
    return x + jnp.sqrt(jnp.where(x > -1e9, -2.0, 0.0))  # planted


def exp_fault(x):
    return x + jnp.exp(jnp.where(x > -1e9, 1000.0, -1000.0))  # planted


FAULTS = {"log": log_fault, "div": div_fault, "sqrt": sqrt_fault, "exp": exp_fault}


def diffrax(fault):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -fault(y))
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-6)
    run = lambda y: (
        diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, stepsize_controller=controller, max_steps=50).ys
    )
    return run, (jnp.array([1.0, 2.0]),)


def diffrax_constant_steps(fault):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -fault(y))
    return lambda y: diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.1, y).ys, (jnp.array([1.0, 2.0]),)


def lineax(fault):
    import lineax

    def solve(a, b):
        return lineax.linear_solve(lineax.MatrixLinearOperator(fault(a)), b).value

    return solve, (jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.ones(2))


def optimistix_root(fault):
    import optimistix

    run = lambda y: optimistix.root_find(lambda y, _: fault(y) ** 2 - 2, optimistix.Newton(1e-3, 1e-3), y).value
    return run, (jnp.array(1.0),)


def optimistix_minimise(fault):
    import optimistix

    run = lambda y: (
        optimistix.minimise(
            lambda y, _: jnp.sum((fault(y) - 3) ** 2), optimistix.BFGS(1e-3, 1e-3), y, max_steps=20
        ).value
    )
    return run, (jnp.ones(2),)


def jaxopt_gradient_descent(fault):
    import jaxopt

    solver = jaxopt.GradientDescent(lambda w: jnp.sum((fault(w) - 1) ** 2), maxiter=5)
    return lambda w: solver.run(w).params, (jnp.ones(3),)


def jaxopt_lbfgs(fault):
    import jaxopt

    solver = jaxopt.LBFGS(lambda w: jnp.sum((fault(w) - 1) ** 2), maxiter=4)
    return lambda w: solver.run(w).params, (jnp.zeros(3),)


def optax_adam(fault):
    import optax

    opt = optax.adam(0.1)

    def run(w):
        def step(carry, _):
            w, state = carry
            grads = jax.grad(lambda w: jnp.sum((fault(w) - 2) ** 2))(w)
            updates, state = opt.update(grads, state)
            return (optax.apply_updates(w, updates), state), None

        return jax.lax.scan(step, (w, opt.init(w)), length=4)[0][0]

    return run, (jnp.ones(3),)


def blackjax_hmc(fault):
    import blackjax

    kernel = blackjax.hmc(lambda x: -0.5 * jnp.sum(fault(x) ** 2), 0.1, jnp.ones(2), 3)

    def run(x):
        state, info = kernel.step(KEY, kernel.init(x))
        return state.position, info.energy

    return jax.jit(run), (jnp.ones(2),)


def blackjax_nuts(fault):
    import blackjax

    kernel = blackjax.nuts(lambda x: -0.5 * jnp.sum(fault(x) ** 2), 0.1, jnp.ones(2))

    def run(x):
        state, info = kernel.step(KEY, kernel.init(x))
        return state.position, info.energy

    return jax.jit(run), (jnp.ones(2),)


def numpyro_svi(fault):
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(fault(mean), 1), obs=x)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())

    def run(x):
        state = svi.init(jax.random.PRNGKey(0), x)
        return svi.update(state, x)[1]

    return run, (jnp.ones(4),)


def distrax_mixture(fault):
    import distrax

    def run(x):
        mixture = distrax.MixtureSameFamily(
            distrax.Categorical(logits=jnp.zeros(2)), distrax.Normal(fault(x), jnp.ones(2))
        )
        return mixture.log_prob(jnp.float32(0.3))

    return run, (jnp.array([0.0, 1.0]),)


def equinox_mlp(fault):
    import equinox as eqx

    model = eqx.nn.MLP(3, 1, 8, 2, activation=lambda x: jax.nn.relu(fault(x)), key=KEY)
    return eqx.filter_jit(eqx.filter_grad(lambda m, x: jnp.sum(jax.vmap(m)(x) ** 2))), (model, jnp.ones((4, 3)))


def haiku_rnn(fault):
    import haiku as hk

    def unroll(x):
        core = hk.GRU(4)
        return hk.dynamic_unroll(core, fault(x), core.initial_state(2), time_major=True)[0]

    net = hk.without_apply_rng(hk.transform(unroll))
    x = jnp.ones((5, 2, 3))
    params = hk.without_apply_rng(
        hk.transform(lambda x: hk.dynamic_unroll((c := hk.GRU(4)), x, c.initial_state(2), time_major=True)[0])
    ).init(KEY, x)
    return jax.jit(net.apply), (params, x)


def flax_linen(fault):
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm()(nn.Dense(8)(x))
            return nn.Dense(1)(nn.softmax(fault(x)))

    x = jnp.ones((2, 3))
    clean = Net().init(KEY, x)
    return jax.jit(lambda p, x: Net().apply(p, x)), (clean, x)


def mctx_policy(fault):
    import mctx

    def recurrent(params, key, action, embedding):
        output = mctx.RecurrentFnOutput(
            reward=fault(embedding), discount=jnp.ones_like(embedding), prior_logits=jnp.zeros((2, 3)), value=embedding
        )
        return output, embedding + 1

    def run(x):
        root = mctx.RootFnOutput(prior_logits=jnp.zeros((2, 3)), value=x, embedding=x)
        return mctx.muzero_policy((), KEY, root, recurrent, num_simulations=4).search_tree.node_values

    return run, (jnp.ones(2),)


def ott_sinkhorn(fault):
    from ott.geometry import pointcloud
    from ott.solvers import linear

    return lambda x, y: linear.solve(pointcloud.PointCloud(fault(x), y), max_iterations=5).f, (
        jax.random.normal(KEY, (5, 2)),
        jnp.ones((4, 2)),
    )


def tinygp_fit(fault):
    import tinygp

    def run(x, y):
        gp = tinygp.GaussianProcess(tinygp.kernels.ExpSquared(), fault(x), diag=0.1)
        return gp.log_probability(y)

    return jax.jit(run), (jnp.linspace(0, 1, 6), jnp.ones(6))


def flowjax_flow(fault):
    from flowjax.distributions import Normal

    return lambda x: Normal(fault(x), 1.0).log_prob(jnp.zeros(3)), (jnp.ones(3),)


def jax_md_energy(fault):
    from jax_md import energy, space

    displacement, _ = space.free()
    total = energy.soft_sphere_pair(displacement)
    return lambda r: jax.grad(lambda r: total(fault(r)))(r), (jax.random.uniform(KEY, (4, 2)),)


def jraph_network(fault):
    import jraph

    graph = jraph.GraphsTuple(
        nodes=jnp.ones((3, 2)),
        edges=jnp.ones((2, 1)),
        senders=jnp.array([0, 1]),
        receivers=jnp.array([1, 2]),
        globals=jnp.ones((1, 1)),
        n_node=jnp.array([3]),
        n_edge=jnp.array([2]),
    )
    net = jraph.GraphNetwork(
        lambda e, s, r, g: e * 2, lambda n, s, r, g: fault(n) + r.sum(-1, keepdims=True), lambda n, e, g: g
    )
    return lambda nodes: net(graph._replace(nodes=nodes)).nodes, (jnp.ones((3, 2)),)


def rlax_returns(fault):
    import rlax

    return lambda r: rlax.lambda_returns(fault(r), jnp.ones(4) * 0.9, jnp.ones(4)), (jnp.ones(4),)


def evosax_strategy(fault):
    from evosax.algorithms import Open_ES

    def run(x):
        strategy = Open_ES(population_size=4, solution=x)
        params = strategy.default_params
        state = strategy.init(KEY, x, params)
        population, state = strategy.ask(KEY, state, params)
        fitness = jax.vmap(lambda p: jnp.sum(fault(p) ** 2))(population)
        state, _ = strategy.tell(KEY, population, fitness, state, params)
        return state.mean

    return run, (jnp.ones(3),)


def matfree_trace(fault):
    from matfree import stochtrace

    sampler = stochtrace.sampler_normal(jnp.ones(3), num=4)
    estimate = stochtrace.estimator_monte_carlo(stochtrace.monte_carlo_trace(), sampler=sampler)
    return lambda a: estimate(lambda v: fault(a) @ v, KEY), (jnp.eye(3),)


def interpax_spline(fault):
    import interpax

    return lambda y: interpax.interp1d(jnp.array([0.5]), jnp.arange(4.0), fault(y), method="cubic"), (jnp.ones(4),)


def e3nn_norm(fault):
    import e3nn_jax as e3nn

    return lambda x: e3nn.norm(e3nn.IrrepsArray("2x1o", fault(x))).array, (jnp.ones((2, 6)),)


def kfac_loss(fault):
    import kfac_jax

    def run(x):
        return kfac_jax.utils.scalar_mul({"a": fault(x)}, 2.0)["a"].sum()

    return run, (jnp.ones(3),)


def quax_lora(fault):
    import quax

    return quax.quaxify(lambda x: jnp.sum(fault(x) @ x)), (jnp.eye(3),)


def dynamax_filter(fault):
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    model = LinearGaussianSSM(2, 1)
    params, _ = model.initialize(KEY)
    return lambda y: model.filter(params, fault(y)).filtered_means, (jnp.ones((5, 1)),)


def orthax_polynomial(fault):
    import orthax

    return lambda c: orthax.chebyshev.chebval(jnp.linspace(-1, 1, 4), fault(c)), (jnp.ones(4),)


def brax_spring(fault):
    from brax import math

    return lambda q: math.rotate(jnp.array([1.0, 2.0, 3.0]), fault(q)), (jnp.array([1.0, 0.0, 0.0, 0.0]),)


def nifty_field(fault):
    import nifty.re as jft

    prior = jft.NormalPrior(0.0, 1.0, name="a", shape=(3,))
    return lambda x: prior({"a": fault(x)}), (jnp.ones(3),)


def jaxns_model(fault):
    import tensorflow_probability.substrates.jax as tfp

    return lambda x: tfp.distributions.MultivariateNormalDiag(fault(x), jnp.ones(3)).log_prob(jnp.zeros(3)), (
        jnp.ones(3),
    )


def keras_network(fault):
    import keras

    layers = [keras.layers.Dense(6), keras.layers.LayerNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    weights, state = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
    return lambda weights, x: model.stateless_call(weights, state, fault(x))[0], (weights, jnp.ones((4, 3)))


def penzai_mlp(fault):
    from penzai import pz
    from penzai.models import simple_mlp

    model = simple_mlp.MLP.from_config(name="mlp", init_base_rng=KEY, feature_sizes=[4, 8, 2])
    return lambda x: model(pz.nx.wrap(fault(x)).tag("features")).unwrap("features"), (jnp.ones(4),)


def jaxlie_rotation(fault):
    import jaxlie

    def run(x):
        return (jaxlie.SE3.exp(fault(x)) @ jaxlie.SE3.exp(x * 0.5)).log()

    return run, (jnp.arange(6.0) / 7,)


def gpjax_kernel(fault):
    import gpjax

    kernel = gpjax.kernels.Matern32()
    return lambda x: kernel.cross_covariance(fault(x), x), (jnp.linspace(0, 1, 5)[:, None],)


def signax_signature(fault):
    import signax

    return lambda path: signax.logsignature(fault(path), 3), (jax.random.normal(KEY, (6, 2)),)


def cosmo_distance(fault):
    import jax_cosmo

    return lambda a: jax_cosmo.background.radial_comoving_distance(jax_cosmo.Planck15(), fault(a)), (jnp.array([0.5]),)


def folx_laplacian(fault):
    import folx

    return lambda x: folx.forward_laplacian(lambda x: jnp.sum(jnp.tanh(fault(x)) ** 2))(x).laplacian, (jnp.ones(3),)


def neural_kernel(fault):
    from neural_tangents import stax

    *_, kernel = stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(8), stax.Erf(), stax.Dense(1))
    return lambda x: kernel(fault(x), None, "ntk"), (jax.random.normal(KEY, (3, 4)),)


def gymnax_pendulum(fault):
    import gymnax

    env, params = gymnax.make("Pendulum-v1")
    _, state = env.reset(KEY, params)

    def run(action):
        def step(state, key):
            seen, state, reward, *_ = env.step(key, state, fault(action), params)
            return state, (seen, reward)

        return jax.lax.scan(step, state, jax.random.split(KEY, 5))[1]

    return run, (jnp.array([0.3]),)


def adan_update(fault):
    import optax
    import optax_adan

    opt = optax_adan.adan(0.1)

    def run(w):
        state = opt.init(w)
        for _ in range(3):
            updates, state = opt.update(jax.grad(lambda w: jnp.sum((fault(w) - 2) ** 2))(w), state, w)
            w = optax.apply_updates(w, updates)
        return w

    return run, (jnp.ones(3),)


def diffrax_implicit(fault):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -(fault(y) ** 3))
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-5)

    def run(y):
        solver = diffrax.Kvaerno3()
        return diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, y, stepsize_controller=controller, max_steps=40).ys

    return run, (jnp.array([1.0, 2.0]),)


def diffrax_adjoint(fault):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -fault(y) * args)

    def run(k):
        y = diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.25, jnp.array([1.0, 2.0]), args=k).ys
        return jnp.sum(y**2)

    return jax.grad(run), (jnp.array(0.7),)


def lineax_conjugate(fault):
    import lineax

    def solve(a, b):
        operator = lineax.MatrixLinearOperator(fault(a), lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, b, lineax.CG(1e-4, 1e-4)).value

    return solve, (jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.ones(2))


def lineax_least_squares(fault):
    import lineax

    def solve(a, b):
        return lineax.linear_solve(lineax.MatrixLinearOperator(fault(a)), b, lineax.QR()).value

    return solve, (jax.random.normal(KEY, (4, 2)), jnp.ones(4))


def optimistix_least_squares(fault):
    import optimistix

    def run(y):
        solver = optimistix.LevenbergMarquardt(1e-3, 1e-3)
        return optimistix.least_squares(lambda y, _: fault(y) ** 2 - jnp.array([1.0, 4.0]), solver, y).value

    return run, (jnp.array([2.0, 3.0]),)


def optax_lbfgs(fault):
    import optax

    opt = optax.lbfgs()
    value = lambda w: jnp.sum((fault(w) - 2) ** 4)

    def run(w):
        state = opt.init(w)
        for _ in range(2):
            loss, grad = optax.value_and_grad_from_state(value)(w, state=state)
            updates, state = opt.update(grad, state, w, value=loss, grad=grad, value_fn=value)
            w = optax.apply_updates(w, updates)
        return w

    return jax.jit(run), (jnp.ones(3),)


def numpyro_nuts(fault):
    import numpyro.distributions as dist
    from numpyro.infer.hmc import hmc

    potential = lambda z: -jnp.sum(dist.StudentT(4.0).log_prob(fault(z)))
    init, sample = hmc(potential, algo="NUTS")

    def run(z):
        state = init(z, num_warmup=0, step_size=0.3)
        return sample(sample(state)).z

    return run, (jnp.array([0.3, -0.2]),)


def numpyro_distributions(fault):
    import numpyro.distributions as dist

    def run(x):
        mixture = dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Gamma(jnp.array([2.0, 3.0]), 1.0)
        )
        flow = dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.SigmoidTransform())
        return mixture.log_prob(fault(x)), flow.log_prob(x / 9), dist.LKJCholesky(3).sample(jax.random.PRNGKey(0))

    return run, (jnp.array([0.5, 1.5]),)


def blackjax_adaptation(fault):
    import blackjax

    density = lambda x: -0.5 * jnp.sum(fault(x) ** 2)

    def run(x):
        warmup = blackjax.window_adaptation(blackjax.hmc, density, num_integration_steps=2)
        (state, parameters), _ = warmup.run(KEY, x, num_steps=6)
        return state.position, parameters["step_size"]

    return run, (jnp.ones(2),)


def flax_convolution(fault):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            self.convolution = nnx.Conv(1, 4, (3, 3), rngs=nnx.Rngs(0))
            self.norm = nnx.GroupNorm(4, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return nnx.max_pool(nnx.silu(self.norm(fault(self.convolution(x)))), (2, 2)).sum()

    graph, state = nnx.split(Net())
    return jax.grad(lambda x, state: nnx.merge(graph, state)(x)), (jax.random.normal(KEY, (2, 4, 4, 1)), state)


def haiku_attention(fault):
    import haiku as hk

    def apply(x):
        return hk.LayerNorm(-1, True, True)(hk.MultiHeadAttention(2, 4, w_init_scale=1.0)(x, x, fault(x)))

    x = jax.random.normal(KEY, (1, 3, 8))
    net = hk.without_apply_rng(hk.transform(apply))
    params = net.init(KEY, x)
    return jax.grad(lambda p, x: net.apply(p, x).sum()), (params, x)


def dynamax_hmm(fault):
    from dynamax.hidden_markov_model import GaussianHMM

    model = GaussianHMM(2, 1)
    params, _ = model.initialize(KEY)
    return lambda y: model.smoother(params, fault(y)).smoothed_probs, (jax.random.normal(KEY, (5, 1)),)


def brax_pipeline(fault):
    from brax.io import mjcf
    from brax.positional import pipeline

    text = """<mujoco><worldbody><body pos="0 0 1"><joint type="hinge" axis="0 1 0"/>
    <geom type="capsule" size="0.1 0.3" mass="1"/></body></worldbody></mujoco>"""
    system = mjcf.loads(text)

    def run(q):
        state = pipeline.init(system, fault(q), jnp.zeros(1))
        for _ in range(2):
            state = pipeline.step(system, state, jnp.zeros(0))
        return state.q, state.qd

    return jax.jit(run), (jnp.array([0.3]),)


def equinox_attention(fault):
    import equinox as eqx

    net = eqx.nn.MultiheadAttention(2, 4, key=KEY)
    mask = jnp.tril(jnp.ones((3, 3), bool))
    return eqx.filter_grad(lambda net, x: jnp.sum(net(fault(x), x, x, mask) ** 2)), (
        net,
        jax.random.normal(KEY, (3, 4)),
    )


def jaxopt_projected(fault):
    import jaxopt

    solver = jaxopt.ProjectedGradient(
        lambda w: jnp.sum((fault(w) - 1) ** 2), jaxopt.projection.projection_simplex, maxiter=3
    )
    return lambda w: solver.run(w).params, (jnp.array([0.2, 0.3, 0.5]),)


def flowjax_spline(fault):
    from flowjax.bijections import RationalQuadraticSpline

    spline = RationalQuadraticSpline(knots=4, interval=2)
    return lambda x: spline.transform_and_log_det(fault(x)), (jnp.array(0.3),)


PROGRAMS = {
    name: program
    for name, program in list(globals().items())
    if "_" in name or name in ("diffrax", "lineax")
    if callable(program) and getattr(program, "__code__", None) and program.__code__.co_varnames[:1] == ("fault",)
}
"""By name; the part before the first underscore is the package."""

_MODULES = {"ott": "ott", "haiku": "haiku", "kfac": "kfac_jax", "jax": "jax_md", "e3nn": "e3nn_jax", "nifty": "nifty"}
_MODULES |= {"jaxns": "tensorflow_probability", "cosmo": "jax_cosmo", "neural": "neural_tangents"}
_MODULES |= {"adan": "optax_adan", "tfp": "tensorflow_probability", "jaxmd": "jax_md", "dmpix": "dm_pix"}


def is_installed(name):
    """Whether the package of a program can be imported."""
    package = name.partition("_")[0]
    return importlib.util.find_spec(_MODULES.get(package, package)) is not None


def planted_line(kind):
    """The line of a fault, as `file:line`."""
    code = FAULTS[kind].__code__
    return f"{code.co_filename}:{code.co_firstlineno + 1}"
