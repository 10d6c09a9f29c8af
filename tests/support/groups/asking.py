"""A broker and a connection to it, for the tests of the handlers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.single_broker import (
    BROKER,
    SETTINGS,
    SingleBroker,
    TestController,
    single_broker,
)


@asynccontextmanager
async def asking(
    directory: Path, settings: BrokerSettings = SETTINGS, features: Mapping[str, int] | None = None
) -> AsyncIterator[tuple[SingleBroker, KafkaConnection]]:
    controller = TestController()
    controller.image = replace(controller.image, features=features or {})
    async with single_broker(directory, settings, controller) as broker:
        connection = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        try:
            yield broker, connection
        finally:
            await connection.close()


def versions(api_key: int) -> range:
    handler = HANDLERS[api_key]
    return range(handler.min_version, handler.max_version + 1)


async def create(connection: KafkaConnection, name: str, partitions: int = 2) -> bytes:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    response = await connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    [created] = response.topics
    assert created.error_code == ErrorCode.NONE
    return created.topic_id


async def coordinator_is_ready(connection: KafkaConnection) -> None:
    async with asyncio.timeout(5):
        while True:
            found = await connection.send(FindCoordinatorRequest(key="g", coordinator_keys=["g"]))
            groups = await connection.send(DescribeGroupsRequest(groups=["g"]))
            [coordinator] = found.coordinators
            if (coordinator.error_code, coordinator.node_id) == (0, BROKER):
                not_ready = {
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                }
                if groups.groups[0].error_code not in not_ready:
                    return
