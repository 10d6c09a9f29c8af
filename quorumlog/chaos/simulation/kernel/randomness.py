"""One PRNG per concern, all from one seed: leaving one fault out changes no other draw."""

from random import Random
from typing import TypeAlias

Rng: TypeAlias = Random
"""The random numbers of worlds, which import no generator of their own."""


def seeded(concern: str, seed: int) -> Random:
    """Return the same stream on every Python and under every hash seed."""
    return Random(f"{concern} {seed}")  # noqa: S311 - reproducible on purpose, and no secret
