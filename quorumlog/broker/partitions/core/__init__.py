"""The rules of replication, admission and idempotence, as pure code.

`partition.Partition.step(now_ms, event)` handles one event and returns effects. A partition holds
no record bytes, only the start and end of its log, the leader epoch history and the high watermark.
One driver owns it (`partitions/log/partition_driver.py`; tests have another), and follows these
rules.

Time. `now_ms` is a monotonic clock and never decreases. Feed `Ticked` now and then, at most half
of `replica.lag.time.max.ms` apart: the leader drops slow replicas from the ISR and repeats lost
proposals only then.

Order. Perform all effects of one step, in order, before the next event from outside. An effect
that reports back (`LogTruncated`, `LogStartedOver`, `LogStartRose`) feeds that event before the
next effect is performed. An effect that fails ends the node: the core's state would no longer
match the log.

Effects.
- `AssignEpoch`: record in memory where this leader epoch starts: a replica that truncates must find
  the epoch even if no record of it follows (KAFKA-7415). The epoch file follows with a flush.
- `StartFetching`: fetch from this leader, in this epoch, in place of any other leader. Read the
  position when the request is built: the log end, its last epoch, and `kept_log_start_offset`
  instead of the log start (a follower reports a log start only once it is on disk).
- `StopFetching`: stop fetching. Do not feed a response that arrives later, see `accepts_answer`.
- `TruncateTo`: cut the log and the state built from the removed records (producers, checkpoints);
  then feed `LogTruncated` with the new end, even if no record was removed: the epoch history may
  have to be. The high watermark falls with the log.
- `StartOverAt`: drop the whole log and begin it, empty, at `offset`; then feed `LogStartedOver`.
- `DisclaimLog`: report to the controller that this log is not whole, until the metadata shows the
  replica in neither ISR nor ELR, or in another leader epoch. A `StartFetching` follows then.
- `AdvanceLogStart`: raise the log start to `offset`; then feed `LogStartRose`. Later, once no crash
  can bring the older start back, feed `LogStartKept`.
- `CompleteBelow`: complete the waiting produces below the high watermark with
  `serving.commit_outcome()`, and show the new records to consumers.
- `FailWaiting`: complete every waiting produce and deletion with the error, and try every delayed
  fetch again. Whether the records will be committed is then undecided.
- `AnswerFetch`: only from `FollowerFetched`, always last, exactly one. Perform the effects before
  it first: the response carries the high watermark that they moved. Read records now if the error
  is NONE and the logs do not diverge, and delay the response if there are no records.
- `ProposeIsr`: send AlterPartition; feed exactly one `IsrAnswered`, with REQUEST_TIMED_OUT if the
  outcome is unknown. A newer proposal of the same partition replaces one that is not yet sent.
- `AnnounceLeadership`, `AnnounceResignation`: notify the coordinators, in the order given,
  without blocking. Leadership may be announced again when only the leader epoch rose.

Events, and when to feed them.
- `PartitionPublished`, `BrokersPublished`: for each new image that changes the partition or a
  broker, in the order of the images. An image older than the applied one is harmless.
- `ReplicaRemoved`: last, before the log is closed and deleted.
- `RecordsAppended` (or the method `appended`): as the leader, after `serving.append_refusal`
  returned NONE, in the same turn of the event loop, when the batch is in the log.
- `LogFlushed`: after an fsync, with an offset that the log had reached before it. With
  `acks_after_flush` the core counts only the records below it, and a follower fetches only while
  `may_fetch`, because its fetch offset acknowledges all records below.
- `FollowerFetched`: when a replica's fetch arrives; not when a delayed fetch is tried again.
- `LeaderAnswered`: when the leader's records are in the log; `LeaderDiverged`, `FetchOutOfRange`:
  instead of it. All three only if `accepts_answer` holds for the position of the fetch: the core
  checks it again for the last two, and ends the node at a `LeaderAnswered` of another epoch.
- `BatchBeganEarlier`: when the response begins with a sound batch that contains the fetch offset
  and smaller ones. If the core begins the log there, append the batch and feed `LeaderAnswered`.
- `LogTruncated`, `LogStartedOver`, `LogStartRose`, `LogStartKept`: after the change; see effects.
  `LogStartRose` also after DeleteRecords or retention, at most up to the high watermark.
- `IsrAnswered`: once per `ProposeIsr`, in any role: an answer to an older proposal is ignored.
- `Ticked`: see Time.

Restart. Build a new `Partition` from the log's ends, its epochs and the checkpointed high
watermark, which is clamped to the log. All other state comes from the image and from fetches.

The roles and their legal changes are the table `roles.LEGAL_CHANGES`.
"""
