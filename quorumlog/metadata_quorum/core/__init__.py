"""Pure: election, replication, high watermark and voters of the metadata log (KIP-595, KIP-853).

`quorum.Quorum.step(now_ms, event)` handles one event and returns effects. The core holds no record
bytes: it knows where the log ends, where its epochs start, how far it is durable and how far it is
committed. One task owns it, and must do the following.

Time. `now_ms` is a monotonic clock. The core takes the waits for writes out of it (`WriteEnded`):
no deadline runs while the disk of its node writes. Feed `Ticked` at or soon after
`next_deadline_ms()` (None: nothing is due); it changes with every step. The first event is
`Started`, from what the disk says.

Order. Perform the effects of one step in order, all of them, before the next event. An effect that
fails (a disk error) ends the node: what the core believes would no longer be true. Only `FlushLog`
and the sending of messages go on in the background.

- `PersistElection`: write `quorum-state`, and go on only when it is durable: a vote that is not may
  be given twice. After each effect that is a `DiskWrite`, feed `WriteEnded` before any other event.
- `AppendLeaderChange`: append one control batch with one record. Report no `RecordsAppended`.
- `AppendVoters`: append one control batch: KRaftVersion with level 1, if it is set here, and
  Voters. Report no `RecordsAppended`.
- `VotersChanged`: the log says other voters now, or the first ones. Find the addresses of peers
  there. A snapshot that is written at an offset holds `quorum.voters_at` of that offset.
- `AppendFetched`: append the bytes kept from that response: those that `FetchedRecords` described.
  Drop them if a step ends without this effect.
- `TruncateLog`: cut the log, and whatever was built from the records above. It never reaches
  below the high watermark, and never comes while a flush is under way.
- `FlushLog`: start `log.flush()`, in a thread if it blocks, and feed `LogFlushed` with the offset
  that the log ended at when the flush began, and how long it took. There is never a second one
  before that event. A failed flush ends the node.
- `SendRequest`: POST it to `destination`. Feed exactly one of `ResponseReceived` or
  `RequestFailed`, once. A fetch may be held back by the leader for max_wait_ms, so its timeout is
  longer than others'. `source` is the node that was asked. Before a fetch response is fed, its
  batches are checked (CRC, whole, consecutive; a partial one at the end is cut off) and described
  as `FetchedRecords`, with the voter sets in them; if that fails, feed `RequestFailed`. A decoded
  request or response of the wrong type for its URL never gets here. A `destination` below -1 is no
  node but one of the addresses to begin with: -2 is the first.
- `SendResponse`, `AnswerFetch`: the answer to one `RequestReceived`: each gets exactly one, at once
  or (a parked fetch) later. For a fetch read [records_from, records_to) of the log now, before the
  next effect, bounded by a maximum of bytes. If the peer has gone, drop the answer.
- `AdvanceHighWatermark`: replay committed records up to it, and answer the requests that wait
  for their commit.
- `BecomeLeader`: the controller may claim this epoch when all below and including
  `epoch_start_offset` is committed, that is, when `high_watermark > epoch_start_offset`, and it has
  replayed that far. It then appends with `leader_epoch`, as long as `quorum.leader_epoch` is still
  this one and `quorum.is_leader`, and feeds `RecordsAppended` before any other event.
- `ResignLeadership`: the controller stands down, and what it appended and is not yet committed has
  an unknown outcome: it may still be committed by the next leader.
- `FollowLeader`: keep one connection open to that voter. When it closes, or cannot be opened,
  connect once more: if that is refused, feed `PeerProcessDied`; if it is anything else, feed
  nothing. With NOBODY, keep none. It may come twice for the same leader; a deposed leader gets it
  after its `ResignLeadership`.

To stop: feed `ResignRequested`, serve until `resignation_pending` is False or the time is up, then
end. A stopped or killed node needs nothing else.
"""
