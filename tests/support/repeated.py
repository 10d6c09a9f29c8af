"""Which tests `make test` would repeat after `make check`, with nothing else in them.

Not repeated: tests that `make check` leaves out, and all of a file that has searches, because these
are longer in `make test`.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
CHECKED: Final = ("unit", "golden", "property", "paper", "chaos", "simulation")
"""The directories of `make check`, which runs the tests beside them as well."""
LEFT_OUT: Final = ("integration", "spark", "planted")
"""The marks of what it leaves out there."""
_SHARED_SEARCHES: Final = ("property", "simulation")  # their files use those of one another
_OF_SEARCHES: Final = ("hypothesis", "tests.support.sizes")


def is_repeated(item: pytest.Item) -> bool:
    """Tell whether `make check` runs a test just as `make test` does."""
    first, *below = item.path.relative_to(TESTS).parts
    is_checked = first in CHECKED or not below
    if not is_checked or any(item.get_closest_marker(mark) for mark in LEFT_OUT):
        return False
    return first not in _SHARED_SEARCHES and not _has_searches(item.path)


@lru_cache
def _has_searches(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in _OF_SEARCHES)
