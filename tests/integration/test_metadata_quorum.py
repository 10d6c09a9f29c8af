"""Three nodes' metadata quorums in one process, on loopback, with real disks."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle
from quorumlog.broker.settings import LifecycleSettings
from quorumlog.cluster.ports import free_ports
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ControllerUnavailable,
    NewTopic,
    TopicResult,
)
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

pytestmark = pytest.mark.integration
CLUSTER_ID = "test-cluster"
HEARTBEAT_S = 0.2
PATIENCE_S = 60  # far more than a session


class Seen:
    """A publisher that keeps what it was told."""

    def __init__(self) -> None:
        self.deltas: list[ClusterDelta] = []
        self.ends: list[int] = []

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.deltas.append(delta)
        self.ends.append(image.end_offset)


async def create(node: MetadataQuorum, **topic: Any) -> tuple[TopicResult, ...]:
    request = CreateTopics(topics=(NewTopic(**topic),))
    return (await node.controller.ask(request)).results


class Nodes:
    """Voters 1 to `voters`, then observers; each keeps its address over restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        voters: int = 3,
        observers: int = 0,
        request_timeout_ms: int = 10_000,
    ) -> None:
        self.directory = directory
        self.request_timeout_ms = request_timeout_ms
        count = voters + observers
        self.ports = dict(enumerate(free_ports("127.0.0.1", count), start=1))
        self.voters = {BrokerId(n): self.address(n) for n in range(1, voters + 1)}
        self.running: dict[int, MetadataQuorum] = {}
        self.seen: dict[int, Seen] = {}
        self._hearts: dict[int, asyncio.Task[None]] = {}

    def address(self, node_id: int) -> str:
        return f"127.0.0.1:{self.ports[node_id]}"

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            settings = MetadataQuorumSettings(
                cluster_id=CLUSTER_ID,
                node_id=BrokerId(node_id),
                voters=self.voters,
                log_dir=str(self.directory / str(node_id)),
                listen_port=self.ports[node_id],
                is_new_cluster=True,
                controller_request_timeout_ms=self.request_timeout_ms,
            )
            node = MetadataQuorum(settings, RealDisk())
            self.seen[node_id] = Seen()
            node.add_publisher(self.seen[node_id])
            await node.start()
            self.running[node_id] = node

    async def stop(self, *node_ids: int, resign: bool = True) -> None:
        nodes = [self.running.pop(node_id) for node_id in node_ids]
        hearts = [self._hearts.pop(node_id) for node_id in node_ids if node_id in self._hearts]
        for heart in hearts:
            heart.cancel()
        await asyncio.gather(*hearts, return_exceptions=True)
        await asyncio.gather(*(node.stop(resign=resign) for node in nodes))

    async def active(self) -> int:
        def find() -> int | None:
            return next((n for n, node in self.running.items() if node.is_active_controller), None)

        await eventually(lambda: find() is not None)
        return find() or 0

    async def register(self, node_id: int) -> int:
        """Register a broker, have it unfenced and send heartbeats until it stops; return its epoch.

        While another broker is silent, a new process is refused, and tries again.
        """
        node = self.running[node_id]
        registration = BrokerRegistration(
            broker_id=BrokerId(node_id),
            incarnation_id=f"{node_id}-{time.monotonic_ns()}",
            host="127.0.0.1",
            port=9000 + node_id,
            control_address=self.address(node_id),
            directory_id=f"directory-{node_id}",
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await node.controller.ask(registration)
                if reply.error_code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    break
                await asyncio.sleep(0.01)
        assert reply.error_code is ErrorCode.NONE, reply
        await eventually(lambda: node.image.end_offset > reply.broker_epoch)
        heartbeat = BrokerHeartbeat(
            broker_id=BrokerId(node_id),
            broker_epoch=reply.broker_epoch,
            metadata_offset=node.image.end_offset - 1,
        )
        assert not (await node.controller.ask(heartbeat)).is_fenced
        self._hearts[node_id] = asyncio.create_task(self._beat(node, heartbeat))
        return reply.broker_epoch

    async def _beat(self, node: MetadataQuorum, heartbeat: BrokerHeartbeat) -> None:
        """Send heartbeats: a broker that is silent holds up what others ask for (decision 6)."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(ControllerUnavailable):
                await node.controller.ask(heartbeat)

    async def agree(self) -> ClusterImage:
        """Wait until all have replayed the same; return it."""

        def same() -> bool:
            images = [node.image for node in self.running.values()]
            return all(image == images[0] for image in images)

        await eventually(same)
        return next(iter(self.running.values())).image


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(nodes: Nodes) -> AsyncIterator[Nodes]:
    try:
        await nodes.start(*nodes.ports)
        yield nodes
    finally:
        await nodes.stop(*list(nodes.running), resign=False)


async def test_a_topic_is_created_and_every_node_sees_the_same(tmp_path: Path) -> None:
    async with running(Nodes(tmp_path, observers=1)) as nodes:
        await nodes.active()
        for node_id in (1, 2, 3):
            await nodes.register(node_id)
        (result,) = await create(nodes.running[4], name="t", partitions=3, replication_factor=3)
        assert result.error_code is ErrorCode.NONE
        image = await nodes.agree()
        assert [sorted(p.isr) for p in image.topics["t"].partitions] == [[1, 2, 3]] * 3
        assert not any(broker.fenced for broker in image.brokers.values())
        for seen in nodes.seen.values():
            assert seen.ends == sorted(seen.ends)


async def test_when_the_active_controller_is_killed_another_takes_over_and_fences_it(
    tmp_path: Path,
) -> None:
    async with running(Nodes(tmp_path)) as nodes:
        killed = await nodes.active()
        for node_id in (1, 2, 3):
            await nodes.register(node_id)
        await create(nodes.running[killed], name="t", partitions=3, replication_factor=3)
        await nodes.agree()
        await nodes.stop(killed, resign=False)
        survivor = nodes.running[await nodes.active()]
        await eventually(lambda: survivor.image.brokers[BrokerId(killed)].fenced)
        image = await nodes.agree()
        for partition in image.topics["t"].partitions:
            assert killed not in {partition.leader_id, *partition.isr}
        # What was there is still there, and it goes on.
        await nodes.start(killed)
        await nodes.register(killed)
        await create(nodes.running[killed], name="u")
        assert {*(await nodes.agree()).topics} == {"t", "u"}


async def test_brokers_come_into_service_by_themselves_and_leave_in_order(tmp_path: Path) -> None:
    async with running(Nodes(tmp_path)) as nodes:
        lifecycles = {node_id: lifecycle_of(nodes, node_id) for node_id in (1, 2, 3)}
        for lifecycle in lifecycles.values():
            lifecycle.start()
        for lifecycle in lifecycles.values():
            await asyncio.wait_for(lifecycle.unfenced.wait(), PATIENCE_S)
        wanted = CreateTopics(topics=(topic_on(1, 2, 3),))
        (first,) = (await nodes.running[1].controller.ask(wanted)).results
        assert first.error_code is ErrorCode.NONE
        await lifecycles[1].stop(timeout_ms=5000)
        image = await nodes.agree()
        (partition,) = image.topics["t"].partitions
        assert (partition.leader_id, partition.isr) == (2, (2, 3))
        assert [image.brokers[BrokerId(n)].fenced for n in (1, 2, 3)] == [True, False, False]
        for node_id in (2, 3):
            await lifecycles[node_id].stop(timeout_ms=5000)


def topic_on(*replicas: int) -> NewTopic:
    return NewTopic(name="t", assignments={0: tuple(BrokerId(replica) for replica in replicas)})


def lifecycle_of(nodes: Nodes, node_id: int) -> BrokerLifecycle:
    node, may_lead = nodes.running[node_id], asyncio.Event()
    may_lead.set()
    lifecycle = BrokerLifecycle(
        registration=BrokerRegistration(
            broker_id=BrokerId(node_id),
            incarnation_id=f"process-{node_id}",
            host="127.0.0.1",
            port=9000 + node_id,
            control_address=nodes.address(node_id),
            directory_id=f"directory-{node_id}",
        ),
        controller=node.controller,
        settings=LifecycleSettings(broker_heartbeat_interval_ms=200),
        registered=lambda _: None,
        may_lead=may_lead,
    )
    node.add_publisher(lifecycle)
    return lifecycle


async def test_without_a_majority_requests_fail_and_nothing_is_committed(tmp_path: Path) -> None:
    async with running(Nodes(tmp_path, request_timeout_ms=1000)) as nodes:
        active = await nodes.active()
        await nodes.register(active)
        end = nodes.running[active].image.end_offset
        await nodes.stop(*({1, 2, 3} - {active}), resign=False)
        with pytest.raises(ControllerUnavailable):
            await create(nodes.running[active], name="t")
        assert nodes.running[active].image.end_offset == end
