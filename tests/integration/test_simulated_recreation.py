"""Whole nodes in simulation: a topic is created again while a transaction has its partition.

The coordinator's broker, which also leads the partition of the former topic, receives no metadata
meanwhile. Its markers must reach the records in the new topic, or these hold back every
`read_committed` consumer for ever.
"""

import asyncio

import pytest

from quorumlog import clock
from quorumlog.broker.handlers import add_partitions_to_txn
from quorumlog.broker.server.api import BrokerContext
from quorumlog.chaos.faults.links import Cut, LinkRule
from quorumlog.chaos.node_simulation.machine import CONTROL_PORT, KAFKA_PORT, host_of
from quorumlog.chaos.node_simulation.network import Link
from quorumlog.chaos.node_simulation.run import SimulatedRun
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.client import Admin, NewTopic
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import produce

pytestmark = pytest.mark.integration
TWICE = TopicPartition("twice", 0)
TRANSACTION = 1  # a key type of FindCoordinator
BEFORE_EPOCH_BUMPS = 3  # AddPartitionsToTxn and EndTxn of clients of transaction.version 1
BEHIND_S = 1.0  # shorter than the session of a broker
PATIENCE_S = 10.0


class Transaction:
    """One transaction of a client of transaction.version 1."""

    def __init__(self, coordinator: KafkaConnection, name: str) -> None:
        self.coordinator, self.name = coordinator, name
        self.producer_id = self.epoch = -1

    async def begin(self) -> None:
        """Add the partition of the former topic, and append nothing there."""
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        while True:  # the id is new: its producer id may take a while
            answer = await self.coordinator.send(request)
            if answer.error_code == ErrorCode.NONE:
                break
            await asyncio.sleep(0.05)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        added = await self.coordinator.send(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=TWICE.topic, partitions=[0])],
            ),
            version=BEFORE_EPOCH_BUMPS,
        )
        [result] = added.results_by_topic_v3_and_below[0].results_by_partition
        assert result.partition_error_code == ErrorCode.NONE

    async def append_and_commit(self, leader: KafkaConnection) -> None:
        """Append a record to the topic of this leader, however long that takes, and commit."""
        record = Record(0, clock.wall_clock_ms(), None, b"committed", ())
        batch = encode_batch(
            [record],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        while True:
            answer = await produce(
                leader, batch, topic=TWICE.topic, transactional_id=self.name, version=11
            )
            if answer.error_code == ErrorCode.NONE:
                break
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            await asyncio.sleep(0.05)
        ended = await self.coordinator.send(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=True,
            ),
            version=BEFORE_EPOCH_BUMPS,
        )
        assert ended.error_code == ErrorCode.NONE


def image_of(run: SimulatedRun, node_id: int) -> ClusterImage:
    node = run._machines[node_id].node
    assert node is not None
    return node.quorum.image


async def until_it_shows(run: SimulatedRun, node_id: int, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while topic not in image_of(run, node_id).topics:
            await asyncio.sleep(0.01)


def is_stable(run: SimulatedRun, node_id: int) -> bool:
    """Return whether no transaction is open in the new topic, at its leader."""
    node = run._machines[node_id].node
    assert node is not None
    assert node.broker is not None
    driver = node.broker.replicas.drivers[TWICE]
    return not driver.producers.transactions and driver.log.log_end_offset > 0


async def connected(node_id: int) -> KafkaConnection:
    return await KafkaConnection.open(host_of(node_id), KAFKA_PORT, client_id="scripted")


async def name_at(broker: KafkaConnection, node_id: int) -> str:
    """Return a transactional id whose coordinator is this node."""
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the first request creates the topic of the coordinators
            names = [f"script-{number}" for number in range(20)]
            request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=names)
            answer = await broker.send(request)
            for one in answer.coordinators:
                if one.node_id == node_id:
                    return str(one.key)
            await asyncio.sleep(0.1)


async def recreate_within_a_transaction(run: SimulatedRun) -> bool:
    """Return whether the record is visible to `read_committed` consumers at last."""
    any_node = run._machines[1].node
    assert any_node is not None
    active = any_node.quorum.describe()["leader_id"]
    behind, ahead = [node_id for node_id in run._machines if node_id != active][:2]
    coordinator = await connected(behind)
    transaction = Transaction(coordinator, await name_at(coordinator, behind))
    async with Admin(f"{host_of(ahead)}:{KAFKA_PORT}") as admin:
        await admin.create_topics([NewTopic(TWICE.topic, assignments={0: [behind]})])
        await until_it_shows(run, behind, TWICE.topic)
        await transaction.begin()

        def concerns(link: Link) -> bool:
            return host_of(behind) in (link.source, link.target) and link.port == CONTROL_PORT

        run._network.impose(LinkRule("no news", (), Cut()), concerns)
        await admin.delete_topics([TWICE.topic])
        await admin.create_topics([NewTopic(TWICE.topic, assignments={0: [ahead]})])
        await until_it_shows(run, ahead, TWICE.topic)
    ends = asyncio.ensure_future(transaction.append_and_commit(await connected(ahead)))
    await asyncio.wait([ends], timeout=BEHIND_S)
    run._network.lift("no news")
    await ends
    deadline_s = run._loop.time() + PATIENCE_S
    while not is_stable(run, ahead) and run._loop.time() < deadline_s:
        await asyncio.sleep(0.05)
    return is_stable(run, ahead)


def simulate_it(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the script behind a calm run; return its violations, one more if the record is held."""
    until_whole = SimulatedRun._until_whole

    async def and_recreate(run: SimulatedRun) -> None:
        await until_whole(run)
        if not await recreate_within_a_transaction(run):
            run._violated("a transaction stays open")

    monkeypatch.setattr(SimulatedRun, "_until_whole", and_recreate)
    return [*simulate_nodes(1, duration_ms=1_000, faults=()).violations]


def test_a_transaction_ends_in_a_topic_that_was_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert simulate_it(monkeypatch) == []


def test_a_coordinator_that_compares_names_alone_leaves_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def same_name(_context: BrokerContext, _topic: AddPartitionsToTxnTopic) -> bool:
        return False

    monkeypatch.setattr(add_partitions_to_txn, "_is_other_topic", same_name)
    assert simulate_it(monkeypatch) == ["a transaction stays open"]
