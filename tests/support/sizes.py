"""How much a test tries: all of it, or a fourth under hypothesis's profile `quick` (`make check`).

Only for searches that find nothing today. Searches for a planted bug keep their size.
"""

from typing import Any, Final

from hypothesis import settings

QUICK: Final = "quick"


def tries(count: int) -> int:
    return max(1, count // 4) if settings.get_current_profile_name() == QUICK else count


def examples(count: int, **others: Any) -> settings:
    """Return settings of a property that tries so many examples, the same ones in each run."""
    return settings(max_examples=tries(count), deadline=None, derandomize=True, **others)
