"""Planted bugs: a class that replaces a rule of the product, and a sentence about the broken rule.

To add a mutant: write a class that inherits the rule, and put the decorator `breaks` of a subject
before it. The mutant has the name of the class, in lower case.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from quorumlog.chaos.mutants.parts import Parts, broken_parts

Broken = TypeVar("Broken", bound=type[Any])


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A planted bug.

    of: the part of the product. breaks: the bug, in a sentence.
    parts: the parts of a node, or of a simulated process, with the bug.
    is_simulated: whether whole nodes in simulation run it; real processes run each mutant.
    """

    name: str
    of: str
    breaks: str
    parts: Parts
    is_simulated: bool = True


class Mutants(dict[str, Mutant]):
    """The mutants of one subject, by name, in the order of their definition."""

    def __init__(
        self, of: str, make: Callable[..., Parts] = broken_parts, *, is_simulated: bool = True
    ) -> None:
        """of: the part of the product. make: makes the parts from the classes of a mutant."""
        super().__init__()
        self._of: Final = of
        self._make: Final = make
        self._is_simulated: Final = is_simulated

    def breaks(
        self, rule: str, *, also: type[Any] | None = None, **options: Any
    ) -> Callable[[Broken], Broken]:
        """Return a decorator for the class that breaks `rule`, if need be together with another.

        options: for `make`.
        """

        def add(broken: Broken) -> Broken:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", broken.__name__.lstrip("_")).lower()
            if not self._is_simulated:
                name = name.replace("_", "-")
            classes = (broken,) if also is None else (broken, also)
            self[name] = Mutant(
                name=name,
                of=self._of,
                breaks=rule,
                parts=self._make(*classes, **options),
                is_simulated=self._is_simulated,
            )
            return broken

        return add
