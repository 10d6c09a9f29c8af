"""Consumer groups, by requests to their coordinators: members, offsets, deletion."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from quorumlog.client import descriptions as about
from quorumlog.client.admin import topics
from quorumlog.client.admin.asker import Asker, left_out
from quorumlog.client.checks import checked_names, checked_partitions, checked_places
from quorumlog.client.core.group_protocol import PROTOCOL_TYPE, decode_assignment
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.errors import DEFINITE, KafkaError
from quorumlog.client.io.cluster import check
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import offset_delete as offset_delete_
from quorumlog.wire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest

Result = TypeVar("Result")

NO_GROUP: Final = "Dead"  # the state in responses for a group that does not exist


async def _ask(
    asker: Asker, group_id: str, ask: Callable[[Coordinator], Awaitable[Result]], *, changes: bool
) -> Result:
    """Call `ask` with the group's coordinator, with retries; find it again after an error."""
    if not isinstance(group_id, str):
        raise TypeError(f"a group is named by a str, not {group_id!r}")
    coordinator = Coordinator(asker.cluster, group_id)

    async def attempt() -> Result:
        try:
            return await ask(coordinator)
        except KafkaError:
            coordinator.mark_unknown()
            raise

    return await asker.retry(attempt, changes=changes)


async def list_all(asker: Asker) -> list[about.GroupListing]:
    """See Admin.list_consumer_groups."""
    found = {}
    for broker_id in (await topics.view(asker, ())).nodes:
        ask = partial(asker.request, ListGroupsRequest(), broker_id=broker_id)
        response = await asker.retry(ask, changes=False)
        check(response.error_code, f"ListGroups of broker {broker_id}")
        for one in response.groups:
            found[one.group_id] = about.GroupListing(
                group_id=one.group_id,
                protocol_type=one.protocol_type,
                state=one.group_state,
                group_type=one.group_type,
            )
    return [found[name] for name in sorted(found)]


async def describe(asker: Asker, group_id: str) -> about.GroupDescription:
    """See Admin.describe_consumer_groups."""

    async def ask(coordinator: Coordinator) -> about.GroupDescription:
        group = (await coordinator.send(DescribeGroupsRequest(groups=[group_id]))).groups[0]
        if known(group.error_code) != ErrorCode.GROUP_ID_NOT_FOUND:
            check(group.error_code, group_id)
        if group.group_state == NO_GROUP:
            consumer_group = await _consumer_group(coordinator)
            if consumer_group is not None:
                return consumer_group
        return _described(group, coordinator.broker_id)

    return await _ask(asker, group_id, ask, changes=False)


async def _consumer_group(coordinator: Coordinator) -> about.GroupDescription | None:
    """Describe a consumer group (KIP-848); return None if there is no such consumer group."""
    request = ConsumerGroupDescribeRequest(group_ids=[coordinator.group_id])
    try:
        group = (await coordinator.send(request)).groups[0]
        check(group.error_code, coordinator.group_id)
    except KafkaError as error:
        if error.code in {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND}:
            return None
        raise
    members = tuple(
        about.MemberDescription(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=tuple(
                TopicPartition(topic.topic_name, index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for member in group.members
    )
    broker_id = coordinator.broker_id
    return about.GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=PROTOCOL_TYPE,
        protocol=group.assignor_name,
        coordinator_id=-1 if broker_id is None else broker_id,
        members=members,
        group_type=about.CONSUMER_TYPE,
    )


def _described(group: DescribedGroup, coordinator_id: int | None) -> about.GroupDescription:
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    members = tuple(
        about.MemberDescription(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=decode_assignment(member.member_assignment) if is_consumer else (),
        )
        for member in group.members
    )
    return about.GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator_id=-1 if coordinator_id is None else coordinator_id,
        members=members,
    )


async def offsets(
    asker: Asker, group_id: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """See Admin.list_consumer_group_offsets."""
    wanted = None if partitions is None else checked_partitions(partitions)
    coordinator = Coordinator(asker.cluster, group_id)
    return await coordinator.committed(wanted, asker.settings.default_api_timeout_ms)


async def alter_offsets(
    asker: Asker, group_id: str, places: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> None:
    """See Admin.alter_consumer_group_offsets."""
    wanted = checked_places(places)
    coordinator = Coordinator(asker.cluster, group_id)
    await coordinator.commit(wanted, "", -1, asker.settings.default_api_timeout_ms)


async def delete_offsets(asker: Asker, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """See Admin.delete_consumer_group_offsets."""
    wanted = checked_partitions(partitions)
    topic_requests = [
        offset_delete_.OffsetDeleteRequestTopic(
            name=topic,
            partitions=[
                offset_delete_.OffsetDeleteRequestPartition(partition_index=index)
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(wanted).items()
    ]
    request = offset_delete_.OffsetDeleteRequest(group_id=group_id, topics=topic_requests)

    async def ask(coordinator: Coordinator) -> None:
        response = await coordinator.send(request)
        check(response.error_code, f"group {group_id}")
        codes = {
            TopicPartition(topic.name, one.partition_index): known(one.error_code)
            for topic in response.topics
            for one in topic.partitions
        }
        is_definite = {*codes.values()} <= DEFINITE | {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        for name in wanted:
            code = codes.get(name)
            if code is None:
                raise left_out(f"group {group_id}: {name}")
            if code != ErrorCode.NONE:
                message = f"group {group_id}: the offset of {name} is not deleted"
                raise KafkaError(code, message, definite=is_definite)

    await _ask(asker, group_id, ask, changes=True)


async def delete(asker: Asker, group_ids: Iterable[str]) -> None:
    """See Admin.delete_consumer_groups."""

    async def ask(coordinator: Coordinator) -> None:
        request = DeleteGroupsRequest(groups_names=[coordinator.group_id])
        for one in (await coordinator.send(request)).results:
            check(one.error_code, f"group {one.group_id}")

    for position, group_id in enumerate(checked_names(group_ids)):
        try:
            await _ask(asker, group_id, ask, changes=True)
        except KafkaError as error:
            definite = error.definite and position == 0
            raise KafkaError(error.code, error.message, definite=definite) from error
