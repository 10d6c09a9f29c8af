"""Pure: the transaction coordinator. It fences producers, and ends transactions; KIP-98, KIP-890.

Every loaded partition of `__transaction_state` has one `TransactionCoordinator`. It changes only by
applying committed records, so its state is the replayed log, always. One driver owns it
(`coordination/core`, the shard, which loads it and encodes its records; tests have others) and does
the following.

Loading. Call `replay_encoded` for every committed record of the log, in order, then `loaded` once,
then `step`. The first event is `BecameLeader`; then `Ticked`, which sends the markers of what an
earlier coordinator had decided.

Time. `now_ms` never decreases: it follows the wall clock at the start, because transactions and ids
have deadlines by it, and the monotonic clock from there. Feed `Ticked` at or soon after
`next_deadline_ms` (None: not at all), which changes with every step.

Order. Perform the effects of one step in order, all of them, before the next event.

Effects.
- `AppendRecords`: append the records as one batch with acks=all and without a timeout. Feed exactly
  one `WriteEnded` for each, in the order of the appends. If the outcome is unknown, feed nothing:
  give the coordinator up and load another one from the log.
- `AnswerRequest`: complete the request with this id. Each `RequestReceived` gets exactly one, in
  the same step or in a later one.
- `AllocateProducerId`: get from the controller a producer id that was never used, then feed
  exactly one `ProducerIdAllocated`, with an error that clients understand if there is none.
- `SendMarkers`: for each partition, send WriteTxnMarkers to its leader. Each partition of it is in
  exactly one `MarkersWritten` that follows: if nothing is known of the outcome, with an error. Do
  not send again; the coordinator does, after a while, as long as it takes. Do not wait for it:
  other effects must not be held up by a leader that is away.

Events, and when to feed them.
- `RequestReceived`: while this broker leads the partition; ids are unique in one coordinator.
  InitProducerId without a transactional id is not for a coordinator. A request of several ids
  (AddPartitionsToTxn v4) is one for each of them. `describe` and `list_transactions` are questions.
- `WriteEnded`: when the high watermark has passed the batch. With an error only if the batch is not
  in the log and never will be; its error code is one that clients understand.
- `ProducerIdAllocated`, `MarkersWritten`: see above. Those that an earlier coordinator of this
  partition had asked for may come too: what is true for the decision is used, the rest ignored.
- `PartitionsDeleted`: when an image no longer shows them, and when a marker is to be sent to a
  partition that does not exist. It must be certain that it was deleted, not only unknown here: its
  transaction would stay open for ever. A broker that answers UNKNOWN_TOPIC_OR_PARTITION may be
  behind: that is an error of `MarkersWritten`.
- `TransactionVersionChanged`: when an image shows another level of `transaction.version`; the level
  at the start is an argument of the coordinator.
- `BecameLeader`: with the leader epoch of the partition, which is the coordinator epoch of markers.
- `Ticked`: see Time.

Resignation. Drop the coordinator whole; producers find the next one by NOT_COORDINATOR. If the
leader of a partition answers a marker TRANSACTION_COORDINATOR_FENCED, there is a newer coordinator
already: this one refuses all requests and sends nothing more, until it is dropped, or leads again.

The states of a transactional id and their legal changes are the table `states.TRANSITIONS`. The
rules (`rules.TransactionRules`): `Initialization`, `Adding`, `Ending`, `Markers`, `Expiry`.
"""
