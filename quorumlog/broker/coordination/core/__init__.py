"""Pure: the protocol of a coordinator of an internal topic, and the shard that drives it.

A `CoordinatorShard` is one partition that this broker leads, from its load to the resignation. It
feeds the coordinator (`Coordinator`, whose contract is in `groups/core/__init__.py`) and turns the
coordinator's effects into the effects below. Drivers: `coordination/driver/shard_driver.py`,
tests.

Time. `now_ms` never decreases. Feed `Ticked` at or soon after `next_deadline_ms` (None: no tick),
which changes with every step.

Order. Perform the effects of one step in order, all of them, before the next event.

Effects.
- `ReadLog`: read committed batches, then feed `LogRead`; one read is under way at most.
- `AppendBatch`: append with acks=all and without a timeout, then feed `AppendEnded`. Appends may
  end in any order: the shard reports them to its coordinator in log order.
- `AppendMarker`: as AppendBatch, for the marker of a transaction. Append batches and markers in the
  order of their effects.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one.
- `AdvanceLogStart`: move the log start offset. If that fails, the log only stays longer.
- `OwnEffect`: an effect of one kind of coordinator; the contract of that coordinator defines it.
- `Report`: log a line for the operator.

Events.
- `BecameLeader`, `Resigned`: ignored if the leader epoch is older than the shard's (KAFKA-18137).
  The coordinator's first event is `BecameLeader`; it gets another for each newer leader epoch.
- `Stopped`: the broker stops, or a step raised InvariantViolation.
- `LogRead`, `AppendEnded`: see `ReadLog` and `AppendBatch`.
- `RequestReceived`: refused unless the coordinator is loaded.
- `Ticked`: see Time.
- `ClockAdvanced`: when the wall clock was advanced, before any other event at the new `now_ms`. A
  shard that loads drops it: the sessions begin later.
- Events of one kind of coordinator: kept during a load, and fed once the coordinator is loaded.

`Resigned` and `Stopped` close the shard: from then on it refuses requests and ignores other events.
"""
