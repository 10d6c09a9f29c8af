"""Counted cases of one round of replication: the leader's, a follower's.

In a round, a producer has the leader append some batches with acks=all; two followers receive
them, and acknowledge them with their next fetches.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.counted import STEPS_MAX, WARM_UP, Case, Nowhere, QuietLoop, receive, repeat
from quorumlog.broker.server.connection import Connection
from quorumlog.metadata_quorum.image import ClusterDelta, TopicImage
from quorumlog.wire.codec.identifiers import BrokerId, TopicId
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch, restamp
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    decode_response,
    encode_request,
    encode_response,
)
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, TOPIC_ID, publish, start
from tests.support.broker.replicas import broker, image
from tests.support.groups.single_broker import BROKER, SingleBroker

_BATCHES: Final = (1, 8)  # of 16 records of 1 KiB, in a round
_RECORDS: Final = 16
_FETCH_VERSION: Final = FetchRequest.VERSIONS[-1]
_FOLLOWERS: Final = (2, 3)


class _Loop(QuietLoop):
    """A loop whose every new connection is to `peer`."""

    peer = Nowhere()

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], Any], *_where: object
    ) -> None:
        self.opened = factory()
        self.opened.connection_made(self.peer)


def _batch(base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    records = [Record(at, 1_700_000_000_000, None, b"x" * 1024) for at in range(_RECORDS)]
    batch = bytearray(encode_batch(records))
    restamp(batch, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(batch)


def _request(request: Any, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(
        encode_request(
            request, api_version=version, correlation_id=correlation_id, client_id="bench"
        )
    )


# --- The leader ---


def _fetch(broker_id: int, session_id: int, epoch: int, offset: int, last_epoch: int) -> bytes:
    """Return the fetch of a follower, as `ReplicaFetcher` sends it."""
    partition = FetchPartition(
        partition=AT.partition,
        current_leader_epoch=0,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        replica_id=broker_id,
        replica_state=ReplicaState(replica_id=broker_id, replica_epoch=1),
        max_wait_ms=600_000,
        min_bytes=1,
        max_bytes=10 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
    )
    return _request(request, _FETCH_VERSION, epoch)


async def _leader_of_three(directory: Path) -> SingleBroker:
    leading = SingleBroker(directory)
    await leading.start()
    controller = leading.controller
    partition = image(BROKER, 0, 0, (BROKER, *_FOLLOWERS))
    topic = TopicImage(
        name=AT.topic, topic_id=TopicId(TOPIC_ID), partitions=(partition,), configs={}
    )
    others = {BrokerId(one): broker(BrokerId(one), 1) for one in _FOLLOWERS}
    controller.publish(
        ClusterDelta(brokers=frozenset(others), partitions=frozenset({AT})),
        brokers={**controller.image.brokers, **others},
        topics={AT.topic: topic},
        topic_names={topic.topic_id: AT.topic},
    )
    while leading.replicas.drivers.get(AT) is None:  # noqa: ASYNC110 - once, and rare
        await asyncio.sleep(0.01)
    return leading


async def _connect(leading: SingleBroker) -> tuple[Connection, Nowhere]:
    connection, transport = Connection(leading.server), Nowhere()
    connection.connection_made(transport)
    return connection, transport


async def _followed(leading: SingleBroker, batches: int) -> list[tuple[Connection, list[Any]]]:
    """Begin the sessions of the followers; return their connections and next fetches."""
    followers = []
    for broker_id in _FOLLOWERS:
        connection, transport = await _connect(leading)
        opening = _fetch(broker_id, 0, 0, 0, -1).replace(
            (600_000).to_bytes(4, "big"), bytes(4)
        )  # answered at once
        receive(connection, memoryview(opening))
        await asyncio.sleep(0)
        _, response = decode_response(
            FetchRequest.API_KEY, _FETCH_VERSION, bytes(transport.last)[4:]
        )
        session_id = response.session_id  # type: ignore[attr-defined]
        step = batches * _RECORDS
        fetches = [
            memoryview(_fetch(broker_id, session_id, 1 + at, at * step, 0 if at else -1))
            for at in range(STEPS_MAX + 1)
        ]
        followers.append((connection, fetches))
    return followers


async def _lead(batches: int, directory: Path, rounds: int) -> bool:
    """Lead for `rounds` rounds after the first; return whether all produces were answered."""
    leading = await _leader_of_three(directory)
    producing, transport = await _connect(leading)
    data = PartitionProduceData(index=AT.partition, records=_batch())
    topic = TopicProduceData(name=AT.topic, partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=600_000, topic_data=[topic])
    produces = memoryview(_request(request, 9) * batches)
    followers = await _followed(leading, batches)
    for connection, fetches in followers:
        receive(connection, fetches[0])

    async def play(at: int) -> None:
        receive(producing, produces)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for connection, fetches in followers:
            receive(connection, fetches[at + 1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    await repeat(play, rounds)
    state = leading.replicas.drivers[AT].partition.state
    produced = (WARM_UP + rounds) * batches * _RECORDS
    return transport.written.is_set() and state.high_watermark == produced


# --- A follower ---


def _response(correlation_id: int, response: Any, api_key: int, version: int) -> bytes:
    header = RequestHeader(api_key, version, correlation_id, None)
    return b"".join(encode_response(header, response))


def _fetched(round_number: int, batches: int) -> memoryview:
    """Return the leader's response with the batches of this round."""
    offset = round_number * batches * _RECORDS
    records = b"".join(_batch(offset + at * _RECORDS, 1) for at in range(batches))
    partition = PartitionData(
        partition_index=AT.partition,
        high_watermark=offset,
        last_stable_offset=offset,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])
    response = FetchResponse(session_id=7, responses=[topic])
    return memoryview(_response(2 + round_number, response, FetchRequest.API_KEY, _FETCH_VERSION))


async def _follow(batches: int, directory: Path, rounds: int) -> bool:
    """Follow broker 2 for `rounds` rounds after the first; return whether all was appended."""
    loop, transport = cast(_Loop, asyncio.get_running_loop()), _Loop.peer
    replicas = await start(directory, (1, 2, 3), disk_queue=HeldQueue())
    replicas.registered(0)
    publish(replicas, image(2, 1, 1, (1, 2, 3)))
    versions = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=1, min_version=4, max_version=_FETCH_VERSION)]
    )
    answers = [memoryview(_response(1, versions, 18, 4))]
    answers += [_fetched(at, batches) for at in range(STEPS_MAX)]

    async def play(at: int) -> None:
        await transport.written.wait()
        transport.written.clear()
        receive(loop.opened, answers[at + 1])

    await transport.written.wait()
    transport.written.clear()
    receive(loop.opened, answers[0])
    await repeat(play, rounds)
    await transport.written.wait()
    appended = (WARM_UP + rounds) * batches * _RECORDS
    return int(replicas.drivers[AT].log.log_end_offset) == appended


CASES: Final = tuple(
    Case(
        name=f"round of {batches} x 16 KiB, acks=all, {role}",
        run=partial(run, batches),
        unit="round",
        loop=_Loop,
    )
    for batches in _BATCHES
    for role, run in (("leader", _lead), ("follower", _follow))
)
