"""Final reads: after all faults are healed, each final reader reads every log from its start.

Each reader is checked by itself. A record must be in the result of *every* final reader that
reached an end, so a second reader makes the check stricter. A reader proves nothing after any
operation but a poll with a certain outcome may have moved its position.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quorumlog.chaos.checkers.entries import (
    FINAL_END,
    FINAL_POLL,
    GROUP_FLAG,
    OK,
    POLL,
    SEND,
    Entries,
    Flags,
    Ints,
)
from quorumlog.chaos.checkers.version_order import ABSENT, NEVER, VersionOrder, distinct


def is_from_start(entries: Entries) -> Flags:
    """Return which entries belong to a reader that has read every record below its position.

    It was assigned from the beginning, and only polls with a certain outcome have moved it.
    """
    found: Flags = (entries.segment == 0) & ((entries.flags & GROUP_FLAG) == 0)
    return found


@dataclass(slots=True, kw_only=True)
class FinalReads:
    """One row per final reader and key; then the facts about each value and each key."""

    key: Ints
    process: Ints
    end_entry: Ints  # the last `final_end` (all below it was read), or ABSENT
    end_op: Ints  # the event of its invocation, or ABSENT
    end_offset: Ints  # the highest end offset of such entries, or ABSENT
    last_place: Ints  # the last place that it read, or ABSENT
    last_offset: Ints  # its offset, or ABSENT
    missing_from: Ints  # value -> a row that must have it and does not, or ABSENT
    complete: Flags  # key -> a reader reached the end, or every record that any operation saw

    def overclaimed(self) -> Ints:
        """Return the rows whose reader claims an end beyond the record that it read last."""
        return np.flatnonzero(self.end_offset > self.last_offset + 1)


def final_reads(order: VersionOrder) -> FinalReads:
    """Find the last record and end of each final reader, and the values that it missed."""
    entries = order.entries
    is_final = (entries.kind == FINAL_POLL) | (entries.kind == FINAL_END)
    rows = np.flatnonzero(is_final & (entries.outcome == OK) & is_from_start(entries))
    reader = np.full(len(entries), ABSENT)
    reader[rows], samples = distinct(entries.key[rows], entries.process[rows])
    count = len(samples)
    end_entry, end_op, end_offset, last_place, last_offset = (
        np.full(count, ABSENT) for _ in range(5)
    )
    ends = rows[entries.kind[rows] == FINAL_END]
    end_entry[reader[ends]] = ends
    end_op[reader[ends]] = entries.op[ends]
    np.maximum.at(end_offset, reader[ends], entries.offset[ends])
    polls = rows[entries.kind[rows] == FINAL_POLL]
    np.maximum.at(last_place, reader[polls], order.place_of[polls])
    np.maximum.at(last_offset, reader[polls], entries.offset[polls])
    finals = FinalReads(
        key=entries.key[rows[samples]].astype(np.int64),
        process=entries.process[rows[samples]],
        end_entry=end_entry,
        end_op=end_op,
        end_offset=end_offset,
        last_place=last_place,
        last_offset=last_offset,
        missing_from=np.full(len(order.values.key), ABSENT),
        complete=np.zeros(len(entries.keys), np.bool_),
    )
    _find_missing(order, finals, reader, polls)
    _find_complete(order, finals)
    return finals


def _find_missing(order: VersionOrder, finals: FinalReads, reader: Ints, polls: Ints) -> None:
    """Find the values that a final reader must have and does not have.

    It must have the values below its end and below the last record that it read, and the values
    acknowledged or polled before it requested the end offset. But if that end was too low, and a
    final read returned such a value later, only the end was wrong.
    """
    entries, values = order.entries, order.values
    offset = np.append(order.place_offset, NEVER)[values.last]  # ABSENT takes the appended item
    last_read = np.full(len(values.key), ABSENT)
    np.maximum.at(last_read, order.value_of[polls], entries.completion[polls])
    for one in _numbers_within_keys(finals.key):
        of_key = np.full(len(entries.keys), ABSENT)
        of_key[finals.key[one]] = one
        row = of_key[values.key]
        has = np.zeros(len(values.key), np.bool_)
        mine = polls[np.isin(reader[polls], one)]
        has[order.value_of[mine]] = True
        passed = (values.last != ABSENT) & (values.last <= finals.last_place[row])
        passed |= offset < finals.end_offset[row]
        asked = finals.end_op[row]
        passed |= (values.known_by < asked) & (last_read < asked)
        found = passed & ~has & (row != ABSENT) & (finals.missing_from == ABSENT)
        finals.missing_from[found] = row[found]


def _numbers_within_keys(key: Ints) -> Iterable[Ints]:
    """Yield rows in lots without a repeated key: each key's first row, its second, ..."""
    start = np.searchsorted(key, key)  # rows are sorted by key
    number = np.arange(len(key)) - start
    for place in range(int(number.max(initial=-1)) + 1):
        yield np.flatnonzero(number == place)


def _find_complete(order: VersionOrder, finals: FinalReads) -> None:
    """Find the keys that were read to an end after which no record was seen."""
    entries, keys = order.entries, len(order.entries.keys)
    complete = np.ones(keys, np.bool_)  # a key without sends and polls is complete
    complete[entries.key[(entries.kind == SEND) | (entries.kind == POLL)]] = False
    end_op, end_offset, last_place = (np.full(keys, ABSENT) for _ in range(3))
    np.maximum.at(end_op, finals.key, finals.end_op)
    np.maximum.at(end_offset, finals.key, finals.end_offset)
    np.maximum.at(last_place, finals.key, finals.last_place)
    complete |= end_op != ABSENT
    later = (order.place_of != ABSENT) & (entries.offset >= end_offset[entries.key])
    later &= (entries.completion > end_op[entries.key]) & (entries.kind != FINAL_POLL)
    complete[entries.key[later]] = False  # the log went on
    has_places = order.key_start[1:] > order.key_start[:-1]
    complete |= has_places & (last_place == order.key_start[1:] - 1)
    finals.complete = complete
