"""Producers with acks=all. They find the leader in the image of any broker, perhaps outdated."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.data_path import ProduceDone, ProduceResult
from quorumlog.broker.partitions.core.producer_state import BATCHES_KEPT
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.options import Options
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_node import CONTROLLER_ID
from quorumlog.chaos.simulation.worlds.brokers.oracle import SEQUENCED, ReplicationOracle
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch

PRODUCER_ID: Final = 7
SEND_AGAIN_US: Final = 1_500_000
DELETING_SHARE: Final = 0.2  # of the runs: the topic is deleted and re-created


def draw_producing_options(
    rng: Rng,
    nodes: int,
    *,
    partitions: int,
    min_insync_max: int,
    unclean_share: float = 0.0,
    flush_acks_share: float = 0.0,
) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` brokers, and no other machine.

    `unclean_share`: of the runs with unclean elections; half of these commit with one replica.
    `flush_acks_share`: of the runs that commit only flushed records (`log.flush.acks`).
    """
    options: dict[str, Option] = {
        "nodes": nodes,
        "partitions": partitions,
        "min_insync_replicas": min(min_insync_max, nodes),
        "produce_every_us": rng.randrange(30_000, 150_000),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
        "unclean": False,
    }
    if rng.random() < unclean_share:
        options["unclean"] = True
        if rng.random() < 0.5:
            options["min_insync_replicas"] = 1
    options["deletes_topic"] = rng.random() < DELETING_SHARE
    options["flush_acks"] = rng.random() < flush_acks_share
    return nodes, options


@dataclass(slots=True, kw_only=True)
class Producer:
    """Writes to one partition, plain batches and batches of an idempotent producer.

    The idempotent producer numbers its batches and has at most BATCHES_KEPT under way, as it must.
    After a timeout it sends all again from the first batch that is not acknowledged.
    """

    at: TopicPartition
    nodes: dict[int, BrokerNode]
    environment: Environment
    oracle: ReplicationOracle
    rng: Rng
    every_us: int
    acknowledged: int = 0  # the end of the acknowledged sequences
    _values: int = 0
    _next: int = 0
    _is_stopped: bool = False
    _producer_id: int = PRODUCER_ID
    _first: int = 0  # sequence of this producer id
    _histories: int = 0  # the new beginnings that it has handled
    _has_gap: bool = False  # a leader lacks acknowledged sequences
    _progress_us: int = 0  # when the newest sequence was acknowledged, or all sent again

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopped = True

    def describe(self) -> str:
        """Return the partition and the next sequence."""
        return f"the producer of {self.at}, next sequence {self._next}"

    def run(self) -> None:
        """Send batches until `stop`."""
        if self._is_stopped:
            return
        if self.rng.random() < 0.5:
            self._values += 1
            self._send(b"value %d" % self._values, -1)
        self._send_next_sequence()
        after_us = self.rng.randrange(1, 2 * self.every_us)
        self.environment.timeline.push(after_us, self.run)

    def _send_next_sequence(self) -> None:
        now_us = self.environment.timeline.now_us
        if now_us - self._progress_us > SEND_AGAIN_US:
            self._next, self._progress_us = self.acknowledged, now_us
            self._maybe_start_anew()
        # The first goes alone: a leader without producer state takes any sequence.
        under_way_max = BATCHES_KEPT if self.acknowledged > self._first else 1
        if self._next - self.acknowledged < under_way_max:
            self._send(SEQUENCED + b"%d" % self._next, self._next)
            self._next += 1

    def _maybe_start_anew(self) -> None:
        """Take another producer id if acknowledged records may be lost.

        So after an unclean election or a deletion of the topic. An older leader may acknowledge
        even then: its successor has a gap (KIP-360).
        """
        histories = self.oracle.new_beginnings(self.at)
        if histories != self._histories or self._has_gap:
            self._histories, self._first = histories, self.acknowledged
            self._has_gap = False
            self._producer_id += 1

    def _send(self, value: bytes, sequence: int) -> None:
        node = self.nodes.get(self._leader())
        if node is None:
            return
        record = Record(0, self.environment.timeline.now_us // 1000, None, value)
        batch = encode_batch(
            [record],
            producer_id=self._producer_id if sequence >= 0 else -1,
            producer_epoch=0 if sequence >= 0 else -1,
            base_sequence=sequence - self._first if sequence >= 0 else -1,
        )
        done = self._answer_from(node.node_id, value, sequence)
        network, push = self.environment.network, self.environment.timeline.push
        for after_us in network.arrivals_us(CONTROLLER_ID, node.node_id)[:1]:  # TCP: no second copy
            push(after_us, node.take, node.produce, self.at, batch, done)

    def _leader(self) -> int:
        """Return the leader in the image of some broker, perhaps outdated; -1 if unknown."""
        running = [node for node in self.nodes.values() if node.machine.is_up]
        if not running:
            return -1
        partition = self.rng.choice(running).replicas.image.partition(self.at)
        return -1 if partition is None else partition.leader_id

    def _answer_from(self, node_id: int, value: bytes, sequence: int) -> ProduceDone:
        network, push = self.environment.network, self.environment.timeline.push

        def done(result: ProduceResult) -> None:
            for after_us in network.arrivals_us(node_id, CONTROLLER_ID)[:1]:
                push(after_us, self._answered, value, sequence, result)

        return done

    def _answered(self, value: bytes, sequence: int, result: ProduceResult) -> None:
        if result.error_code is not ErrorCode.NONE:
            is_gap = result.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if is_gap and sequence == self.acknowledged and self._histories:
                self._has_gap = True
            return
        self.oracle.acknowledge(self.at, result.base_offset, value)
        if sequence >= self.acknowledged:
            self.acknowledged = sequence + 1
            self._next = max(self._next, self.acknowledged)
            self._progress_us = self.environment.timeline.now_us


class Producing:
    """A Workload: one producer for each partition. The oracle of replication checks the end."""

    topic = "records"
    machine_ids: tuple[int, ...] = ()

    def __init__(self, schedule: Schedule) -> None:
        self.volatile = self.topic if Options(schedule).flag("deletes_topic") else None
        self._seed: Final = schedule.seed
        self._every_us: Final = Options(schedule).number("produce_every_us")

    def clients(self, brokers: BrokersWorld) -> list[Producer]:
        """Return the producers. They have no machine and never fail; messages may be lost."""
        return [
            Producer(
                at=at,
                nodes=brokers.nodes,
                environment=brokers.environment,
                oracle=brokers.oracle,
                rng=seeded(f"producer {at}", self._seed),
                every_us=self._every_us,
            )
            for at in brokers.places
        ]

    def awaited(self) -> str:
        """Return "": the replication oracle already checks the acknowledged records."""
        return ""
