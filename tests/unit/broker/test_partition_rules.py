"""The rules of one replica, each by itself: as a leader, and as a follower."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.isr import (
    FollowerProgress,
    ProposalOutcome,
    is_eligible,
    outcome_of,
)
from quorumlog.broker.partitions.core.reads import RECORDS
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.broker.replicas import (
    ALL_ALIVE,
    BROKERS,
    LAG_TIME_MS,
    Replica,
    broker,
    fetched_by,
    image,
    out_of_range,
)
from tests.support.broker.replicas import diverged as diverged_at

ONE, TWO, THREE = BROKERS


def published(partition: PartitionImage, min_isr: int = 1) -> events.PartitionPublished:
    return events.PartitionPublished(
        image=partition, brokers=ALL_ALIVE, min_insync_replicas=min_isr
    )


def leader(isr: tuple[int, ...], min_isr: int = 1) -> Replica:
    replica = Replica(ONE)
    replica.step(0, published(image(1, 4, 9, isr), min_isr))
    return replica


def fetch(
    replica: Replica, now_ms: int, who: BrokerId, offset: int, broker_epoch: int = 0
) -> AnswerFetch:
    fetched = fetched_by(who, offset, broker_epoch=broker_epoch, leader_epoch=4)
    answer = replica.step(now_ms, fetched)[-1]
    assert isinstance(answer, AnswerFetch)
    return answer


def proposed(effects_done: Sequence[Effect]) -> list[effects.ProposeIsr]:
    return [effect for effect in effects_done if isinstance(effect, effects.ProposeIsr)]


def role_of(replica: Replica) -> Leader:
    assert isinstance(replica.partition.state.role, Leader)
    return replica.partition.state.role


def answer(replica: Replica, error_code: ErrorCode, *isr: BrokerId, **values: int) -> list[Effect]:
    """Let the controller answer; with an ISR, it has granted it in epoch 10 of the partition."""
    granted = {"leader_epoch": 4, "partition_epoch": 10, "isr": isr, **values} if isr else {}
    answered = events.IsrAnswered(asked_epoch=Epoch(9), error_code=error_code, **granted)  # type: ignore[arg-type]  # the names are its
    return replica.step(0, answered)


def test_one_that_has_caught_up_counts_before_it_is_asked_for() -> None:
    """It would never reach a high watermark that runs ahead of it."""
    replica = leader((1,))
    role_of(replica).pending = None
    replica.append(0, [0])
    fetch(replica, 10, TWO, 1)  # proposed: pending
    answer(replica, ErrorCode.INELIGIBLE_REPLICA)
    assert role_of(replica).maximal_isr == {ONE}
    replica.append(20, [0])
    assert replica.partition.state.high_watermark == 1
    replica.step(21 + LAG_TIME_MS, events.Ticked())
    assert replica.partition.state.high_watermark == 2  # it fell silent


def test_a_follower_joins_at_the_high_watermark_below_the_log_end() -> None:
    """A leader that appends without a pause would else never have it in its ISR (KAFKA-7128)."""
    replica = leader((1, 2))
    fetch(replica, 0, TWO, 0)
    replica.append(0, [0, 1])
    fetch(replica, 0, TWO, 1)
    assert replica.partition.state.high_watermark == 1
    fetch(replica, 0, THREE, 0)
    assert role_of(replica).pending is None
    fetch(replica, 0, THREE, 1)
    assert role_of(replica).maximal_isr == {ONE, TWO, THREE}


@pytest.mark.parametrize("is_fenced", [True, False])
def test_one_that_may_not_join_holds_up_nobody(is_fenced: bool) -> None:
    replica = leader((1,))
    replica.append(0, [0])
    dead = {**ALL_ALIVE, TWO: broker(TWO, 0 if is_fenced else 1, fenced=is_fenced)}
    replica.step(0, events.BrokersPublished(brokers=ALL_ALIVE))
    fetch(replica, 10, TWO, 1)
    answer(replica, ErrorCode.INELIGIBLE_REPLICA)
    replica.append(20, [0])
    assert replica.partition.state.high_watermark == 1
    replica.step(21, events.BrokersPublished(brokers=dead))
    assert replica.partition.state.high_watermark == 2


def test_one_that_has_never_fetched_holds_up_nobody() -> None:
    replica = leader((1, 2))
    replica.step(0, published(image(1, 4, 10, (1,))))  # it left before it ever fetched
    replica.append(0, [0])
    assert replica.partition.state.high_watermark == 1


def test_a_produce_is_refused_by_the_isr_that_is_granted_and_ends_by_the_maximal_one() -> None:
    replica = leader((1,), min_isr=2)
    partition = replica.partition
    assert partition.serving.append_refusal(-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.serving.append_refusal(1) is ErrorCode.NONE
    assert partition.serving.commit_outcome() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    fetch(replica, 0, TWO, 0)
    assert role_of(replica).maximal_isr == {ONE, TWO}
    assert partition.serving.append_refusal(-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.serving.commit_outcome() is ErrorCode.NONE


def test_min_insync_replicas_is_no_more_than_there_are_replicas() -> None:
    replica = Replica(ONE)
    replica.step(0, published(image(1, 4, 9, (1,), replicas=(1,)), 3))
    replica.append(0, [0])
    assert replica.partition.state.high_watermark == 1


def test_a_fetch_of_who_is_not_assigned_or_out_of_range_counts_for_nothing() -> None:
    replica = leader((1, 2))
    assert fetch(replica, 0, BrokerId(9), 0).error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
    replica.append(0, [0])
    assert fetch(replica, 0, TWO, 7).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica.partition.state.high_watermark == 0


def test_a_leader_of_an_unclean_election_says_with_its_first_isr_that_its_log_is_open() -> None:
    """KIP-704. Until then, its log may be cut at the next start, too."""
    replica = Replica(ONE)
    unclean = replace(image(1, 4, 9, (1,)), is_recovering=True)
    [proposal] = proposed(replica.step(0, published(unclean)))
    assert proposal.new_isr == ((ONE, -1),)
    assert proposed(replica.step(0, published(unclean))) == []


def test_one_proposal_at_a_time() -> None:
    replica = leader((1,))
    fetch(replica, 0, TWO, 0)
    fetch(replica, 0, THREE, 0)
    assert len(replica.proposals) == 1
    answer(replica, ErrorCode.REQUEST_TIMED_OUT)
    answer(replica, ErrorCode.INELIGIBLE_REPLICA)  # to a request that is with nobody
    assert role_of(replica).pending is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"leader_epoch": Epoch(5)},
        {"partition_epoch": Epoch(8)},
        {"isr": (TWO, THREE)},
        {"isr": (ONE, TWO, BrokerId(9))},
    ],
)
def test_a_granted_isr_that_does_not_fit_waits_for_the_metadata(wrong: dict[str, Any]) -> None:
    replica = leader((1,))
    fetch(replica, 0, TWO, 0)
    assert answer(replica, ErrorCode.NONE, ONE, TWO, **wrong) == []
    pending = role_of(replica).pending
    assert pending is not None
    assert pending.awaits_metadata
    assert role_of(replica).maximal_isr == {ONE, TWO}
    assert proposed(replica.step(1, events.Ticked())) == []
    replica.step(2, published(image(1, 4, 11, (1, 2))))
    assert role_of(replica).isr == {ONE, TWO}
    assert role_of(replica).pending is None


@pytest.mark.parametrize("error_code", [ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA])
def test_an_answer_to_an_older_proposal_settles_no_pending_one(error_code: ErrorCode) -> None:
    """The metadata log may be faster than the answer; then the next proposal is pending."""
    replica = leader((1,))
    fetch(replica, 0, TWO, 0)
    replica.step(0, published(image(1, 4, 10, (1, 2))))
    fetch(replica, 0, THREE, 0)
    assert [one.partition_epoch for one in replica.proposals] == [9, 10]
    answer(replica, error_code, ONE, TWO)
    replica.append(1, [0])
    fetch(replica, 2 + LAG_TIME_MS, TWO, 1)  # THREE is silent, but the controller may have added it
    assert replica.partition.state.high_watermark == 0
    fetch(replica, 2 + LAG_TIME_MS, THREE, 1)
    assert replica.partition.state.high_watermark == 1


def test_what_an_answer_of_the_controller_means() -> None:
    refused = {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA}
    awaits = {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    expected = {
        ErrorCode.NONE: ProposalOutcome.COMMITTED,
        **dict.fromkeys(refused, ProposalOutcome.REFUSED),
        **dict.fromkeys(awaits, ProposalOutcome.AWAIT_METADATA),
    }
    for error_code in ErrorCode:
        assert outcome_of(error_code) is expected.get(error_code, ProposalOutcome.ASK_AGAIN)


def test_one_that_lags_by_a_fetch_has_caught_up_with_what_there_was_then() -> None:
    progress = FollowerProgress()
    progress.fetched(100, Offset(5), 0, Offset(10))
    assert not progress.is_caught_up(100, Offset(10), 50)
    progress.fetched(200, Offset(10), 0, Offset(15))  # all that there was at 100
    assert progress.caught_up_ms == 100
    assert progress.is_caught_up(150, Offset(20), 50)
    assert not progress.is_caught_up(151, Offset(20), 50)
    progress.fetched(300, Offset(14), 0, Offset(20))  # less than at 200
    assert progress.caught_up_ms == 100


@pytest.mark.parametrize(
    ("fenced", "is_leaving", "broker_epoch", "expected"),
    [
        (False, False, 3, True),
        (False, False, -1, False),
        (False, False, 2, False),
        (True, False, 3, False),
        (False, True, 3, False),
    ],
)
def test_who_may_join(fenced: bool, is_leaving: bool, broker_epoch: int, expected: bool) -> None:
    known = replace(broker(TWO, 3, fenced=fenced), in_controlled_shutdown=is_leaving)
    assert is_eligible({TWO: known}, TWO, broker_epoch) is expected
    assert not is_eligible({}, TWO, broker_epoch)


def test_one_from_before_this_epochs_start_does_not_join() -> None:
    """It may lack what an earlier leader had committed (KAFKA-7128)."""
    replica = Replica(ONE)
    replica.log.append([(3, 0)] * 5)
    replica.partition.state.log_end_offset = Offset(5)
    replica.step(0, published(image(1, 4, 9, (1, 3))))
    fetch(replica, 0, TWO, 4)
    assert replica.proposals == []
    fetch(replica, 0, TWO, 5)
    assert len(replica.proposals) == 1


@pytest.mark.parametrize(("checkpoint", "expected"), [(9, 5), (4, 4), (1, 2)])
def test_a_checkpoint_says_no_more_than_the_log_holds(checkpoint: int, expected: int) -> None:
    template = Replica(ONE)
    partition = type(template.partition)(
        ONE,
        template.log,
        replica_lag_time_max_ms=1,
        log_start_offset=Offset(2),
        log_end_offset=Offset(5),
        high_watermark=Offset(checkpoint),
    )
    assert partition.state.high_watermark == expected


def test_a_new_leader_gives_its_isr_one_lag_time_and_asks_once() -> None:
    replica = leader((1, 2))
    replica.append(0, [0])
    assert role_of(replica).followers[THREE].caught_up_ms is None
    assert proposed(replica.step(LAG_TIME_MS, events.Ticked())) == []
    [asked] = proposed(replica.step(LAG_TIME_MS + 1, events.Ticked()))
    assert asked.new_isr == ((ONE, -1),)
    assert proposed(replica.step(LAG_TIME_MS + 2, events.Ticked())) == []  # it is on its way


def test_a_refusal_commits_what_the_others_hold() -> None:
    replica = leader((1,))
    fetch(replica, 0, TWO, 0)
    replica.append(0, [0])
    dead = {**ALL_ALIVE, TWO: broker(TWO, fenced=True)}
    replica.step(0, events.BrokersPublished(brokers=dead))
    assert replica.partition.state.high_watermark == 0  # it may have been granted before it died
    answer(replica, ErrorCode.INELIGIBLE_REPLICA)
    assert replica.partition.state.high_watermark == 1


def test_a_member_that_has_not_fetched_from_this_leader_is_asked_for_as_registered() -> None:
    """The controller refuses who cannot be told from an earlier process: nobody could join."""
    replica = leader((1, 2))
    brokers = {**ALL_ALIVE, TWO: broker(TWO, 7)}
    replica.step(0, events.BrokersPublished(brokers=brokers))
    replica.append(0, [0])
    replica.proposals.clear()
    fetch(replica, 10, THREE, 1)
    [asked] = replica.proposals
    assert asked.new_isr == ((ONE, -1), (TWO, 7), (THREE, 0))


def test_an_echo_of_a_former_process_is_known_before_the_metadata_tells() -> None:
    replica = leader((1, 2))
    for process, expected in ((1, ErrorCode.NONE), (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        assert fetch(replica, 0, TWO, 0, broker_epoch=process).error_code is expected


def test_a_smaller_min_insync_replicas_commits_at_once() -> None:
    replica = leader((1,), min_isr=2)
    replica.append(0, [0])
    assert replica.partition.state.high_watermark == 0
    replica.step(0, published(image(1, 4, 9, (1,)), 1))  # only the topic's configs changed
    assert replica.partition.state.high_watermark == 1


def test_followers_keep_what_is_known_of_them_until_the_leader_epoch_rises() -> None:
    replica = leader((1, 2))
    fetch(replica, 0, TWO, 0)
    replica.step(1, published(image(1, 4, 10, (1, 2), replicas=(1, 2, 4))))
    followers = role_of(replica).followers
    assert {*followers} == {TWO, BrokerId(4)}
    assert followers[TWO].log_end_offset == 0
    replica.append(1, [0])
    replica.step(2, published(image(1, 5, 11, (1, 2))))
    assert role_of(replica).epoch_start == 1
    assert role_of(replica).followers[TWO].log_end_offset == -1  # it may have to truncate


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


def test_a_followers_fetch_is_judged_as_any_read() -> None:
    replica = leader((ONE, TWO))
    replica.step(0, events.RecordsAppended(log_end_offset=Offset(5)))
    serving = replica.partition.serving
    for leader_epoch in (-1, 3, 4, 5):
        for fetch_offset in range(-1, 7):
            for last_epoch in (-1, 3, 4, 5):
                asked = Epoch(leader_epoch), Offset(fetch_offset), Epoch(last_epoch)
                event = events.FollowerFetched(TWO, 0, *asked, log_start_offset=Offset(0))
                assert serving.judge_follower(event) == serving.judge_read(*asked)
    assert serving.judge_read(Epoch(4), Offset(5), Epoch(4)) is RECORDS
