"""Where chance comes from: jitter, identifiers, and what an election draws.

Every part of a node and of a client that needs chance asks here. A simulation puts a seeded
generator in the place of the system's: then a run is a function of its seed.
"""

from collections.abc import MutableSequence
from random import Random, SystemRandom
from typing import Any

_source: Random = SystemRandom()


def substitute(source: Random) -> None:
    """Draw from this generator from now on, in the whole process."""
    global _source  # noqa: PLW0603 - the one place that a simulation replaces
    _source = source


def random_fraction() -> float:
    """Return a number in [0, 1)."""
    return _source.random()


def random_bytes(size: int) -> bytes:
    """Return `size` bytes; from the system they are fit for secrets."""
    return _source.randbytes(size)


def random_number(end: int) -> int:
    """Return a number in [0, end)."""
    return _source.randrange(end)


def shuffle(items: MutableSequence[Any]) -> None:
    """Put the items in a random order."""
    _source.shuffle(items)
