"""A node that is started on a full disk lives, says why it waits, and is ready once there is room.

The nodes run in the tests' process, on simulated disks. A copy of a disk that is taken while its
node runs is what a kill leaves. The disk is full from one of the start's operations on, each in
turn.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from quorumlog import Admin, Producer
from quorumlog.chaos.simulation.kernel.sim_disk import DirectoryCopy, SimDisk
from quorumlog.client import NewTopic
from quorumlog.cluster import FAST_DEFAULTS, layout
from quorumlog.metadata_quorum.settings import NEW_CLUSTER_FILE
from quorumlog.node import config as configuration
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.listeners import StartFailed
from quorumlog.node.node import Node
from quorumlog.node.room import Room, StartEnded
from tests.support.storage.refusing import Refusing
from tests.support.waiting import until

pytestmark = pytest.mark.integration

RECORDS: Final = 30
CONFIG: Final = {
    **FAST_DEFAULTS,
    "log.segment.bytes": "2000",
    "metadata.log.segment.bytes": str(8 * 1024 * 1024),
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "offsets.topic.num.partitions": "1",
}
KINDS: Final = {
    "combined": (("broker", "controller"),),
    "controller": (("controller",), ("broker",)),
    "broker": (("broker",), ("controller",)),
}
"""The node that is started on a full disk is the first one; the other one has room."""


class Site:
    """A cluster, each of whose nodes has two log directories on a disk of its own."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.spec = layout.plan(KINDS[kind], host="127.0.0.1", port=0, config=CONFIG)
        layout.found(directory, self.spec)
        layout.write_properties(directory, self.spec, self.spec.nodes)
        self._directory = directory

    @asynccontextmanager
    async def running(self, node_id: int, disk: SimDisk, room: Room) -> AsyncIterator[Node]:
        lines = layout.properties_file(self._directory, node_id).read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines) | {"log.dirs": "/a,/b"}
        dependencies = NodeDependencies(open_disk=lambda: disk)
        node = await Node.made(configuration.build(values), dependencies, room)
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/a")
    disk.open(f"/a/{NEW_CLUSTER_FILE}", create=True).close()
    return disk


def restored(copies: dict[str, DirectoryCopy]) -> SimDisk:
    disk = SimDisk()
    for path, copy in copies.items():
        disk.mkdir(path)
        disk.put_back(path, copy)
    return disk


@asynccontextmanager
async def others(site: Site) -> AsyncIterator[None]:
    if len(site.spec.nodes) == 1:
        yield
        return
    async with site.running(2, new_disk(), Room()):
        yield


async def copies_of_a_run(site: Site) -> dict[str, dict[str, DirectoryCopy]]:
    """Return what a kill leaves of the first node's directories, and what a clean stop leaves."""
    disk = new_disk()
    async with site.running(1, disk, Room()):
        async with Admin(site.spec.bootstrap) as admin:
            await admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=1)])
        async with Producer(site.spec.bootstrap, linger_ms=0) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait("t", b"%0100d" % number, partition=0)
        killed = {path: disk.copied(path) for path in ("/a", "/b")}
    return {"killed": killed, "clean": {path: disk.copied(path) for path in ("/a", "/b")}}


async def started(site: Site, disk: SimDisk, free: Callable[[], None]) -> tuple[bool, list[int]]:
    """Start the first node and `free` its disk when it waits; return whether it has waited.

    And where the logs of its broker end, once it is ready.
    """
    room, nodes = Room(), list[Node]()

    def waits() -> bool:
        is_waiting = "waiting for disk space" in room.obstacles.below("")
        return is_waiting or any("room" in one.progress() for one in nodes)

    async def make_room() -> bool:
        await until(lambda: waits() or any(one.ready.is_set() for one in nodes))
        has_waited = waits()
        free()
        return has_waited

    making = asyncio.create_task(make_room())
    async with site.running(1, disk, room) as node:
        nodes.append(node)
        has_waited = await making
        await asyncio.wait_for(node.ready.wait(), 30)
        drivers = {} if node.broker is None else node.broker.replicas.drivers
        return has_waited, [driver.log.log_end_offset for driver in drivers.values()]


# asyncio leaves a connection open that it accepts in the turn in which its listener is closed: the
# other node asks again and again, in this process, while this one stops.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(function _SelectorTransport|socket):"
    "pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_waits_for_room_at_each_of_its_steps(tmp_path: Path, kind: str) -> None:
    site = Site(tmp_path, kind)
    ends = [] if kind == "controller" else [RECORDS]
    async with others(site):
        for copy in (await copies_of_a_run(site)).values():
            waits = 0
            for first in count():
                disk = restored(copy)
                full = Refusing(disk, first)
                has_waited, found = await started(site, disk, full.free)
                assert found == ends
                waits += has_waited
                if not full.has_refused:
                    break
            assert waits > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_waits_for_the_room_that_the_reserve_does_not_have(
    tmp_path: Path, kind: str
) -> None:
    site = Site(tmp_path, kind)
    async with others(site):
        for copy in (await copies_of_a_run(site)).values():
            disk = restored(copy)
            disk.capacity_bytes = disk.bytes_used()
            _, ends = await started(site, disk, partial(setattr, disk, "capacity_bytes", None))
            assert ends == ([] if kind == "controller" else [RECORDS])


async def test_the_first_error_of_a_start_is_the_one_that_is_raised(tmp_path: Path) -> None:
    """The disk refuses the end of the metadata log, too."""
    site, disk = Site(tmp_path, "combined"), new_disk()
    has_failed = False

    def fail(operation: str, path: str) -> None:
        nonlocal has_failed
        has_failed = has_failed or "broker-registrations" in path
        if has_failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.on_operation = fail
    with pytest.raises(StartFailed, match="cannot use /b"):
        async with site.running(1, disk, Room()):
            pass


async def test_a_node_that_waits_for_room_can_be_stopped(tmp_path: Path) -> None:
    site, disk, room = Site(tmp_path, "combined"), new_disk(), Room()
    disk.capacity_bytes = 0

    async def start() -> None:
        async with site.running(1, disk, room):
            pass

    starting = asyncio.create_task(start())
    await until(lambda: "cannot use /a" in room.obstacles.below(""))
    room.end()
    with pytest.raises(StartEnded, match="cannot use /a"):
        await starting
