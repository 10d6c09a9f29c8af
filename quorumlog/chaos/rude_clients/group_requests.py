"""Requests of raw clients about the offsets of a group, in any version."""

from typing import Any, Final

from quorumlog.chaos.history import Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.rude_clients.connection import Answered, RawConnection
from quorumlog.chaos.rude_clients.raw_client import RawClient
from quorumlog.wire.codec.message import ZERO_UUID, Request
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

_GROUP: Final = 0  # a key type
_KEYS_SINCE: Final = 4  # FindCoordinator
_IDS_SINCE: Final = 10  # OffsetCommit and OffsetFetch
_GROUPS_SINCE: Final = 8  # OffsetFetch
_NO_GENERATION: Final = -1
_GHOST: Final = "ghost"
_GHOST_GENERATION: Final = 7
_RETENTION_MS: Final = -1


def coordinator_request(
    client: RawClient, connection: RawConnection, group: str
) -> tuple[Request[Any], int]:
    """Return the request for the coordinator of a group, and its version."""
    version = client.view.draw_version(connection, FindCoordinatorRequest)
    keys = [group] if version >= _KEYS_SINCE else []
    request = FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=keys)
    return request, version


def coordinator_of(response: Any) -> int:
    """Return the node of a coordinator, or -1."""
    found = response.coordinators[0] if response.coordinators else response
    node: int = -1 if found.error_code else found.node_id
    return node


def _below(client: RawClient) -> int:
    return 1 << 15 if client.view.topic_id != ZERO_UUID else _IDS_SINCE


def commit_request(
    client: RawClient,
    connection: RawConnection,
    group: str,
    partition: int,
    offset: int,
    *,
    is_ghost: bool,
) -> tuple[Request[Any], int]:
    """Return a commit by no member of the group, and its version.

    is_ghost: it names a member and a generation that do not exist.
    """
    view = client.view
    version = view.draw_version(connection, OffsetCommitRequest, below=_below(client))
    one = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name=view.topic, topic_id=view.topic_id, partitions=[one])
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_GHOST_GENERATION if is_ghost else _NO_GENERATION,
        member_id=_GHOST if is_ghost else "",
        retention_time_ms=_RETENTION_MS,
        topics=[topic],
    )
    return request, version


def group_version(client: RawClient, connection: RawConnection) -> int:
    """Draw a version of OffsetFetch."""
    return client.view.draw_version(connection, OffsetFetchRequest, below=_below(client))


def group_offset_request(
    client: RawClient, group: str, partition: int, version: int
) -> OffsetFetchRequest:
    """Return the request for a committed offset."""
    view = client.view
    if version < _GROUPS_SINCE:
        topic = OffsetFetchRequestTopic(name=view.topic, partition_indexes=[partition])
        return OffsetFetchRequest(group_id=group, topics=[topic])
    topics = OffsetFetchRequestTopics(
        name=view.topic, topic_id=view.topic_id, partition_indexes=[partition]
    )
    asked = OffsetFetchRequestGroup(
        group_id=group, member_id=None, member_epoch=-1, topics=[topics]
    )
    return OffsetFetchRequest(groups=[asked])


def commit_fact(
    client: RawClient,
    group: str,
    partition: int,
    offset: int,
    answered: Answered,
    *,
    is_ghost: bool,
) -> Message:
    """Return the facts of a commit."""
    topics = [] if answered.response is None else answered.response.topics
    errors = [one.error_code for topic in topics for one in topic.partitions]
    error = errors[0] if errors else None
    facts = {"exchange": answered.exchange, "group": group, "error": error, "is_ghost": is_ghost}
    return wire.message(wire.COMMITTED, client.key(partition), offset, facts)


def group_fact(
    client: RawClient, group: str, partition: int, answered: Answered, pair: int
) -> Message:
    """Return the facts of a committed offset. An error of the group is an error of the offset."""
    error, offset = _group_offset(answered)
    facts = {"exchange": answered.exchange, "group": group, "error": error, "pair": pair}
    return wire.message(wire.OFFSET_FETCHED, client.key(partition), offset, facts)


def _group_offset(answered: Answered) -> tuple[int | None, int]:
    if answered.response is None:
        return None, -1
    has_groups = answered.exchange.version >= _GROUPS_SINCE
    for found in answered.response.groups if has_groups else [answered.response]:
        if found.error_code:
            return found.error_code, -1
        for one in (one for topic in found.topics for one in topic.partitions):
            return one.error_code, one.committed_offset
    return None, -1
