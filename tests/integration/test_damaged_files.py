"""A file of a node is damaged while it is down: it starts, or the file is named; reads are right.

The node runs in the tests' process, on a real directory that holds two segments of one partition,
a snapshot of the metadata, and a group. A copy taken while the node runs is what a crash leaves.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorumlog import Admin, Consumer, Producer
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.cluster import FAST_DEFAULTS, layout
from quorumlog.node import config as configuration
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.listeners import StartFailed
from quorumlog.node.node import Node
from quorumlog.node.room import Room

pytestmark = pytest.mark.integration

AT = TopicPartition("t", 0)
VALUES = [b"%05d" % number for number in range(60)]
CONFIG = {
    **FAST_DEFAULTS,
    "log.segment.bytes": "3000",
    "log.index.interval.bytes": "100",
    "metadata.log.max.record.bytes.between.snapshots": "1000",
}
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "zeros": lambda content: bytes(len(content)),
    "half": lambda content: content[: len(content) // 2],
    "missing": lambda _: None,
}


REBUILT = (
    *(".index", ".timeindex", ".snapshot", ".checkpoint"),
    *(".kafka_cleanshutdown", "leader-epoch-checkpoint", "broker-registrations", ".reserve"),
    "-offset-checkpoint",
)


BEGUN_ANEW = ("quorum-state", "log-end-checkpoint")
FIRST_SEGMENT = f"t-0/{0:020d}.log"


class Site:
    """A cluster of one node, and copies of its data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spec = layout.plan([("broker", "controller")], host="127.0.0.1", port=0, config=CONFIG)
        layout.found(directory, self.spec)
        layout.write_properties(directory, self.spec, self.spec.nodes)
        self.data = layout.data_directory(directory, 1)

    def files(self, copy: str) -> list[str]:
        """The files of a copy: of the node, of the metadata, and of one partition."""
        root = self.directory / copy
        paths = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return [
            str(path)
            for path in paths
            if path.parts[0] in {path.name, "__cluster_metadata-0", "t-0"} and path.name != ".lock"
        ]

    @asynccontextmanager
    async def running(self, data: Path) -> AsyncIterator[Node]:
        lines = layout.properties_file(self.directory, 1).read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines) | {"log.dirs": str(data)}
        node = await Node.made(configuration.build(values), NodeDependencies(), Room())
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


async def made(directory: Path) -> Site:
    site = Site(directory)
    async with site.running(site.data) as node:
        await node.ready.wait()
        async with Admin(site.spec.bootstrap) as admin:
            for name in ("t", "other"):
                await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        async with Producer(site.spec.bootstrap, linger_ms=0) as producer:
            for value in VALUES:
                await producer.send_and_wait(AT.topic, value, partition=0)
        # Drafts come and go while the node runs; a start removes those that it finds.
        drafts = shutil.ignore_patterns("*.tmp")
        shutil.copytree(site.data, directory / "crashed", ignore=drafts)
    shutil.copytree(site.data, directory / "closed")
    return site


async def read(bootstrap: str, into: list[tuple[int, bytes | None]]) -> tuple[int, int]:
    """Read the partition; return where it starts and ends."""
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([AT])
        start = (await consumer.beginning_offsets([AT]))[AT]
        end = (await consumer.end_offsets([AT]))[AT]
        while start + len(into) < end:
            records = await consumer.poll(timeout_ms=100)
            into += [(one.offset, one.value) for several in records.values() for one in several]
        return start, end


async def outcome(site: Site, data: Path, is_named: Callable[[], Awaitable[None]]) -> str:
    """Start on the data and read; return what came of it. All that was read is right."""
    found: list[tuple[int, bytes | None]] = []
    named = asyncio.ensure_future(is_named())
    try:
        async with site.running(data) as node:
            ready = asyncio.ensure_future(node.ready.wait())
            await asyncio.wait({ready, named}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                return "named"
            reading = asyncio.ensure_future(read(site.spec.bootstrap, found))
            await asyncio.wait({reading, named}, return_when=asyncio.FIRST_COMPLETED)
            if named.done():
                reading.cancel()
            assert found == [(offset, VALUES[offset]) for offset, _ in found]
            if not reading.done():
                return "named"
            start, end = await reading
            if start > 0:
                return "later"
            return "whole" if end == len(VALUES) else "cut"
    except StartFailed as error:
        return str(error)
    finally:
        named.cancel()


def expected_of(path: str, damage: str, copy: str) -> str | None:
    """Say what comes of the damage; None: the file is named."""
    is_missing = damage == "missing"
    if path.endswith(REBUILT) or (is_missing and path.endswith(BEGUN_ANEW)):
        return "whole"
    if is_missing and path == FIRST_SEGMENT and copy == "crashed":
        return "later"  # as retention leaves it; a clean stop says where the log starts
    is_tail = path.startswith("t-0/0") and path != FIRST_SEGMENT and damage != "zeros"
    if is_tail and copy == "crashed":
        return "cut"  # as a batch that was torn, or as if it had not been written yet
    return None


@pytest.mark.parametrize("copy", ["closed", "crashed"])
async def test_a_damaged_file_is_mended_or_named(
    tmp_path: Path, copy: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    site = await made(tmp_path)
    for path in site.files(copy):
        for name, damage in DAMAGES.items():
            data = tmp_path / f"{path.replace('/', '-')}-{name}"
            shutil.copytree(tmp_path / copy, data)
            damaged = damage((data / path).read_bytes())
            if damaged is None:
                (data / path).unlink()
            else:
                (data / path).write_bytes(damaged)
            caplog.clear()

            # What is missing may be told by the directory that lacks it.
            told = str(Path(path).parent) if name == "missing" and "/" in path else path

            async def is_named(file: str = str(data / told)) -> None:
                while not any(
                    record.levelno >= logging.ERROR and file in record.getMessage()
                    for record in caplog.records
                ):
                    await asyncio.sleep(0.01)

            seen = await asyncio.wait_for(outcome(site, data, is_named), 30)
            expected = expected_of(path, name, copy)
            if expected is not None:
                assert seen == expected, (path, name)
            elif seen != "named":
                assert told in seen, (path, name)
            shutil.rmtree(data)
