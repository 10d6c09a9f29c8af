"""One quorum node among peers that say anything at all: it keeps its invariants, or says so."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DivergingEpoch,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.sizes import examples

NODES = st.sampled_from((-1, 1, 2, 3, 9)).map(BrokerId)
EPOCHS = st.one_of(
    st.integers(-1, 8), st.integers(EPOCH_STEP_MAX - 2, EPOCH_STEP_MAX + 10), st.just(EPOCH_MAX)
).map(Epoch)
OFFSETS = st.integers(-1, 12).map(Offset)
ERRORS = st.sampled_from((ErrorCode.NONE, ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH))
SNAPSHOTS = st.builds(SnapshotId, OFFSETS, EPOCHS)
SIZES = st.integers(-1, 3)
IS_LED = {"leader_id": NODES, "leader_epoch": EPOCHS}
REQUESTS = st.one_of(
    st.builds(VoteRequest, replica_id=NODES, replica_epoch=EPOCHS, voter_id=st.just(BrokerId(1)),
              last_offset_epoch=EPOCHS, last_offset=OFFSETS, pre_vote=st.booleans()),
    st.builds(BeginQuorumEpochRequest, **IS_LED),
    st.builds(EndQuorumEpochRequest, **IS_LED, preferred_candidates=st.tuples(NODES, NODES)),
    st.builds(FetchRequest, replica_id=NODES, current_leader_epoch=EPOCHS, fetch_offset=OFFSETS,
              last_fetched_epoch=EPOCHS, max_wait_ms=st.integers(-1, 500),
              high_watermark=OFFSETS),
    st.builds(FetchSnapshotRequest, replica_id=NODES, current_leader_epoch=EPOCHS,
              snapshot_id=SNAPSHOTS, position=SIZES),
)  # fmt: skip
RESPONSES = st.one_of(
    st.builds(VoteResponse, error_code=ERRORS, **IS_LED, vote_granted=st.booleans()),
    st.builds(BeginQuorumEpochResponse, error_code=ERRORS, **IS_LED),
    st.builds(EndQuorumEpochResponse, error_code=ERRORS, **IS_LED),
    st.builds(FetchResponse, error_code=ERRORS, **IS_LED, high_watermark=OFFSETS,
              diverging_epoch=st.none() | st.builds(DivergingEpoch, epoch=EPOCHS,
                                                    end_offset=OFFSETS),
              snapshot_id=st.none() | SNAPSHOTS),
    st.builds(FetchSnapshotResponse, error_code=ERRORS, **IS_LED, size=SIZES, position=SIZES),
)  # fmt: skip
RECORDS = st.none() | st.builds(
    events.FetchedRecords,
    voter_sets=st.just(()),
    base_offset=OFFSETS,
    end_offset=OFFSETS,
    epoch_starts=st.lists(st.tuples(EPOCHS, OFFSETS), max_size=3).map(tuple),
)
STEPS = st.one_of(
    st.builds(events.Ticked),
    st.builds(events.RequestReceived, request_id=st.just(0), request=REQUESTS),
    st.builds(events.ResponseReceived, request_id=st.integers(1, 30), source=NODES,
              response=RESPONSES, records=RECORDS, snapshot_bytes=st.integers(0, 3)),
    st.builds(events.RequestFailed, request_id=st.integers(1, 30)),
    st.builds(events.PeerProcessDied, node_id=NODES),
    st.builds(events.ResignRequested),
)  # fmt: skip
AT_START = st.sampled_from((
    events.Started(),
    events.Started(
        leader_epoch=Epoch(3), log_end_offset=Offset(6), flushed_offset=Offset(6),
        epoch_starts=((Epoch(2), Offset(4)), (Epoch(3), Offset(5))),
        log_start=SnapshotId(Offset(4), Epoch(1)), snapshot_id=SnapshotId(Offset(5), Epoch(2)),
    ),
))  # fmt: skip
ANSWERS = effects.SendResponse | effects.AnswerFetch | effects.AnswerFetchSnapshot
TOLD_OF_LOSS = ("one leader in epoch", "3: committed records are not truncated")


@examples(300)
@given(
    node_id=st.sampled_from((1, 9)),
    started=AT_START,
    steps=st.lists(st.tuples(st.integers(0, 1500), STEPS), max_size=40),
)
def test_no_peer_can_break_a_node(
    node_id: int, started: events.Started, steps: list[tuple[int, events.Event]]
) -> None:
    """Two leaders in one epoch, and lost commits, may end it: those it must not survive."""
    node = Quorum(
        node_id=BrokerId(node_id),
        voters=tuple(map(BrokerId, (1, 2, 3))),
        settings=QuorumSettings(),
        random_fraction=lambda: 0.5,
    )
    now_ms, request_id = 0, 100
    orders = node.step(0, started)
    drafts: list[SnapshotId] = []
    unanswered: set[int] = set()
    for elapsed_ms, drawn in steps:
        now_ms, event, epoch = now_ms + elapsed_ms, drawn, node.state.leader_epoch
        if drafts and isinstance(drawn, events.PeerProcessDied):  # the check takes its time
            is_whole = drawn.node_id != 9
            event = events.SnapshotChecked(snapshot_id=drafts.pop(), is_whole=is_whole)
        if isinstance(drawn, events.RequestReceived):
            request_id += 1
            event = events.RequestReceived(request_id=request_id, request=drawn.request)
            unanswered.add(request_id)
        try:
            orders = node.step(now_ms, event)
            while flushes := [order for order in orders if isinstance(order, effects.FlushLog)]:
                _note_answers(orders, unanswered)
                orders = node.step(
                    now_ms, events.LogFlushed(flushed_offset=flushes[0].log_end_offset)
                )
        except InvariantViolation as violation:
            if str(violation).startswith(TOLD_OF_LOSS):
                return
            raise
        _note_answers(orders, unanswered)
        drafts += [one.snapshot_id for one in orders if isinstance(one, effects.CheckSnapshot)]
        assert len(drafts) <= 1
        assert node.state.leader_epoch - epoch <= EPOCH_STEP_MAX + 1  # + 1: it stands, too
        deadline_ms = node.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > now_ms  # all that was due is done
    parked = getattr(node.state.role, "parked", {})
    assert unanswered == set(parked)


def _note_answers(orders: list[effects.Effect], unanswered: set[int]) -> None:
    """Each request is answered once."""
    for order in orders:
        if isinstance(
            order, effects.SendResponse | effects.AnswerFetch | effects.AnswerFetchSnapshot
        ):
            unanswered.remove(order.request_id)
