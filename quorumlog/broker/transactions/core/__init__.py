"""Pure: the transaction coordinator. It fences producers, and ends transactions; KIP-98, KIP-890.

Every loaded partition of `__transaction_state` has one `TransactionCoordinator`. It changes state
only by applying committed records, so its state always equals the replayed log. Its driver (a shard
of `coordination/core`, which loads it and encodes its records; tests have others) does this:

Loading. Call `replay_encoded` for every committed record of the log, in order, then `loaded` once,
then `step`. The first event is `BecameLeader`; then `Ticked`, which sends the markers of the
transactions that an earlier coordinator had decided.

Time. `now_ms` never decreases: it starts at the wall clock, which the deadlines of transactions and
ids use, and then follows the monotonic clock. Feed `Ticked` at or soon after `next_deadline_ms`
(None: no tick is due), which changes with every step.

Order. Perform all effects of one step, in order, before the next event.

Effects.
- `AppendRecords`: append the records as one batch with acks=all and without a timeout. Feed exactly
  one `WriteEnded` for each, in the order of the appends. If the outcome is unknown, feed no event:
  drop the coordinator and load another from the log.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one
  answer, in the same step or in a later one.
- `AllocateProducerId`: get an unused producer id from the controller, then feed exactly one
  `ProducerIdAllocated`; on failure, with an error that clients understand.
- `SendMarkers`: for each partition, send WriteTxnMarkers to its leader. Each partition is in
  exactly one later `MarkersWritten`; if the outcome is unknown, with an error. Do not retry: the
  coordinator does, after a backoff, until the marker is written. Do not wait for the outcome: an
  unreachable leader must not delay other effects.

Events, and when to feed them.
- `RequestReceived`: while this broker leads the partition; ids are unique in one coordinator.
  InitProducerId without a transactional id needs no coordinator. Split a request for several ids
  (AddPartitionsToTxn v4) into one event for each id. `describe` and `list_transactions` only read.
- `WriteEnded`: when the high watermark has passed the batch. With an error only if the batch is not
  in the log and never will be; clients must understand its error code.
- `ProducerIdAllocated`, `MarkersWritten`: see above. Results that an earlier coordinator of this
  partition had requested may come too: a result that fits the current change is used, others
  ignored.
- `PartitionsDeleted`: when an image no longer has the partitions, and when a marker is due for a
  partition that does not exist. Feed it only when the deletion is certain: a partition that is only
  missing from an old image would keep its transaction open for ever. UNKNOWN_TOPIC_OR_PARTITION
  from a broker, whose image may be behind, is an error of `MarkersWritten`.
- `TransactionVersionChanged`: when an image has another level of `transaction.version`; the level
  at the start is an argument of the coordinator.
- `BecameLeader`: with the leader epoch of the partition, which is the coordinator epoch of markers.
- `Ticked`: see Time.
- `ClockAdvanced`: `now_ms` has jumped. It counts for the deadlines of transactions and ids.

Resignation. Drop the coordinator; NOT_COORDINATOR makes producers look for the next. If a partition
leader refuses a marker with TRANSACTION_COORDINATOR_FENCED, there is a newer coordinator: this one
refuses all requests and sends no markers, until it is dropped or gets `BecameLeader` again.

The states of a transactional id and their legal changes are the table `states.TRANSITIONS`. The
rules (`rules.TransactionRules`): `ProducerInitialization`, `PartitionAdditions`, `TransactionEnd`,
`Markers`, `Expiry`.
"""
