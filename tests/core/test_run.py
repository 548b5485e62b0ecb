"""The state after a run, however it ends; and errors of the user's own functions, which name the site."""

import subprocess
import sys
import textwrap
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import sonde
from sonde import _jax
from sonde.core.context import RUNNING_CAPTURES, looking
from sonde.errors import EditError


def test_interrupts_at_any_moment_leave_the_thread_as_it_was() -> None:
    """In a separate process: a timer interrupts the program at any point."""
    program = """
        import signal, jax, jax.numpy as jnp, sonde
        from sonde.core.context import RUNNING_CAPTURES, looking
        f = jax.jit(lambda x: sonde.sow(x * 2, "h") + 1)
        def eager(x):
            with sonde.scope("a"):
                return sonde.sow(jnp.sin(x), "h")
        captured = sonde.capture(eager)
        x = jnp.ones(2); captured(x); sonde.capture(f)(x); f(x); eager(x)
        hits = 0
        def ring(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, ring)
        for i in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + (i % 97) * 0.00001)
                for _ in range(100):  # some interrupts are lost where JAX ignores exceptions
                    captured(x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException:  # inside of jaxlib an interrupt may become another exception
                hits += 1
            assert looking() is None, i
            assert RUNNING_CAPTURES.count == 0, i
            assert f(x)[0] == 3.0
            assert list(captured(x)[1]) == ["a/h"], i
        print("interrupted", hits)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100


def test_captures_of_threads_are_counted_apart() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def f(x: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return sonde.sow(x, "x")

    thread = threading.Thread(target=lambda: sonde.capture(f)(1.0))
    thread.start()
    assert inside.wait(60)
    assert (RUNNING_CAPTURES.count, looking()) == (1, None)
    sonde.capture(lambda x: x)(1.0)
    assert RUNNING_CAPTURES.count == 1
    go_on.set()
    thread.join()
    assert RUNNING_CAPTURES.count == 0


def fails(*_: Any) -> Any:
    raise RuntimeError("mine")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_errors_of_the_users_functions_name_the_site(wrap: Any) -> None:
    def f(x: Any) -> Any:
        with sonde.scope("a"):
            return sonde.sow(x * 2, "h")

    for run in (
        sonde.capture(wrap(f), reduce=fails),
        sonde.capture(wrap(f), fails),
        sonde.edit(wrap(f), {"a/h": fails}),
    ):
        with pytest.raises(RuntimeError, match="mine") as error:
            run(1.0)
        assert any("at site 'a/h' (" in note for note in error.value.__notes__)


def test_edits_that_hit_nothing_are_errors() -> None:
    def f(x: Any) -> Any:
        x = sonde.sow(sonde.sow(x, "h"), "h")
        return lax.scan(lambda c, _: (sonde.sow(c + 1, "c"), None), x, None, length=4)[0]

    with pytest.raises(EditError, match=r"edit of 'h': it names call \[5\], counted from 0, but the site runs 2 times"):
        sonde.edit(f, {"h": sonde.Edit(0.0, calls=5)})(1.0)
    with pytest.raises(EditError, match=r"edit of 'c' .*it names iteration \[9\], counted from 0, but the loop has 4"):
        sonde.edit(f, {"c": sonde.Edit(0.0, iterations=(1, 9))})(1.0)
    assert sonde.edit(f, {"h": sonde.Edit(0.0, calls=1), "c": sonde.Edit(9.0, iterations=jnp.int32(3))})(1.0) == 9.0
    for wrong in ({"calls": -1}, {"iterations": 1.5}, {"calls": "x"}, {"iterations": True}):
        with pytest.raises(TypeError, match="takes numbers counted from 0"):
            sonde.Edit(0.0, **wrong)


def test_arguments_of_capture_are_checked() -> None:
    with pytest.raises(TypeError, match=r"capture\(last=...\) is a number of iterations, got 'x'"):
        sonde.capture(jnp.sin, last="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"capture\(reduce=...\) is a function of a value, got 3"):
        sonde.capture(jnp.sin, reduce=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="compiled ahead of time"):
        sonde.capture(jax.jit(jnp.sin).lower(1.0).compile())


def test_a_missing_gradient_says_why() -> None:
    f = jax.grad(lambda x: sonde.sow(x, "h") ** 2)
    with pytest.raises(ValueError, match="record 'h' has no gradient: capture with `grads=True`"):
        _ = sonde.capture(f)(1.0)[1]["h"].grad
    with pytest.raises(ValueError, match="record 'h' has no gradient: no backward pass went through it"):
        _ = sonde.capture(lambda x: sonde.sow(x, "h"), grads=True)(1.0)[1]["h"].grad


def test_a_glob_matches_names_with_any_character() -> None:
    assert list(sonde.capture(lambda x: sonde.sow(x, "a\nb"), "**")(1.0)[1]) == ["a\nb"]


def test_changes_that_an_interrupt_cut_short_are_made_by_the_next_capture() -> None:
    class Interrupting(dict):
        left = 1

        def __setitem__(self, name: str, value: str) -> None:
            if value == "new" and self.left:
                self.left -= 1
                raise KeyboardInterrupt
            super().__setitem__(name, value)

    owner = Interrupting({"a": "plain"})
    changes = _jax.InPlace(_jax.Change(owner, "a", "new"))
    with pytest.raises(KeyboardInterrupt), changes:
        pass
    assert owner == {"a": "plain"}
    with changes:
        assert owner == {"a": "new"}
