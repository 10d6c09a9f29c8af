"""Anomalies of the log itself: which values it holds, where, and which it has lost.

Definitions of jepsen.tests.kafka, and two of our own: `phantom` (Jepsen's checker throws) and
`vanished-write` (Jepsen does not look again once a value was read).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from quorumlog.chaos.checkers.entries import (
    FINAL_END,
    FINAL_POLL,
    OK,
    SOUGHT_FLAG,
    Entries,
    Flags,
    Ints,
)
from quorumlog.chaos.checkers.verdict import CheckResult, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, NEVER, VersionOrder, earliest
from quorumlog.chaos.checkers.witnesses import NO_ENTRY, Told, first_entry, invalid


@dataclass(slots=True, kw_only=True)
class FinalReads:
    """How far the last phase got, by key: `end_entry` says that it reached the log's end."""

    end_entry: Ints  # the last `final_end` of the key, or ABSENT
    end_op: Ints  # its operation, or ABSENT
    end_offset: Ints  # the highest log end offset that was reached, or ABSENT
    last_place: Ints  # the last place a final poll returned, or ABSENT
    complete: Flags  # it reached the end, or at least every offset that any operation saw

    def passed(self, order: VersionOrder) -> Flags:
        """Tell which values must be among what was read to the log's end.

        They are below that end, or were known before the reader asked for the end.
        """
        values = order.values
        offset = np.append(order.place_offset, NEVER)[values.last]  # ABSENT finds what is appended
        passed: Flags = offset < self.end_offset[values.key]
        return passed | (values.known_by < self.end_op[values.key])


def final_reads(order: VersionOrder) -> FinalReads:
    """Find how far the final reads got."""
    entries, keys = order.entries, len(order.entries.keys)
    end_entry, end_op, end_offset, last_place = (np.full(keys, ABSENT) for _ in range(4))
    ends = np.flatnonzero((entries.kind == FINAL_END) & (entries.outcome == OK))
    end_entry[entries.key[ends]] = ends
    end_op[entries.key[ends]] = entries.op[ends]
    np.maximum.at(end_offset, entries.key[ends], entries.offset[ends])
    read = (entries.kind == FINAL_POLL) & (entries.outcome == OK) & is_from_start(entries)
    np.maximum.at(last_place, entries.key[read], order.place_of[read])
    complete = end_entry != ABSENT
    later = (order.place_of != ABSENT) & (entries.offset >= end_offset[entries.key])
    later &= (entries.completion > end_op[entries.key]) & (entries.kind != FINAL_POLL)
    complete[entries.key[later]] = False  # the log went on
    complete |= last_place == order.key_start[1:] - 1
    complete |= order.key_start[1:] == order.key_start[:-1]  # no operation saw an offset
    return FinalReads(
        end_entry=end_entry,
        end_op=end_op,
        end_offset=end_offset,
        last_place=last_place,
        complete=complete,
    )


def is_from_start(entries: Entries) -> Flags:
    """Tell which polls read all that lies below: a reader that sought may have skipped some."""
    sought: Flags = (entries.flags & SOUGHT_FLAG) != 0
    return ~sought


def log_anomalies(
    order: VersionOrder, finals: FinalReads, *, unseen: Severity
) -> list[CheckResult]:
    """Return the anomalies of the log. `unseen`: how bad an unread acknowledged value is."""
    lost = _lost(order, finals)
    results = [
        _phantom(order),
        _aborted_read(order),
        _inconsistent(order),
        _duplicate(order),
        lost,
        _vanished(order, finals),
        _unseen(order, unseen, lost=lost.count),
    ]
    return [result for result in results if result.count]


def _phantom(order: VersionOrder) -> CheckResult:
    """Find polled values that no process tried to send."""
    values = order.values
    found = np.flatnonzero(values.polled_at_all & (values.sends == 0))
    primary = _earliest_of(order.value_of, found, order.is_poll)

    def tell(n: int) -> Told:
        return "polled, but never sent", [("read", int(primary[n]))]

    return invalid(order.entries, "phantom", primary, tell)


def _aborted_read(order: VersionOrder) -> CheckResult:
    """Find values in ok polls whose send is known to have failed."""
    values = order.values
    refused = values.refused & ~values.acknowledged & ~values.undecided
    found = np.flatnonzero(values.polled & refused)
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        note = "the send failed for certain, yet its value was polled"
        return note, [("failed send", int(sends[n])), ("read", _ok_poll_of(order, int(found[n])))]

    return invalid(order.entries, "G1a", sends, tell)


def _inconsistent(order: VersionOrder) -> CheckResult:
    """Find offsets at which more than one value was seen."""
    found = np.flatnonzero(order.conflicting)
    primary = _earliest_of(order.place_of, found, order.place_of != ABSENT)

    def tell(n: int) -> Told:
        first, place = int(primary[n]), int(found[n])
        others = (order.place_of == place) & (order.value_of != order.value_of[first])
        note = f"two values at offset {int(order.place_offset[place])}"
        return note, [("one", first), ("other", first_entry(others))]

    return invalid(order.entries, "inconsistent-offsets", primary, tell)


def _duplicate(order: VersionOrder) -> CheckResult:
    """Find values seen at more than one offset, though they were sent once."""
    values = order.values
    found = np.flatnonzero((values.first != values.last) & ~values.resent)
    primary = _earliest_of(order.value_of, found, order.place_of != ABSENT)

    def tell(n: int) -> Told:
        value, first = int(found[n]), int(primary[n])
        low, high = (int(order.place_offset[at[value]]) for at in (values.first, values.last))
        others = (order.value_of == value) & (order.place_of != ABSENT)
        other = first_entry(others & (order.place_of != order.place_of[first]))
        return f"one value at offsets {low} and {high}", [("one", first), ("other", other)]

    return invalid(order.entries, "duplicate", primary, tell)


def _lost(order: VersionOrder, finals: FinalReads) -> CheckResult:
    """Find acknowledged values that no ok poll returned, though readers got past them.

    Readers got past a value if the final reads reached the log's end, or if a reader that had not
    sought there polled a higher place. The first place of the polled value counts, so that
    conflicting offsets hide nothing.
    """
    entries, values = order.entries, order.values
    reached = np.full(len(entries.keys), ABSENT)
    reads = order.is_poll & (entries.outcome == OK) & is_from_start(entries)
    np.maximum.at(reached, entries.key[reads], values.first[order.value_of[reads]])
    passed = (values.last != ABSENT) & (values.last <= reached[values.key])
    passed |= finals.passed(order)
    found = np.flatnonzero(values.acknowledged & ~values.polled & passed)
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        key, place = int(values.key[found[n]]), int(values.last[found[n]])
        beyond = reads & (entries.key == key)
        proof, why = first_entry(beyond & (order.place_of > max(place, 0))), "skipped"
        if place == ABSENT or proof == NO_ENTRY:
            proof, why = int(finals.end_entry[key]), "not in the log when it was read to its end"
        note = f"acknowledged, {why}: no poll ever returned it"
        return note, [("lost send", int(sends[n])), ("read past", proof)]

    return invalid(entries, "lost-write", sends, tell)


def _vanished(order: VersionOrder, finals: FinalReads) -> CheckResult:
    """Find values that were polled once, and were missing in the final reads."""
    entries, values = order.entries, order.values
    passed = (values.last != ABSENT) & (values.last <= finals.last_place[values.key])
    passed |= finals.passed(order)
    committed = values.acknowledged | values.undecided
    found = np.flatnonzero(committed & values.polled & ~values.final & passed)
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        value = int(found[n])
        key = int(values.key[value])
        finally_read = (entries.kind == FINAL_POLL) & (entries.key == key)
        beyond = first_entry(finally_read & (order.place_of > int(values.last[value])))
        return "polled once, absent from the final reads", [
            ("vanished send", int(sends[n])),
            ("read before", _ok_poll_of(order, value)),
            ("read past", beyond if beyond != NO_ENTRY else int(finals.end_entry[key])),
        ]

    return invalid(entries, "vanished-write", sends, tell)


def _unseen(order: VersionOrder, severity: Severity, *, lost: int) -> CheckResult:
    """Find acknowledged values that no ok poll returned: lost, or the readers were too slow.

    Each of the `lost` ones is among them.
    """
    values = order.values
    sends = values.send_entry[np.flatnonzero(values.acknowledged & ~values.polled)]

    def tell(n: int) -> Told:
        return "acknowledged, never polled", [("unseen send", int(sends[n]))]

    result = invalid(order.entries, "unseen", sends, tell)
    result.severity, result.explained = severity, lost
    return result


def _earliest_of(group_of: Ints, found: Ints, chosen: Flags) -> Ints:
    """Return the first entry by operation of each group in `found`."""
    wanted = chosen & np.isin(group_of, found)
    return earliest(group_of, wanted, int(group_of.max(initial=0)) + 1)[found]


def _ok_poll_of(order: VersionOrder, value: int) -> int:
    chosen = order.is_poll & (order.value_of == value) & (order.entries.outcome == OK)
    return first_entry(chosen)


def gaps_of(order: VersionOrder, finals: FinalReads) -> Mapping[str, Iterable[str]]:
    """Return what cannot be judged in these keys: reason -> examples, all of them."""
    entries, values = order.entries, order.values
    names = np.array([*entries.keys, ""], object)
    resent = np.flatnonzero(values.resent)
    return {
        "final reads did not reach the end of a key": names[:-1][~finals.complete].tolist(),
        "a poll returned a message without an offset": names[
            entries.key[order.is_poll & (entries.offset < 0)]
        ].tolist(),
        "a value was sent more than once": [
            f"{names[key]}:{value}"
            for key, value in zip(values.key[resent], values.value[resent], strict=True)
        ],
    }
