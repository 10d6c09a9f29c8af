"""Turns events into operations: an invocation and its completion become one row."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.history.model import (
    INVOKE,
    NEMESIS,
    NEVER_NS,
    TYPES,
    UNKNOWN_OFFSET,
    HistoryError,
    Operation,
)
from quorumlog.chaos.history.schema import MICRO, OPERATIONS, events_of, facts_of
from quorumlog.chaos.history.validate import validate

Ints = npt.NDArray[np.int64]
_READS: Final = ("poll", "final_poll")  # messages of their invocations were not read
# A completion names the same as its invocation, in the same order; a poll adds records.
_MEANT: Final = ("send", "append", "write", "assign", "subscribe", "seek")


class EventError(HistoryError):
    """An event is wrong; `place` is its place among the events, from 0."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(f"event {place}: {reason}")
        self.place: Final = place
        self.reason: Final = reason


def table_of(operations: Sequence[Operation], *, final_reads: str = "marked") -> pa.Table:
    """Return events as a table of operations; `final_reads` as in schema.FINAL_READS.

    Raises EventError for events that are no history.
    """
    return operations_of(events_of(operations), facts_of(final_reads=final_reads))


def operations_of(events: pa.Table, facts: Mapping[bytes, bytes]) -> pa.Table:
    """Return a valid table of schema.OPERATIONS, from a table of schema.EVENTS without nulls.

    Raises EventError for the first event that is invalid, by itself or after the events before it.
    """
    events = events.combine_chunks()
    check_events(events)
    completion = _completions(events)
    types = events.column("type").combine_chunks()
    process = events.column("process").to_numpy()
    is_invoked = pc.equal(types, INVOKE).to_numpy(zero_copy_only=False)
    invoked = np.flatnonzero(is_invoked | (process == NEMESIS))
    completed = completion[invoked]
    at_end = np.where(completed >= 0, completed, invoked)
    outcome = pc.if_else(pa.array(completed < 0), "info", types.take(pa.array(at_end)))
    time_ns = events.column("time_ns").to_numpy()
    columns: dict[str, Any] = {
        "index": np.arange(len(invoked)),
        "process": process[invoked],
        "f": events.column("f").combine_chunks().take(pa.array(invoked)),
        "type": outcome,
        "invoked_ns": time_ns[invoked],
        "completed_ns": np.where(completed >= 0, time_ns[at_end], NEVER_NS),
        "invoked": invoked,
        "completed": completed,
        "micro": _micro(events, invoked, completed),
    }
    for name in ("error", "node", "details"):
        texts = events.column(name).combine_chunks()
        first, last = texts.take(pa.array(invoked)), texts.take(pa.array(at_end))
        columns[name] = pc.if_else(pc.equal(last, ""), first, last)
    table = pa.table(columns, schema=OPERATIONS).replace_schema_metadata(dict(facts))
    validate(table)
    return table


def check_events(events: pa.Table) -> None:
    """Raise EventError for the first event that is invalid by itself."""
    if not events.num_rows:
        return
    index, time_ns, process = (
        events.column(name).to_numpy() for name in ("index", "time_ns", "process")
    )
    types = events.column("type")
    unknown = pc.invert(pc.is_in(types, pa.array(TYPES))).to_numpy()
    of_nemesis = pc.not_equal(types, "info").to_numpy() & (process == NEMESIS)
    backwards = np.zeros(len(index), np.bool_)
    backwards[1:] = time_ns[1:] < time_ns[:-1]
    micro = events.column("micro").combine_chunks()
    offsets = micro.flatten().field("offset").to_numpy(zero_copy_only=False)
    below = np.zeros(len(index), np.bool_)
    below[pc.list_parent_indices(micro).to_numpy()[offsets < UNKNOWN_OFFSET]] = True
    wrong = [
        (index != np.arange(len(index)), "its index is {index}, not the next one"),
        (time_ns < 0, "its time_ns is {time_ns}"),
        (backwards, "its time_ns, {time_ns}, is below the previous event's"),
        (process < NEMESIS, "its process is {process}: neither a client nor the nemesis (-1)"),
        (unknown, "its type is {type!r}, not one of " + ", ".join(TYPES)),
        (of_nemesis, "the nemesis's events are info, this one is {type!r}"),
        (below, "an offset below -1"),
    ]
    found = [(int(flags.argmax()), said) for flags, said in wrong if flags.any()]
    if found:
        place, said = min(found, key=lambda one: one[0])
        raise EventError(place, said.format(**events.slice(place, 1).to_pylist()[0]))


def _completions(events: pa.Table) -> Ints:
    """Return for each event the place of its completion, or -1; the nemesis completes itself."""
    process = events.column("process").to_numpy()
    f = events.column("f").combine_chunks().dictionary_encode().indices.to_numpy()
    invokes = pc.equal(events.column("type"), INVOKE).to_numpy()
    clients = np.flatnonzero(process != NEMESIS)
    order = clients[np.argsort(process[clients], kind="stable")]
    first, second = order[:-1], order[1:]  # events of one process, one after the other
    follows = process[first] == process[second]
    completes = follows & invokes[first] & ~invokes[second]
    orphan = ~invokes[order]
    orphan[1:] &= ~completes
    completion = np.full(len(process), -1, np.int64)
    completion[first[completes]] = second[completes]
    completion[process == NEMESIS] = np.flatnonzero(process == NEMESIS)
    other_f = second[completes & (f[first] != f[second])]
    reopened = second[follows & invokes[first] & invokes[second]]
    found = [
        (order[orphan], "a completion without an invocation"),
        (reopened, "an invocation while its process's last operation was open"),
        (other_f, "a completion of another f than its invocation"),
        (
            _altered(events, first[completes], second[completes]),
            "a completion that names other messages than its invocation",
        ),
    ]
    if named := [(int(places.min()), said) for places, said in found if len(places)]:
        raise EventError(*min(named))
    return completion


def _altered(events: pa.Table, first: Ints, second: Ints) -> Ints:
    """Return the completions whose messages differ from those of their invocation."""
    micro = events.column("micro").combine_chunks()
    flat = micro.flatten()
    fs = flat.field("f")
    chosen = np.flatnonzero(pc.is_in(fs, pa.array(_MEANT)).to_numpy(zero_copy_only=False))
    parents = pc.list_parent_indices(micro).to_numpy()[chosen]
    length = np.bincount(parents, minlength=len(micro))
    start = np.cumsum(length) - length
    said = (length[first] > 0) & (length[second] > 0)
    first, second = first[said], second[said]
    is_altered = length[first] != length[second]
    alike = np.flatnonzero(~is_altered)
    counts = length[first[alike]]
    pair = np.repeat(alike, counts)
    ordinal = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    meant, told = (chosen[start[side[pair]] + ordinal] for side in (first, second))
    differ = np.zeros(len(pair), np.bool_)
    for name in ("key", "value", "text"):
        column = flat.field(name)
        if name != "value":
            column = column.dictionary_encode().indices
        values = column.to_numpy(zero_copy_only=False)
        differ |= values[meant] != values[told]
    checksum = flat.field("checksum").to_numpy(zero_copy_only=False)
    is_known = (checksum[meant] != 0) & (checksum[told] != 0)
    differ |= is_known & (checksum[meant] != checksum[told])
    is_altered[pair[differ]] = True
    altered: Ints = second[is_altered]
    return altered


def _micro(events: pa.Table, invoked: Ints, completed: Ints) -> pa.ListArray:
    """Return the micro-operations of each completion, else of the invocation without offsets."""
    micro = events.column("micro").combine_chunks()
    lengths = micro.value_lengths().to_numpy(zero_copy_only=False)
    reads = pc.is_in(events.column("f"), pa.array(_READS)).to_numpy()[invoked]
    told = (completed >= 0) & (reads | (lengths[completed] > 0))
    rows = np.where(told, completed, invoked)
    nothing = reads & ~told & (lengths[rows] > 0)
    if nothing.any():
        micro = pa.concat_arrays([micro, pa.array([[]], MICRO)])
        lengths = np.append(lengths, 0)
        rows = np.where(nothing, len(micro) - 1, rows)
    chosen = micro.take(pa.array(rows))
    flat, meant = chosen.flatten(), np.repeat(~told, lengths[rows])
    offsets = flat.field("offset").to_numpy(zero_copy_only=False)
    fields = {name: flat.field(name) for name in MICRO.value_type.names}
    fields["offset"] = pa.array(np.where(meant, UNKNOWN_OFFSET, offsets))
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths[rows], out=starts[1:])
    values = pa.StructArray.from_arrays([*fields.values()], fields=[*MICRO.value_type])
    return pa.ListArray.from_arrays(pa.array(starts), values, type=MICRO)
