"""Pure: what every coordinator of an internal topic needs, and the shard that drives it.

A `CoordinatorShard` is one partition that this broker leads, from its load to the resignation. It
feeds the coordinator (`Coordinator`, whose contract is in `groups/core/__init__.py`) and turns its
effects into those below. Drivers: `coordination/io/shard_driver.py`, the simulator, tests.

Time. `now_ms` never decreases. Feed `Ticked` at or soon after `next_deadline_ms` (None: not at
all), which changes with every step.

Order. Perform the effects of one step in order, all of them, before the next event.

Effects.
- `ReadLog`: read committed batches, then feed `LogRead`; one read is under way at most.
- `AppendBatch`: append with acks=all and without a timeout, then feed `AppendEnded`. Appends may
  end in any order: the shard reports them to its coordinator in log order.
- `AppendMarker`: as AppendBatch, for the marker of a transaction. The log has both in their order.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one.
- `AdvanceLogStart`: let the log start there. If it does not happen, the log stays longer.
- `OwnEffect`: one that only this kind of coordinator has; its contract says what to do.
- `Report`: write a line for the operator.

Events. `BecameLeader`, `Resigned`: of an older epoch than is known, they change nothing
(KAFKA-18137). `BecameLeader` with the leader epoch is the first event of the coordinator, and comes
again with a newer one. `Stopped`: the broker stops, or a step raised InvariantViolation. All others
are for the coordinator, and wait until it is loaded. An event after the end changes nothing.
"""
