"""The details of the nemesis's rows: which action of the schedule a row belongs to.

`#3 kill: partition-leader` begins action 3, counted from 1; the row that ends it has `#3 kill`,
perhaps with a remark behind a colon. A row without a number belongs to no action.
"""

import re
from typing import Final

_DETAILS: Final = re.compile(r"#(\d+) (\w+)(?:: (.*))?", re.DOTALL)


def details_of(number: int, fault: str, remark: str = "") -> str:
    """Return the details of a row of this action."""
    return f"#{number} {fault}: {remark}" if remark else f"#{number} {fault}"


def read_details(details: str) -> tuple[int, str, str] | None:
    """Return (number of the action, name of its fault, remark); None: it belongs to none."""
    found = _DETAILS.fullmatch(details)
    return None if found is None else (int(found[1]), found[2], found[3] or "")
