"""Mutants: worlds with one broken rule each, which the world's oracle must find."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
RulesT = TypeVar("RulesT")
Broken = TypeVar("Broken", bound=type[Any])


class Mutants(Generic[T]):
    """The mutants of a world, in order of their definition.

    A mutant is a class that replaces a rule. `breaks` adds it; its name is that of the class, in
    lower case. `made`: the parts of the world, by name. `rules`: the broken rules.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        """`make` gets the classes of a mutant, and returns the parts of the world."""
        self.made: Final[dict[str, T]] = {}
        self.rules: Final[dict[str, str]] = {}
        self._make: Final = make

    def breaks(self, rule: str, *, also: type[Any] | None = None) -> Callable[[Broken], Broken]:
        """Return a decorator for the class that breaks `rule`, if need be together with another."""

        def add(broken: Broken) -> Broken:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", broken.__name__.lstrip("_")).lower()
            self.made[name] = self._make(broken) if also is None else self._make(broken, also)
            self.rules[name] = rule
            return broken

        return add


def with_broken(rules: RulesT, *broken: type[Any]) -> RulesT:
    """Return a dataclass of classes in which each of `broken` replaces the class it inherits."""
    sound = {field.name: getattr(rules, field.name) for field in fields(rules)}  # type: ignore[arg-type]  # a dataclass
    planted = {name: one for one in broken for name, rule in sound.items() if issubclass(one, rule)}
    return replace(rules, **planted)  # type: ignore[type-var]  # a dataclass
