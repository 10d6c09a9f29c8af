"""The source of random numbers: for jitter, identifiers and election timeouts.

All parts of a node and of a client take random numbers from here. A simulation replaces the
system's generator by a seeded one: then a run is a function of its seed.
"""

from collections.abc import MutableSequence
from random import Random, SystemRandom
from typing import Any

_source: Random = SystemRandom()


def substitute(source: Random) -> None:
    """Draw from this generator from now on, in the whole process."""
    global _source  # noqa: PLW0603 - replaced by simulations
    _source = source


def random_fraction() -> float:
    """Return a number in [0, 1)."""
    return _source.random()


def random_bytes(size: int) -> bytes:
    """Return `size` bytes; the system's generator is fit for secrets."""
    return _source.randbytes(size)


def random_number(end: int) -> int:
    """Return a number in [0, end)."""
    return _source.randrange(end)


def shuffle(items: MutableSequence[Any]) -> None:
    """Put the items in a random order."""
    _source.shuffle(items)
