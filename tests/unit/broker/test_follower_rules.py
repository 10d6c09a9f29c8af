"""The rules of one replica that follows: what it cuts, where it starts, what it lets go of."""

from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, image, out_of_range
from tests.support.broker.replicas import diverged as diverged_at

ONE = BROKERS[0]


def published(partition: PartitionImage) -> events.PartitionPublished:
    return events.PartitionPublished(image=partition, brokers=ALL_ALIVE, min_insync_replicas=1)


def follower(log_end: int, log_start: int = 0, isr: tuple[int, ...] = (1, 2)) -> Replica:
    replica, start = Replica(ONE), Offset(log_start)
    replica.log.append([(3, 0)] * log_end)
    state = replica.partition.state
    state.log_end_offset = Offset(log_end)
    state.log_start_offset = state.high_watermark = start
    replica.step(0, published(image(2, 4, 9, isr)))
    return replica


def beyond(fetch_offset: int, log_start: int, **epochs: int) -> events.FetchOutOfRange:
    return out_of_range(
        fetch_offset, log_start, **{"leader_epoch": 4, "last_fetched_epoch": 3, **epochs}
    )


def diverged(epoch: int, end_offset: int) -> events.LeaderDiverged:
    of_epoch_1 = diverged_at(5, end_offset, epoch=epoch, last_fetched_epoch=3)
    return replace(of_epoch_1, leader_epoch=Epoch(4))


OUT_OF_RANGE = beyond(5, 9)
OF_AN_EPOCH_BELOW_ALL = diverged(0, 0)  # as a leader answers whose epochs begin too late


@pytest.mark.parametrize(
    ("log_end", "log_start", "theirs", "start_at"),
    [
        (5, 0, 9, 9),
        (5, 0, 5, None),
        (5, 0, 2, None),
        (5, 0, -1, None),
        (5, 5, -1, None),
        (5, 5, 2, 2),
    ],
)
def test_a_follower_starts_over_only_if_the_leader_begins_behind_its_end(
    log_end: int, log_start: int, theirs: int, start_at: int | None
) -> None:
    replica = follower(log_end, log_start)
    done = replica.step(0, beyond(log_end, theirs))
    expected = [] if start_at is None else [effects.StartOverAt(offset=Offset(start_at))]
    assert done == expected


def test_a_follower_lets_go_of_what_its_leader_has_dropped_but_nothing_uncommitted() -> None:
    replica = follower(5)

    def answered(high_watermark: int, log_start: int) -> list[Effect]:
        return replica.step(
            0,
            events.LeaderAnswered(
                leader_epoch=Epoch(4),
                log_end_offset=Offset(5),
                high_watermark=Offset(high_watermark),
                log_start_offset=Offset(log_start),
            ),
        )

    assert answered(3, 4)[-1] == effects.AdvanceLogStart(offset=Offset(3))
    replica.step(0, events.LogStartRose(log_start_offset=Offset(3)))
    assert answered(1, 3) == []
    assert replica.partition.state.high_watermark == 3


def test_a_late_answer_that_the_offset_is_out_of_range_changes_nothing() -> None:
    replica = follower(5)
    for leader_epoch, offset, last_epoch in ((3, 5, 3), (4, 4, 3), (4, 5, 2)):
        late = beyond(offset, 9, leader_epoch=leader_epoch, last_fetched_epoch=last_epoch)
        assert list(replica.step(0, late)) == []


def test_a_follower_cuts_nothing_below_its_start_and_shows_nothing_above_its_end() -> None:
    replica = follower(5, log_start=3, isr=(2,))
    replica.partition.state.high_watermark = Offset(5)
    assert replica.step(0, diverged(2, 1))[0] == effects.TruncateTo(offset=Offset(3))
    state = replica.partition.state
    assert (state.high_watermark, state.log_end_offset) == (3, 3)


def test_an_epoch_that_no_leader_had_yet_is_damage_and_is_cut() -> None:
    """No checksum covers the leader epoch of a batch: a leader that lacks it knows no end of it."""
    replica = follower(5)
    replica.log.append([(1 << 20, 0)])
    replica.partition.state.log_end_offset = Offset(6)
    cut, *_ = replica.step(0, beyond(6, 0, last_fetched_epoch=1 << 20))
    assert cut == effects.TruncateTo(offset=Offset(5))


def test_who_has_no_leader_or_is_removed_fetches_from_nobody() -> None:
    replica = follower(5)
    assert replica.fetching is not None
    replica.step(0, published(image(-1, 5, 10, (1, 2))))
    assert replica.fetching is None
    replica.step(0, published(image(2, 6, 11, (1, 2))))
    removed = events.ReplicaRemoved(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    done = replica.step(0, removed)
    assert replica.fetching is None
    assert not any(isinstance(effect, effects.AnnounceResignation) for effect in done)
    leader = Replica(ONE)
    leader.step(0, published(image(1, 4, 9, (1,))))
    assert isinstance(leader.step(0, removed)[-1], effects.AnnounceResignation)


def member(high_watermark: int, isr: tuple[int, ...] = (1, 2)) -> Replica:
    """A replica in the ISR or the ELR, of five records, that follows broker 2 in epoch 4."""
    replica = follower(5, isr=isr)
    replica.partition.state.high_watermark = Offset(high_watermark)
    return replica


@pytest.mark.parametrize("contradiction", [OF_AN_EPOCH_BELOW_ALL, diverged(3, 3), OUT_OF_RANGE])
@pytest.mark.parametrize("is_eligible", [False, True])
def test_a_member_disclaims_its_log_and_gives_up_nothing_that_it_has_committed(
    contradiction: events.LeaderDiverged | events.FetchOutOfRange, is_eligible: bool
) -> None:
    replica, started = member(4), effects.StartFetching(leader_id=BROKERS[1], leader_epoch=Epoch(4))
    if is_eligible:  # it has left the ISR since, with all that was committed
        in_elr = replace(image(2, 4, 10, (2,)), elr=(ONE,))
        assert replica.step(0, published(in_elr)) == []
    stop, disclaimed = replica.step(0, contradiction)
    assert stop == effects.StopFetching()
    assert isinstance(disclaimed, effects.DisclaimLog)
    assert (disclaimed.leader_id, disclaimed.high_watermark) == (2, 4)
    state = replica.partition.state
    assert not replica.partition.accepts_answer(Epoch(4), Offset(5), Epoch(3))
    assert replica.step(0, contradiction) == []  # an answer that was under way
    assert replica.step(0, published(image(2, 4, 11, (1, 2)))) == []  # it is a member yet
    assert (state.log_end_offset, state.high_watermark, state.is_contradicted) == (5, 4, True)

    assert replica.step(0, published(image(2, 4, 12, (2,)))) == [started]
    assert not state.is_contradicted
    cut, *_ = replica.step(0, contradiction)
    assert isinstance(cut, effects.TruncateTo | effects.StartOverAt)


def test_a_member_follows_the_next_leader_again() -> None:
    replica = member(4)
    replica.step(0, OF_AN_EPOCH_BELOW_ALL)
    started = effects.StartFetching(leader_id=BROKERS[2], leader_epoch=Epoch(5))
    assert replica.step(0, published(image(3, 5, 10, (1, 3)))) == [started]
    assert not replica.partition.state.is_contradicted


def test_a_member_cuts_what_is_committed_only_after_an_unclean_election() -> None:
    assert member(4).step(0, diverged(3, 4))[0] == effects.TruncateTo(offset=Offset(4))
    replica = member(4, isr=(2,))
    assert replica.step(0, diverged(3, 1))[0] == effects.TruncateTo(offset=Offset(1))
