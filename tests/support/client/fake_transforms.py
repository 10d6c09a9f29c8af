"""A coordinator of a group and of transactions, for consume, transform and produce."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.client import TopicPartition
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.messages.end_txn import EndTxnResponse
from quorumlog.wire.codec.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.support.client.fake_group import VERSIONS, GroupCluster
from tests.support.client.fake_transactions import COMMIT_OFFSETS, FIND_COORDINATOR, Coordinating

OUT = TopicPartition("out", 0)


class Transforming(Coordinating, GroupCluster):
    """`moved`: the values of committed transactions, in order; `tries`: those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.topics["out"] = 1
        self.moved: list[bytes] = []
        self.tries: list[list[bytes]] = []
        self.offset_errors: list[ErrorCode] = []  # of the next offsets of a transaction
        self.end_errors: list[ErrorCode] = []  # of the next ends
        self._offset = -1

    def api_versions(self, request: Any) -> Response:
        answer = super().api_versions(request)
        assert isinstance(answer, ApiVersionsResponse)
        answer.api_keys += [
            ApiVersion(api_key=key, max_version=last)
            for key, last in VERSIONS.items()
            if key != FIND_COORDINATOR
        ]
        return answer

    def find_coordinator(self, request: Any) -> Response:
        host, port = self.addresses[1]
        found = [
            Coordinator(key=key, node_id=1, host=host, port=port)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        if api == COMMIT_OFFSETS:
            return self.commit_offsets(request)
        return super().handle(broker, api, request, fault)

    def commit_offsets(self, request: Any) -> Response:
        code = self.offset_errors.pop(0) if self.offset_errors else ErrorCode.NONE
        if (request.generation_id, request.member_id) != (self.generation, "m"):
            code = ErrorCode.ILLEGAL_GENERATION
        [topic] = request.topics
        [one] = topic.partitions
        if code == ErrorCode.NONE:
            self._offset = one.committed_offset
        answer = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
        topics = [TxnOffsetCommitResponseTopic(name=topic.name, partitions=[answer])]
        return TxnOffsetCommitResponse(topics=topics)

    def init_producer_id(self, request: Any) -> Response:
        self._end_records()  # aborts the open transaction of an earlier producer
        return super().init_producer_id(request)

    def _end_records(self) -> list[bytes]:
        sent = self.values(OUT)[sum(map(len, self.tries)) :]
        if sent:
            self.tries.append(sent)
        return sent

    def end(self, request: Any) -> Response:
        if self.end_errors:
            return EndTxnResponse(error_code=self.end_errors.pop(0))
        sent = self._end_records()
        if request.committed:
            self.moved += sent
            self.committed = max(self.committed, self._offset)
        return super().end(request)


@asynccontextmanager
async def transforming(records: int) -> AsyncIterator[Transforming]:
    """Yield a coordinator whose input has `records`."""
    cluster = Transforming()
    cluster.fill(records)
    await cluster.start(1)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)
