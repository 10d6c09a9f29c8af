"""Objects with sequence numbers as hashes, so that the order of a set of them is deterministic.

By default, the hash is the object's address, so the order of a set depends on the memory layout.
But asyncio and aiohttp cancel, wake and close objects in the order of a set.
"""

from collections.abc import Iterator
from typing import Any, TypeVar, cast

T = TypeVar("T")


def numbered(made: type[T], numbers: Iterator[int]) -> type[T]:
    """Return a subclass of `made` whose objects take their number at their first hash."""

    def take_number(self: Any) -> int:
        try:
            return cast(int, self.number_in_sets)
        except AttributeError:
            self.number_in_sets = number = next(numbers)
            return number

    return cast("type[T]", type(made.__name__, (made,), {"__hash__": take_number}))
