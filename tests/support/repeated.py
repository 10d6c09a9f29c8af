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


def is_repeated_file(path: Path) -> bool:
    """Return whether all tests of a file are repeated: it need not even be imported."""
    return _has_repeated(path) and not any(f"mark.{mark}" in _text_of(path) for mark in LEFT_OUT)


def is_repeated(item: pytest.Item) -> bool:
    """Return whether `make check` runs a test just as `make test` does."""
    is_left_out = any(item.get_closest_marker(mark) for mark in LEFT_OUT)
    return _has_repeated(item.path) and not is_left_out


def _has_repeated(path: Path) -> bool:
    first, *below = path.relative_to(TESTS).parts
    is_checked = first in CHECKED if below else path.name.startswith("test_")
    if not is_checked or first in _SHARED_SEARCHES:
        return False
    return not any(word in _text_of(path) for word in _OF_SEARCHES)


@lru_cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
