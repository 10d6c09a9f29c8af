"""Random histories of one log in which every operation has a moment, and the promises of a log.

A world performs acts at growing moments; each operation lasts from some time before its moment to
some time after it. The promises are written down as they are documented, record by record, without
a line of the checkers: a history breaks them or keeps them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from quorumlog.chaos.history import Message
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.history.schema import DENSE
from tests.support.chaos.hand_made_histories import Op, rows_of

KEY = "x-0"
GAP = 100  # between two moments
FINAL_READER = 90
STRANGE = 7_000  # values that nobody sends are above


@dataclass
class World:
    """A log, and the operations on it. `now`: the last moment."""

    rng: random.Random
    log: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    now: int = 0
    moments: dict[int, int] = field(default_factory=dict)  # by operation: its place -> its moment
    next_value: int = 0

    def act(self, process: int, f: str, micros: Sequence[Message] = (), outcome: str = "ok") -> Op:
        """Perform an operation at the next moment."""
        self.now += GAP
        op = Op(process, f, self.now, self.now, outcome, micros=[*micros])
        self.moments[len(self.ops)] = self.now
        self.ops.append(op)
        return op

    def send(self, process: int, value: int | None = None) -> None:
        """Send a value; of some the outcome is unknown, and some are refused."""
        value = self.next_value if value is None else value
        self.next_value += 1
        outcome = self.rng.choices(["ok", "info", "fail"], [8, 1, 1])[0]
        offset = -1
        if outcome == "ok" or (outcome == "info" and self.rng.random() < 0.5):
            self.log.append(value)
            offset = len(self.log) - 1 if outcome == "ok" else -1
        self.act(process, "send", [Message(KEY, offset, value)], outcome)

    def read_all(self) -> None:
        """Read the log to its end at last."""
        records = [Message(KEY, offset, value) for offset, value in enumerate(self.log)]
        self.act(FINAL_READER, "final_poll", records)
        self.act(FINAL_READER, "final_end", [Message(KEY, len(self.log), 0)])

    def widen(self) -> None:
        """Let operations begin before their moments and end after them, one after the other."""
        last: dict[int, Op] = {}
        for place, op in enumerate(self.ops):
            moment, before = self.moments[place], last.get(op.process)
            start, end = (
                moment - self.rng.randrange(1, 4 * GAP),
                moment + self.rng.randrange(1, GAP),
            )
            if before is not None and before.end_ns is not None:
                start = max(start, before.end_ns + 1)
            if op.f.startswith("final"):  # the last phase begins when the rest is over
                start = moment
            op.start_ns, op.end_ns = min(max(start, 1), moment), end
            last[op.process] = op
        distinct_times(self.ops)

    def table(self) -> pa.Table:
        """Return the history; its log leaves no offset unused."""
        table = table_of(rows_of(self.ops))
        return table.replace_schema_metadata({**table.schema.metadata, DENSE: b"1"})


def distinct_times(ops: Sequence[Op]) -> None:
    """Make all times differ, in their order: ends before starts."""
    times = sorted(
        [(op.start_ns, 1, place) for place, op in enumerate(ops)]
        + [(op.end_ns or 0, 0, place) for place, op in enumerate(ops)]
    )
    for number, (_, is_start, place) in enumerate(times):
        if is_start:
            ops[place].start_ns = 10 * number
        else:
            ops[place].end_ns = 10 * number


def micros_of(ops: Sequence[Op], *fs: str) -> Iterator[tuple[Op, Message]]:
    """Yield the micro-operations of these names in operations that succeeded."""
    for op in ops:
        for micro in op.micros:
            if op.outcome == "ok" and (micro.f or op.f) in fs:
                yield op, micro


READS = ("poll", "final_poll", "group_poll")


def breaks_the_log(ops: Sequence[Op]) -> bool:
    """Return whether a client saw more than one log, or a record was lost."""
    sent = {micro.value: op.outcome for op in ops if op.f == "send" for micro in op.micros}
    read = {(micro.offset, micro.value) for _, micro in micros_of(ops, *READS)}
    acknowledged = {(micro.offset, micro.value) for _, micro in micros_of(ops, "send")}
    if any(sent.get(value, "fail") == "fail" for _, value in read):
        return True
    seen = read | acknowledged
    if len({offset for offset, _ in seen}) < len(seen):
        return True
    if len({value for _, value in seen}) < len(seen):
        return True
    final = [(micro.offset, micro.value) for _, micro in micros_of(ops, "final_poll")]
    ends = [micro.offset for _, micro in micros_of(ops, "final_end")]
    return bool(ends) and (
        {*final} != seen or sorted({at for at, _ in final}) != [*range(ends[-1])]
    )


def is_read_to_the_end(ops: Sequence[Op]) -> bool:
    """Return whether the final read has a record at each offset below the end."""
    offsets = {micro.offset for _, micro in micros_of(ops, "final_poll")}
    return all(offsets >= {*range(end.offset)} for _, end in micros_of(ops, "final_end"))
