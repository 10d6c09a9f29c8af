"""A reader of one partition at `read_committed`: it checks the records that leaders would serve.

It filters as the protocol requires (KIP-98): by the aborted transactions that a leader returns
with the records, which end at the last stable offset.
"""

from collections.abc import Sequence
from typing import Final

from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import decode_batches
from quorumlog.wire.codec.transaction_markers import marker_of

READ_US: Final = 100_000
READ_BYTES: Final = 300  # small, so that transactions span several reads
GOES_BACK: Final = 0.05  # of the reads begin at an earlier offset, as a new consumer does
RECORDS_BACK_MAX: Final = 60


def shown_of(records: bytes, aborted: Sequence[AbortedTransaction]) -> dict[int, bytes]:
    """Return the records that a consumer returns, by offset."""
    waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    aborting: set[int] = set()
    shown: dict[int, bytes] = {}
    for header, batch in decode_batches(records):
        while waiting and waiting[-1].first_offset <= header.last_offset:
            aborting.add(waiting.pop().producer_id)
        if header.is_control:
            marker = marker_of(header, batch)
            if marker is not None and not marker.commits:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            shown.update({record.offset: record.value or b"" for record in batch})
    return shown


class Reader:
    """Reads from any broker that acts as leader, perhaps a former one.

    Each run reads up to the end, in several reads. With only one read it would not make up for its
    steps back: in a run with many records it would stay near the beginning.
    """

    def __init__(
        self,
        at: TopicPartition,
        nodes: dict[int, BrokerNode],
        oracle: TransactionOracle,
        environment: Environment,
        rng: Rng,
    ) -> None:
        self.place: TopicPartition | None = None  # of the topic that it read last
        self.position = Offset(0)
        self._at: Final = at
        self._nodes: Final = nodes
        self._oracle: Final = oracle
        self._environment: Final = environment
        self._rng: Final = rng

    def run(self) -> None:
        """Read now, and again after random times."""
        if self._rng.random() < GOES_BACK and not self._environment.is_calm:
            self.position = Offset(max(0, self.position - self._rng.randrange(RECORDS_BACK_MAX)))
        running = [node for node in self._nodes.values() if node.machine.is_up]
        if running:
            node = self._rng.choice(running)
            node.take(self._read, node)
        self._environment.timeline.push(self._rng.randrange(1, 2 * READ_US), self.run)

    def _read(self, node: BrokerNode) -> None:
        driver = node.replicas.drivers.get(self._at)
        if driver is None or driver.is_cutting or not driver.partition.state.is_leader:
            return
        place = self._oracle.place_of(self._at)
        if place is None or place != self._oracle.topics.place_of(self._at, driver.topic_id):
            return  # a log of a deleted topic
        if place != self.place:
            self.place, self.position = place, Offset(0)
        is_more = True
        while is_more:
            is_more = self._read_once(driver, place)

    def _read_once(self, driver: PartitionDriver, place: TopicPartition) -> bool:
        """Read once and check; return whether more records may follow."""
        end, position = driver.end(ReadEnd.LAST_STABLE), self.position
        records, next_offset = b"", position
        if end > position:
            records, next_offset = _fetched(driver, position)
        aborted = driver.log.aborted.reaching_into(position, next_offset)
        shown = {
            offset: value
            for offset, value in shown_of(records, aborted).items()
            if offset >= position  # a batch may begin before the position
        }
        self._oracle.read(place, position, next_offset, end, shown)
        self.position = next_offset
        return position < next_offset < end


def _fetched(driver: PartitionDriver, position: Offset) -> tuple[bytes, Offset]:
    read = driver.read(
        position,
        max_bytes=READ_BYTES,
        end=ReadEnd.LAST_STABLE,
        at_least_one=True,
        may_wait=True,
    )
    return b"".join(read.chunks), Offset(read.next_offset)
