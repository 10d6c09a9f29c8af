"""Members of groups, by either protocol: what each says, what it gives up, and when."""

from typing import Any

import pytest

from quorumlog.client.assignor import Subscription
from quorumlog.client.core import group_protocol
from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.consumer_membership import CONSUMER_TRANSITIONS, ConsumerMembership
from quorumlog.client.core.consumer_membership import State as ConsumerState
from quorumlog.client.core.membership import Membership, State
from quorumlog.client.core.membership_events import AssignedTopics, Effect, Event
from quorumlog.client.settings import AssignorName, ConsumerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.client.assigning import computed

OWN = group_protocol.encode_subscription(Subscription(topics=("t",)))


def joining(assignor: AssignorName = "range") -> Membership:
    settings = ConsumerSettings(
        bootstrap_servers="x:1", group_id="g", partition_assignment_strategy=(assignor,)
    )
    member = Membership(settings)
    for event in (facts.Subscribed(topics=("t",)), facts.PollBegan(), facts.CoordinatorFound()):
        member.step(0, event)
    assert member.state is State.JOINING
    return member


def lead(member: Membership, foreign: bytes, *, skips: bool = False) -> list[Effect]:
    listed = [("m", OWN), ("other", foreign)]
    return member.step(
        0,
        facts.JoinAnswered(
            error_code=0,
            generation_id=1,
            member_id="m",
            leader_id="m",
            protocol="range",
            skip_assignment=skips,
            members=tuple(
                facts.JoinedMember(member_id=name, instance_id=None, metadata=metadata)
                for name, metadata in listed
            ),
        ),
    )


def led(member: Membership, counts: dict[str, int]) -> facts.SendSync:
    """Let a leader assign the partitions."""
    (compute,) = member.step(0, facts.TopicsLookedUp(counts=counts))
    assert isinstance(compute, facts.ComputeAssignment)
    (sync,) = member.step(0, computed(compute))
    assert isinstance(sync, facts.SendSync)
    return sync


@pytest.mark.parametrize("nonsense", [b"", b"\0", b"\0\1\xff", b"\xff\xff\0\0", OWN[:-3]])
def test_a_member_that_sends_nonsense_gets_nothing_and_the_others_go_on(nonsense: bytes) -> None:
    member = joining()
    assert lead(member, nonsense) == [facts.LookUpTopics(topics=("t",))]
    sync = led(member, {"t": 1})
    shares = {name: group_protocol.decode_assignment(share) for name, share in sync.assignments}
    assert [len(shares[name]) for name in ("m", "other")] == [1, 0]


def test_an_assignment_that_cannot_be_read_is_an_error_that_the_user_hears_of() -> None:
    member = joining()
    lead(member, OWN)
    led(member, {"t": 1})
    failed = member.step(0, facts.SyncAnswered(error_code=0, assignment=b"\0\0\xff"))
    assert failed == [facts.Fail(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    with pytest.raises(MalformedFrame, match="version -2"):
        group_protocol.decode_assignment(b"\xff\xfe")


def test_a_coordinator_that_is_refused_is_looked_for_again_after_a_pause() -> None:
    member = Membership(ConsumerSettings(bootstrap_servers="x:1", group_id="g"))
    assert member.step(0, facts.Subscribed(topics=("t",))) == [facts.FindCoordinator()]
    assert member.step(0, facts.CoordinatorRefused()) == []
    again_ms = member.next_tick_ms(0)
    assert again_ms > 0
    assert member.step(again_ms, facts.Ticked()) == [facts.FindCoordinator()]


@pytest.mark.parametrize("refusal", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_member_owns_what_the_last_generation_it_knows_gave_it(refusal: ErrorCode) -> None:
    """A claim of a newer generation would take partitions from their present owner."""
    member = joining("cooperative-sticky")
    owned = (TopicPartition("t", 0), TopicPartition("t", 1))
    follow(member, 4)
    member.step(0, assigned(*owned))
    assert (member.state, member.owned) == (State.STABLE, owned)
    again = facts.HeartbeatAnswered(generation_id=4, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    member.step(0, again)
    follow(member, 5)
    member.step(0, facts.SyncAnswered(error_code=refusal, assignment=b""))
    again_ms = member.next_tick_ms(0)
    effects = member.step(again_ms, facts.Ticked())
    effects += member.step(again_ms, facts.CoordinatorFound())
    assert claimed(effects) == (owned, 4)
    follow(member, 6)
    member.step(0, assigned(*owned[:1]))
    assert claimed(member.step(0, facts.RevocationDone())) == (owned[:1], 6)


OWNED = (TopicPartition("t", 0),)


def returned(member: Membership, counts: dict[str, int]) -> list[Effect]:
    """Let a static leader come back. It did not watch the topics while it was away (KIP-814)."""
    lead(member, OWN, skips=True)
    (sync,) = member.step(0, facts.TopicsLookedUp(counts=counts))
    assert isinstance(sync, facts.SendSync)
    assert sync.assignments == ()
    return member.step(0, assigned(*OWNED))


def test_a_leader_that_comes_back_asks_what_its_group_is_assigned() -> None:
    described = facts.DescribeGroup(generation_id=1)
    effects = returned(joining(), {"t": 2})
    assert effects == [facts.Assign(partitions=OWNED, added=OWNED), described]
    follower = joining()
    follow(follower, 1)
    assert described not in follower.step(0, assigned(*OWNED))


@pytest.mark.parametrize(
    ("others", "rejoins"),
    [
        ([[TopicPartition("t", 1)]], False),
        ([[TopicPartition("t", 1), TopicPartition("t", 2)]], False),
        ([[]], True),
        ([], True),
    ],
)
def test_a_leader_that_comes_back_leads_once_more_if_a_partition_has_no_owner(
    others: list[list[TopicPartition]], rejoins: bool
) -> None:
    member = joining()
    returned(member, {"t": 2})
    shares = tuple(group_protocol.encode_assignment(share) for share in [OWNED, *others])
    effects = member.step(0, facts.GroupDescribed(generation_id=1, assignments=shares))
    assert effects == ([facts.Revoke(partitions=OWNED, lost=False)] if rejoins else [])


@pytest.mark.parametrize("assignments", [None, (b"\0", b"")])
def test_a_leader_that_learns_no_shares_leads_again(assignments: tuple[bytes, ...] | None) -> None:
    member = joining()
    returned(member, {"t": 1})
    assert member.step(0, facts.GroupDescribed(generation_id=0, assignments=assignments)) == []
    effects = member.step(0, facts.GroupDescribed(generation_id=1, assignments=assignments))
    assert effects == [facts.Revoke(partitions=OWNED, lost=False)]


def follow(member: Membership, generation_id: int) -> None:
    """Let a member join a generation that another one leads."""
    member.step(
        0,
        facts.JoinAnswered(
            error_code=0,
            generation_id=generation_id,
            member_id="m",
            leader_id="other",
            protocol=str(member.settings.assignors[0]),
            members=(),
        ),
    )
    assert member.state is State.SYNCING


def assigned(*partitions: TopicPartition) -> facts.SyncAnswered:
    return facts.SyncAnswered(error_code=0, assignment=group_protocol.encode_assignment(partitions))


def claimed(effects: list[Effect]) -> tuple[tuple[TopicPartition, ...], int]:
    """Return what a member that joins says that it has, and since which generation."""
    (join,) = [one for one in effects if isinstance(one, facts.SendJoin)]
    claim = group_protocol.decode_subscription(join.protocols[0][1], None)
    return claim.owned, claim.generation_id


ID = b"i" * 16
NAMES = {ID: "t"}


def some(*indexes: int) -> AssignedTopics:
    return {ID: indexes} if indexes else {}


def named(*indexes: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("t", index) for index in indexes)


class Told:
    """A member, and the heartbeat that is under way."""

    def __init__(self, **settings: Any) -> None:
        values = {"bootstrap_servers": "x:1", "group_id": "g", "group_protocol": "consumer"}
        self.member = ConsumerMembership(ConsumerSettings(**{**values, **settings}), "m")
        self.sent: facts.SendConsumerHeartbeat | None = None
        self.now_ms = 0.0

    @property
    def heartbeat(self) -> facts.SendConsumerHeartbeat:
        """The one that is under way."""
        assert self.sent is not None
        return self.sent

    def step(self, event: Event) -> list[Effect]:
        """Return the effects but for a heartbeat, which is in `sent`."""
        effects = self.member.step(self.now_ms, event)
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, facts.SendConsumerHeartbeat):
                self.sent = effect
            else:
                others.append(effect)
        return others

    def subscribe(self, *topics: str, pattern: str | None = None) -> list[Effect]:
        return self.step(facts.Subscribed(topics=topics, pattern=pattern))

    def answer(self, epoch: int, assignment: AssignedTopics | None = None) -> list[Effect]:
        attempt, self.sent = self.heartbeat.attempt, None
        return self.step(
            facts.ConsumerHeartbeatAnswered(
                attempt=attempt,
                error_code=0,
                member_epoch=epoch,
                heartbeat_interval_ms=1000,
                assignment=assignment,
            )
        )

    def refuse(self, code: ErrorCode, message: str | None = None) -> list[Effect]:
        attempt, self.sent = self.heartbeat.attempt, None
        refused = facts.ConsumerHeartbeatAnswered(
            attempt=attempt, error_code=code, error_message=message
        )
        return self.step(refused)

    def pass_ms(self, elapsed_ms: float) -> list[Effect]:
        self.now_ms += elapsed_ms
        return self.step(facts.Ticked())


def assign(
    partitions: tuple[TopicPartition, ...],
    *,
    added: tuple[TopicPartition, ...],
    topic_id: bytes = ID,
) -> facts.Assign:
    return facts.Assign(partitions=partitions, added=added, topic_ids={"t": topic_id})


def first_heartbeat(**settings: Any) -> Told:
    """Return a member that has sent its first heartbeat."""
    told = Told(**settings)
    told.subscribe("t")
    told.step(facts.PollBegan())
    told.step(facts.CoordinatorFound())
    return told


def member(*indexes: int, **settings: Any) -> Told:
    """A member at epoch 1 that has these partitions and has said so, in `poll`."""
    told = first_heartbeat(**settings)
    told.answer(1, some(*indexes))
    told.step(facts.TopicsNamed(names=NAMES))
    if told.sent is not None:
        told.answer(1)
    return told


def test_the_first_heartbeat_says_all_and_the_next_ones_what_is_new() -> None:
    told = Told()
    assert told.subscribe("t") == [facts.FindCoordinator()]
    told.step(facts.PollBegan())
    assert told.step(facts.CoordinatorFound()) == []
    sent = told.heartbeat
    assert (sent.member_epoch, sent.topics, sent.pattern) == (0, ("t",), "")
    assert (sent.owned, sent.is_full) == ({}, True)
    assert told.answer(1, some(0, 1)) == [facts.NameTopics(topic_ids=(ID,))]
    assigned = told.step(facts.TopicsNamed(names=NAMES))
    assert assigned == [assign(named(0, 1), added=named(0, 1))]
    assert (told.heartbeat.member_epoch, told.heartbeat.owned) == (1, some(0, 1))
    assert (told.heartbeat.topics, told.heartbeat.is_full) == (None, False)
    told.answer(1)
    assert told.pass_ms(999) == []
    assert told.sent is None
    told.pass_ms(1)
    assert told.sent is not None
    assert told.heartbeat.owned is None
    assert told.member.generation_id == 1


def test_partitions_are_given_up_before_others_are_taken_and_only_in_poll() -> None:
    told = member(0, 1)
    told.step(facts.PollEnded())
    told.pass_ms(1000)
    assert told.answer(1, some(1, 2)) == []
    revoked = told.step(facts.PollBegan())
    assert revoked == [facts.Revoke(partitions=named(0), lost=False)]
    assert told.sent is None  # it has partition 0 until the user's listener has returned
    told.pass_ms(1000)
    assert told.heartbeat.owned is None
    told.answer(1)
    assigned = told.step(facts.RevocationDone())
    assert assigned == [assign(named(1, 2), added=named(2))]
    assert told.heartbeat.owned == some(1, 2)


def test_another_topic_of_the_same_name_is_given_up_and_taken() -> None:
    other = b"2" * 16
    told = member(0, 1)
    told.pass_ms(1000)
    assert told.answer(1, {other: (0, 1)}) == [facts.NameTopics(topic_ids=(other,))]
    revoked = told.step(facts.TopicsNamed(names={other: "t"}))
    assert revoked == [facts.Revoke(partitions=named(0, 1), lost=False)]
    assigned = told.step(facts.RevocationDone())
    assert assigned == [assign(named(0, 1), added=named(0, 1), topic_id=other)]
    assert told.heartbeat.owned == {other: (0, 1)}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_fenced_member_has_lost_all_and_joins_again(code: ErrorCode) -> None:
    told = member(0)
    told.pass_ms(1000)
    assert told.refuse(code) == [facts.Revoke(partitions=named(0), lost=True)]
    assert told.member.generation_id == -1
    told.pass_ms(10_000)
    assert (told.heartbeat.member_epoch, told.heartbeat.is_full, told.heartbeat.owned) == (
        0,
        True,
        {},
    )
    assert told.heartbeat.member_id == "m"


def test_a_late_listener_of_lost_partitions_ends_no_later_revocation() -> None:
    told = member(0)
    told.pass_ms(1000)
    told.refuse(ErrorCode.FENCED_MEMBER_EPOCH)
    told.pass_ms(10_000)
    told.answer(2, some(0, 1))
    told.answer(2)
    told.pass_ms(1000)
    assert told.answer(2, some(1)) == [facts.Revoke(partitions=named(0), lost=False)]
    states = []
    for _ in ("of those that were lost", "of the other one"):
        told.step(facts.RevocationDone())
        states.append(told.member.state)
    assert states == [ConsumerState.REVOKING, ConsumerState.MEMBER]


def test_a_lost_coordinator_is_found_again_and_told_all() -> None:
    told = member(0, 1)
    told.pass_ms(1000)
    first = told.sent
    assert told.refuse(ErrorCode.NOT_COORDINATOR) == [facts.FindCoordinator()]
    assert told.step(facts.CoordinatorFound()) == []
    told.pass_ms(10_000)
    assert told.heartbeat.is_full
    assert (told.heartbeat.member_epoch, told.heartbeat.owned) == (1, some(0, 1))
    assert told.member.generation_id == 1
    assert first is not None
    late = facts.ConsumerHeartbeatAnswered(
        attempt=first.attempt, error_code=ErrorCode.FENCED_MEMBER_EPOCH
    )
    assert told.step(late) == []  # it is about a heartbeat that counts no more


def test_a_coordinator_that_loads_is_asked_again() -> None:
    told = first_heartbeat()
    assert told.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == []
    assert told.sent is None
    told.now_ms = told.member.next_tick_ms(told.now_ms)
    told.step(facts.Ticked())
    assert told.heartbeat.member_epoch == 0


@pytest.mark.parametrize(
    ("code", "is_fatal"),
    [(ErrorCode.FENCED_INSTANCE_ID, True), (ErrorCode.INVALID_REGULAR_EXPRESSION, False)],
)
def test_other_refusals_are_told_to_the_user(code: ErrorCode, is_fatal: bool) -> None:
    told = member(0)
    told.pass_ms(1000)
    lost, failed = told.refuse(code, "why")
    assert lost == facts.Revoke(partitions=named(0), lost=True)
    assert failed == facts.Fail(error_code=code, message="why")
    told.pass_ms(100_000)
    assert (told.sent is None) == is_fatal


def test_a_user_who_does_not_poll_leaves_the_group() -> None:
    told = member(0, max_poll_interval_ms=5000)
    told.step(facts.PollEnded())
    for _ in range(4):
        told.pass_ms(1000)
        told.answer(1)
    assert told.pass_ms(1000) == [facts.Revoke(partitions=named(0), lost=True)]
    assert told.heartbeat.member_epoch == -1
    told.pass_ms(60_000)
    assert told.heartbeat.member_epoch == -1  # until the next poll
    told.step(facts.PollBegan())
    assert told.heartbeat.member_epoch == 0


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_unsubscribing_leaves_the_group(instance_id: str | None, epoch: int) -> None:
    told = member(0, group_instance_id=instance_id)
    assert told.subscribe() == [facts.Revoke(partitions=named(0), lost=True)]
    assert told.heartbeat.member_epoch == epoch
    assert told.member.next_tick_ms(told.now_ms) == float("inf")


def test_another_subscription_is_told_at_once() -> None:
    told = member(0)
    told.subscribe(pattern="t.*")
    assert (told.heartbeat.topics, told.heartbeat.pattern, told.heartbeat.owned) == (
        (),
        "t.*",
        None,
    )
    told.answer(2)
    told.subscribe("u")
    assert told.sent is not None
    assert (told.heartbeat.topics, told.heartbeat.pattern) == (("u",), "")


def test_a_topic_without_a_name_is_asked_for_once_in_each_heartbeat() -> None:
    told = first_heartbeat()
    assert told.answer(1, some(0)) == [facts.NameTopics(topic_ids=(ID,))]
    assert told.step(facts.TopicsNamed(names={})) == []
    told.pass_ms(1000)
    assert told.answer(1) == [facts.NameTopics(topic_ids=(ID,))]


def test_an_answer_without_an_epoch_is_a_refusal() -> None:
    told = first_heartbeat()
    [failed] = told.answer(0)
    assert isinstance(failed, facts.Fail)


def test_every_pair_of_states() -> None:
    for before in ConsumerState:
        for after in ConsumerState:
            told = Told()
            told.member.state = before
            if after in CONSUMER_TRANSITIONS[before]:
                told.member._become(after)
                assert told.member.state is after
            else:
                with pytest.raises(InvariantViolation):
                    told.member._become(after)
