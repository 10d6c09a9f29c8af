"""The promises of a table of operations, checked before any verdict.

An invalid history proves nothing about a cluster: it is an error, never a verdict. The check of a
part (any run of whole operations, such as a row group) returns small facts, and `merge_facts`
checks the promises that span parts. So a history may be checked where its parts are stored.
Promises:

  - the columns and types of schema.OPERATIONS, and no nulls;
  - `index` is 0, 1, 2, ... and operations are in the order of their invocations;
  - the numbers of all events, invocations and completions, are 0, 1, 2, ... each once;
  - no event has an earlier time than the event before it, and none a time below 0;
  - a process is a client or the nemesis; a client does one operation at a time, an operation of the
    nemesis is one event; an operation without a completion is `info`;
  - offsets are UNKNOWN_OFFSET (-1) or above.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.history.model import NEMESIS, NEVER_NS, OUTCOMES, UNKNOWN_OFFSET, HistoryError
from quorumlog.chaos.history.schema import OPERATIONS

Ints = npt.NDArray[np.int64]
_NEVER: Final = -1  # `completed` of an operation that never completed


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """Facts about a part that the check of the other parts needs. Times in ns; events by number.

    `absent`: rows of (event, time before, time after): event numbers missing between this part's
    invocations; they must be completions in earlier parts. `late`: rows of (event, time):
    completions after this part's last invocation. `processes`: rows of (process, first invocation,
    last completion or -1, index of its last operation).
    """

    rows: int
    first_index: int
    first_event: int
    first_ns: int
    last_event: int  # the last invocation
    last_ns: int
    absent: Ints
    late: Ints
    processes: Ints


def validate(table: pa.Table) -> None:
    """Raise HistoryError unless the whole table is a history."""
    merge_facts([part_facts(table)])


def part_facts(table: pa.Table) -> PartFacts | None:
    """Check a part by itself, and return its facts for `merge_facts`; None: it has no rows.

    Raises HistoryError with the operation's index.
    """
    check_columns(table)
    if not table.num_rows:
        return None
    _check_rows(table)
    index, invoked, completed, invoked_ns, completed_ns, process = (
        table.column(name).to_numpy()
        for name in ("index", "invoked", "completed", "invoked_ns", "completed_ns", "process")
    )
    ended = (completed != _NEVER) & (process != NEMESIS)
    events = np.concatenate([invoked, completed[ended]])
    times = np.concatenate([invoked_ns, completed_ns[ended]])
    owner = np.concatenate([index, index[ended]])
    order = np.argsort(events, kind="stable")
    events, times, owner = events[order], times[order], owner[order]
    steps = np.diff(events)
    _refuse(steps == 0, owner[1:], "its event {} is another operation's, too", events[1:])
    _refuse(np.diff(times) < 0, owner[1:], "its event {} is before an earlier event", events[1:])
    inside = events <= invoked[-1]
    return PartFacts(
        rows=table.num_rows,
        first_index=int(index[0]),
        first_event=int(invoked[0]),
        first_ns=int(invoked_ns[0]),
        last_event=int(invoked[-1]),
        last_ns=int(invoked_ns[-1]),
        absent=_absent(events[inside], times[inside]),
        late=np.stack([events[~inside], times[~inside]], axis=1),
        processes=_processes(index, process, invoked, completed),
    )


def merge_facts(parts: Iterable[PartFacts | None]) -> None:
    """Check the parts together, in their order. Raises HistoryError."""
    open_: dict[int, int] = {}  # completions that lie in later parts: event -> time
    last_completed: dict[int, tuple[int, int]] = {}  # process -> event, index
    next_index, next_event, last_ns = 0, 0, 0
    for part in parts:
        if part is None:
            continue
        if part.first_index != next_index:
            raise _wrong(part.first_index, f"the operation before it is not {next_index}")
        between = np.arange(next_event, part.first_event).reshape(-1, 1)
        if len(between) > len(open_):
            raise HistoryError(f"event {next_event + len(open_)} and others are missing")
        bounds = np.broadcast_to([last_ns, part.first_ns], (len(between), 2))
        _take(open_, np.concatenate([np.hstack([between, bounds]), part.absent]))
        if early := [event for event in open_ if event <= part.last_event]:
            raise HistoryError(f"event {min(early)} is of two operations")
        _follow(last_completed, part.processes)
        open_ |= {int(event): int(time_ns) for event, time_ns in part.late}
        next_index += part.rows
        next_event, last_ns = part.last_event + 1, part.last_ns
    rest = np.arange(next_event, next_event + len(open_)).reshape(-1, 1)
    bounds = np.broadcast_to([last_ns, NEVER_NS], (len(rest), 2))
    _take(open_, np.hstack([rest, bounds]))


def check_columns(table: pa.Table) -> None:
    """Raise HistoryError unless the table has the columns of OPERATIONS and no nulls."""
    if table.schema.names != OPERATIONS.names or table.schema.types != OPERATIONS.types:
        raise HistoryError(f"not the columns of a history: {', '.join(table.schema.names)}")
    for name in OPERATIONS.names:
        column = table.column(name)
        if column.null_count:
            row = int(pc.index(column.is_null(), value=True).as_py())
            raise HistoryError(f"operation {row} of a part: it has no {name}")
    for chunk in table.column("micro").chunks:
        flat = chunk.flatten()
        for name in flat.type.names:
            if flat.null_count or flat.field(name).null_count:
                raise HistoryError(f"a micro-operation has no {name}")


def _check_rows(table: pa.Table) -> None:
    index, process, invoked, completed, invoked_ns, completed_ns = (
        table.column(name).to_numpy()
        for name in ("index", "process", "invoked", "completed", "invoked_ns", "completed_ns")
    )
    _refuse(
        np.diff(index) != 1, index[1:], "the operation before it does not have the previous index"
    )
    _refuse(process < NEMESIS, index, "its process is {}", process)
    known = pc.is_in(table.column("type"), pa.array(OUTCOMES)).to_numpy()
    _refuse(~known, index, "its type is not one of " + ", ".join(OUTCOMES))
    is_info = pc.equal(table.column("type"), "info").to_numpy()
    never, of_nemesis = completed == _NEVER, process == NEMESIS
    _refuse(never & ~is_info, index, "it never completed, and is not info")
    _refuse(never != (completed_ns == NEVER_NS), index, "it completed at {} ns", completed_ns)
    _refuse(of_nemesis & ~is_info, index, "it is the nemesis's, and not info")
    together = (completed == invoked) & (completed_ns == invoked_ns)
    _refuse(of_nemesis & ~together, index, "it is the nemesis's, and not one event")
    backwards = ~of_nemesis & ~never & (completed <= invoked)
    _refuse(backwards, index, "it completed before it began")
    _refuse(np.diff(invoked) <= 0, index[1:], "it began before the operation before it")
    _refuse((invoked < 0) | (invoked_ns < 0), index, "it began before the history")
    micro = table.column("micro").combine_chunks()
    offsets = micro.flatten().field("offset").to_numpy(zero_copy_only=False)
    below = np.zeros(len(index), np.bool_)
    below[pc.list_parent_indices(micro).to_numpy()[offsets < UNKNOWN_OFFSET]] = True
    _refuse(below, index, "an offset below -1")


def _absent(events: Ints, times: Ints) -> Ints:
    """Return the event numbers missing between these, each with the times around it."""
    gap = np.flatnonzero(np.diff(events) > 1)
    lengths = events[gap + 1] - events[gap] - 1
    if lengths.sum() > events[-1] - events[0]:  # an overflow
        raise HistoryError(f"event {events[gap[0]] + 1} and others are missing")
    most = 2 * len(events) + 1_000_000  # events that may have been open before; more is no history
    if int(lengths.sum()) > most:
        raise HistoryError(f"event {events[gap[0]] + 1} and others are missing")
    at = np.repeat(gap, lengths)
    ordinal = np.arange(len(at)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.stack([events[at] + 1 + ordinal, times[at], times[at + 1]], axis=1)


def _processes(index: Ints, process: Ints, invoked: Ints, completed: Ints) -> Ints:
    """Check that each client does one operation at a time; return its first and last events."""
    clients = np.flatnonzero(process != NEMESIS)
    order = clients[np.argsort(process[clients], kind="stable")]
    same = process[order[1:]] == process[order[:-1]]
    before, after = completed[order[:-1]], invoked[order[1:]]
    overlaps = same & ((before == _NEVER) | (before >= after))
    _refuse(overlaps, index[order[1:]], "its process had not ended the operation before")
    first = np.append(True, ~same)[: len(order)]
    last = np.append(~same, True)[-len(order) :] if len(order) else first
    head, tail = order[first], order[last]
    return np.stack([process[head], invoked[head], completed[tail], index[tail]], axis=1)


def _take(open_: dict[int, int], wanted: Ints) -> None:
    """Remove events from the open ones. Raises HistoryError if one is missing or out of order."""
    at_ns = 0
    for event, low_ns, high_ns in wanted.tolist():
        time_ns = open_.pop(event, None)
        if time_ns is None:
            raise HistoryError(f"event {event} is missing")
        if not max(low_ns, at_ns) <= time_ns <= high_ns:
            raise HistoryError(f"event {event}: its time goes back against the order of events")
        at_ns = time_ns


def _follow(last_completed: dict[int, tuple[int, int]], processes: Ints) -> None:
    for process, invoked, completed, index in processes.tolist():
        before, of = last_completed.get(process, (-2, -1))
        if before == _NEVER or before >= invoked:
            raise _wrong(of, f"process {process} began another operation before it ended")
        last_completed[process] = (completed, index)


def _refuse(
    flags: npt.NDArray[np.bool_], index: Ints, reason: str, values: Ints | None = None
) -> None:
    if flags.any():
        place = int(flags.argmax())
        told = reason if values is None else reason.format(int(values[place]))
        raise _wrong(int(index[place]), told)


def _wrong(index: int, reason: str) -> HistoryError:
    return HistoryError(f"operation {index}: {reason}")
