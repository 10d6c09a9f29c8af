"""Requests of raw clients to read: one partition, in any version, and the facts of the response."""

from typing import Any, Final, NamedTuple

from quorumlog.chaos.history import Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import LATEST
from quorumlog.chaos.rude_clients.connection import Answered, RawConnection
from quorumlog.chaos.rude_clients.raw_client import RawClient, fetched, looked_up
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

BYTES_MAX: Final = 1 << 20
FETCH_IDS_SINCE: Final = 13
FETCH_EPOCHS_SINCE: Final = 9
LOOKUP_EPOCHS_SINCE: Final = 4
NO_SESSION_EPOCH: Final = -1
_CONSUMER: Final = -1  # a replica id


class OneFetch(NamedTuple):
    """A fetch of one partition without a session."""

    partition: int
    offset: int
    leader_epoch: int = -1
    version: int = 4
    max_wait_ms: int = 0
    pair: int = wire.NO_PAIR


def fetch_version(client: RawClient, connection: RawConnection, *, least: int = 4) -> int:
    """Draw a version of Fetch that the client can use: later ones need the topic's id."""
    below = 1 << 15 if client.view.topic_id != ZERO_UUID else FETCH_IDS_SINCE
    return client.view.draw_version(connection, FetchRequest, least=least, below=below)


def lookup_version(client: RawClient, connection: RawConnection, *, least: int = 1) -> int:
    """Draw a version of ListOffsets."""
    return client.view.draw_version(connection, ListOffsetsRequest, least=least)


def fetch_request(client: RawClient, one: OneFetch) -> FetchRequest:
    """Return the request of a fetch."""
    asked = FetchPartition(
        partition=one.partition,
        fetch_offset=one.offset,
        current_leader_epoch=one.leader_epoch,
        partition_max_bytes=BYTES_MAX,
    )
    view = client.view
    return FetchRequest(
        max_wait_ms=one.max_wait_ms,
        min_bytes=1,
        max_bytes=BYTES_MAX,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchTopic(topic=view.topic, topic_id=view.topic_id, partitions=[asked])],
    )


def fetch_fact(client: RawClient, one: OneFetch, answered: Answered) -> Message:
    """Return the facts of a fetch and its response."""
    return fetched(
        client.key(one.partition),
        answered.exchange,
        one.offset,
        data=fetched_data(answered, one.partition),
        top_error=0 if answered.response is None else answered.response.error_code,
        asked_epoch=one.leader_epoch if one.version >= FETCH_EPOCHS_SINCE else -1,
        pair=one.pair,
    )


def fetched_data(answered: Answered, partition: int) -> Any:
    """Return the response for a partition, or None."""
    topics = [] if answered.response is None else answered.response.responses
    parts = (one for topic in topics for one in topic.partitions)
    return next((one for one in parts if one.partition_index == partition), None)


def lookup_request(
    client: RawClient, partition: int, timestamp: int, *, leader_epoch: int = -1
) -> ListOffsetsRequest:
    """Return the request of the offset for a timestamp."""
    asked = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    topic = ListOffsetsTopic(name=client.topic, partitions=[asked])
    return ListOffsetsRequest(replica_id=_CONSUMER, topics=[topic])


def lookup_fact(
    client: RawClient,
    partition: int,
    timestamp: int,
    answered: Answered,
    *,
    leader_epoch: int = -1,
    pair: int = wire.NO_PAIR,
) -> Message:
    """Return the facts of a lookup and its response."""
    topics = [] if answered.response is None else answered.response.topics
    parts = [one for topic in topics for one in topic.partitions]
    has_epoch = answered.exchange.version >= LOOKUP_EPOCHS_SINCE
    return looked_up(
        client.key(partition),
        answered.exchange,
        timestamp,
        parts[0] if parts else None,
        asked_epoch=leader_epoch if has_epoch else -1,
        pair=pair,
    )


async def look_at_the_end(
    client: RawClient, connection: RawConnection, partition: int, offset: int, *, epoch: int
) -> list[Message]:
    """Look up the end of a log, and fetch at `offset` right behind it; return the facts.

    Half of the requests have the leader epoch. Without a response to both there are no facts.
    """
    epoch = epoch if client.rng.random() < 0.5 else -1
    lookup = lookup_request(client, partition, LATEST, leader_epoch=epoch)
    version = lookup_version(client, connection)
    one = OneFetch(partition, offset, epoch, fetch_version(client, connection))
    pending = (
        connection.send(lookup, version),
        connection.send(fetch_request(client, one), one.version),
    )
    end, data = [await connection.within(future) for future in pending]
    if end.response is None or data.response is None:
        return []
    return [
        lookup_fact(client, partition, LATEST, end, leader_epoch=epoch),
        fetch_fact(client, one, data),
    ]
