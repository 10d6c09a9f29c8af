"""Any schedule of brokers that come, go and propose: the rules hold after each step."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.metadata_quorum.cluster_changes import (
    ConfigChange,
    ConfigChanges,
    Outcomes,
    UnregisterBroker,
)
from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller_client import IsrProposal, NewPartitions, NewTopic
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    CreatePartitions,
    DeleteTopics,
    IsrResults,
)
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_CLUSTER_MIN_ISR,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.model import BrokerImage, ClusterImage, PartitionImage
from quorumlog.metadata_quorum.image.replay import check_partition
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, PartitionIndex, TopicId
from tests.support.metadata_quorum.controller_steps import ALL, SCHEDULES, TROUBLES, WRITERS
from tests.support.metadata_quorum.controllers import Bench, T, image_of, one_at_once
from tests.support.metadata_quorum.indexes import check_index
from tests.support.sizes import examples


class World(Bench):
    """A bench whose methods are the steps; `written` is what the last step appended.

    `disks`: how often each broker's disk was replaced, and its machine started. `holders`: who has
    every record of a partition that was acknowledged, if as many are as may be. `begins_at`: the
    level of a cluster that broker 1 founds with an older release, if it is lower than the newest;
    it may rise once that broker has come back.
    """

    written = 0
    begins_at = NEWEST_LEVEL

    def __post_init__(self) -> None:
        self.controller_class = one_at_once()
        super().__post_init__()
        self.least = dict.fromkeys(ALL, 1)  # min.insync.replicas in their configurations
        self.disks = dict.fromkeys(ALL, (0, 0))
        self.processes = dict.fromkeys(ALL, "")
        self.closed = dict.fromkeys(ALL, -1)
        self.holders: dict[tuple[TopicId, int], set[int]] = {}
        self.were_emptied = False

    def do(self, step: tuple[Any, ...]) -> None:
        if step[0] != "fail_over":  # else what was decided last is not committed
            self.acknowledge()
        before = len(self.log)
        getattr(self, f"do_{step[0]}")(*step[1:])
        self.written = len(self.log) - before if step[0] in WRITERS else 0

    def begin(self) -> None:
        self.features = {METADATA_FEATURE: (1, self.begins_at)}
        self.do_register(1, "x", 0)
        self.features = ANNOUNCED
        for broker_id in (1, 2, 3):
            self.do_register(broker_id, "x", 0)
            self.heartbeat(broker_id)
        self.do_create("a", 2, 3)
        self.acknowledge()

    def carry_out(self, decision: Decision[T]) -> T:
        """A decision may be cut off behind any record: that is a legal state, too."""
        for record in decision.records:
            super().carry_out(replace(decision, records=(record,)))
            brokers = self.controller.cluster.brokers.values()
            unfenced = {broker.broker_id for broker in brokers if not broker.fenced}
            assert all({*partition.isr} <= unfenced for _, partition in self.all()), record
        return decision.response

    def do_register(self, broker_id: int, incarnation: str, address: int) -> None:
        directory, boot = self.disks[broker_id]
        process = f"{incarnation}-{directory}-{boot}-{self.closed[broker_id]}"
        reply = self.register(
            broker_id,
            process,
            address * (19100 + broker_id),
            directory=f"{broker_id}-{directory}",
            boot=f"{boot}",
            previous_broker_epoch=self.closed[broker_id],
            min_insync_replicas=self.least[broker_id],
        )
        if reply.error_code is ErrorCode.NONE:
            self.processes[broker_id] = process

    def do_come_back(self, broker_id: int, fate: str) -> None:
        """Another process of the broker registers, after what became of the one before."""
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        directory, boot = self.disks[broker_id]
        self.closed[broker_id] = -1
        if fate == "wiped":
            self.die(broker_id)  # else it has to wait until its predecessor's session ends
        if fate == "closed" and broker is not None and self.is_running(broker):
            self.closed[broker_id] = broker.broker_epoch
        self.disks[broker_id] = (
            directory + (fate == "wiped"),
            boot + (fate in {"closed", "lost_power"}),
        )
        if fate in {"lost_power", "wiped"}:
            for holders in self.holders.values():
                holders.discard(broker_id)
            self.were_emptied = True
        self.do_register(broker_id, f"after {len(self.log)}", 0)
        if fate == "lost_power":  # the last one is taken as it is
            for key, partition in self.all():
                if {*partition.isr, *partition.elr} == {broker_id}:
                    self.holders.setdefault(key, set()).add(broker_id)

    def is_running(self, broker: BrokerImage) -> bool:
        """Tell whether the process that registered is there: another neither serves nor fetches."""
        return broker.incarnation_id == self.processes[broker.broker_id]

    def all(self) -> Iterator[tuple[tuple[TopicId, int], PartitionImage]]:
        for topic in image_of(self.controller.cluster).topics.values():
            for index, partition in enumerate(topic.partitions):
                yield (topic.topic_id, index), partition

    def acknowledge(self) -> None:
        """Whoever leads has all that was acknowledged; as much as can be is, once more."""
        cluster, image = self.controller.cluster, image_of(self.controller.cluster)
        for key, partition in self.all():
            holders = self.holders.setdefault(key, {*partition.replicas})
            members = [cluster.brokers[b] for b in partition.isr]
            if not all(map(self.is_running, members)):
                continue
            if members:
                assert partition.leader_id in holders, (key, partition, holders)
                holders |= {*partition.isr}
            if members and len(members) >= min_isr(image, key[0], partition):
                self.holders[key] = {*partition.isr}

    def do_heartbeat(self, broker_id: int, behind: bool, fence: bool, stop: bool) -> None:
        offset = -1 if behind else len(self.log) - 1
        self.heartbeat(broker_id, metadata_offset=offset, want_fence=fence, want_shut_down=stop)

    def do_died(self, broker_id: int) -> None:
        self.die(broker_id)

    def do_died_half_way(self, broker_id: int, lost: int) -> None:
        """The controller dies while it fences the broker."""
        written = len(self.log)
        self.die(broker_id)
        self.written = len(self.log) - written
        self.do_fail_over(lost)

    def do_unregister(self, broker_id: int) -> None:
        """Forget a broker that nothing needs: what its disk holds counts no more."""
        cluster = self.controller.cluster
        broker = cluster.brokers.get(BrokerId(broker_id))
        is_needed = broker is None or not broker.fenced or self.holds_alone(broker_id)
        outcomes = self.ask(UnregisterBroker(broker_id=BrokerId(broker_id)))
        assert isinstance(outcomes, Outcomes)
        assert (outcomes.results[0].error_code is ErrorCode.NONE) is not is_needed
        assert is_needed or broker_id not in cluster.brokers
        for _, partition in self.all():
            assert is_needed or broker_id not in {*partition.isr, *partition.elr}

    def holds_alone(self, broker_id: int) -> bool:
        return any({*one.isr, *one.elr} == {broker_id} for _, one in self.all())

    def do_wait(self, time_ms: int) -> None:
        self.now_ms += time_ms
        while self.carry_out(self.controller.decide_expiry(self.now_ms)) is not None:
            pass

    def do_create(self, name: str, partitions: int, replication_factor: int) -> None:
        self.create(
            NewTopic(name=name, partitions=partitions, replication_factor=replication_factor)
        )

    def do_grow(self, name: str, partitions: int) -> None:
        self.ask(CreatePartitions(topics=(NewPartitions(name=name, count=partitions),)))

    def do_delete(self, name: str) -> None:
        topic_id = self.controller.cluster.topic_id(name)
        self.ask(DeleteTopics(topic_ids=(topic_id or TopicId(b"?" * 16),)))

    def do_min_isr(self, name: str, least: int) -> None:
        change = ConfigChange(name="min.insync.replicas", value=str(least))
        self.ask(AlterConfigs(topics=(ConfigChanges(name=name, changes=(change,)),)))

    def do_cluster_min_isr(self, least: int) -> None:
        """Give all topics that set none another number."""
        change = ConfigChange(name="min.insync.replicas", value=str(least))
        wanted = ConfigChanges(name="", changes=(change,), is_broker=True)
        self.ask(AlterConfigs(topics=(wanted,)))

    def do_prefer(self, name: str, index: int) -> None:
        before = self.controller.cluster.partition(name, index)
        [result] = self.elect((name, index))
        after = self.controller.cluster.partition(name, index)
        if before is None or after is None:
            assert result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif result.error_code is ErrorCode.NONE:
            assert after.leader_id == after.replicas[0] != before.leader_id
            assert after.leader_epoch == before.leader_epoch + 1 == result.leader_epoch
            assert after.isr == before.isr
        else:
            assert after == before
            assert before.leader_id == before.replicas[0] or before.replicas[0] not in before.isr

    def do_reassign(self, name: str, index: int, target: list[int] | None) -> None:
        before = self.controller.cluster.partition(name, index)
        [result] = self.reassign((name, index, None if target is None else tuple(target)))
        after = self.controller.cluster.partition(name, index)
        if before is None or after is None:
            assert result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif result.error_code is not ErrorCode.NONE:
            assert after == before
        else:
            wanted = {*target} if target else {*before.replicas} - {*before.adding_replicas}
            assert {*after.replicas} - {*after.removing_replicas} == wanted
            assert after.is_reassigned or {*after.replicas} == wanted

    def do_alter(self, name: str, index: int, mask: int, drifts: bool, reboots: bool) -> None:
        cluster = self.controller.cluster
        partition, topic_id = cluster.partition(name, index), cluster.topic_id(name)
        if partition is None or topic_id is None or partition.leader_id not in cluster.brokers:
            return
        leader = cluster.brokers[partition.leader_id]
        there = [b for b in partition.replicas if b in cluster.brokers]
        members = [cluster.brokers[b] for b in there if mask >> (b - 1) & 1]
        if not all(map(self.is_running, [leader, *members])):
            return
        seen_epochs = [m.broker_epoch - (reboots and m is not leader) for m in members]
        proposal = IsrProposal(
            topic_id=topic_id,
            partition=PartitionIndex(index),
            leader_epoch=partition.leader_epoch,
            partition_epoch=Epoch(partition.partition_epoch + drifts),
            new_isr=tuple((m.broker_id, e) for m, e in zip(members, seen_epochs, strict=True)),
        )
        request = AlterPartitions(
            broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, proposals=(proposal,)
        )
        holders = self.holders.setdefault((topic_id, index), {*partition.replicas})
        response = self.ask(request)
        assert isinstance(response, IsrResults)
        granted = {ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED}
        if response.results[0].error_code in granted and leader.broker_id in holders:
            holders |= {m.broker_id for m in members}  # it may end a reassignment at once
        if response.results[0].error_code is ErrorCode.NONE:
            assert leader in members
            assert not drifts
            assert not reboots or members == [leader]
        elif response.results[0].error_code is ErrorCode.NEW_LEADER_ELECTED:
            assert leader.broker_id in partition.removing_replicas
        elif not (drifts or reboots) and leader in members:
            assert not {m.broker_id for m in members} <= active_brokers(cluster)

    def do_producer_ids(self, broker_id: int) -> None:
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        epoch = -1 if broker is None else broker.broker_epoch
        self.ask(AllocateProducerIds(broker_id=BrokerId(broker_id), broker_epoch=epoch))

    def do_fail_over(self, lost: int) -> None:
        """The next controller finds the last decision only in part: it was in several batches."""
        del self.log[len(self.log) - min(lost, self.written) :]
        self.controller = self.take_over()
        self.activate()


def min_isr(image: ClusterImage, topic_id: TopicId, partition: PartitionImage) -> int:
    """Return how many must be in sync before the leader commits anything."""
    least: int | str = image.brokers[partition.leader_id].min_insync_replicas
    for configs in (image.broker_config(None), image.topics[image.topic_names[topic_id]].configs):
        least = configs.get("min.insync.replicas", least)
    return min(int(least), len(partition.replicas))


def check(world: World, before: dict[tuple[bytes, int], PartitionImage]) -> None:
    cluster = world.controller.cluster
    assert world.controller.check_invariants() == []
    check_index(cluster.by_broker, image_of(cluster), map(BrokerId, ALL))
    active = active_brokers(cluster)
    now = image_of(cluster)
    for name, topic in now.topics.items():
        for index, partition in enumerate(topic.partitions):
            check_partition(partition)
            assert {*partition.isr} <= active, (name, index)
            # Whoever may lead, leads.
            assert (partition.leader_id in active) == bool(partition.isr)
            assert partition.isr or not {*partition.elr} & active
            somebody = partition.isr or partition.elr
            assert somebody or world.were_emptied, "somebody holds all that is committed"
            if partition.isr and len(partition.isr) >= min_isr(now, topic.topic_id, partition):
                assert not partition.elr
            old = before.get((topic.topic_id, index))
            if old is not None:
                assert partition.leader_epoch >= old.leader_epoch
                assert partition.partition_epoch >= old.partition_epoch
                same_epoch = partition.leader_epoch == old.leader_epoch
                assert partition.leader_id == old.leader_id or not same_epoch
            before[topic.topic_id, index] = partition


@examples(250)
@given(SCHEDULES, st.integers(1, 3))
def test_the_rules_hold_and_replay_equals_live(steps: list[tuple[Any, ...]], least: int) -> None:
    world = World()
    world.least = dict.fromkeys(ALL, least)
    world.begin()
    before: dict[tuple[bytes, int], PartitionImage] = {}
    for step in steps:
        if step[0] in {"fail_over", "died_half_way"}:
            before = {}  # what was not committed is taken back
        world.do(step)
        check(world, before)
    world.acknowledge()
    assert image_of(world.replay()) == image_of(world.controller.cluster)


@examples(300)
@given(
    st.lists(TROUBLES, min_size=4, max_size=25),
    st.integers(1, 3),
    st.sampled_from([1, LEVEL_OF_CLUSTER_MIN_ISR - 1, NEWEST_LEVEL]),
)
def test_nobody_leads_without_every_acknowledged_record(
    steps: list[tuple[Any, ...]], least: int, level: int
) -> None:
    """The same rules, where brokers come back with less than they had, and all else is calm."""
    world = World()
    world.begins_at = level
    world.least = {broker_id: (broker_id + least) % 3 + 1 for broker_id in ALL}
    world.begin()
    for step in steps:
        world.do(step)
        check(world, {})
    world.acknowledge()


@examples(60)
@given(SCHEDULES, st.lists(st.integers(1, 5), max_size=30))
def test_published_deltas_name_all_that_changed(
    steps: list[tuple[Any, ...]], batches: list[int]
) -> None:
    world = World()
    world.begin()
    for step in steps:
        world.do(step)
    world.now_ms += 1
    replay, offset = Bench().replay(), 0
    image = image_of(replay)
    for size in [*batches, len(world.log)]:
        was, frozen = image, deepcopy(image)
        for record in world.log[offset : offset + size]:
            replay.apply(replay.end_offset, record)
        offset += size
        delta, image = replay.publish(
            end_offset=replay.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
        )
        assert was == frozen, "what is published never changes"
        assert all(was.topics[n].topic_id == i for n, i in delta.deleted_topics.items())
        assert delta.topic_configs <= {*image.topics}
        old_brokers, new_brokers = dict(was.brokers), dict(image.brokers)
        assert {
            b for b in {**old_brokers, **new_brokers} if old_brokers.get(b) != new_brokers.get(b)
        } <= delta.brokers
        for name, topic in image.topics.items():
            old = was.topics.get(name)
            if old is not None and old.topic_id != topic.topic_id:
                assert delta.deleted_topics[name] == old.topic_id
                old = None
            changed = {
                index
                for index, partition in enumerate(topic.partitions)
                if old is None or index >= len(old.partitions) or old.partitions[index] != partition
            }
            assert changed == {tp.partition for tp in delta.partitions if tp.topic == name}
        gone = {name for name in was.topics if name not in image.topics}
        assert gone <= {*delta.deleted_topics}
        assert {tp.topic for tp in delta.partitions} <= {*image.topics}
