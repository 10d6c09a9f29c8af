"""Consumer groups as ConsumerGroupDescribe and ListGroups show them.

Sources: KIP-848; KIP-1043 and KIP-1099 (groups by type and protocol).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from quorumlog.wire.codec.messages.list_groups import ListedGroup

CONSUMER_TYPE: Final = "consumer"  # in ListGroups, which compares without regard to case
CONSUMER_PROTOCOL: Final = "consumer"
CLASSIC_MEMBER: Final = 0  # values of member_type
CONSUMER_MEMBER: Final = 1


def describe(
    group: ConsumerGroup, assignor_name: str, topic_names: Mapping[TopicId, str]
) -> DescribedGroup:
    """Describe a group. `assignor_name`: the assignor of its next target."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_name,
        members=[
            _member(member, group.target_of(member_id), topic_names)
            for member_id, member in sorted(group.members.items())
        ],
    )


def _member(
    member: ConsumerMember, target: Partitions, topic_names: Mapping[TopicId, str]
) -> Member:
    metadata = member.metadata
    return Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=[*metadata.subscribed_topic_names],
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_assignment(member.current.assigned, topic_names),
        target_assignment=_assignment(target, topic_names),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Partitions, topic_names: Mapping[TopicId, str]) -> Assignment:
    """Return the partitions by topic, without deleted topics."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        if topic_id in topic_names:
            found.setdefault(topic_id, []).append(partition)
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topic_names[topic_id], partitions=indexes)
            for topic_id, indexes in found.items()
        ]
    )


def list_groups(
    groups: Iterable[ConsumerGroup], *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[ListedGroup]:
    """List groups in these states and of these types; an empty collection: all."""
    if types and CONSUMER_TYPE not in {name.lower() for name in types}:
        return []
    wanted = {state.lower() for state in states}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=CONSUMER_PROTOCOL,
            group_state=group.state.value,
            group_type=CONSUMER_TYPE,
        )
        for group in sorted(groups, key=lambda group: group.group_id)
        if not wanted or group.state.value.lower() in wanted
    ]
