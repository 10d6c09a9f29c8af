"""Pure: election, replication, high watermark and voters of the metadata log (KIP-595, KIP-853).

`quorum.Quorum.step(now_ms, event)` handles one event and returns effects. The core holds no record
bytes. It tracks the log end offset, the start offset of each leader epoch, the flushed offset and
the high watermark. One task, the driver, owns it, and must do the following.

Time. `now_ms` is a monotonic clock. The core subtracts the driver's waits for writes
(`WriteEnded`): no deadline runs while the disk of its node writes. Feed `Ticked` at or soon after
`next_deadline_ms()` (None: nothing is due); the deadline changes with every step. The first event
is `Started`, with the state on the disk.

Order. Perform all effects of one step, in order, before the next event. An effect that fails (a
disk error) ends the node: the core's state no longer matches the disk. Only `FlushLog` and the
sending of messages continue in the background.

- `PersistElection`: write `quorum-state`, and continue only when it is durable: a node that loses
  its vote may vote twice. After each effect that is a `DiskWrite`, feed `WriteEnded` before any
  other event.
- `AppendLeaderChange`: append one control batch with one record. Feed no `RecordsAppended`.
- `AppendVoters`: append one control batch: KRaftVersion with level 1 if `sets_kraft_version`, then
  Voters. Feed no `RecordsAppended`.
- `VotersChanged`: another voter set is in force, or the first one. Reach peers at its addresses. A
  snapshot that ends at an offset contains `quorum.voters_at` of that offset.
- `AppendFetched`: append the record bytes of that fetch response, which `FetchedRecords` described.
  Drop the bytes if a step ends without this effect.
- `TruncateLog`: truncate the log, and discard all state built from the removed records. The offset
  is never below the high watermark, and no flush is in progress.
- `FlushLog`: start `log.flush()`, in a thread if it blocks. Then feed `LogFlushed` with the log end
  offset at the start of the flush, and its duration. At most one flush is in progress. A failed
  flush ends the node.
- `SendRequest`: POST it to `destination`. Feed exactly one of `ResponseReceived` or
  `RequestFailed`, once. The leader may delay a fetch response by max_wait_ms, so a fetch has a
  longer timeout than other requests. `source` is the `destination` of the request. Before a fetch
  response is fed, check its batches (CRC, whole, consecutive; drop a partial batch at the end), and
  describe them as `FetchedRecords`, with the voter sets in them; if a check fails, feed
  `RequestFailed`. Requests and responses of the wrong type for their URL never reach the core.
  A `destination` below -1 is no node but a bootstrap address: -2 is the first.
- `SendResponse`, `AnswerFetch`: the response to one `RequestReceived`: each gets exactly one, at
  once or (a parked fetch) later. For a fetch read [records_from, records_to) of the log now, before
  the next effect, up to a maximum of bytes. If the peer has disconnected, drop the response.
- `AdvanceHighWatermark`: replay committed records up to it, and answer the requests that wait for
  this commit.
- `BecomeLeader`: the controller may claim this epoch when the record at `epoch_start_offset` is
  committed, that is, when `high_watermark > epoch_start_offset`, and it has replayed that far. It
  then appends with `leader_epoch`, as long as `quorum.state.leader_epoch` is still this epoch and
  `quorum.is_leader`, and feeds `RecordsAppended` before any other event.
- `ResignLeadership`: the controller stands down. Its uncommitted records have an unknown outcome:
  the next leader may still commit them.
- `FollowLeader`: keep one connection open to that voter. When it closes, or cannot be opened,
  connect once more: if that is refused, feed `PeerProcessDied`; on any other outcome, feed no
  event. With NOBODY, keep no connection. The effect may come twice for the same leader; a deposed
  leader gets it after its `ResignLeadership`.
- `AppendSnapshot`, `CheckSnapshot`, `InstallSnapshot`, `AnswerFetchSnapshot`: see `effects`.

To stop: feed `ResignRequested`, serve until `resignation_pending` is False or a time limit, then
end. A stopped or killed node needs nothing else.
"""
