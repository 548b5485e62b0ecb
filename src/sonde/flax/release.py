"""The release of Flax whose behavior the faces follow: the newest for the installed JAX.

Where releases differ, code asks `follows`; a difference that is only an added name or argument needs no question.
"""

from __future__ import annotations

import jax

FOLLOWED: tuple[int, int, int] = (0, 12, 12) if jax.__version_info__ >= (0, 11, 1) else (0, 12, 8)


def follows(*release: int) -> bool:
    """Whether the followed release is this one or a later one.

    Example:
        >>> follows(0, 12, 8)
        True
    """
    return release <= FOLLOWED
