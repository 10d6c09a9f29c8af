"""Checks the nodes of a run after every turn of the loop, and reports each violated rule.

A wrapper around each replica's invariants notifies it of every step; it compares the nodes'
metadata itself. It models the cluster, not the code: committed batches, leaders by epoch, and the
replicas that must hold the batches.

    one-leader         a leader epoch of a partition, or of the quorum, has one leader
    committed-agree    below the high watermark all replicas hold the same batches, for ever; in a
                       compacted topic a batch may have lost records, and an empty batch may
                       replace others: the workload checks the remaining records
    committed-kept     only committed records are deleted: no log starts above them
    in-sync-served     no throttle delays a follower in the ISR
    committed-served   consumers are served no record above the replica's high watermark
    isr-complete       leaders, and running members of ISR and ELR, hold all committed records
    created-whole      a topic has all the partitions of a creation request, or none of them
    moved-known        a log moves to another log directory only after the committed metadata
                       names that directory
    placed-registered  a new partition has replicas only on registered brokers
    metadata-agree     committed metadata is the same on every node, for ever
    awaited            a group, member or id that waits has a write under way, or a tick to come

`coordination_oracle` has the rules of groups and transactions, `voter_oracle` those of the voters;
`copies` has the rules for faults that destroy copies.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.partition_state import PartitionState
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.chaos.back_ends.admin_churner import GROWN, TOPIC_PREFIX
from quorumlog.chaos.node_simulation.committed_log import CommittedLog
from quorumlog.chaos.node_simulation.coordination_oracle import CoordinationOracle
from quorumlog.chaos.node_simulation.copies import Copied, Copies
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.chaos.node_simulation.voter_oracle import VoterOracle
from quorumlog.chaos.node_simulation.watched_rules import Violated, watched
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader as QuorumLeader
from quorumlog.metadata_quorum.core.roles import Role
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.node.node import Node
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, iterate_headers
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

IMAGES_MAX: Final = 50  # the newest images, which are compared
AWAITED_TURNS: Final = 20  # turns between two checks of all replicas, groups and ids


@dataclass(slots=True)
class _Replica:
    """One replica in one process, with the offset up to which it was compared."""

    node_id: int
    node: Node
    driver: PartitionDriver
    log_directory: str
    compared_to: int = 0


class _MetadataState(NamedTuple):
    """The metadata of one node, as far as a rule reads it: most turns change nothing of it."""

    node: Node
    image: ClusterImage
    role: Role
    leader_epoch: int
    high_watermark: int
    end: int
    has_failed: bool

    def is_same(self, other: "_MetadataState | None") -> bool:
        """Return whether nothing has changed; objects count by their identity."""
        return (
            other is not None
            and self[3:] == other[3:]
            and self.node is other.node
            and self.image is other.image
            and self.role is other.role
        )


@dataclass(slots=True)
class _Partition:
    """The model of one partition of a topic id."""

    committed: CommittedLog = field(default_factory=CommittedLog)
    leaders: dict[int, int] = field(default_factory=dict)  # leader epoch -> node


class Oracle:
    """The model of one run. Call `look` after each turn."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        voters: Collection[int],
        violated: Violated,
        *,
        copies: Copies | None = None,
    ) -> None:
        """Begin with these voters. `copies`: if faults destroy copies."""
        self._copies: Final = copies
        self._machines: Final = machines
        self.voters: Final = VoterOracle(voters, violated)
        self.coordination: Final = CoordinationOracle(violated, self._leads)
        self._violated: Final = violated
        self._changed: Final[dict[int, PartitionState]] = {}  # by its identity, in order
        self._replicas: Final[dict[int, _Replica]] = {}
        self._partitions: Final[dict[tuple[TopicId, TopicPartition], _Partition]] = {}
        self._metadata: Final = CommittedLog()
        self._images: Final[dict[int, tuple[object, ...]]] = {}  # end offset -> content
        self._quorum_leaders: Final[dict[int, int]] = {}
        self._compared: Final[dict[int, tuple[Node, int]]] = {}  # metadata end offset, by node
        self._states: Final[dict[int, _MetadataState]] = {}  # at the last look, by node
        self._levels: Final[dict[int, Mapping[str, int]]] = {}  # of features, at that offset
        self._image: ClusterImage | None = None
        self._appended = 0  # the greatest metadata log end offset of a node, ever
        self._appended_at_loss = 0  # its value when a fault last damaged copies
        self._has_older_decisions = False  # the image's last change may predate that fault
        self.looks = 0
        self._turns = 0
        self._looked_at = self._waits_at = 0  # the newest callback of a node at the last check

    def watching(self, rules: PartitionRules) -> PartitionRules:
        """Return the rules, wrapped to notify this oracle of each step and each read."""
        return watched(rules, self._changed, self._violated)

    def look(self) -> None:
        """Check all changes since the last call."""
        is_new_image = self._look_at_metadata()
        if self._changed or is_new_image:
            self._look_at_changes(is_new_image=is_new_image)
        self.coordination.is_over |= self._copies is not None and bool(self._copies.losses)
        self.coordination.look()
        self._turns += 1
        if self._turns % AWAITED_TURNS == 0:
            self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        checked_at, self._waits_at = self._waits_at, self._looked_at
        for node_id, machine in sorted(self._machines.items()):
            process, broker = machine.process, None if machine.node is None else machine.node.broker
            if broker is None or process is None or process.newest_callback <= checked_at:
                continue
            for service in (broker.replicas, broker.groups, broker.transactions):
                try:
                    service.check_progress()
                except InvariantViolation as stalled:
                    self._violated(f"awaited: node {node_id}: {stalled}")

    def _look_at_changes(self, *, is_new_image: bool) -> None:
        self.looks += 1
        touched: dict[tuple[TopicId, TopicPartition], None] = {}
        for identity, state in [*self._changed.items()]:
            replica = self._replicas.get(identity) or self._find(identity, state)
            if replica is None:
                continue  # it is not, or no longer, in its node's table
            if replica.driver.is_truncating:
                continue  # a thread truncates its log: check it later
            del self._changed[identity]
            self._look_at_replica(replica, state)
            touched[_key(replica)] = None
        for key in [*self._partitions] if is_new_image else touched:
            self._look_at_copies(key)
            self._check_holders(key)

    def _find(self, identity: int, state: PartitionState) -> _Replica | None:
        """Return the driver of a state, or None. A state of a dead node is dropped."""
        node = self._node(state.broker_id)
        if node is None or node.broker is None:
            del self._changed[identity]
            return None
        for driver in node.broker.replicas.drivers.values():
            if driver.partition.state is state:
                replica = _Replica(int(state.broker_id), node, driver, driver.log.directory)
                self._replicas[identity] = replica
                return replica
        return None

    def _node(self, node_id: int) -> Node | None:
        return self._machines[node_id].node

    # --- partitions ---

    def _look_at_replica(  # noqa: C901 - one branch per rule
        self, replica: _Replica, state: PartitionState
    ) -> None:
        if self._node(replica.node_id) is not replica.node:
            return  # its process has died in this turn
        key = _key(replica)
        partition = self._partitions.setdefault(key, _Partition())
        name = _name(key)
        if state.is_leader:
            self._look_at_leader(key, replica.node_id, state)
        if replica.log_directory != replica.driver.log.directory:
            self._look_at_move(replica)
        high_watermark, lost_in = state.high_watermark, self._lost_in(key)
        if state.leader_epoch <= lost_in:
            return  # the commits of this leader epoch may be lost
        if lost_in >= 0 and not state.is_leader:
            if not self._is_member(key, replica.node_id):
                return  # its high watermark is from before the loss, or from an old directory
            high_watermark = min(high_watermark, Offset(partition.committed.end_offset))
        replica.compared_to = min(replica.compared_to, high_watermark)  # it may be truncated
        has_failed = replica.driver.log.failure is not None  # a failed log is not served either
        if high_watermark > replica.compared_to and not has_failed:
            headers = replica.driver.log.headers(replica.compared_to)
            different = partition.committed.take(
                headers, high_watermark, is_compacted=self._is_compacted(key)
            )
            if different:
                self._violated(f"committed-agree: {name}: node {replica.node_id}: {different}")
            replica.compared_to = high_watermark
            if not different and lost_in < 0:
                self.coordination.committed(*key, replica.driver.log, high_watermark)
        committed = partition.committed.end_offset
        if state.log_start_offset > committed and not has_failed and lost_in < 0:
            self._violated(
                f"committed-kept: {name}: node {replica.node_id} starts at "
                f"{state.log_start_offset}, and {committed} records are committed"
            )

    def _look_at_leader(
        self, key: tuple[TopicId, TopicPartition], node_id: int, state: PartitionState
    ) -> None:
        partition, name = self._partitions[key], _name(key)
        is_new = state.leader_epoch not in partition.leaders
        leader = partition.leaders.setdefault(state.leader_epoch, node_id)
        if leader != node_id:
            self._violated(
                f"one-leader: {name}: nodes {leader} and {node_id} lead epoch {state.leader_epoch}"
            )
        if state.leader_epoch < max(partition.leaders):
            return  # it is a deposed leader
        if state.log_end_offset < partition.committed.end_offset:
            self._violated(
                f"isr-complete: {name}: node {node_id} leads epoch {state.leader_epoch} with "
                f"{state.log_end_offset} records, and {partition.committed.end_offset} are "
                "committed"
            )
        copied = self._copied(key) if is_new else None
        if self._copies is not None and copied is not None:
            self._copies.look_at_leader(copied, node_id, state.log_end_offset, self._violated)

    def _look_at_move(self, replica: _Replica) -> None:
        """Check a replica's move to another log directory, and compare its log from the start."""
        replica.log_directory, replica.compared_to = replica.driver.log.directory, 0
        topic_id, at = _key(replica)
        topic = None if self._image is None else self._image.topics.get(at.topic)
        if topic is None or topic.topic_id != topic_id or replica.node.broker is None:
            return
        known = topic.partitions[at.partition].directory_of(BrokerId(replica.node_id))
        home = replica.node.broker.replicas.descriptions.directory_of(at)
        if known != home:
            self._violated(
                f"moved-known: {at.topic}-{at.partition}: node {replica.node_id} has moved it to "
                f"{replica.log_directory}, and the metadata names another directory"
            )

    def _is_compacted(self, key: tuple[TopicId, TopicPartition]) -> bool:
        """Whether the cleaner may have removed records; in __consumer_offsets it removes none."""
        topic = None if self._image is None else self._image.topics.get(key[1].topic)
        if topic is None or key[1].topic == OFFSETS_TOPIC:
            return False
        return "compact" in topic.configs.get("cleanup.policy", "")

    def _check_holders(self, key: tuple[TopicId, TopicPartition]) -> None:
        """Check that each running member of ISR and ELR holds all committed records."""
        topic_id, at = key
        image, partition = self._image, self._placed(key)
        if image is None or partition is None:
            return
        committed = self._partitions[key].committed.end_offset
        for member in sorted({*partition.isr, *partition.elr}):
            node = self._node(member)
            broker = None if node is None else node.broker
            registered = image.brokers.get(member)
            if broker is None or registered is None:
                continue
            if registered.broker_epoch != broker.replicas.broker_epoch or registered.fenced:
                continue  # this process is not registered yet, or is fenced
            driver = broker.replicas.drivers.get(at)
            if driver is None or driver.topic_id != topic_id or driver.is_truncating:
                continue
            held = driver.partition.state.log_end_offset
            if held < committed:
                self._violated(
                    f"isr-complete: {at.topic}-{at.partition}: node {member} of ISR "
                    f"{sorted(partition.isr)} and ELR {sorted(partition.elr)} holds {held} "
                    f"records, and {committed} are committed"
                )

    def _is_member(self, key: tuple[TopicId, TopicPartition], node_id: int) -> bool:
        image = self._placed(key)
        return image is not None and node_id in {*image.isr, *image.elr}

    def _placed(self, key: tuple[TopicId, TopicPartition]) -> PartitionImage | None:
        """Return the partition in the newest metadata; None: it is deleted."""
        topic_id, at = key
        topic = None if self._image is None else self._image.topics.get(at.topic)
        is_there = topic is not None and topic.topic_id == topic_id
        return topic.partitions[at.partition] if topic is not None and is_there else None

    def leader_of(self, at: TopicPartition) -> int | None:
        """Return the leader of a partition in the newest metadata; None: it has none."""
        topic = None if self._image is None else self._image.topics.get(at.topic)
        return None if topic is None else topic.partitions[at.partition].leader_id

    def _leads(self, at: TopicPartition, node_id: int) -> bool:
        """Whether a node leads a partition in the newest leader epoch of metadata and replicas."""
        topic = None if self._image is None else self._image.topics.get(at.topic)
        if topic is None:
            return False
        placed = topic.partitions[at.partition]
        known = self._partitions.get((topic.topic_id, at))
        epoch = placed.leader_epoch
        return known is not None and known.leaders.get(epoch) == node_id == placed.leader_id

    # --- copies ---

    def copies_changed(self, node_id: int) -> None:
        """Check all partitions after a fault has damaged the copies on a machine."""
        self._appended_at_loss = self._appended
        for key in self._partitions:
            self._look_at_copies(key, worse_on=node_id)

    def _look_at_copies(
        self, key: tuple[TopicId, TopicPartition], worse_on: int | None = None
    ) -> None:
        copied = self._copied(key)
        if self._copies is None or copied is None:
            return
        if not self._copies.look(copied, worse_on, is_decided_before=self._has_older_decisions):
            return
        for replica in self._replicas.values():  # the committed log was cut: compare again
            if _key(replica) == key:
                replica.compared_to = 0

    def _copied(self, key: tuple[TopicId, TopicPartition]) -> Copied | None:
        image, known = self._placed(key), self._partitions[key]
        if image is None:
            return None
        epoch = max([image.leader_epoch, *known.leaders])
        return Copied(key, image, known.committed, epoch, self._is_compacted(key))

    def _lost_in(self, key: tuple[TopicId, TopicPartition]) -> int:
        return -1 if self._copies is None else self._copies.lost_in(key)

    # --- metadata ---

    def _look_at_metadata(self) -> bool:
        """Check the metadata of all nodes; return whether a node has a newer image."""
        is_new, looked_at = False, self._looked_at
        for node_id, machine in self._machines.items():
            node, process = machine.node, machine.process
            if node is None or process is None or process.newest_callback <= looked_at:
                continue
            self._looked_at = max(self._looked_at, process.newest_callback)
            image, quorum = node.quorum.image, _quorum(node)
            state = _MetadataState(
                node,
                image,
                quorum.state.role,
                quorum.state.leader_epoch,
                node.quorum._driver._controllership.high_watermark,  # noqa: SLF001 - as above
                node.quorum._log.end_offset,  # noqa: SLF001 - committed or not
                node.quorum._log._log.failure is not None,  # noqa: SLF001 - about to end
            )
            is_known = state.is_same(self._states.get(node_id))
            if is_known and image.features == self._levels.get(node_id, image.features):
                continue
            self._states[node_id] = state
            if isinstance(quorum.state.role, QuorumLeader):
                leader = self._quorum_leaders.setdefault(quorum.state.leader_epoch, node_id)
                if leader != node_id:
                    self._violated(
                        f"one-leader: nodes {leader} and {node_id} lead the quorum's epoch "
                        f"{quorum.state.leader_epoch}"
                    )
            if not state.has_failed:
                self.voters.look(node_id, node)
            self._appended = max(self._appended, state.end)
            known = self._compared.get(node_id)
            compared_to = known[1] if known is not None and known[0] is node else 0
            if image.end_offset > compared_to and not state.has_failed:
                self._compare_metadata(node_id, node, compared_to, image.end_offset)
                self._levels[node_id] = {**image.features}
            elif 0 < image.end_offset == compared_to and image.features != self._levels[node_id]:
                self._violated(f"metadata-agree: node {node_id}: a level changed without a record")
            if self._image is None or image.end_offset > self._image.end_offset:
                self._check_placement(image)
                before = 0 if self._image is None else self._image.end_offset
                self._has_older_decisions = before < self._appended_at_loss
                self._image, is_new = image, True
                self.coordination.has_image(image)
        return is_new

    def _check_placement(self, image: ClusterImage) -> None:
        """Check the number and the replicas of new partitions."""
        before = self._image or image
        registered = {*before.brokers, *image.brokers}
        for name, topic in image.topics.items():
            known = before.topics.get(name)
            is_known = known is not None and known.topic_id == topic.topic_id
            first = len(known.partitions) if known is not None and is_known else 0
            count = len(topic.partitions)
            if name.startswith(TOPIC_PREFIX) and count not in {first, GROWN} and first > 0:
                self._violated(f"created-whole: {name} had {first} partitions, and now {count}")
            for index, partition in enumerate(topic.partitions[first:], start=first):
                if strangers := {*partition.replicas} - registered:
                    self._violated(
                        f"placed-registered: {name}-{index} is placed on {sorted(strangers)}"
                    )

    def _compare_metadata(self, node_id: int, node: Node, start: int, end: int) -> None:
        start = max(start, node.quorum._log.start_offset)  # noqa: SLF001 - as above
        different = self._metadata.take(_metadata_headers(node, start, end), end)
        different = different or self._compare_image(node.quorum.image)
        if different:
            self._violated(f"metadata-agree: node {node_id}: {different}")
        self._compared[node_id] = (node, end)

    def _compare_image(self, image: ClusterImage) -> str:
        """Compare an image with other nodes' images at its end offset; return the difference."""
        content = (
            image.brokers,
            image.topics,
            image.topic_names,
            image.broker_configs,
            image.group_configs,
            image.client_metrics,
            image.access,
            image.next_producer_id,
            {**image.features},
            image.automatic_levels,
        )
        known = self._images.setdefault(image.end_offset, content)
        if len(self._images) > IMAGES_MAX:
            del self._images[min(self._images)]
        return "" if known == content else f"the image up to {image.end_offset} is another one"


def _quorum(node: Node) -> Quorum:
    return node.quorum._quorum  # noqa: SLF001 - an oracle reads private state


def _metadata_headers(node: Node, start: int, end: int) -> Iterable[BatchHeader]:
    """Yield the headers of committed batches. `start`: the base offset of a batch."""
    log, offset = node.quorum._log, start  # noqa: SLF001 - as above
    while offset < end:
        for _, header in iterate_headers(log.read(Offset(offset), Offset(end))):
            offset = header.next_offset
            yield header


def _name(key: tuple[TopicId, TopicPartition]) -> str:
    return f"{key[1].topic}-{key[1].partition}"


def _key(replica: _Replica) -> tuple[TopicId, TopicPartition]:
    return replica.driver.topic_id, replica.driver.topic_partition
