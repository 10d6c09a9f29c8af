"""Pure: the group coordinator. Members, generations and committed offsets; KIP-62, 345, 394.

Every loaded partition of `__consumer_offsets` has one `GroupCoordinator`. It changes what is
durable only by applying committed records, so its durable state is the replayed log, always. One
driver owns it (`coordination/core/coordinator_shard.py`; tests have others) and does the following.

Loading. Call `replay` for every committed record of the log and `replay_transactional` for every
batch of a transaction and every marker, in order, then `loaded` once, then `step`. The log is
loaded when the high watermark has reached its end: a record that the next leader may not have must
not be served. Events that come earlier are kept and fed after `loaded`.

Time. `now_ms` never decreases: it follows the wall clock at the start, because offsets expire by
it, and the monotonic clock from there. Feed `Ticked` at or soon after `next_deadline_ms`, which
changes with every step.

Order. Perform the effects of one step in order, all of them, before the next event.

Effects.
- `AppendRecords`: append the records as one batch with acks=all and without a timeout. Feed exactly
  one `WriteEnded` for each, in the order of the appends. If the outcome is unknown (neither
  committed nor certainly absent), feed nothing: give the coordinator up, answer every open request
  NOT_COORDINATOR, and load another one from the log.
  With a producer id, the batch belongs to the open transaction of that producer.
- `WriteMarker`: append the marker of a transaction, in its order among the batches; then as above.
- `VerifyTransaction`: ask the transaction coordinator whether our partition belongs to the
  transaction of the commit (`adds`: to add it), then feed `TransactionVerified`.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one, in
  the same step or in a later one.
- `MakeTarget`: run `job` outside of the event loop (a thread may), then feed `TargetMade`. If that
  never happens, the requests of the group that wait for it have no answer.
- `MatchTopics`: run `job` outside of the event loop, let the `Topics` note what it found, then feed
  `TopicsMatched` to all coordinators. Until then, the expression has the topics that it had.
- `AdvanceLogStart`: let the log start at `offset`; all that is live is committed at or above it. If
  it does not happen, the log stays longer, and nothing else.

Events, and when to feed them.
- `RequestReceived`: while this broker leads the partition; ids are unique in one coordinator. The
  driver itself answers with `request.refuse(...)` before and after that.
- `WriteEnded`: when the high watermark has passed the batch. With an error only if the batch is not
  in the log and never will be; its error code is one that members of groups understand.
- `TransactionVerified`: for each VerifyTransaction, at any time; one that comes after a marker, or
  to another coordinator than asked, changes nothing.
- `TopicsDeleted`: when an image no longer shows them.
- `TargetMade`: see `MakeTarget`; a coordinator that did not ask for it ignores it.
- `TopicsMatched`: see `MatchTopics`.
- `TopicsChanged`: when an image shows other topics; change the `Topics` of the coordinator first.
- `BecameLeader`: changes nothing.
- `Ticked`: see Time.

Resignation. Drop the coordinator whole; members find the next one by NOT_COORDINATOR.

The states of a group and their legal changes are the table `states.TRANSITIONS`. Groups of the
consumer protocol (KIP-848) have a coordinator of their own, `consumer`, which writes to the same
log by way of `ConsumerSide`.
"""
