"""Pure: every rule of replication, admission and idempotence that decides something.

`partition.Partition.step(now_ms, event)` handles one event and returns effects. It holds no record
bytes: it knows the two ends of the log, its history of leader epochs, and how far it is committed.
One driver owns it (`partitions/log/partition_driver.py`; tests have another), and does the
following.

Time. `now_ms` is a monotonic clock and never decreases. Feed `Ticked` now and then, at most half
of `replica.lag.time.max.ms` apart: the leader drops slow replicas from the ISR and repeats lost
proposals only then.

Order. Perform the effects of one step in order, all of them, before the next event from outside.
An effect that reports back (`LogTruncated`, `LogStartedOver`, `LogStartRose`) feeds that event
before the next effect is performed. An effect that fails ends the node: what the core believes
would no longer be true.

Effects.
- `AssignEpoch`: record on the disk where this leader epoch starts, and return only then: a replica
  that truncates must find the epoch even if no record of it follows (KAFKA-7415).
- `StartFetching`: fetch from this leader, in this epoch, in place of any other leader. The position
  of a fetch is read when the request is built: the log end and its last epoch, and
  `kept_log_start_offset`, never the log start (a follower tells a start once the disk has it).
- `StopFetching`: fetch no more. An answer that arrives later is not fed, see `accepts_answer`.
- `TruncateTo`: cut the log and whatever was built from the records above (producers, checkpoints);
  then feed `LogTruncated` with the new end, even if no record went: the history of epochs may have
  to. The high watermark falls with the log.
- `StartOverAt`: drop the whole log and begin it, empty, at `offset`; then feed `LogStartedOver`.
- `DisclaimLog`: report to the controller that this log is not whole, until the metadata shows the
  replica in neither ISR nor ELR, or in another leader epoch. A `StartFetching` follows then.
- `AdvanceLogStart`: let the log start at `offset`; then feed `LogStartRose`. Later, once no crash
  can bring the older start back, feed `LogStartKept`.
- `CompleteBelow`: complete the waiting produces below the high watermark with
  `serving.commit_outcome()`, and show the new records to consumers.
- `FailWaiting`: complete every waiting produce and deletion with the error, and try every delayed
  fetch again. Whether the records will be committed is unknown then.
- `AnswerFetch`: only from `FollowerFetched`, always last, exactly one. Perform the effects before
  it first: the answer carries the high watermark that they moved. Read records now if the error is
  NONE and nothing diverges, and hold the answer back if there are none.
- `ProposeIsr`: send AlterPartition; feed exactly one `IsrAnswered`, with REQUEST_TIMED_OUT if the
  outcome is unknown. A newer proposal of the same partition replaces one that is not yet sent.
- `AnnounceLeadership`, `AnnounceResignation`: tell the coordinators, in the order given,
  without blocking. Leadership may be announced again when only the leader epoch rose.

Events, and when to feed them.
- `PartitionPublished`, `BrokersPublished`: for each new image that changes the partition or a
  broker, in the order of the images. An older image than one already known is harmless.
- `ReplicaRemoved`: last, before the log is closed and deleted.
- `RecordsAppended` (or the method `appended`): as the leader, after `serving.append_refusal`
  returned NONE, in the same turn of the event loop, when the batch is in the log.
- `LogFlushed`: after an fsync, with an offset that the log had reached before it. With
  `acks_after_flush` the core counts only what is below, and a follower fetches only while
  `may_fetch`: its question says what it holds.
- `FollowerFetched`: when a fetch of a replica arrives; not when a delayed one is tried again.
- `LeaderAnswered`: when what the leader sent is in the log; `LeaderDiverged`, `FetchOutOfRange`:
  instead of it. All three only if `accepts_answer` holds for the position that was asked: the core
  checks it again for the last two, and ends the node at a `LeaderAnswered` of another epoch.
- `BatchBeganEarlier`: when the answer begins with a sound batch that has the offset that was asked
  for, and others before it. If the core begins the log there, append then: `LeaderAnswered`.
- `LogTruncated`, `LogStartedOver`, `LogStartRose`, `LogStartKept`: when it is so; see the effects.
  `LogStartRose` also after DeleteRecords or retention, at most up to the high watermark.
- `IsrAnswered`: once per `ProposeIsr`, in any role: an answer to an older proposal is ignored.
- `Ticked`: see Time.

Restart. Build a new `Partition` from the log's ends, its epochs and the checkpointed high
watermark, which is clamped to the log. Everything else is learnt again from the image and fetches.

The roles and their legal changes are the table `roles.LEGAL_CHANGES`.
"""
