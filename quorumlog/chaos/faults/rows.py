"""The details of the nemesis's rows: which action of the schedule a row belongs to.

`#3 kill: partition-leader` begins action 3, counted from 1; the row that ends it has `#3 kill`,
perhaps with a remark behind a colon. A row without a number belongs to no action. The row at the
begin of all faults has the terms by which the silence among them is judged.
"""

import re
from typing import Final, NamedTuple

_DETAILS: Final = re.compile(r"#(\d+) (\w+)(?:: (.*))?", re.DOTALL)


def details_of(number: int, fault: str, remark: str = "") -> str:
    """Return the details of a row of this action."""
    return f"#{number} {fault}: {remark}" if remark else f"#{number} {fault}"


def read_details(details: str) -> tuple[int, str, str] | None:
    """Return (number of the action, name of its fault, remark); None: it belongs to none."""
    found = _DETAILS.fullmatch(details)
    return None if found is None else (int(found[1]), found[2], found[3] or "")


REPLICAS_DIFFER: Final = "replicas-differ"
"""The row for a partition whose stopped replicas differ: `partition: how`, of these nodes."""
PHASE: Final = "fault-phase"
"""The row at the begin of the faults of a run; its node is every node."""
PHASE_OVER: Final = "fault-phase-over"
"""The row after the last fault, before the heal."""
_PHASE: Final = re.compile(
    r"acks ([\w,-]+); voters ([\d,]*); brokers ([\d,]*); silent after (\d+) ms"
)


class PhaseTerms(NamedTuple):
    """The terms by which the acknowledgements of a fault phase are judged.

    acks: the `f` of the operations that count. A gap is silent if it is longer than `gap_ms`.
    """

    acks: tuple[str, ...]
    voters: tuple[int, ...]
    brokers: tuple[int, ...]
    gap_ms: int


def phase_details(terms: PhaseTerms) -> str:
    """Return the details of a row of `PHASE`."""
    voters, brokers = (",".join(map(str, ids)) for ids in (terms.voters, terms.brokers))
    acks = ",".join(terms.acks)
    return f"acks {acks}; voters {voters}; brokers {brokers}; silent after {terms.gap_ms} ms"


def read_phase_details(details: str) -> PhaseTerms | None:
    """Return the terms in the details of a row of `PHASE`; None: it has none."""
    found = _PHASE.fullmatch(details)
    if found is None:
        return None
    voters, brokers = (tuple(map(int, filter(None, found[n].split(",")))) for n in (2, 3))
    return PhaseTerms(tuple(found[1].split(",")), voters, brokers, int(found[4]))
