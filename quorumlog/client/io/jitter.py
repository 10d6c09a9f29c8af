"""Jitter for retries: spreads clients that would otherwise try again at the same moment."""

import random


def random_fraction() -> float:
    """Return a number in [0, 1). Not for cryptography."""
    return random.random()  # noqa: S311 - it spreads retries
