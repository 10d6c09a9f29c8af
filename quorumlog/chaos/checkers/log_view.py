"""The log in a history of a narrower model: its sends and reads, judged by the rules of a log.

A narrower model (of groups, of lookups) judges its own operations and relies on the log. `as_log`
returns the operations of `kafka_log` that such a history holds, row by row, so that a history may
be split anywhere before it. Sends and final reads stay; a join becomes a subscribe, a delivery to
a member becomes a poll of a member; commits and lookups are left out. The position of a member is
judged by the model of the group alone, which has the rebalances and the commits.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers import kafka_log
from quorumlog.chaos.checkers.checker import Facts, Runs
from quorumlog.chaos.checkers.explode import OPERATIONS, explode_lives, explode_run, explode_table
from quorumlog.chaos.checkers.positions import context_of
from quorumlog.chaos.checkers.verdict import Partial, Severity
from quorumlog.chaos.history.model import MEMBER, NEMESIS, REBALANCED
from quorumlog.chaos.history.schema import MICRO

_DELIVERY: Final = "group_poll"
_NAMES: Final = {"join": "subscribe", _DELIVERY: "poll"}
_KEPT: Final = pa.array(sorted(OPERATIONS - {"committed"} | {*_NAMES}))
_CHANGES: Final = pa.array(["assigned", "revoked", "lost"])  # of a member's partitions
_OF_POSITIONS: Final = frozenset({"poll-skip", "nonmonotonic-poll"})


def as_log(table: pa.Table) -> pa.Table:
    """Return the operations of a log in a table of history.schema.OPERATIONS.

    The details of a delivery are MEMBER, or REBALANCED if the member's partitions changed in it.
    """
    of_log = pc.is_in(table.column("f"), _KEPT)
    of_log = pc.or_(of_log, pc.equal(table.column("process"), NEMESIS))
    table = table.filter(of_log).combine_chunks()
    f, details = table.column("f"), table.column("details")
    micro, has_changes = _records(table.column("micro"))
    details = pc.if_else(
        pc.equal(f, _DELIVERY), pc.if_else(has_changes, REBALANCED, MEMBER), details
    )
    for name, known in _NAMES.items():
        f = pc.if_else(pc.equal(f, name), known, f)
    for name, column in (("f", f), ("micro", micro), ("details", details)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), column)
    return table


def _records(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the lists without the changes of partitions, and the rows that had changes."""
    micro = pa.concat_arrays([pa.array([], MICRO), *column.chunks])
    flat = micro.flatten()
    is_record = ~pc.is_in(flat.field("f"), _CHANGES).to_numpy(zero_copy_only=False)
    row = pc.list_parent_indices(micro).to_numpy(zero_copy_only=False)
    lengths = np.bincount(row[is_record], minlength=len(micro))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    records = pa.ListArray.from_arrays(
        pa.array(starts), flat.filter(pa.array(is_record)), type=MICRO
    )
    before = micro.value_lengths().to_numpy(zero_copy_only=False)
    return records, pa.array(lengths < before)


def _explode_run(table: pa.Table, context: pa.Table) -> pa.Table:
    return explode_run(as_log(table), context)


def _check(entries: pa.Table, facts: Facts) -> Partial:
    partial = kafka_log.check(entries, facts)
    partial.results = [
        result
        for result in partial.results
        if result.severity != Severity.ALLOWED or result.name not in _OF_POSITIONS
    ]
    return partial


CHECKER: Final = replace(
    kafka_log.CHECKER,
    explode=lambda table: explode_table(as_log(table)),
    check=_check,
    runs=Runs(
        context=lambda table: context_of(as_log(table)),
        explode=_explode_run,
        explode_context=explode_lives,
    ),
)
"""`kafka_log` for the histories of narrower models."""
