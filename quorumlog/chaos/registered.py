"""How the lab finds a workload, a fault, a driver, a checker, a world or a mutant by its name."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def registered(kinds: Mapping[str, T], name: str, noun: str) -> T:
    """Return what has this name. Raises ValueError with the names there are."""
    if name not in kinds:
        hint = "".join(f" - did you mean {like}?" for like in get_close_matches(name, kinds, n=1))
        raise ValueError(f"no {noun} is called {name!r}{hint}; there are {', '.join(kinds)}")
    return kinds[name]
