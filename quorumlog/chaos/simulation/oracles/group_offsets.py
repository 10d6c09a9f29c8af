"""The rules of committed offsets, by the committed log and the messages of clients.

    acked-committed    an acknowledged commit has a record behind its arrival in the log; in a
                       transaction, a record anywhere in the log
    commit-sent        each committed offset has been sent by a client
    fenced-commit      where the log has a commit, its member is in the group, at its generation or
                       member epoch, or at an older epoch since which it has had the partition
                       (KIP-1251)
    fetched-committed  a fetched offset was the committed one at some time, and never only pending
    offset-lost        the newest leader returns the offset at the arrival of the fetch, or a later
                       one; or none, if it was committed for an earlier topic of the name
    unstable-shown     a fetch of stable offsets gets none with a pending commit (KIP-447)

The newest record of an offset counts, whichever transaction ends last. A tombstone deletes pending
commits, too. A record that repeats the committed offset is a part of a rewrite of the log.

Sources: KIP-98, KIP-447, KIP-848, KIP-1251, KAFKA-17507.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from quorumlog.broker.groups.core.records import OffsetRecord
from quorumlog.chaos.simulation.oracles.exchanges import TXN_OFFSET_COMMIT, Exchange
from quorumlog.chaos.simulation.oracles.group_members import GroupMembers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker

Violated = Callable[[str], None]
Key = tuple[str, TopicPartition]  # a group, and a partition
Names = Callable[[bytes], str | None]
"""Returns the name of a topic by its id; None: unknown."""


class Value(NamedTuple):
    """A committed offset and its metadata."""

    offset: int
    metadata: str


NOTHING: Final = Value(-1, "")


class Change(NamedTuple):
    """A change of a committed offset; `number`: among all changes of the run."""

    number: int
    value: Value


class _Pending(NamedTuple):
    key: Key
    value: Value
    number: int


class GroupOffsets:
    """All committed offsets of a run, with their history."""

    def __init__(self, members: GroupMembers, names: Names, violated: Violated) -> None:
        self._members: Final = members
        self._names: Final = names
        self._violated: Final = violated
        self.changes = 0
        self._history: Final[dict[Key, list[Change]]] = defaultdict(list)
        self._topic_ids: Final[dict[str, bytes]] = {}  # of the present topics
        self._committed_for: Final[dict[Key, bytes]] = {}  # the id of the topic in the last record
        self._newest: Final[dict[Key, int]] = {}  # the number of the record that counts
        self._plain: Final[dict[Key, list[Change]]] = defaultdict(list)  # outside transactions
        self._transactional: Final[dict[Key, list[Change]]] = defaultdict(list)
        self._pending: Final[dict[tuple[int, int], list[_Pending]]] = defaultdict(list)
        self._sent: Final[dict[tuple[Key, Value], list[Exchange]]] = defaultdict(list)

    def has_topics(self, topic_ids: Mapping[str, bytes]) -> None:
        """Use the ids of the present topics, by name."""
        self._topic_ids.clear()
        self._topic_ids.update(topic_ids)

    # --- the committed log ---

    def read(self, partition: int, record: OffsetRecord, producer_id: int) -> None:
        """Apply a record. `producer_id`: of its transaction; -1: none."""
        self.changes += 1
        committed = record.committed
        value = NOTHING if committed is None else Value(committed.offset, committed.metadata)
        key = (record.group_id, record.topic_partition)
        self._committed_for[key] = ZERO_TOPIC_ID if committed is None else committed.topic_id
        if producer_id >= 0:
            self._pending[partition, producer_id].append(_Pending(key, value, self.changes))
            self._transactional[key].append(Change(self.changes, value))
            return
        if committed is None:
            for pending in self._pending.values():
                pending[:] = [one for one in pending if one.key != key]
        else:
            self._plain[key].append(Change(self.changes, value))
            if self._committed(key) != value:
                self._check_source(key, value)
        self._apply(key, value, self.changes)

    def _committed(self, key: Key) -> Value:
        return self._history[key][-1].value if self._history[key] else NOTHING

    def _apply(self, key: Key, value: Value, number: int) -> None:
        self._newest[key] = number
        self._history[key].append(Change(self.changes, value))

    def _check_source(self, key: Key, value: Value) -> None:
        """Check that a client has sent this offset, and might commit it at this place."""
        sources = self._sent[key, value]
        name = f"{key[0]} commits {value.offset} of {key[1].topic}-{key[1].partition}"
        faults = [self._members.fault_of(one.request, key[1]) for one in sources]
        if not sources:
            self._violated(f"commit-sent: {name}, and no client has sent it")
        elif all(faults):
            self._violated(f"fenced-commit: {name} for {faults[-1]}")

    def ends(self, partition: int, marker: TransactionMarker) -> None:
        """Apply a marker: it commits or drops the pending offsets of its producer."""
        self.changes += 1
        for key, value, number in self._pending.pop((partition, marker.producer_id), ()):
            if marker.commits and number > self._newest.get(key, 0):
                self._apply(key, value, number)

    # --- clients ---

    def asked(self, exchange: Exchange) -> None:
        """Record a request that arrives: OffsetCommit."""
        exchange.is_fenced = self.is_late(exchange.request)
        for where, sent in self._sent_in(exchange.request):
            value = Value(sent.committed_offset, sent.committed_metadata or "")
            self._sent[(exchange.request.group_id, where), value].append(exchange)

    def _sent_in(self, message: Any) -> Iterator[tuple[TopicPartition, Any]]:
        """Yield (partition, its part) of a message with topics."""
        for topic in message.topics:
            name = topic.name or self._names(getattr(topic, "topic_id", b"")) or ""
            for one in topic.partitions if name else ():
                yield TopicPartition(name, one.partition_index), one

    def is_late(self, commit: Any) -> bool:
        """Return whether an OffsetCommit must be refused from now on."""
        places = [where for where, _ in self._sent_in(commit)]
        return bool(places) and all(self._members.fault_of(commit, where) for where in places)

    def committed(self, exchange: Exchange) -> None:
        """Check the response to an OffsetCommit or a TxnOffsetCommit."""
        is_plain = exchange.header.api_key != TXN_OFFSET_COMMIT
        written, mark = (self._plain, exchange.mark) if is_plain else (self._transactional, 0)
        sent = dict(self._sent_in(exchange.request))
        for where, answer in self._sent_in(exchange.response):
            if answer.error_code != ErrorCode.NONE or where not in sent:
                continue
            known = sent[where]
            value = Value(known.committed_offset, known.committed_metadata or "")
            changes = written[exchange.request.group_id, where]
            if not any(one.value == value and one.number > mark for one in changes):
                self._violated(
                    f"acked-committed: node {exchange.node_id} acknowledges {value.offset} of "
                    f"{where.topic}-{where.partition} to {exchange.request.group_id}, and it is "
                    "not in the committed log"
                )

    def fetched(self, exchange: Exchange, *, is_current: bool) -> None:
        """Check the response to an OffsetFetch. `is_current`: of the newest leader."""
        response, request = exchange.response, exchange.request
        groups = response.groups or [response]
        for group in groups:
            group_id = getattr(group, "group_id", "") or request.group_id
            if group.error_code != ErrorCode.NONE or not group_id:
                continue
            for where, shown in self._sent_in(group):
                if shown.error_code == ErrorCode.NONE:
                    value = Value(shown.committed_offset, shown.metadata or "")
                    self._check_shown((group_id, where), value, exchange, is_current=is_current)

    def _check_shown(self, key: Key, value: Value, exchange: Exchange, *, is_current: bool) -> None:
        group_id, (topic, partition) = key
        name = (
            f"node {exchange.node_id} returns {value.offset} of {topic}-{partition} to {group_id}"
        )
        history = [Change(0, NOTHING), *self._history[key]]
        if all(value != one.value for one in history):
            self._violated(f"fetched-committed: {name}, which was never committed")
            return
        if not is_current:
            return
        first = max(at for at, one in enumerate(history) if one.number <= exchange.mark)
        may_be_hidden = value == NOTHING and self._is_of_earlier_topic(key)
        if not may_be_hidden and all(value != one.value for one in history[first:]):
            self._violated(f"offset-lost: {name}, and {history[-1].value.offset} is committed")
        is_pending = any(
            one.key == key and one.number <= exchange.mark
            for pending in self._pending.values()
            for one in pending
        )
        if exchange.request.require_stable and is_pending:
            self._violated(f"unstable-shown: {name}, beside a pending commit")

    def _is_of_earlier_topic(self, key: Key) -> bool:
        """Return whether the topic was deleted and created again since the last commit."""
        committed_for = self._committed_for.get(key, ZERO_TOPIC_ID)
        present = self._topic_ids.get(key[1].topic, committed_for)
        return committed_for not in {ZERO_TOPIC_ID, present}
