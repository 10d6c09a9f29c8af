"""What the final readers saw: each reads every log from its beginning, when all faults are healed.

Each reader is judged by itself. A record must be in what *every* final reader read to an end, so a
second reader makes the check stricter. A reader proves nothing from the moment on at which
something else than a poll of known outcome may have moved its position.
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
    """Tell which entries belong to a reader that has read all that lies below.

    It was assigned from the beginning, and nothing but polls of known outcome has moved it.
    """
    found: Flags = (entries.segment == 0) & ((entries.flags & GROUP_FLAG) == 0)
    return found


@dataclass(slots=True, kw_only=True)
class FinalReads:
    """One row per final reader and key; then the facts about each value and each key."""

    key: Ints
    process: Ints
    end_entry: Ints  # the last `final_end` that says "I have read all below", or ABSENT
    end_op: Ints  # the number of its invocation, or ABSENT
    end_offset: Ints  # the highest end that was claimed so, or ABSENT
    last_place: Ints  # the last place that it read, or ABSENT
    last_offset: Ints  # its offset, or ABSENT
    missing_from: Ints  # value -> a row in which it must be and is not, or ABSENT
    complete: Flags  # key -> a reader came to the end, or to all that any operation saw

    def overclaimed(self) -> Ints:
        """Return the rows whose reader claims an end beyond the record that it read last."""
        return np.flatnonzero(self.end_offset > self.last_offset + 1)


def final_reads(order: VersionOrder) -> FinalReads:
    """Find how far each final reader got, and what it missed."""
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
    """Find the values that a final reader does not have, and must have.

    Those are the values below its end and below the last record that it read, and those that were
    known before it asked for the end; but if it was told too low an end, and a value beyond that
    end was read finally later on, only the end was wrong.
    """
    entries, values = order.entries, order.values
    offset = np.append(order.place_offset, NEVER)[values.last]  # ABSENT finds what is appended
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
    """Yield rows so that no key is twice in one lot: the first row of each key, the second, ..."""
    start = np.searchsorted(key, key)  # rows lie key by key
    number = np.arange(len(key)) - start
    for place in range(int(number.max(initial=-1)) + 1):
        yield np.flatnonzero(number == place)


def _find_complete(order: VersionOrder, finals: FinalReads) -> None:
    """Find the keys that were read to an end after which nothing is known to have come."""
    entries, keys = order.entries, len(order.entries.keys)
    complete = np.ones(keys, np.bool_)  # if no operation reads or writes there, nothing is missing
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
