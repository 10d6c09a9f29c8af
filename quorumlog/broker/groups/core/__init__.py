"""Pure: the group coordinator. Members, generations and committed offsets; KIP-62, 345, 394.

Every loaded partition of `__consumer_offsets` has one `GroupCoordinator`. Its durable state changes
only by applied committed records, so it always equals a replay of the log. One driver owns the
coordinator (`coordination/core/coordinator_shard.py`; tests have others) and does the following.

Loading. Call `replay` for every committed record of the log and `replay_transactional` for every
batch of a transaction and every marker, in order, then `loaded` once, then `step`. The log is
loaded when the high watermark has reached its end: a record that the next leader may not have must
not be served. Keep events that come earlier, and feed them after `loaded`; refuse requests.

Time. `now_ms` never decreases: it is the wall-clock time of the start, because offsets expire by
it, plus the monotonic time since then. Feed `Ticked` at or soon after `next_deadline_ms`, which
changes with every step.

Order. Perform the effects of one step in order, all of them, before the next event.

Effects.
- `AppendRecords`: append the records as one batch with acks=all and without a timeout. Feed exactly
  one `WriteEnded` for each, in the order of the appends. If the outcome is unknown (neither
  committed nor certainly absent), feed none: drop the coordinator, answer every open request
  NOT_COORDINATOR, and load a new coordinator from the log.
  With a producer id, the batch belongs to the open transaction of that producer.
- `WriteMarker`: append the marker of a transaction, in its order among the batches; then as above.
- `VerifyTransaction`: have the transaction coordinator verify that our partition belongs to the
  transaction of the commit (`adds`: have it added), then feed `TransactionVerified`.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one, in
  the same step or in a later one.
- `MakeTarget`: run `job` outside of the event loop (a thread may), then feed `TargetMade`. Without
  that event, the requests of the group that wait for the target get no response.
- `MatchTopics`: run `job` outside of the event loop, pass its result to `Topics.note_matched`, then
  feed `TopicsMatched` to all coordinators. Until then, a group keeps the expression's old topics.
- `AdvanceLogStart`: let the log start at `offset`; all live records are committed at or above it.
  If it fails, the log only stays longer.

Events, and when to feed them.
- `RequestReceived`: while this broker leads the partition; ids are unique in one coordinator. The
  driver itself answers with `request.refuse(...)` before and after that.
- `WriteEnded`: when the high watermark has passed the batch. With an error only if the batch is not
  in the log and never will be; the error code must be valid in responses to group members.
- `TransactionVerified`: for each VerifyTransaction, at any time. It changes nothing after a marker,
  or in a coordinator that did not emit the effect.
- `TopicsDeleted`: when an image no longer has the topics.
- `TargetMade`: see `MakeTarget`; a coordinator that did not emit the effect ignores it.
- `TopicsMatched`: see `MatchTopics`.
- `TopicsChanged`: when topics change in an image; change the `Topics` of the coordinator first.
- `BecameLeader`: changes no group.
- `Ticked`: see Time.
- `ClockAdvanced`: `now_ms` has jumped. Offsets have become older; the deadlines of members move.

Resignation. Drop the coordinator; NOT_COORDINATOR makes members look up the next coordinator.

The states of a group and their legal changes are the table `states.TRANSITIONS`. Groups of the
consumer protocol (KIP-848) have a coordinator of their own, in the package `consumer`, which writes
to the same log through `ConsumerGroups`.

The rules are the classes of `rules.GroupRules`; the coordinator makes one object of each.
"""
