"""Looks up a workload, a fault, a driver, a checker, a world or a mutant by its name."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def registered(kinds: Mapping[str, T], name: str, noun: str) -> T:
    """Return the object of this name. Raises ValueError with the existing names."""
    if name not in kinds:
        hint = "".join(f" - did you mean {like}?" for like in get_close_matches(name, kinds, n=1))
        raise ValueError(f"no {noun} is called {name!r}{hint}; choose from {', '.join(kinds)}")
    return kinds[name]
