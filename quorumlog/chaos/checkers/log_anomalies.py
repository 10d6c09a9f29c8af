"""Anomalies of the log itself: the values that it holds, their offsets, and lost values.

Definitions of jepsen.tests.kafka, and two of our own: `phantom` (Jepsen's checker throws) and
`vanished-write` (Jepsen does not check a value again once it was read).
"""

from collections.abc import Iterable, Mapping

import numpy as np

from quorumlog.chaos.checkers.entries import FINAL_POLL, OK, SOUGHT_FLAG, Entries, Flags, Ints
from quorumlog.chaos.checkers.final_reads import FinalReads, is_from_start
from quorumlog.chaos.checkers.verdict import CheckResult, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, earliest
from quorumlog.chaos.checkers.witnesses import NO_ENTRY, Told, first_entry, invalid


def log_anomalies(order: VersionOrder, finals: FinalReads, *, marked: bool) -> list[CheckResult]:
    """Return the anomalies of the log. `marked`: the history marks its final reads.

    Then an unread value below their end is lost, and any other unread value is undecided. Jepsen's
    checker assumes that the final reads end where the history ends.
    """
    unseen = Severity.UNKNOWN if marked else Severity.INVALID
    lost = _lost(order, finals, marked=marked)
    results = [
        _phantom(order),
        _aborted_read(order),
        _inconsistent(order),
        _duplicate(order),
        _altered(order),
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
    """Find values in ok polls whose send certainly failed."""
    values = order.values
    refused = values.refused & ~values.acknowledged & ~values.undecided
    found = np.flatnonzero(values.polled & refused)
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        note = "the send certainly failed, but its value was polled"
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


def _altered(order: VersionOrder) -> CheckResult:
    """Find values in ok polls whose checksum is not their send's; no checksum differs from none."""
    entries, values = order.entries, order.values
    sends = np.append(values.send_entry, ABSENT)[order.value_of]  # ABSENT takes the appended item
    sent = np.append(entries.checksum, 0)[sends]
    altered = order.is_poll & (entries.outcome == OK) & (entries.checksum != sent)
    altered &= (entries.checksum != 0) & (sent != 0)
    altered &= ~np.append(values.resent, True)[order.value_of]
    polls = earliest(order.value_of, altered, len(values.key))
    polls = polls[polls != ABSENT]

    def tell(n: int) -> Told:
        poll = int(polls[n])
        found, meant = int(entries.checksum[poll]), int(sent[poll])
        note = (
            f"sent with the checksum {meant} of its key, headers and timestamp, read with {found}"
        )
        return note, [("sent", int(sends[poll])), ("read", poll)]

    return invalid(entries, "altered-record", polls, tell)


def _lost(order: VersionOrder, finals: FinalReads, *, marked: bool) -> CheckResult:
    """Find acknowledged values that no ok poll returned, though readers got past them.

    Readers got past a value if a final reader must have it and has not, or if a reader that has
    read all from the beginning polled a higher place. The first place of the polled value counts,
    so that conflicting offsets hide no loss.
    """
    entries, values = order.entries, order.values
    reached = np.full(len(entries.keys), ABSENT)
    reads = order.is_poll & (entries.outcome == OK)
    reads &= is_from_start(entries) if marked else _has_not_sought(entries)
    np.maximum.at(reached, entries.key[reads], values.first[order.value_of[reads]])
    passed = (values.last != ABSENT) & (values.last <= reached[values.key])
    passed |= finals.missing_from != ABSENT
    found = np.flatnonzero(values.acknowledged & ~values.polled & passed)
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        key, place = int(values.key[found[n]]), int(values.last[found[n]])
        beyond = reads & (entries.key == key)
        proof, why = first_entry(beyond & (order.place_of > max(place, 0))), "skipped"
        if place == ABSENT or proof == NO_ENTRY:
            proof = _end_of(finals, int(found[n]))
            why = "absent from a read of the log to its end"
        note = f"acknowledged, {why}: no poll ever returned it"
        return note, [("lost send", int(sends[n])), ("read past", proof)]

    return invalid(entries, "lost-write", sends, tell)


def _has_not_sought(entries: Entries) -> Flags:
    """Return which polls may prove a loss in Jepsen's model: those of readers without a seek."""
    sought: Flags = (entries.flags & SOUGHT_FLAG) != 0
    return ~sought


def _end_of(finals: FinalReads, value: int) -> int:
    """Return the `final_end` entry of the reader that misses `value`, or NO_ENTRY."""
    row = int(finals.missing_from[value])
    return int(finals.end_entry[row]) if row != ABSENT else NO_ENTRY


def _vanished(order: VersionOrder, finals: FinalReads) -> CheckResult:
    """Find values that were polled once, but that a final reader misses."""
    entries, values = order.entries, order.values
    committed = values.acknowledged | values.undecided
    found = np.flatnonzero(committed & values.polled & (finals.missing_from != ABSENT))
    sends = values.send_entry[found]

    def tell(n: int) -> Told:
        value = int(found[n])
        row = int(finals.missing_from[value])
        mine = (entries.kind == FINAL_POLL) & (entries.key == finals.key[row])
        mine &= entries.process == finals.process[row]
        beyond = first_entry(mine & (order.place_of > int(values.last[value])))
        return "polled once, absent from a final read", [
            ("vanished send", int(sends[n])),
            ("polled", _ok_poll_of(order, value)),
            ("read past", beyond if beyond != NO_ENTRY else _end_of(finals, value)),
        ]

    return invalid(entries, "vanished-write", sends, tell)


def _unseen(order: VersionOrder, severity: Severity, *, lost: int) -> CheckResult:
    """Find acknowledged values that no ok poll returned: lost, or the readers were too slow.

    The `lost` values are among them.
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


def gaps_of(
    order: VersionOrder, finals: FinalReads, *, marked: bool
) -> Mapping[str, Iterable[str]]:
    """Return the gaps of these keys: reason -> all examples."""
    entries, values = order.entries, order.values
    names = np.array([*entries.keys, ""], object)
    gaps = {
        "a poll returned a message without an offset": names[
            entries.key[order.is_poll & (entries.offset < 0)]
        ].tolist(),
        "a value was sent more than once": _named(order, values.resent),
    }
    if marked:
        refused = values.refused & ~values.acknowledged & ~values.undecided
        gaps |= {
            "final reads did not reach the end of a key": names[:-1][~finals.complete].tolist(),
            "a final reader claims an end beyond its last record": names[
                finals.key[finals.overclaimed()]
            ].tolist(),
            "a poll with an unknown outcome shows the value of a failed send": _named(
                order, refused & values.polled_at_all & ~values.polled
            ),
        }
    return gaps


def _named(order: VersionOrder, chosen: Flags) -> list[str]:
    """Name values as key:value."""
    values, keys = order.values, order.entries.keys
    return [
        f"{keys[key]}:{value}"
        for key, value in zip(
            values.key[chosen].tolist(), values.value[chosen].tolist(), strict=True
        )
    ]
