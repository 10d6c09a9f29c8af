"""One attempt to append batches: requests on one connection, and the end of the log after each."""

import asyncio
from collections.abc import Sequence
from typing import Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import ALL
from quorumlog.chaos.rude_clients.cluster_view import SECOND, Leader
from quorumlog.chaos.rude_clients.connection import Answered, RawConnection
from quorumlog.chaos.rude_clients.produce_plans import PlannedBatch
from quorumlog.chaos.rude_clients.raw_client import RawClient
from quorumlog.chaos.rude_clients.read_requests import look_at_the_end
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

TIMEOUT_MS: Final = 1_500
TOPIC_IDS_SINCE: Final = 13


def produce_version(client: RawClient, connection: RawConnection) -> int:
    """Draw a version of Produce that the client can use: later ones need the topic's id."""
    below = 1 << 15 if client.view.topic_id != ZERO_UUID else TOPIC_IDS_SINCE
    return client.view.draw_version(connection, ProduceRequest, least=3, below=below)


def records_of(key: str, batches: Sequence[PlannedBatch]) -> list[Message]:
    """Return the records of batches as messages of a log; `key`: their partition."""
    return [Message(key, UNKNOWN_OFFSET, one.value) for batch in batches for one in batch.sent]


class ProduceAttempt:
    """One burst on one connection; `facts` has its exchanges.

    After each acks=all that is answered, a second connection requests the end of the log, while
    the other batches wait.
    """

    def __init__(
        self, client: RawClient, partition: int, leader: Leader, connection: RawConnection
    ) -> None:
        self.facts: Final[list[Message]] = []
        self._client: Final = client
        self._partition: Final = partition
        self._leader: Final = leader
        self._connection: Final = connection

    async def send(
        self, acks: int, version: int, batches: Sequence[PlannedBatch]
    ) -> list[tuple[int, int] | None]:
        """Return (error, base offset) of each batch; None without a response."""
        if acks == 0:
            await self._send_silently(version, batches)
            return [None for _ in batches]
        second = await self._client.view.connection(self._leader.node, SECOND)
        requests = [self._request(acks, batch) for batch in batches]
        pending = [self._connection.send(one, version) for one in requests]
        results: list[tuple[int, int] | None] = []
        looking: list[asyncio.Task[list[Message]]] = []
        for batch, future in zip(batches, pending, strict=True):
            answered = await self._connection.within(future)
            result = _result(answered)
            results.append(result)
            self._add(acks, batch, answered, result)
            if acks == ALL and result is not None and result[0] == 0 and second is not None:
                looking.append(asyncio.create_task(self._look(second, result[1])))
        for one in looking:
            self.facts.extend(await one)
        return results

    async def _send_silently(self, version: int, batches: Sequence[PlannedBatch]) -> None:
        """Send with acks=0; a request behind the batches shows that the broker has read them."""
        exchanges = [
            self._connection.send_silently(self._request(0, batch), version) for batch in batches
        ]
        key = self._client.key(self._partition)
        known = max(0, self._client.history.furthest.get(key, 0))
        looked = await self._look(self._connection, known)
        is_received = bool(looked)
        for batch, exchange in zip(batches, exchanges, strict=True):
            self._add(0, batch, Answered(exchange, None), None, is_received=is_received)
        self.facts.extend(looked)

    def _request(self, acks: int, batch: PlannedBatch) -> ProduceRequest:
        data = PartitionProduceData(index=self._partition, records=batch.encoded())
        view = self._client.view
        topic = TopicProduceData(name=view.topic, topic_id=view.topic_id, partition_data=[data])
        return ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=[topic])

    def _add(
        self,
        acks: int,
        batch: PlannedBatch,
        answered: Answered,
        result: tuple[int, int] | None,
        *,
        is_received: bool = False,
    ) -> None:
        facts = {
            "exchange": answered.exchange,
            "acks": acks,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "error": None if result is None else result[0],
            "leader_epoch": self._leader.epoch,
            "is_received": is_received,
            "records": batch.sent,
            "codec": batch.compression.name.lower(),
            "manner": batch.manner,
        }
        key = self._client.key(self._partition)
        offset = UNKNOWN_OFFSET if result is None else result[1]
        self.facts.append(wire.message(wire.PRODUCED, key, offset, facts))

    async def _look(self, connection: RawConnection, offset: int) -> list[Message]:
        """Look up the end and fetch at once; return the facts, without a response none."""
        return await look_at_the_end(
            self._client, connection, self._partition, offset, epoch=self._leader.epoch
        )


def _result(answered: Answered) -> tuple[int, int] | None:
    if answered.response is None:
        return None
    found = [one for topic in answered.response.responses for one in topic.partition_responses]
    return (found[0].error_code, found[0].base_offset) if found else None
