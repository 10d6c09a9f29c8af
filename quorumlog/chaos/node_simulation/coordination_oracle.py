"""Watches groups and transactions of whole nodes: their committed logs, and clients' messages.

Rules: see `simulation.oracles`. None of them holds once copies are lost.
"""

from collections.abc import Callable, Iterator
from typing import Final

from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord
from quorumlog.broker.groups.core.records import GroupRecord, OffsetRecord
from quorumlog.broker.groups.core.records import decode as decode_group
from quorumlog.broker.transactions.core.records import decode as decode_transaction
from quorumlog.chaos.simulation.oracles import exchanges
from quorumlog.chaos.simulation.oracles.exchanges import Conversation, Exchange
from quorumlog.chaos.simulation.oracles.group_members import GroupMembers
from quorumlog.chaos.simulation.oracles.group_offsets import GroupOffsets
from quorumlog.chaos.simulation.oracles.rude_requests import RudeRequests
from quorumlog.chaos.simulation.oracles.transactions import Transactions
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, Record, decode_batch, iterate_headers
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from quorumlog.wire.codec.transaction_markers import marker_of

Violated = Callable[[str], None]
IsLeader = Callable[[TopicPartition, int], bool]
_READ_BYTES: Final = 1 << 20


class CoordinationOracle:
    """The model of one run. The oracle of the nodes calls `committed` and, each turn, `look`."""

    def __init__(self, violated: Violated, leads: IsLeader) -> None:
        """`leads`: whether a node is the newest leader of a partition."""
        self.is_over = False  # copies were lost
        self._violated: Final = violated
        self._leads: Final = leads
        self._image: ClusterImage | None = None
        self._names: Final[dict[bytes, str]] = {}
        self._ends: Final[dict[tuple[TopicId, TopicPartition], int]] = {}
        self._answered: Final[list[Exchange]] = []
        self._members: Final = GroupMembers(self._names.get, self._found)
        self._offsets: Final = GroupOffsets(self._members, self._names.get, self._found)
        self._transactions: Final = Transactions(self._is_whole, self._found)
        self.rude: Final = RudeRequests(self._members, self._offsets, self._transactions)
        self._gaps: Final[set[TopicPartition]] = set()  # not read from the first batch on

    def _found(self, what: str) -> None:
        if not self.is_over:
            self._violated(what)

    def _is_whole(self, at: TopicPartition) -> bool:
        """Whether a partition exists, and each of its committed batches was read."""
        topic = None if self._image is None else self._image.topics.get(at.topic)
        if topic is None or at.partition >= len(topic.partitions) or at in self._gaps:
            return False
        return (topic.topic_id, at) in self._ends

    # --- committed logs ---

    def has_image(self, image: ClusterImage) -> None:
        """Use newer metadata."""
        self._image = image
        self._names.update((topic.topic_id, name) for name, topic in image.topics.items())
        self._offsets.has_topics({name: topic.topic_id for name, topic in image.topics.items()})

    def committed(
        self, topic_id: TopicId, at: TopicPartition, log: Log, high_watermark: int
    ) -> None:
        """Read the newly committed batches of a partition, on the first replica that has them."""
        key = topic_id, at
        start = self._ends.get(key, 0)
        if self.is_over or start >= high_watermark or not self._is_read(at.topic):
            return
        if log.log_start_offset > start:
            self._gaps.add(at)
            start = log.log_start_offset
        for header, batch in _batches(log, start, high_watermark):
            if header.is_control or at.topic in INTERNAL_TOPICS:
                self._read(at, header, decode_batch(batch))
            elif header.producer_id >= 0:
                self._transactions.appended(at, header)
            self._ends[key] = header.next_offset

    def _is_read(self, topic: str) -> bool:
        """Whether groups or transactions have batches in a topic."""
        if topic in INTERNAL_TOPICS:
            return True
        return self._image is not None and TRANSACTIONS_TOPIC in self._image.topics

    def _read(self, at: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        if header.is_control:
            if (marker := marker_of(header, records)) is None:
                return
            self._transactions.marked(at, marker, header.base_offset)
            if at.topic == OFFSETS_TOPIC:
                self._offsets.ends(at.partition, marker)
            return
        if header.producer_id >= 0:
            self._transactions.appended(at, header)
        if at.topic == OFFSETS_TOPIC:
            self._read_groups(at, header, records)
        elif at.topic == TRANSACTIONS_TOPIC:
            for record in records:
                found = decode_transaction(record.key or b"", record.value)
                self.rude.homes[found.transactional_id] = at
                self._transactions.read(found, record.timestamp_ms)

    def _read_groups(self, at: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        for record in records:
            found = decode_group(record.key or b"", record.value)
            match found:
                case OffsetRecord():
                    producer_id = header.producer_id if header.is_transactional else -1
                    self.rude.homes[found.group_id] = at
                    self._offsets.read(at.partition, found, producer_id)
                case GroupRecord():
                    self.rude.homes[found.group_id] = at
                    self._members.read(found)
                case ConsumerGroupRecord():
                    self.rude.homes[found.subject.group_id] = at
                    self._members.read(found)
                case None:
                    pass
        self._members.batch_ends()

    # --- the clients ---

    def conversation(self, node_id: int) -> Conversation:
        """Return a reader of a new connection of a client to a broker."""
        return Conversation(node_id, self._wants, self._asked, self._answered.append)

    def _wants(self, api_key: int) -> bool:
        if api_key == exchanges.FETCH:
            return self._is_read("")
        return api_key in exchanges.READ_APIS

    def _asked(self, exchange: Exchange) -> None:
        exchange.mark = self._offsets.changes
        self.rude.saw(exchange)
        match exchange.header.api_key:
            case exchanges.OFFSET_COMMIT:
                self._offsets.asked(exchange)
            case exchanges.CONSUMER_HEARTBEAT:
                self._members.reports(exchange)
            case exchanges.INIT_PRODUCER_ID if exchange.request.transactional_id:
                self._transactions.asked(exchange)
            case exchanges.END_TXN | exchanges.ADD_OFFSETS | exchanges.TXN_OFFSET_COMMIT:
                self._transactions.asked(exchange)
            case _:
                pass

    def look(self) -> None:
        """Check the responses written in this turn, after its commits."""
        self._transactions.look()
        for exchange in self._answered:
            self._check(exchange)
        self._answered.clear()

    def _check(self, exchange: Exchange) -> None:
        match exchange.header.api_key:
            case exchanges.OFFSET_COMMIT:
                self._offsets.committed(exchange)
            case exchanges.OFFSET_FETCH:
                self._offsets.fetched(exchange, is_current=self._is_current(exchange))
            case exchanges.SYNC_GROUP:
                self._members.synced(exchange)
            case exchanges.CONSUMER_HEARTBEAT:
                check = self._members.refused if exchange.is_rude else self._members.assigned
                check(exchange, is_current=self._is_current(exchange))
            case exchanges.INIT_PRODUCER_ID:
                self._transactions.initialized(exchange)
            case exchanges.END_TXN:
                self._transactions.ended(exchange)
            case exchanges.FETCH if exchange.request.isolation_level:
                self._transactions.fetched(exchange, self._names.get)
            case exchanges.ADD_PARTITIONS:
                self._transactions.confirmed(exchange)
            case exchanges.ADD_OFFSETS | exchanges.TXN_OFFSET_COMMIT:
                self._check_added(exchange)
            case _:
                pass

    def _check_added(self, exchange: Exchange) -> None:
        self._transactions.added(exchange)
        if exchange.header.api_key == exchanges.TXN_OFFSET_COMMIT:
            self._offsets.committed(exchange)

    def _is_current(self, exchange: Exchange) -> bool:
        """Whether the newest leader of the group's partition has written a response."""
        request = exchange.request
        groups = getattr(request, "groups", ())
        group_id = groups[0].group_id if groups else request.group_id
        home = self.rude.homes.get(group_id)
        return home is not None and self._leads(home, exchange.node_id)


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield (header, batch) of the batches of a log in [start, end)."""
    while start < end:
        read = log.read(start, max_bytes=_READ_BYTES, end_offset=end)
        before, content = start, bytes(read.records)
        for position, header in iterate_headers(content):
            start = max(start, header.next_offset)
            yield header, content[position : position + header.size_in_bytes]
        if start == before:
            return  # the rest of a batch is not committed
