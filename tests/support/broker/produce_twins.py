"""Two brokers that receive the same produce requests: only one handles runs of them.

The other one never uses the native lane.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.server import turns
from quorumlog.broker.server.connection import Connection
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.messages.produce import ProduceRequest
from tests.support.broker.replicas import broker as broker_image
from tests.support.broker.replicas import fetched_by
from tests.support.groups.single_broker import BROKER, SETTINGS, SingleBroker
from tests.support.native import native

NOW_MS = 1_700_000_000_000
FOLLOWER = BrokerId(2)
COPIED = TopicPartition("copied", 0)  # its other replica is FOLLOWER
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "timed": {"message.timestamp.type": "LogAppendTime"},
    "compact": {"cleanup.policy": "compact"},
    "limited": {"max.message.bytes": "200", "message.timestamp.after.max.ms": "1000"},
    "rolling": {"segment.bytes": "400", "index.interval.bytes": "0", "segment.ms": "5000"},
    "copied": {"min.insync.replicas": "1"},
}
REQUESTS_MAX = 4  # under way on one connection
TURNS = 10  # of the event loop: connections go on with the frames that wait for another turn


class Wire(asyncio.Transport):
    """The transport of a client that reads everything."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.reads, self.is_closed = True, False

    def write(self, data: Any) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Twin:
    """One broker and the connection to it; `runs`: the number of requests of each run."""

    def __init__(self, directory: Path, *, has_runs: bool) -> None:
        settings = replace(SETTINGS, queued_max_requests=REQUESTS_MAX)
        self.broker = SingleBroker(directory, settings)
        self.broker.verifier.says = None
        self.runs: list[int] = []
        self._directory = directory
        self._unread = b""
        self._arrives: list[int] = []
        produce = HANDLERS[ProduceRequest.API_KEY]
        handle_run = cast(Any, produce.handle_run)

        def noted(*arguments: Any, **options: Any) -> Any:
            reply = handle_run(*arguments, **options)
            if reply is not None:
                self.runs.append(reply[0])
            return reply

        changed = replace(produce, handle_run=noted if has_runs else None)
        self.broker.context.handlers = {**HANDLERS, ProduceRequest.API_KEY: changed}
        vars(self.broker.replicas.appends)["_wall_ms"] = lambda: NOW_MS

    async def start(self) -> None:
        await self.broker.start()
        controller = self.broker.controller
        made = tuple(
            NewTopic(name=name, partitions=2, replication_factor=1, configs=configs)
            for name, configs in TOPICS.items()
        )
        await controller.ask(CreateTopics(topics=made))
        topic = controller.image.topics[COPIED.topic]
        both = (BROKER, FOLLOWER)
        copied = replace(topic.partitions[0], replicas=both, isr=both, partition_epoch=Epoch(1))
        brokers = {**controller.image.brokers, FOLLOWER: broker_image(FOLLOWER)}
        partitions = (copied, *topic.partitions[1:])
        topics = {**controller.image.topics, COPIED.topic: replace(topic, partitions=partitions)}
        delta = ClusterDelta(brokers=frozenset(both), partitions=frozenset({COPIED}))
        controller.publish(delta, topics=topics, brokers=brokers)
        await self._settle()
        self.connect()

    def connect(self) -> None:
        self._unread = b""
        self.wire, self.connection = Wire(), Connection(self.broker.server)
        self.connection.connection_made(self.wire)

    async def stop(self) -> None:
        self.connection.connection_lost(None)
        await self.broker.stop()

    async def receive(self, data: bytes, pieces: Sequence[int]) -> None:
        """Receive bytes in pieces of these sizes, and the rest at once, while it reads."""
        self._unread += data
        self._arrives = [*pieces]
        await self._settle()

    async def follow(self, share: float) -> None:
        """Let the follower acknowledge this share of the uncommitted records."""
        driver = self.broker.replicas.drivers[COPIED]
        state = driver.partition.state
        offset = state.high_watermark + round(share * (state.log_end_offset - state.high_watermark))
        driver.judge_follower_fetch(1, fetched_by(FOLLOWER, offset))
        await self._settle()

    async def expire(self) -> None:
        self.broker.replicas.appends.expire(10**15)
        await self._settle()

    async def resign(self) -> None:
        """Let the follower lead, so that all waiting produces fail; then lead again."""
        controller = self.broker.controller
        for leader in (FOLLOWER, BROKER):
            topic = controller.image.topics[COPIED.topic]
            first, *others = topic.partitions
            led = replace(
                first,
                leader_id=leader,
                leader_epoch=Epoch(first.leader_epoch + 1),
                partition_epoch=Epoch(first.partition_epoch + 1),
            )
            changed = replace(topic, partitions=(led, *others))
            topics = {**controller.image.topics, COPIED.topic: changed}
            delta = ClusterDelta(partitions=frozenset({COPIED}))
            controller.publish(delta, topics=topics)
            await self._settle()

    async def verify(self, error_code: ErrorCode) -> None:
        """Answer all requests to transaction coordinators."""
        asked, self.broker.verifier.asked = self.broker.verifier.asked, []
        for question in asked:
            question.reply(error_code)
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(TURNS):
            self._read()
            await asyncio.sleep(0)

    def _read(self) -> None:
        while self._unread and self.wire.reads and not self.wire.is_closed:
            buffer = self.connection.get_buffer(-1)
            size = self._arrives.pop(0) if self._arrives else len(self._unread)
            size = min(size, len(buffer), len(self._unread))
            buffer[:size] = self._unread[:size]
            self._unread = self._unread[size:]
            self.connection.buffer_updated(size)

    def outcome(self) -> dict[str, Any]:
        """Return everything that the requests have changed."""
        logs = {
            path.relative_to(self._directory): path.read_bytes()
            for path in sorted(self._directory.rglob("*.log"))
        }
        return {
            "sent": bytes(self.wire.sent),
            "is_closed": self.wire.is_closed,
            "requests": self.broker.server.stats.requests,
            "logs": logs,
            **{str(at): _state(driver) for at, driver in self.broker.replicas.drivers.items()},
        }


def _state(driver: Any) -> list[Any]:
    state, index = driver.partition.state, driver.log._segments.active.index
    return [
        state.log_end_offset,
        state.high_watermark,
        driver.log.segment_base_offsets,
        driver.log.epochs.entries,
        driver.producers.snapshot(),
        driver.producers.transactions.last_stable_offset(0, state.high_watermark),
        index.max_timestamp,
        index.offset_of_max_timestamp,
        [*index.offsets.entries()],
        [*index.times.entries()],
    ]


class Twins:
    """Both brokers; every call goes to both, and their outcomes are equal after it."""

    def __init__(self, directory: Path) -> None:
        self.fast = Twin(directory / "fast", has_runs=True)
        self.slow = Twin(directory / "slow", has_runs=False)
        for twin in (self.fast, self.slow):
            twin._directory.mkdir()

    async def __aenter__(self) -> "Twins":
        self._turn_s = turns.TURN_S
        vars(turns)["TURN_S"] = 3600.0  # a turn that ends by the clock ends differently each time
        await self.fast.start()
        await self.slow.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        vars(turns)["TURN_S"] = self._turn_s
        await self.fast.stop()
        await self.slow.stop()

    async def receive(
        self, data: bytes, pieces: Sequence[int] = (), others: Sequence[int] = ()
    ) -> None:
        await self.fast.receive(data, pieces)
        with native(is_on=False):
            await self.slow.receive(data, others)
        self.compare()

    async def both(self, name: str, *arguments: Any) -> None:
        await getattr(self.fast, name)(*arguments)
        with native(is_on=False):
            await getattr(self.slow, name)(*arguments)
        self.compare()

    def compare(self) -> None:
        fast, slow = self.fast.outcome(), self.slow.outcome()
        for name, value in slow.items():
            assert fast[name] == value, name
        if self.fast.wire.is_closed:
            for twin in (self.fast, self.slow):
                twin.connection.connection_lost(None)
                twin.connect()
