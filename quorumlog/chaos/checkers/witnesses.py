"""The witness of a finding: the few operations that prove it, with the facts for a reader."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from quorumlog.chaos.checkers.entries import ERROR, F_OF_KIND, Entries, Flags, Ints
from quorumlog.chaos.checkers.verdict import WITNESSES_MAX, CheckResult, Severity
from quorumlog.chaos.history.model import NEVER_NS, OUTCOMES

Witness = dict[str, Any]
Told = tuple[str, Sequence[tuple[str, int]]]
"""The content of a witness: a note, then a role and an entry for each operation."""
NO_ENTRY: Final = -1


def first_by_operation(entries: Entries, primary: Ints) -> Ints:
    """Return the indexes of the first findings, by the operation of each one's primary entry.

    `verdict.merge` uses the same order.
    """
    order = np.lexsort((entries.ordinal[primary], entries.key[primary], entries.op[primary]))
    return order[:WITNESSES_MAX]


def invalid(entries: Entries, name: str, primary: Ints, tell: Callable[[int], Told]) -> CheckResult:
    """Return the anomaly `name`, found once for each of its `primary` entries.

    `tell` maps the index of a finding in `primary` to its note and entries; NO_ENTRY is left out.
    """
    told = [witness(entries, *tell(n)) for n in first_by_operation(entries, primary).tolist()]
    return CheckResult(name=name, severity=Severity.INVALID, count=len(primary), witnesses=told)


def witness(entries: Entries, note: str, told: Sequence[tuple[str, int]]) -> Witness:
    """Return a witness of these operations."""
    ops = [_operation(entries, role, entry) for role, entry in told if entry != NO_ENTRY]
    return {"key": entries.keys[int(entries.key[told[0][1]])], "note": note, "ops": ops}


def first_entry(chosen: Flags) -> int:
    """Return the first entry of `chosen`, or NO_ENTRY."""
    place = int(chosen.argmax()) if len(chosen) else 0
    return place if len(chosen) and chosen[place] else NO_ENTRY


def _operation(entries: Entries, role: str, entry: int) -> Witness:
    completion, completed_ns = int(entries.completion[entry]), int(entries.completed_ns[entry])
    return {
        "role": role,
        "index": int(entries.op[entry]),
        "completion": None if completion < 0 else completion,
        "process": int(entries.process[entry]),
        "f": F_OF_KIND[_message_kind(entries, entry)],
        "type": OUTCOMES[int(entries.outcome[entry])],
        "invoked_ns": int(entries.invoked_ns[entry]),
        "completed_ns": None if completed_ns >= NEVER_NS else completed_ns,
        "offset": int(entries.offset[entry]),
        "value": int(entries.value[entry]),
    }


def _message_kind(entries: Entries, entry: int) -> int:
    """Return the kind of operation. An ERROR, without a message, stores it as its ordinal."""
    kind = int(entries.kind[entry])
    return int(entries.ordinal[entry]) if kind == ERROR else kind
