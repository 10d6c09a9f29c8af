"""Consumer groups as ConsumerGroupDescribe and ListGroups show them.

Sources: KIP-848; KIP-1043 and KIP-1099 (groups by type and protocol).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.wire.codec.identifiers import TopicId

CONSUMER_TYPE: Final = "consumer"  # in ListGroups, which compares without regard to case
CONSUMER_PROTOCOL: Final = "consumer"
CLASSIC_MEMBER: Final = 0  # values of member_type
CONSUMER_MEMBER: Final = 1


AssignedTopics = tuple[tuple[TopicId, str, tuple[int, ...]], ...]
"""Partitions by topic: its id, its name, the indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member. `assignment` and `target`: partitions by topic, without deleted topics."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: AssignedTopics
    target: AssignedTopics
    member_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, as ConsumerGroupDescribe shows it."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group, as ListGroups shows it."""

    group_id: str
    state: str
    protocol_type: str = CONSUMER_PROTOCOL
    group_type: str = CONSUMER_TYPE


def describe(
    group: ConsumerGroup, assignor_name: str, topic_names: Mapping[TopicId, str]
) -> GroupDescription:
    """Describe a group. `assignor_name`: the assignor of its next target."""
    return GroupDescription(
        group_id=group.group_id,
        state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_name,
        members=tuple(
            _member(member, group.target_of(member_id), topic_names)
            for member_id, member in sorted(group.members.items())
        ),
    )


def _member(
    member: ConsumerMember, target: Partitions, topic_names: Mapping[TopicId, str]
) -> MemberDescription:
    metadata = member.metadata
    return MemberDescription(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=tuple(metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_by_topic(member.current.assigned, topic_names),
        target=_by_topic(target, topic_names),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _by_topic(partitions: Partitions, topic_names: Mapping[TopicId, str]) -> AssignedTopics:
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        if topic_id in topic_names:
            found.setdefault(topic_id, []).append(partition)
    return tuple(
        (topic_id, topic_names[topic_id], tuple(indexes)) for topic_id, indexes in found.items()
    )


def list_groups(
    groups: Iterable[ConsumerGroup], *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupListing]:
    """List groups in these states and of these types; an empty collection: all."""
    if types and CONSUMER_TYPE not in {name.lower() for name in types}:
        return []
    wanted = {state.lower() for state in states}
    return [
        GroupListing(group_id=group.group_id, state=group.state.value)
        for group in sorted(groups, key=lambda group: group.group_id)
        if not wanted or group.state.value.lower() in wanted
    ]
