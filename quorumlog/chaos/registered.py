"""Looks up a workload, a fault, a driver, a checker, a world or a mutant by its name."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, TypeVar

T = TypeVar("T")


class NotRegistered(ValueError):
    """No object has this name. `hint`: the likely name, and all names."""

    def __init__(self, error: str, suggestion: str, known: str) -> None:
        super().__init__(f"{error}{f' - {suggestion}' if suggestion else ''}; {known}")
        self.error: Final = error
        self.hint: Final = f"{suggestion} {known}".strip()


def registered(kinds: Mapping[str, T], name: str, noun: str) -> T:
    """Return the object of this name. Raises NotRegistered with the existing names."""
    if name not in kinds:
        like = "".join(f"did you mean {like}?" for like in get_close_matches(name, kinds, n=1))
        known = f"choose from {', '.join(kinds)}"
        raise NotRegistered(f"no {noun} is called {name!r}", like, known)
    return kinds[name]
