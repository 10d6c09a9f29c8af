"""A member among others that misbehave; see also the property test."""

import pytest

from quorumlog.client.core import group_protocol
from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.assignors import Subscription
from quorumlog.client.core.membership import Membership, State
from quorumlog.client.core.membership_events import Effect
from quorumlog.client.settings import Assignor, ConsumerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition

OWN = group_protocol.encode_subscription(Subscription(topics=("t",)))


def joining(assignor: Assignor = "range") -> Membership:
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


@pytest.mark.parametrize("nonsense", [b"", b"\0", b"\0\1\xff", b"\xff\xff\0\0", OWN[:-3]])
def test_a_member_that_sends_nonsense_gets_nothing_and_the_others_go_on(nonsense: bytes) -> None:
    member = joining()
    assert lead(member, nonsense) == [facts.LookUpTopics(topics=("t",))]
    (sync,) = member.step(0, facts.TopicsLookedUp(counts={"t": 1}))
    assert isinstance(sync, facts.SendSync)
    shares = {name: group_protocol.decode_assignment(share) for name, share in sync.assignments}
    assert [len(shares[name]) for name in ("m", "other")] == [1, 0]


def test_an_assignment_that_cannot_be_read_is_an_error_that_the_user_hears_of() -> None:
    member = joining()
    lead(member, OWN)
    member.step(0, facts.TopicsLookedUp(counts={"t": 1}))
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
def test_a_member_owns_what_the_last_generation_gave_it_that_it_has_heard_of(
    refusal: ErrorCode,
) -> None:
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
def test_a_leader_that_does_not_hear_what_is_assigned_leads_once_more(
    assignments: tuple[bytes, ...] | None,
) -> None:
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
            protocol="cooperative-sticky",
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
