"""Clients of one broker with quotas: they ignore the delays in responses; without sockets."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorumlog.addresses import DEFAULT_LISTENER
from quorumlog.broker.server.connection import Connection
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.metadata_quorum.image.access import AccessImage
from quorumlog.metadata_quorum.image.records import QuotaEntity
from quorumlog.wire.codec.message import Request, ResponseT
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import decode_response, encode_request
from tests.support.broker.produce_twins import Wire
from tests.support.broker.requests import topic_creation
from tests.support.groups.single_broker import SETTINGS, SingleBroker, single_broker

MB = 1_000_000
X: QuotaEntity = (("client-id", "x"),)


class Pipe(Wire):
    """A transport with the bytes that the client has sent and the broker has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: deque[bytes] = deque()
        self.changed = asyncio.Event()
        self.connection: Connection

    def write(self, data: Any) -> None:
        super().write(data)
        self.changed.set()

    def resume_reading(self) -> None:
        super().resume_reading()
        asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> None:
        """Let the broker read, unless it has paused its reads."""
        while self.frames and self.reads and not self.is_closed:
            rest = memoryview(self.frames.popleft())
            while rest:
                free = self.connection.get_buffer(-1)
                size = min(len(free), len(rest))
                free[:size] = rest[:size]
                self.connection.buffer_updated(size)
                rest = rest[size:]


class Peer:
    """A client that ignores throttle times, and sends as soon as the broker reads."""

    def __init__(
        self, broker: SingleBroker, client_id: str = "x", listener: str = DEFAULT_LISTENER
    ) -> None:
        self.pipe, self.client_id, self._sent = Pipe(), client_id, 0
        self.connection = self.pipe.connection = Connection(broker.server, listener)
        self.connection.connection_made(self.pipe)

    def post(self, request: Request[Any], version: int) -> None:
        self._sent += 1
        parts = encode_request(
            request, api_version=version, correlation_id=self._sent, client_id=self.client_id
        )
        self.pipe.frames.append(b"".join(parts))
        self.pipe.deliver()

    async def ask(self, request: Request[ResponseT], version: int) -> ResponseT:
        """Return the response, of all that are not yet received the first."""
        self.post(request, version)
        return await self.answer(request, version)

    async def answer(self, request: Request[ResponseT], version: int) -> ResponseT:
        pipe = self.pipe
        while len(pipe.sent) < 4 or len(pipe.sent) < 4 + int.from_bytes(pipe.sent[:4]):
            pipe.changed.clear()
            async with asyncio.timeout(600):
                await pipe.changed.wait()
        size = 4 + int.from_bytes(pipe.sent[:4])
        frame = bytes(pipe.sent[4:size])
        del pipe.sent[:size]
        response: Any = decode_response(request.API_KEY, version, frame)[1]
        return response  # type: ignore[no-any-return]

    async def reads(self) -> float:
        """Wait until the broker reads this connection; return for how long."""
        loop, pipe = asyncio.get_running_loop(), self.pipe
        began_s = loop.time()
        while not pipe.reads:
            await asyncio.sleep(0.001)
        return loop.time() - began_s


def produce_of(size: int, acks: int = 1) -> ProduceRequest:
    records = encode_batch([Record(0, 1000, None, bytes(size))])
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=records)]
    )
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])


def fetch_of(session_id: int = 0, epoch: int = -1, *, is_named: bool = True) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100 * MB)
    topics = [FetchTopic(topic="t", partitions=[part])] if is_named else []
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=100 * MB,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
    )


def size_of(response: FetchResponse) -> int:
    return sum(len(one.records or b"") for t in response.responses for one in t.partitions)


def set_quotas(broker: SingleBroker, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
    broker.controller.publish(ClusterDelta(), access=AccessImage(quotas=quotas))


@asynccontextmanager
async def limited(
    directory: Path, *quotas: tuple[QuotaEntity, str, float], **settings: Any
) -> AsyncIterator[SingleBroker]:
    async with single_broker(directory, replace(SETTINGS, **settings)) as broker:
        peer = Peer(broker, "admin")
        await peer.ask(topic_creation("t"), 7)
        set_quotas(broker, {entity: {key: bound} for entity, key, bound in quotas})
        yield broker
