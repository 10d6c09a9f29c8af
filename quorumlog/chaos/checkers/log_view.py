"""The log in a history of a narrower model: its sends and reads, judged by the rules of a log.

A narrower model (of groups, of lookups) judges its own operations and relies on the log. `as_log`
returns the operations of `kafka_log` that such a history holds, row by row, so that a history may
be split anywhere before it. Sends and final reads stay; a join becomes a subscribe, a delivery to
a member becomes a poll of a member; commits and lookups are left out. The position of a member is
judged by the model of the group alone, which has the rebalances and the commits.

The registers of a compacted log are judged likewise: `as_compacted_log`. Compaction removes records
and leaves offsets unused, so only the rules about single records hold.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers import kafka_log
from quorumlog.chaos.checkers.checker import Facts, Runs
from quorumlog.chaos.checkers.explode import OPERATIONS, explode_lives, explode_run, explode_table
from quorumlog.chaos.checkers.positions import context_of
from quorumlog.chaos.checkers.verdict import Partial, Severity
from quorumlog.chaos.history.model import MEMBER, NEMESIS, REBALANCED
from quorumlog.chaos.history.schema import MICRO

COMPACTED_WORKLOAD: Final = "compacted_register"
_DELIVERY: Final = "group_poll"
_NAMES: Final = {"join": "subscribe", _DELIVERY: "poll"}
_KEPT: Final = pa.array(sorted(OPERATIONS - {"committed"} | {*_NAMES}))
_CHANGES: Final = pa.array(["assigned", "revoked", "lost"])  # of a member's partitions
_OF_POSITIONS: Final = frozenset({"poll-skip", "nonmonotonic-poll"})
_NAMES_OF_REGISTERS: Final = {"write": "send", "read": "poll"}
_IN_SPITE_OF_COMPACTION: Final = frozenset(
    {"phantom", "G1a", "inconsistent-offsets", "duplicate", "altered-record"}
)
Flags = npt.NDArray[np.bool_]


def as_log(table: pa.Table) -> pa.Table:
    """Return the operations of a log in a table of history.schema.OPERATIONS.

    The details of a delivery are MEMBER, or REBALANCED if the member's partitions changed in it.
    """
    of_log = pc.is_in(table.column("f"), _KEPT)
    of_log = pc.or_(of_log, pc.equal(table.column("process"), NEMESIS))
    table = table.filter(of_log).combine_chunks()
    micro = _micro(table)
    is_record = ~pc.is_in(micro.flatten().field("f"), _CHANGES).to_numpy(zero_copy_only=False)
    records, has_others = _filtered(micro, is_record)
    is_delivery = pc.equal(table.column("f"), _DELIVERY)
    details = pc.if_else(has_others, REBALANCED, MEMBER)
    details = pc.if_else(is_delivery, details, table.column("details"))
    return _replaced(table, _NAMES, micro=records, details=details)


def as_compacted_log(table: pa.Table) -> pa.Table:
    """Return writes and reads of registers as sends and polls; a read of no record polls none."""
    of_log = pc.is_in(table.column("f"), pa.array([*_NAMES_OF_REGISTERS]))
    table = table.filter(of_log).combine_chunks()
    micro = _micro(table)
    flat = micro.flatten()
    has_offset = pc.greater_equal(flat.field("offset"), 0)
    is_record = pc.or_(pc.equal(flat.field("f"), "write"), has_offset)
    is_record = pc.and_(is_record, pc.equal(flat.field("text"), ""))
    records, _ = _filtered(micro, is_record.to_numpy(zero_copy_only=False))
    return _replaced(table, _NAMES_OF_REGISTERS, micro=records)


def _micro(table: pa.Table) -> pa.ListArray:
    return pa.concat_arrays([pa.array([], MICRO), *table.column("micro").chunks])


def _filtered(micro: pa.ListArray, chosen: Flags) -> tuple[pa.ListArray, pa.Array]:
    """Return the lists of the chosen micro-operations, and the rows that had others."""
    row = pc.list_parent_indices(micro).to_numpy(zero_copy_only=False)
    lengths = np.bincount(row[chosen], minlength=len(micro))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = micro.flatten().filter(pa.array(chosen))
    before = micro.value_lengths().to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array(starts), flat, type=MICRO), pa.array(lengths < before)


def _replaced(table: pa.Table, names: Mapping[str, str], **columns: pa.Array) -> pa.Table:
    """Return the table with other columns, and other names of its operations."""
    f = table.column("f")
    for name, known in names.items():
        f = pc.if_else(pc.equal(f, name), known, f)
    for name, column in {**columns, "f": f}.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), column)
    return table


def _check(entries: pa.Table, facts: Facts) -> Partial:
    partial = kafka_log.check(entries, facts)
    partial.results = [
        result
        for result in partial.results
        if result.severity != Severity.ALLOWED or result.name not in _OF_POSITIONS
    ]
    return partial


def _check_compacted(entries: pa.Table, facts: Facts) -> Partial:
    found = kafka_log.check(entries, facts).results
    return Partial(results=[one for one in found if one.name in _IN_SPITE_OF_COMPACTION])


CHECKER: Final = replace(
    kafka_log.CHECKER,
    explode=lambda table: explode_table(as_log(table)),
    check=_check,
    runs=Runs(
        context=lambda table: context_of(as_log(table)),
        explode=lambda table, context: explode_run(as_log(table), context),
        explode_context=explode_lives,
    ),
)
"""`kafka_log` for the histories of narrower models."""
COMPACTED: Final = replace(
    kafka_log.CHECKER,
    explode=lambda table: explode_table(as_compacted_log(table)),
    check=_check_compacted,
    missing=lambda *_: [],
    join=None,
    runs=None,
    ranges=None,
)
"""The rules of `kafka_log` that hold for registers in a compacted log."""
