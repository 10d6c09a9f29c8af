"""The order of each key's log as the history shows it, and the facts about each value.

The log of a key has the values that acknowledged sends and polls name at each offset. A failed poll
counts as well, because every record in a poll must be in the log. The order leaves out offsets that
no operation saw, so its places are dense: holes are legal (transaction markers, aborted records,
compaction). Source: jepsen.tests.kafka, version-orders.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from quorumlog.chaos.checkers.entries import (
    COUNT,
    FAIL,
    FINAL_END,
    FINAL_POLL,
    INFO,
    OK,
    POLL,
    SEND,
    TXN_FLAG,
    Entries,
    Flags,
    Ints,
)

ABSENT: Final = -1
_FEW: Final = 1 << 16  # numbers of 16 bits
NEVER: Final = np.iinfo(np.int64).max


@dataclass(slots=True, kw_only=True)
class Values:
    """One row per (key, value). Places are those of VersionOrder, or ABSENT."""

    key: Ints
    value: Ints
    acknowledged: Flags  # by an ok send, or by an offset in an info
    undecided: Flags  # some send of it ended in info
    refused: Flags  # some send of it failed for certain
    sends: Ints  # number of sends
    known_by: Ints  # the event that first acknowledged or (ok) polled it, or NEVER
    polled: Flags  # by an ok poll
    polled_at_all: Flags  # by any poll
    final: Flags  # by an ok final poll
    first: Ints  # its first place in the order
    last: Ints  # its last place: other rules use this one
    send_entry: Ints  # its last send
    disputed: Flags  # at several offsets, or at one with another value

    @property
    def resent(self) -> Flags:
        """Return which values were sent repeatedly: each record may be any of the sends."""
        found: Flags = self.sends > 1
        return found


@dataclass(slots=True, kw_only=True)
class VersionOrder:
    """Places run through all keys, key by key, by offset: within a key they are dense."""

    entries: Entries
    value_of: Ints  # entry -> row of `values`; ABSENT for ends
    place_of: Ints  # entry -> place; ABSENT if it proves no offset of the log
    values: Values
    place_key: Ints
    place_offset: Ints
    conflicting: Flags  # the place holds more than one value
    polled_place: Flags  # an ok poll returned it
    key_start: Ints  # the first place of each key; one more than there are keys

    @property
    def is_poll(self) -> Flags:
        """Which entries are polls, of the last phase or before."""
        return is_poll(self.entries)


def messages_of(entries: Entries) -> Ints:
    """Return the indexes of the messages, by operation, then ordinal."""
    found = np.flatnonzero(entries.kind < COUNT)
    in_order: Ints = found[np.lexsort((entries.ordinal[found], entries.op[found]))]
    return in_order


def is_poll(entries: Entries) -> Flags:
    """Return which entries are polls, of the last phase or before."""
    found: Flags = (entries.kind == POLL) | (entries.kind == FINAL_POLL)
    return found


def acknowledged(entries: Entries) -> Flags:
    """Return which sends are acknowledged: the record is durable from then on.

    An offset in an info acknowledges a single record; a record of a transaction may still be
    aborted.
    """
    is_alone = (entries.flags & TXN_FLAG) == 0
    answered = (entries.outcome == INFO) & (entries.offset >= 0) & is_alone
    told = (entries.outcome == OK) | answered
    found: Flags = (entries.kind == SEND) & told
    return found


def order_versions(entries: Entries) -> VersionOrder:
    """Build the order.

    `entries` holds all entries of its keys, by operation, then ordinal, and no notes.
    """
    messages = entries.kind != FINAL_END
    value_of = np.full(len(entries), ABSENT)
    value_of[messages], value_first = distinct(entries.key[messages], entries.value[messages])
    polled = is_poll(entries)
    in_log = (entries.offset >= 0) & (polled | acknowledged(entries))
    place_of = np.full(len(entries), ABSENT)
    place_of[in_log], place_first = distinct(entries.key[in_log], entries.offset[in_log])
    place_key = entries.key[in_log][place_first].astype(np.int64)
    conflicting = _differ(place_of[in_log], value_of[in_log], len(place_first))
    values = _values(entries, value_of, place_of, np.flatnonzero(messages)[value_first])
    shaken = in_log & np.append(conflicting, False)[place_of]  # ABSENT takes the appended item
    values.disputed = _any(value_of, shaken, len(values.key)) | (values.first != values.last)
    return VersionOrder(
        entries=entries,
        value_of=value_of,
        place_of=place_of,
        values=values,
        place_key=place_key,
        place_offset=entries.offset[in_log][place_first],
        conflicting=conflicting,
        polled_place=_any(place_of, in_log & polled & (entries.outcome == OK), len(place_first)),
        key_start=np.searchsorted(place_key, np.arange(len(entries.keys) + 1)),
    )


def distinct(major: npt.NDArray[np.integer], minor: Ints) -> tuple[Ints, Ints]:
    """Return each row's number among the distinct pairs in ascending order, and a row of each.

    The row is the first of its pair.
    """
    order = sorted_pairs(major, minor)
    new = np.ones(len(order), np.bool_)
    first, second = major[order], minor[order]
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    return numbers, order[new]


def sorted_pairs(major: npt.NDArray[np.integer], minor: npt.NDArray[np.integer]) -> Ints:
    """Return the rows in the order of the pairs; rows of one pair stay in their order.

    Few distinct values, as of processes and keys, are sorted by one number of 16 bits: numpy does
    that by radix sort, eight times as fast.
    """
    if len(major):
        least, lowest = int(major.min()), int(minor.min())
        width = int(minor.max()) - lowest + 1
        if (int(major.max()) - least + 1) * width <= _FEW:
            code = (major.astype(np.int64) - least) * width + (minor - lowest)
            return np.argsort(code.astype(np.uint16), kind="stable")
    order: Ints = np.lexsort((minor, major))
    return order


def earliest(group_of: Ints, chosen: Flags, groups: int) -> Ints:
    """Return for each group its first entry among `chosen`, or ABSENT."""
    latest_first = np.flatnonzero(chosen)[::-1]
    found = np.full(groups, ABSENT)
    found[group_of[latest_first]] = latest_first  # the last write stays
    return found


def _values(entries: Entries, value_of: Ints, place_of: Ints, rows: Ints) -> Values:
    count = len(rows)
    sent, polled = entries.kind == SEND, is_poll(entries)
    ok = entries.outcome == OK
    placed = place_of != ABSENT
    first, last, known_by = np.full(count, NEVER), np.full(count, ABSENT), np.full(count, NEVER)
    np.minimum.at(first, value_of[placed], place_of[placed])
    np.maximum.at(last, value_of[placed], place_of[placed])
    first[last == ABSENT] = ABSENT
    known = acknowledged(entries) | (polled & ok)
    np.minimum.at(known_by, value_of[known], entries.completion[known])
    send_entry = np.full(count, ABSENT)
    send_entry[value_of[sent]] = np.flatnonzero(sent)
    return Values(
        key=entries.key[rows].astype(np.int64),
        value=entries.value[rows],
        acknowledged=_any(value_of, acknowledged(entries), count),
        undecided=_any(value_of, sent & (entries.outcome == INFO), count),
        refused=_any(value_of, sent & (entries.outcome == FAIL), count),
        sends=np.bincount(value_of[sent], minlength=count),
        known_by=known_by,
        polled=_any(value_of, polled & ok, count),
        polled_at_all=_any(value_of, polled, count),
        final=_any(value_of, (entries.kind == FINAL_POLL) & ok, count),
        first=first,
        last=last,
        send_entry=send_entry,
        disputed=np.zeros(count, np.bool_),
    )


def _any(group_of: Ints, chosen: Flags, groups: int) -> Flags:
    found = np.zeros(groups, np.bool_)
    found[group_of[chosen]] = True
    return found


def _differ(group_of: Ints, number: Ints, groups: int) -> Flags:
    """Return which groups hold more than one number."""
    sample = np.zeros(groups, np.int64)
    sample[group_of] = number
    return _any(group_of, number != sample[group_of], groups)
