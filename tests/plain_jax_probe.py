"""What plain JAX does, as JSON: run by `test_plain_jax.py` in processes with and without Sonde.

Nothing here uses Sonde except `import_sonde` and `use_sonde`. Usage: `plain_jax_probe.py without | imported | used`.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.multihost_utils  # Sonde loads it, and it registers primitives
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import effects
from jax._src.interpreters import ad, batching, partial_eval
from jax.sharding import AxisType, PartitionSpec

X = np.array([0.3, -0.8], np.float32)


def import_sonde() -> None:
    import sonde
    import sonde.inside.request
    import sonde.linen
    import sonde.nnx
    import sonde.tools

    assert sonde.nnx.Module and sonde.linen.Module


def use_sonde() -> None:
    import sonde
    import sonde.errors
    from sonde import linen, nnx

    def body(carry: Any, _: Any) -> Any:
        return sonde.sow(jnp.sin(carry), "h"), None

    loss = lambda x: jnp.sum(lax.scan(jax.checkpoint(body), x, None, length=3)[0])
    sonde.capture(jax.grad(loss), grads=True)(X)
    sonde.capture(jax.jit(jax.vmap(loss)))(np.stack([X, X]))
    sonde.edit(loss, {"h": lambda h: 2 * h})(X)
    sonde.capture(jax.vmap(jax.vmap(loss)), grads=True)(np.ones((2, 2, 2), np.float32))
    sonde.with_perturbations(lambda x: jnp.sum(sonde.perturb(x, "h")))({"h": X}, X)
    sonde.first_nonfinite(loss)(X)
    try:
        sonde.capture(loss, "nothing")(X)
    except sonde.errors.NoSuchSiteError:
        pass
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    sonde.capture(nnx.jit(lambda m, x: m(x)))(model, X)
    layer = linen.Dense(2)
    layer.apply(layer.init(jax.random.key(0), X), X, capture_intermediates=True)


# ---------------------------------------------------------------------------------------------------------------------
# Programs: every higher-order primitive, differentiated, mapped and rematerialized
# ---------------------------------------------------------------------------------------------------------------------


def scanned(x: Any) -> Any:
    step = lambda c, y: (jnp.sin(c) * y, c + y)
    carry, ys = lax.scan(step, x, jnp.arange(3.0), reverse=True)
    return jnp.sum(carry) + jnp.sum(ys)


def unchanging(x: Any) -> Any:
    """A loop with a part that JAX moves out of it when it differentiates."""
    return jnp.sum(lax.scan(lambda c, _: (c * jnp.exp(jnp.cos(2.0)) + jnp.sin(x), None), x, None, length=3)[0])


def scanned_again(x: Any) -> Any:
    step = jax.checkpoint(lambda c, y: (jnp.sin(jnp.cos(c)) * y, None))
    return jnp.sum(lax.scan(step, x, jnp.arange(3.0))[0])


def looped(x: Any) -> Any:
    return jnp.sum(lax.while_loop(lambda s: jnp.sum(s) < 3.0, lambda s: s + jnp.exp(x), x))


def chosen(x: Any) -> Any:
    return jnp.sum(lax.cond(x[0] > 0, jnp.sin, lambda x: x * 2.0, x))


def switched(x: Any) -> Any:
    return jnp.sum(lax.switch((x[1] > 0).astype(int), [jnp.sin, jnp.cos, jnp.tanh], x))


def again(x: Any) -> Any:
    return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x))


def looped_again(x: Any) -> Any:
    """A while loop that is computed again; nothing goes back through it."""
    inner = jax.checkpoint(lambda x: jnp.sin(x) * looped(lax.stop_gradient(x)))
    return jnp.sum(inner(x))


def with_rule(x: Any) -> Any:
    f = jax.custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 2.0 * x,))
    return jnp.sum(f(x))


def with_forward_rule(x: Any) -> Any:
    f = jax.custom_jvp(lambda x: jnp.sin(x))
    f.defjvp(lambda primals, tangents: (f(*primals), 3.0 * tangents[0]))
    return jnp.sum(f(x))


def calling_back(x: Any) -> Any:
    step = lambda c, _: (jnp.sin(c), jax.debug.callback(lambda c: None, c))
    return jnp.sum(lax.scan(step, x, None, length=2)[0])


def jitted_twice(x: Any) -> Any:
    g = jax.jit(lambda x: jnp.sin(x) * 2.0)
    return jnp.sum(g(x) + g(2.0 * x))


PROGRAMS = [scanned, unchanging, scanned_again, looped, chosen, switched, again, looped_again, with_rule]
PROGRAMS += [with_forward_rule, calling_back, jitted_twice]

TRANSFORMS: dict[str, Callable[[Callable], Callable]] = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, -x])),
    "grad of vmap": lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, -x])))),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, -x])),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "hessian": lambda f: jax.hessian(f),
    "grad of remat": lambda f: jax.grad(jax.checkpoint(f)),
}


def clean(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|at /\S+|\bid=\d+", "", text)


def outcome(f: Callable, *args: Any) -> Any:
    """A result, or which error there is instead."""
    try:
        return f(*args)
    except Exception as error:
        return f"{type(error).__name__}: {clean(str(error))[:300]}"


def programs() -> Any:
    """The jaxprs of every program under every transform."""
    found = {}
    for program in PROGRAMS:
        for name, transform in TRANSFORMS.items():
            key = f"{name} of {program.__name__}"
            found[key] = outcome(lambda: clean(str(jax.make_jaxpr(transform(program))(X))))
    return found


def compiled() -> Any:
    """The modules that are handed to XLA."""
    return {f.__name__: outcome(lambda: clean(jax.jit(jax.grad(f)).lower(X).as_text())) for f in PROGRAMS}


def counts() -> Any:
    """How often functions are traced and programs compiled, and what is in their caches."""
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    found = {}
    for program in (unchanging, scanned_again, looped, chosen, looped_again):
        traced: list[int] = []

        def counted(x: Any, program: Callable = program, traced: list[int] = traced) -> Any:
            traced.append(1)
            return program(x)

        jax.clear_caches()
        before, jitted = len(compiled), jax.jit(counted)
        for x in (X, 2 * X, X, np.stack([X, X])[0]):
            jitted(x)
        found[program.__name__] = [len(traced), jitted._cache_size()]
        gradient = jax.jit(jax.grad(counted)) if program is not looped else jitted
        gradient(X)
        gradient(2 * X)
        found[program.__name__] += [len(traced), gradient._cache_size(), len(compiled) - before]
    return found


class Refused(effects.Effect):
    """An effect that JAX has not been told to allow anywhere."""


def errors() -> Any:
    """What JAX refuses, it refuses in the same words."""
    from jax.extend.core import Primitive

    primitive = Primitive("refused")
    primitive.def_effectful_abstract_eval(lambda x: (x, {Refused()}))
    bad = primitive.bind
    return {
        "reverse mode through a while loop": outcome(jax.grad(looped), X),
        "an effect in a scan": outcome(lambda x: lax.scan(lambda c, _: (bad(c), None), x, None, length=2), X),
        "an effect in a cond": outcome(lambda x: lax.cond(x[0] > 0, bad, bad, x), X),
        "an effect in remat": outcome(jax.grad(lambda x: jnp.sum(jax.checkpoint(bad)(x))), X),
        "an effect in a jit": outcome(jax.jit(bad), X),
        "an effect in custom_vjp": outcome(lambda x: custom(bad, x), X),
        "a carry of another type": outcome(lambda x: lax.scan(lambda c, _: (c[0], None), x, None, length=2), X),
        "branches of other types": outcome(lambda x: lax.cond(True, lambda x: x, lambda x: x[0], x), X),
        "a tracer in Python's if": outcome(jax.jit(lambda x: x if x[0] else -x), X),
        "a tracer after its trace": outcome(leaked),
        "a mapped choice among arrays in pieces": outcome(chosen_on_mesh),
    }


def custom(bad: Callable, x: Any) -> Any:
    f = jax.custom_vjp(bad)
    f.defvjp(lambda x: (bad(x), None), lambda _, ct: (ct,))
    return jax.grad(lambda x: jnp.sum(f(x)))(x)


def chosen_on_mesh() -> Any:
    with jax.set_mesh(jax.make_mesh((1,), ("e",), axis_types=(AxisType.Explicit,))):
        in_pieces = lambda x: jax.sharding.reshard(x, PartitionSpec("e"))
        return jax.vmap(lambda i: lax.cond(i > 0, lambda: in_pieces(X), lambda: in_pieces(-X)))(np.arange(2))


def leaked() -> Any:
    kept = []
    jax.jit(lambda x: kept.append(x) or x)(X)
    return kept[0] + 1.0


def leaks() -> Any:
    """What `jax.checking_leaks` says: of what leaks, and of what does not."""
    found = {}
    gc.collect()
    gc.freeze()  # so that the collections below only visit what these programs leave
    for program in PROGRAMS:
        for name in ("jit", "grad", "grad of remat", "vmap of grad"):
            jax.clear_caches()
            gc.collect()

            def check(program: Callable = program, name: str = name) -> str:
                with jax.checking_leaks():
                    jax.make_jaxpr(TRANSFORMS[name](program))(X)
                return "no leak"

            found[f"{name} of {program.__name__}"] = str(outcome(check))[:40]
    kept = []

    def leak() -> None:
        with jax.checking_leaks():
            jax.jit(lambda x: kept.append(x) or x)(X)

    found["a leak"] = str(outcome(leak))[:40]
    return found


ALLOWED = ["lowerable_effects", "control_flow_allowed_effects", "remat_allowed_effects"]
ALLOWED += ["custom_derivatives_allowed_effects", "partial_eval_kept_effects"]
TABLES = {
    "jvps": ad.primitive_jvps,
    "transposes": ad.primitive_transposes,
    "linearizations": ad.primitive_linearizations,
    "partial evaluation": partial_eval.custom_partial_eval_rules,
    "partial evaluation in remat": partial_eval.partial_eval_jaxpr_custom_rules,
    "dead code": partial_eval.dce_rules,
    "batching with axis data": batching.fancy_primitive_batchers,
}


def tables() -> Any:
    """For which effects and primitives JAX has rules. Packages that Sonde uses bring primitives of their own."""
    allowed = {name: sorted(t.__name__ for t in getattr(effects, name)._effect_types) for name in ALLOWED}
    return allowed, {name: sorted({str(p) for p in table}) for name, table in TABLES.items()}


def replaced() -> Any:
    """Functions of JAX's modules and classes that come from elsewhere."""
    found = []
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] not in ("jax", "jaxlib") or module is None:
            continue
        for attribute, value in sorted(vars(module).items()):
            if is_of_sonde(value):
                found.append(f"{name}.{attribute}")
            if isinstance(value, type) and value.__module__.split(".")[0] == "jax":
                found += [f"{name}.{attribute}.{m}" for m, method in sorted(vars(value).items()) if is_of_sonde(method)]
    return found


def is_of_sonde(value: Any) -> bool:
    owner = getattr(value, "__module__", None)
    return callable(value) and isinstance(owner, str) and owner.split(".")[0] == "sonde"


if __name__ == "__main__":
    how = sys.argv[1]
    traced: list[int] = []
    early = jax.jit(lambda x: traced.append(1) or x)
    early(1.0)
    if how != "without":
        import_sonde()
    if how == "used":
        use_sonde()
    for _ in range(3):
        early(1.0)
    answers: dict[str, Any] = {"traced": len(traced)}
    for probe in (programs, compiled, counts, errors, leaks, tables, replaced):
        answers[probe.__name__] = probe()
    print(json.dumps(answers))
