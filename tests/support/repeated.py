"""Which tests `make test` would repeat after `make check SEARCHES=default`: all that it runs."""

from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
CHECKED: Final = ("unit", "golden", "property", "paper", "chaos", "simulation")
"""The directories of `make check`, which runs the tests beside them as well."""
LEFT_OUT: Final = ("integration", "spark", "planted")
"""The marks of the tests that it leaves out there."""


def is_repeated_file(path: Path) -> bool:
    """Return whether all tests of a file are repeated: it need not even be imported."""
    return _is_checked(path) and not any(f"mark.{mark}" in _text_of(path) for mark in LEFT_OUT)


def is_repeated(item: pytest.Item) -> bool:
    """Return whether `make check` runs a test, too."""
    is_left_out = any(item.get_closest_marker(mark) for mark in LEFT_OUT)
    return _is_checked(item.path) and not is_left_out


def _is_checked(path: Path) -> bool:
    first, *below = path.relative_to(TESTS).parts
    return first in CHECKED if below else path.name.startswith("test_")


@lru_cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
