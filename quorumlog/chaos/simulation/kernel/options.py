"""The options of a schedule, by type. `WorldKind.check_schedule` has compared the types before."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.invariants import InvariantViolation

DrawOptions = Callable[[Rng, int], tuple[int, dict[str, Option]]]
"""Called with the generator and the number of nodes: how many machines there are, and options."""


class Options:
    """The options of a schedule, beside its faults."""

    def __init__(self, schedule: Schedule) -> None:
        self._options: Final = schedule.options

    def number(self, name: str) -> int:
        """Return a whole number."""
        value = self._options[name]
        if not isinstance(value, int):
            raise InvariantViolation(f"option {name} is a whole number, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether something is on."""
        return self._options[name] is True
