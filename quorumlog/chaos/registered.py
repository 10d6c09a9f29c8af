"""How the lab finds a workload, a fault, a driver, a checker, a world or a mutant by its name."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def registered(kinds: Mapping[str, T], name: str, noun: str) -> T:
    """Return what has this name. Raises ValueError with the names there are."""
    if name not in kinds:
        raise ValueError(f"no {noun} is called {name!r}; there are {', '.join(kinds)}")
    return kinds[name]
