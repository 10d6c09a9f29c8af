"""The state of the group in the committed log: the witness of the oracle.

It reads records in Kafka's formats, and models no rule of the coordinator.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    RecordKind,
    TargetMemberValue,
    Value,
    from_stored,
)
from quorumlog.broker.groups.core.records import GroupRecord, OffsetRecord, StoredGroup, decode
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.schemas import decode_message

VERSION_BYTES: Final = 2
Named = frozenset[TopicPartition]


class LogReader(Protocol):
    """Receives the events of the log, in its order."""

    def removed(self, member_id: str, leader_epoch: int) -> None:
        """Handle a batch of the leader of this epoch that removes a member."""

    def generation_began(self, stored: StoredGroup, leader_epoch: int) -> None:
        """Handle the step of a classic group from an older generation to this one."""

    def stored(self, tag: str) -> None:
        """Handle a committed offset with this tag; `epochs` is the state before it."""


class GroupLog:
    """The state of the group at the end of the records read so far.

    members: the instance id of each member, of either protocol.
    epochs: the member epoch, or the generation of a classic group, by member.
    currents, targets: the assignments of members of a consumer group.
    since: the member epoch since which a consumer member has owned a partition, by topic name.
    said: all assignments that the log has for a member at an epoch.
    removals: how often a member was removed. It may come back under its id, and in a group that
    was deleted meanwhile the epochs begin again.
    said_after: the removals of a member when the log last had a record of it at this epoch.
    """

    def __init__(self, committed: Callable[[], Sequence[Entry]], names: Mapping[TopicId, str]):
        """Prepare to read the log. `committed` returns its records; `names`: of all topics."""
        self.members: Mapping[str, str | None] = {}
        self.epochs: Final[dict[str, int]] = {}
        self.currents: Final[dict[str, Partitions]] = {}
        self.targets: Final[dict[str, Partitions]] = {}
        self.since: Final[dict[str, dict[TopicPartition, int]]] = {}
        self.said: Final[dict[tuple[str, int], set[Partitions]]] = defaultdict(set)
        self.said_by_name: Final[dict[tuple[str, int], set[Named]]] = defaultdict(set)
        self.removals: Final[dict[str, int]] = defaultdict(int)
        self.said_after: Final[dict[tuple[str, int], int]] = {}
        self.offsets: Final[dict[str, int]] = {}  # tag -> log offset
        self.classic: StoredGroup | None = None
        self.reader: LogReader
        self._committed: Final = committed
        self._names: Final = names
        self._end = 0
        self._group_epoch: int | None = None
        self._consumers: Final[dict[str, str | None]] = {}
        self._erased: set[str] = set()  # in the current batch
        self._begun_anew: set[str] = set()  # written again in the same batch

    @property
    def is_consumer_group(self) -> bool:
        """Whether the group has the consumer protocol."""
        return self._group_epoch is not None

    def names_of(self, partitions: Partitions) -> Named:
        """Return partitions by the names of their topics."""
        return frozenset(TopicPartition(self._names[one.topic_id], one[1]) for one in partitions)

    def read_on(self) -> None:
        """Read the records committed since the last call."""
        entries = self._committed()
        while self._end < len(entries):
            end = self._end + 1
            while end < len(entries) and entries[end].position:
                end += 1
            self._read_batch(entries[self._end : end])

    def _read_batch(self, batch: Sequence[Entry]) -> None:
        """Read a batch, and compare the members before and after it."""
        before, old = self.members, self.classic
        self._erased, self._begun_anew = set(), set()
        for entry in batch:
            if entry.key:
                self._read(entry)
            self._end += 1
        is_one = self.classic is None or not self.is_consumer_group
        check(is_one, f"one-form: the group has two protocols at {self._end}")
        new = self.classic
        if old is not None and new is not None and new.generation_id > old.generation_id:
            self.reader.generation_began(new, batch[0].epoch)
        classic = () if new is None else new.members
        self.members = {
            **self._consumers,
            **{member.member_id: member.group_instance_id for member in classic},
        }
        for member_id in before:
            if member_id not in self.members:
                self.removals[member_id] += 1
            if member_id not in self.members or member_id in self._begun_anew:
                self.reader.removed(member_id, batch[0].epoch)

    def _read(self, entry: Entry) -> None:
        record = decode(entry.key, entry.content or None)
        match record:
            case OffsetRecord(committed=committed) if committed is not None:
                self.offsets.setdefault(committed.metadata, self._end)
                self.reader.stored(committed.metadata)
            case GroupRecord(stored=stored):
                self._read_classic(stored)
            case ConsumerGroupRecord(subject=subject, value=value):
                self._read_consumer(subject.name, value, subject.kind)
            case _:
                pass

    def _read_classic(self, stored: StoredGroup | None) -> None:
        for member in () if self.classic is None else self.classic.members:
            self.epochs.pop(member.member_id, None)
        self.classic = stored
        for member in () if stored is None else stored.members:
            generation_id = 0 if stored is None else stored.generation_id
            self.epochs[member.member_id] = generation_id
            named = assignment_of(member.assignment)
            self._say(member.member_id, generation_id, named)

    def _read_consumer(self, name: str, value: Value | None, kind: RecordKind) -> None:
        match value:
            case GroupValue(epoch=epoch):
                known = self._group_epoch
                rises = known is None or epoch > known or not self._consumers
                check(rises, f"epoch-rises: the group comes from {known} to {epoch}")
                self._group_epoch = epoch
            case MemberValue():
                self._consumers[name] = value.instance_id
                if name in self._erased:
                    self.removals[name] += 1
                    self._begun_anew.add(name)
            case TargetMemberValue(topic_partitions=stored):
                self.targets[name] = from_stored(stored)
            case CurrentAssignmentValue():
                self.epochs[name] = value.member_epoch
                assigned = self.currents[name] = from_stored(value.assigned_partitions)
                pending = from_stored(value.partitions_pending_revocation)
                before = self.since.get(name, {})
                self.since[name] = {
                    one: before.get(one, value.member_epoch)
                    for one in self.names_of(assigned | pending)
                }
                self.said[name, value.member_epoch].add(assigned)
                self._say(name, value.member_epoch, self.names_of(assigned))
            case None:
                self._forget(name, kind)
            case _:
                pass

    def _say(self, member_id: str, epoch: int, named: Named) -> None:
        self.said_by_name[member_id, epoch].add(named)
        self.said_after[member_id, epoch] = self.removals[member_id]

    def _forget(self, name: str, kind: RecordKind) -> None:
        match kind:
            case RecordKind.GROUP:
                self._group_epoch = None
            case RecordKind.MEMBER:
                self._consumers.pop(name, None)
                self._erased.add(name)
                self.epochs.pop(name, None)
            case RecordKind.TARGET_MEMBER:
                self.targets.pop(name, None)
            case RecordKind.CURRENT_ASSIGNMENT:
                self.currents.pop(name, None)
                self.since.pop(name, None)
                self.epochs.pop(name, None)
            case _:
                pass


def assignment_of(data: bytes) -> Named:
    """Decode the assignment of a SyncGroup response; empty bytes hold no partition."""
    if not data:
        return frozenset()
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    message = decode_message(ConsumerProtocolAssignment, version, memoryview(data)[VERSION_BYTES:])
    return frozenset(
        TopicPartition(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )
