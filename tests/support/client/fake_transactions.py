"""A coordinator of transactions beside the fake brokers' logs, and producers of its one id."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.client import Producer
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnResponse
from quorumlog.wire.codec.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdResponse
from quorumlog.wire.codec.schemas import decode_request
from tests.support.client import fake_cluster as fake

FIND_COORDINATOR, ADD_PARTITIONS, END, COMMIT_OFFSETS = 10, 24, 26, 28
OURS = {FIND_COORDINATOR: 4, ADD_PARTITIONS: 5, END: 5, COMMIT_OFFSETS: 5}


class _Connection(fake._Connection):
    def frame_received(self, frame: memoryview) -> None:
        header, _ = decode_request(frame)
        assert isinstance(self.cluster, Coordinating)
        self.cluster.versions.append((header.api_key, header.api_version))
        super().frame_received(frame)


class Coordinating(fake.FakeCluster):
    """Broker 1 coordinates all transactions."""

    connection_class = _Connection

    def __init__(self) -> None:
        super().__init__()
        self.level = 2  # of transaction.version
        self.versions: list[tuple[int, int]] = []
        self.ends: list[tuple[bool, int]] = []  # (committed, epoch)
        self.epoch = 0

    def version_of(self, api: int) -> int:
        return next(version for key, version in reversed(self.versions) if key == api)

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        answers = {
            fake.API_VERSIONS: self.api_versions,
            FIND_COORDINATOR: self.find_coordinator,
            fake.INIT_PRODUCER_ID: self.init_producer_id,
            ADD_PARTITIONS: self.add_partitions,
            END: self.end,
        }
        if api in answers:
            return answers[api](request)
        if api == fake.PRODUCE:
            assert request.transactional_id == "tx"
            self.numbers.clear()  # of the epoch before
        return super().handle(broker, api, request, fault)

    def api_versions(self, _: Any) -> Response:
        spoken = {**fake.SPOKEN, fake.PRODUCE: 12, **OURS}
        level = FinalizedFeatureKey(name="transaction.version", max_version_level=self.level)
        return ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=key, max_version=last) for key, last in spoken.items()],
            finalized_features=[level],
            finalized_features_epoch=1,
        )

    def find_coordinator(self, request: Any) -> Response:
        assert (request.key_type, request.coordinator_keys) == (1, ["tx"])
        host, port = self.addresses[1]
        found = Coordinator(key="tx", node_id=1, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    def init_producer_id(self, request: Any) -> Response:
        assert (request.transactional_id, request.transaction_timeout_ms) == ("tx", 7_000)
        return InitProducerIdResponse(producer_id=9, producer_epoch=self.epoch)

    def add_partitions(self, request: Any) -> Response:
        results = []
        for topic in request.v3_and_below_topics:
            added = [
                AddPartitionsToTxnPartitionResult(partition_index=index)
                for index in topic.partitions
            ]
            one = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=added)
            results.append(one)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def end(self, request: Any) -> Response:
        self.ends.append((request.committed, request.producer_epoch))
        self.epoch += 1
        return EndTxnResponse(producer_id=9, producer_epoch=self.epoch)


@asynccontextmanager
async def coordinating(level: int = 2) -> AsyncIterator[Coordinating]:
    cluster = Coordinating()
    cluster.level = level
    await cluster.start(1)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)


def producer_of(cluster: Coordinating, max_block_ms: int = 60_000) -> Producer:
    return Producer(
        cluster.bootstrap,
        transactional_id="tx",
        transaction_timeout_ms=7_000,
        max_block_ms=max_block_ms,
        linger_ms=0,
    )
