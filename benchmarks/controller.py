"""What many partitions cost the controller and its image: CPU and memory, without a disk.

`python -m benchmarks.controller [PARTITIONS...]` prints a table for each size. Every figure is CPU
time of one process. A piece of work that holds the event loop up is shown by its longest slice.
"""

import gc
import itertools
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    NewTopic,
)
from quorumlog.metadata_quorum.controller_requests import CreateTopics, TopicResults
from quorumlog.metadata_quorum.driver.active_controller import PendingDecision
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import (
    MetadataRecord,
    NoOp,
    PartitionChange,
    decode_record,
    encode_record,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.image.snapshot_records import image_of, records_of
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex

BROKERS: Final = 6
PER_TOPIC: Final = 100
PER_REQUEST: Final = 5_000
SIZES: Final = (10_000, 20_000, 100_000)
T = TypeVar("T")


class _Bench:
    """A controller whose log is a list of encoded records."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.longest_s = 0.0  # slice since it was last set to 0
        self.controller = Controller(
            ClusterImage(),
            ControllerSettings(default_replication_factor=3),
            random_bytes=random.Random(7).randbytes,
            now_ms=0,
        )
        for broker_id in range(1, BROKERS + 1):
            self._add_broker(BrokerId(broker_id))

    def carry_out(self, decide: Callable[[], Decision[T]]) -> Decision[T]:
        """Decide, encode, apply, as the driver does: a slice at a time, the first at once."""
        started_s = time.process_time()
        decision = decide()
        enactment = PendingDecision(
            self.controller, decision, decision.records, base_offset=Offset(len(self.log)), ask=None
        )
        while True:
            enactment.take_slice()
            now_s = time.process_time()
            self.longest_s, started_s = max(self.longest_s, now_s - started_s), now_s
            if enactment.is_whole:
                self.log += enactment.values
                return decision

    def _add_broker(self, broker_id: BrokerId) -> None:
        registration = BrokerRegistration(
            broker_id=broker_id,
            incarnation_id=str(broker_id),
            host="localhost",
            port=9092,
            control_address=f"localhost:{broker_id}",
            directory_id=f"directory-{broker_id}",
        )
        self.carry_out(
            lambda: self.controller.decide(
                registration, now_ms=0, base_offset=Offset(len(self.log))
            )
        )
        heartbeat = BrokerHeartbeat(
            broker_id=broker_id, broker_epoch=len(self.log) - 1, metadata_offset=2**40
        )
        self.carry_out(
            lambda: self.controller.decide(heartbeat, now_ms=0, base_offset=Offset(len(self.log)))
        )

    def create(self, partitions: int) -> None:
        """Create topics of PER_TOPIC partitions, PER_REQUEST at once."""
        for first in range(0, partitions, PER_REQUEST):
            wanted = min(PER_REQUEST, partitions - first) // PER_TOPIC
            names = range(first // PER_TOPIC, first // PER_TOPIC + wanted)
            request = CreateTopics(
                topics=tuple(NewTopic(name=f"topic-{n}", partitions=PER_TOPIC) for n in names)
            )
            response = self.carry_out(
                lambda request=request: self.controller.decide(  # type: ignore[misc]
                    request, now_ms=0, base_offset=Offset(len(self.log))
                )
            ).response
            if not isinstance(response, TopicResults) or any(
                r.error_code for r in response.results
            ):
                raise RuntimeError(f"the topics are not created: {response}")

    def lose_broker(self) -> int:
        """Fence a broker that has fallen silent; return the number of slices."""
        timeout_ms = self.controller.sessions.session_timeout_ms
        for broker_id in range(2, BROKERS + 1):
            self.controller.sessions.touch(BrokerId(broker_id), timeout_ms, -1)
        for slices in itertools.count(1):
            self.carry_out(lambda: self.controller.decide_expiry(timeout_ms))
            if self.controller.cluster.brokers[BrokerId(1)].fenced:
                return slices
        raise AssertionError


def _cpu_s(work: Callable[[], T]) -> tuple[float, T]:
    started_s = time.process_time()
    result = work()
    return time.process_time() - started_s, result


def _replayed(values: Iterable[bytes]) -> ClusterReplay:
    replay = ClusterReplay(ClusterImage())
    for offset, value in enumerate(values):
        replay.apply(Offset(offset), decode_record(value))
    return replay


def _published(replay: ClusterReplay) -> ClusterImage:
    _, image = replay.publish(
        end_offset=replay.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
    )
    return image


def _bytes_of(make: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def measure(partitions: int) -> None:
    """Print the figures for so many partitions."""
    print(f"{partitions} partitions in topics of {PER_TOPIC}, {BROKERS} brokers")

    def show(name: str, value: float, unit: str) -> None:
        print(f"  {name:58} {value:10.2f} {unit}", flush=True)

    bench = _Bench()
    bench.longest_s = 0.0
    show("creation, CPU", _cpu_s(lambda: bench.create(partitions))[0], "s")
    show(f"  longest slice of a request for {PER_REQUEST}", bench.longest_s * 1000, "ms")
    log = list(bench.log)
    replay_s, replay = _cpu_s(lambda: _replayed(log))
    show("replay, CPU for a record", replay_s / len(log) * 1e6, "us")
    image = _published(replay)
    show(
        "image, memory for a partition",
        _bytes_of(lambda: _published(_replayed(log))) / partitions,
        "B",
    )
    some_topic = next(iter(image.topics.values()))
    change = PartitionChange(topic_id=some_topic.topic_id, partition_id=PartitionIndex(0))

    def publish_one(record: MetadataRecord) -> float:
        replay.apply(replay.end_offset, record)
        return _cpu_s(lambda: _published(replay))[0]

    show("publishing nothing", min(publish_one(NoOp()) for _ in range(20)) * 1e6, "us")
    show("publishing one partition", min(publish_one(change) for _ in range(20)) * 1e6, "us")
    snapshot_s, snapshot = _cpu_s(lambda: list(map(encode_record, records_of(image))))
    show("snapshot, CPU to write (without its file)", snapshot_s, "s")
    read_s, _ = _cpu_s(lambda: image_of(map(decode_record, snapshot), image.end_offset))
    show("snapshot, CPU to read", read_s, "s")
    bench.longest_s = 0.0
    death_s, slices = _cpu_s(bench.lose_broker)
    show("death of a broker, CPU", death_s, "s")
    show("  slices", slices, "")
    show("  longest slice", bench.longest_s * 1000, "ms")
    idle_s, _ = _cpu_s(lambda: [bench.controller.decide_expiry(1) for _ in range(100)])
    show("a look at the clock when nothing is due", idle_s / 100 * 1e6, "us")


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or map(str, SIZES)):
        measure(size)
