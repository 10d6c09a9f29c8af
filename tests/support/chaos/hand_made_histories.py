"""Histories written by hand: operations one after the other, or where the test puts them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history import NEMESIS, UNKNOWN_OFFSET, Message, Operation
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.history.schema import DENSE

STEP_NS = 1_000_000
Row = tuple[str, int, int]  # key, offset, value


@dataclass
class Op:
    """One operation, before its two rows are put among the others."""

    process: int
    f: str
    start_ns: int
    end_ns: int | None
    outcome: str = "ok"
    messages: list[Row] = field(default_factory=list)
    micros: list[Message] = field(default_factory=list)  # of a transaction, in place of messages
    node: str = ""
    details: str = ""
    error: str = ""


def rows_of(ops: Sequence[Op]) -> list[Operation]:
    """Put rows in the order of time, completions first; an operation lasts at least 1 ns."""
    rows: list[tuple[int, int, int, Operation]] = []
    for place, op in enumerate(ops):
        known = op.micros or [Message(*row) for row in op.messages]
        asked = [m._replace(offset=UNKNOWN_OFFSET) for m in known] if "poll" not in op.f else []
        ends = [(op.start_ns, 2 * place, "invoke", asked)]
        if op.process == NEMESIS:
            ends = [(op.start_ns, 2 * place, "info", [])]
        elif op.end_ns is not None:
            ends.append((op.end_ns, 2 * place + 1, op.outcome, known))
        for time_ns, order, type_, messages in ends:
            row = Operation(
                index=0,
                time_ns=time_ns,
                process=op.process,
                type=type_,
                f=op.f,
                messages=tuple(messages),
                node=op.node,
                details="" if type_ == "invoke" else op.details,
                error="" if type_ == "invoke" else op.error,
            )
            rows.append((time_ns, type_ == "invoke", order, row))
    rows.sort(key=lambda row: row[:3])
    return [replace(row, index=index) for index, (_, _, _, row) in enumerate(rows)]


class History:
    """A builder: each operation starts one step after the last one ended, unless told otherwise."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.now_ns = 0

    def op(
        self,
        process: int,
        f: str,
        messages: Sequence[Row] = (),
        outcome: str = "ok",
        *,
        at: tuple[int, int | None] | None = None,
        details: str = "",
        error: str = "",
    ) -> "History":
        start, end = at or (self.now_ns, self.now_ns + STEP_NS)
        self.now_ns = max(self.now_ns, end or start) + STEP_NS
        self.ops.append(Op(process, f, start, end, outcome, list(messages), details=details))
        self.ops[-1].error = error
        return self

    def txn(
        self, process: int, *micros: Message, at: tuple[int, int] | None = None, outcome: str = "ok"
    ) -> "History":
        """Perform a transaction."""
        self.op(process, "txn", outcome=outcome, at=at)
        self.ops[-1].micros = [*micros]
        return self

    def send(
        self,
        value: int,
        offset: int = UNKNOWN_OFFSET,
        *,
        process: int = 0,
        key: str = "x-0",
        outcome: str = "ok",
        at: tuple[int, int | None] | None = None,
    ) -> "History":
        return self.op(process, "send", [(key, offset, value)], outcome, at=at)

    def sent(self, *values: int) -> "History":
        """Send each value in turn, at offsets from 0."""
        for offset, value in enumerate(values):
            self.send(value, offset)
        return self

    def poll(
        self,
        *pairs: tuple[int, int],
        process: int = 1,
        key: str = "x-0",
        f: str = "poll",
        outcome: str = "ok",
        at: tuple[int, int | None] | None = None,
        details: str = "",
    ) -> "History":
        """Poll (offset, value) pairs."""
        rows = [(key, offset, value) for offset, value in pairs]
        return self.op(process, f, rows, outcome, at=at, details=details)

    def final(self, *pairs: tuple[int, int], key: str = "x-0", end: int | None = None) -> "History":
        """Read at last; `end` says which log end offset was reached."""
        self.poll(*pairs, process=9, key=key, f="final_poll")
        if end is not None:
            self.op(9, "final_end", [(key, end, 0)])
        return self

    def nemesis(self, f: str, node: str = "", *, details: str = "") -> "History":
        self.ops.append(Op(NEMESIS, f, self.now_ns, None, node=node, details=details))
        self.now_ns += STEP_NS
        return self

    def table(self, *, final_reads: str = "marked", dense: bool = False) -> pa.Table:
        table = table_of(rows_of(self.ops), final_reads=final_reads)
        if dense:
            table = table.replace_schema_metadata({**table.schema.metadata, DENSE: b"1"})
        return table

    def verdict(self) -> Verdict:
        return check_history(self.table())


def found(verdict: Verdict) -> list[str]:
    return [result.name for result in verdict.results]
