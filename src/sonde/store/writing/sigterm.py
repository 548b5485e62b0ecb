"""SIGTERM during a harvest: what is computed gets written and listed, and then the process ends as it would have.

Schedulers send SIGTERM some seconds before they kill a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator

_HANDLER_BYTES = 1024  # more than any system needs to describe a handler


@contextlib.contextmanager
def asked_to_leave() -> Iterator[Callable[[], bool]]:
    """A function that tells whether SIGTERM has come. At the end of the block, the signal is sent again.

    The handler from before is then back, also one that Python does not know, such as JAX's. In a thread other than the
    main one, and where SIGTERM is ignored, the function always says no.
    """
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = threading.Event()
    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(_HANDLER_BYTES)
    library.sigaction(int(signal.SIGTERM), None, before)
    known = signal.signal(signal.SIGTERM, lambda *_: came.set())
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if known is None else known)
        library.sigaction(int(signal.SIGTERM), before, None)
        if came.is_set():
            signal.raise_signal(signal.SIGTERM)
