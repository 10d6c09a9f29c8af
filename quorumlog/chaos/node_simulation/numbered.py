"""Objects with numbers for hashes: the order of a set of them follows from what happened before.

Others have their address for a hash. So the order of a set depends on what the process has in its
memory by chance, and asyncio and aiohttp cancel, wake and close in the order of a set.
"""

from collections.abc import Iterator
from typing import Any, TypeVar, cast

T = TypeVar("T")


def numbered(made: type[T], numbers: Iterator[int]) -> type[T]:
    """Return a class like `made`: an object of it takes its number when it is asked for a hash."""

    def take_number(self: Any) -> int:
        try:
            return cast(int, self.number_in_sets)
        except AttributeError:
            self.number_in_sets = number = next(numbers)
            return number

    return cast("type[T]", type(made.__name__, (made,), {"__hash__": take_number}))
