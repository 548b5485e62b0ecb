"""The state after a run, however it ends; and errors of the user's own functions, which name the site."""

import functools
import subprocess
import sys
import textwrap
import threading
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import _jax
from sonde.core.session.session import SESSIONS, capture_state
from sonde.errors import EditError


def test_interrupts_at_any_moment_leave_the_thread_as_it_was() -> None:
    """In a separate process: a timer interrupts the program at any point."""
    program = """
        import signal, jax, jax.numpy as jnp, sonde
        from sonde.core.session.session import SESSIONS, capture_state
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
            assert capture_state() is None, i
            assert not SESSIONS.threads, i
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
    assert ([session.depth for session in SESSIONS.threads.values()], capture_state()) == ([1], None)
    sonde.capture(lambda x: x)(1.0)
    assert len(SESSIONS.threads) == 1
    go_on.set()
    thread.join()
    assert not SESSIONS.threads


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

    with pytest.raises(EditError, match=r"edit of 'h': calls=\[5\] is out of range; the site runs 2 times"):
        sonde.edit(f, {"h": sonde.Edit(0.0, calls=5)})(1.0)
    with pytest.raises(EditError, match=r"edit of 'c' .*iterations=\[9\] is out of range; the loop has 4"):
        sonde.edit(f, {"c": sonde.Edit(0.0, iterations=(1, 9))})(1.0)
    assert sonde.edit(f, {"h": sonde.Edit(0.0, calls=1), "c": sonde.Edit(9.0, iterations=jnp.int32(3))})(1.0) == 9.0
    for wrong in ({"calls": -1}, {"iterations": 1.5}, {"calls": "x"}, {"iterations": True}):
        with pytest.raises(TypeError, match="takes numbers counted from 0"):
            sonde.Edit(0.0, **wrong)


def test_arguments_of_capture_are_checked() -> None:
    with pytest.raises(TypeError, match=r"capture\(last=...\) must be a number of iterations, got 'x'"):
        sonde.capture(jnp.sin, last="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"capture\(reduce=...\) must be a function of a value, got 3"):
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
    class Interrupting(type):
        left = 1

        def __setattr__(cls, name: str, value: str) -> None:
            if value == "new" and Interrupting.left:
                Interrupting.left -= 1
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    class Owner(metaclass=Interrupting):
        a = "plain"

    changes = _jax.InPlace(_jax.Change(Owner, "a", "new"))
    with pytest.raises(KeyboardInterrupt):
        changes.enter(1)
    changes.leave(1)
    assert Owner.a == "plain"
    changes.enter(2)
    assert Owner.a == "new"
    for _ in range(2):  # an interrupt may cut the first short
        changes.leave(2)
        assert Owner.a == "plain"  # the run that was cut short is not counted


def test_changes_are_made_and_undone_together_and_may_be_added() -> None:
    table, module = {"a": 1}, types.ModuleType("module")
    module.f = module.g = "plain"  # pyright: ignore[reportAttributeAccessIssue]
    change = _jax.Change
    changes = _jax.InPlace(change(table, "a", 2), change(table, "b", 3), change(module, "f", "new"))
    changes.add(change(module, "g", "new"))
    before = dict(vars(module))
    for user in (1, 2):
        changes.enter(user)
    changes.leave(1)
    assert table == {"a": 2, "b": 3}
    assert (vars(module)["f"], vars(module)["g"]) == ("new", "new")
    changes.leave(2)
    assert (table, vars(module)) == ({"a": 1}, before)


def test_a_jitted_function_is_called_as_ever() -> None:
    @functools.partial(jax.jit, static_argnames="n", keep_unused=True)
    def f(x: Any, *, n: int, unused: Any = None) -> Any:
        return {"y": [sonde.sow(x * n, "h"), n * jnp.ones(2)]}

    @functools.partial(jax.jit, donate_argnums=0)
    def donating(x: Any) -> Any:
        return sonde.sow(x + 1, "d")

    for x in (2, 2.0, np.float64(2), np.arange(3), jnp.arange(3.0), True):
        plain = f(x, n=3)
        result, records = sonde.capture(lambda x: f(x, n=3))(x)
        assert jax.tree.structure(result) == jax.tree.structure(plain)
        for got, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True):
            assert (got.dtype, got.weak_type) == (wanted.dtype, wanted.weak_type)
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(records["h"].value, plain["y"][0])
    given = jnp.ones(4)
    _, records = sonde.capture(lambda x: donating(x) * 1)(given)
    np.testing.assert_array_equal(records["d"].value, 2 * np.ones(4))
    assert given.is_deleted()
    with pytest.raises(TypeError, match="not a valid JAX type|abstract array"):
        sonde.capture(lambda x: f(x, n=1))("text")


def test_a_capture_without_modules_visits_few_files_and_none_that_is_about_modules() -> None:
    """In a separate process, in which no library with modules is loaded."""
    program = """
        import sys, sonde
        def run():
            return sonde.capture(lambda x: sonde.sow(x * 2, "h"))(1.0)
        run()
        files = set()
        root = sonde.__file__.removesuffix("__init__.py")
        def note(frame, event, arg):
            if frame.f_code.co_filename.startswith(root):
                files.add(frame.f_code.co_filename.removeprefix(root))
        sys.setprofile(note)
        run()
        sys.setprofile(None)
        print(len(files), *[file for file in files if file.startswith(("core/modules", "inside"))])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    n_files, *about_modules = done.stdout.split()
    assert not about_modules
    assert int(n_files) <= 32
