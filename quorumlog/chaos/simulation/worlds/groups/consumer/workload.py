"""The workload of the world `consumer_groups`: a group of the consumer protocol (KIP-848).

Its members may begin as classic ones and change their protocol while the group is in use; topics
are created, grown and deleted.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.options import Options
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.worlds.brokers.controller_node import CONTROLLER_ID
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster, positions_by_name
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import GroupLog
from quorumlog.chaos.simulation.worlds.groups.consumer.member import GroupMember, MemberOptions
from quorumlog.chaos.simulation.worlds.groups.consumer.oracle import ConsumerOracle
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import KnownTopics, TopicCatalogue
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost
from quorumlog.chaos.simulation.worlds.groups.member_process import GROUP_ID
from quorumlog.chaos.simulation.worlds.groups.transactions import TransactionCoordinator
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

MEMBERS_MAX: Final = 4


def draw_consumer_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` brokers, then one machine for each member."""
    members = rng.randrange(2, MEMBERS_MAX + 1)
    is_mixed, has_transactions = rng.random() < 0.5, rng.random() < 0.3
    options: dict[str, Option] = {
        "nodes": nodes,
        "partitions": 1,
        "min_insync_replicas": min(2, nodes),
        "members": members,
        "static_members": rng.randrange(members),
        "classic_percent": rng.choice((30, 50, 70, 100)) if is_mixed else 0,
        "begins_classic": is_mixed and rng.random() < 0.6,
        "transactional_members": rng.randrange(members + 1) if has_transactions else 0,
        "bumps_epoch": rng.random() < 0.5,  # transaction.version 2
        "ends_with_changes": rng.random() < 0.5,
        "partitions_read": rng.randrange(members, 2 * members + 1),
        "commit_every_us": rng.randrange(60_000, 400_000),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    return nodes + members, options


class ConsumerProtocolGroup:
    """A Workload. Every broker can be the coordinator; every member has a machine of its own."""

    topic = OFFSETS_TOPIC
    volatile: str | None = None

    def __init__(self, schedule: Schedule, rules: GroupRules = GROUP_RULES) -> None:
        self._options: Final = Options(schedule)
        self._seed: Final = schedule.seed
        self._rules: Final = rules
        first = self._options.number("nodes") + 1
        self.machine_ids = tuple(range(first, first + self._options.number("members")))
        self._cluster: Cluster
        self._catalogue: TopicCatalogue
        self._transactions: TransactionCoordinator
        self._oracle: ConsumerOracle
        self._members: list[GroupMember] = []

    def clients(self, brokers: BrokersWorld) -> list[GroupMember]:
        """Return the members; add a coordinator host to each broker."""
        environment, options = brokers.environment, self._options
        network, at = environment.network, brokers.places[0]
        self._cluster = Cluster(at, brokers.nodes, brokers.controller, network.arrivals_us)
        catalogue = self._catalogue = TopicCatalogue(
            environment, seeded("topics", self._seed), options.number("partitions_read")
        )
        self._transactions = TransactionCoordinator(
            environment.timeline,
            self._cluster,
            seeded("transactions", self._seed),
            bumps_epoch=options.flag("bumps_epoch"),
        )
        for node_id, node in brokers.nodes.items():
            verify, topics = self._transactions.verify, KnownTopics(catalogue)
            host = CoordinatorHost(node, at, self._rules, verify, topics)
            self._cluster.hosts[node_id] = host
            node.coordinators.append(host)
        log = GroupLog(lambda: brokers.oracle.committed[at], catalogue.names)
        self._oracle = ConsumerOracle(log, self._cluster.hosts, catalogue.deleted)
        self._members = [
            self._member(brokers, index, machine_id)
            for index, machine_id in enumerate(self.machine_ids)
        ]
        catalogue.run(self._tell_brokers)
        return self._members

    def _member(self, brokers: BrokersWorld, index: int, machine_id: int) -> GroupMember:
        options, environment = self._options, brokers.environment
        plain_members = options.number("members") - options.number("transactional_members")
        machine = environment.machines[machine_id]
        member = GroupMember(
            environment,
            machine,
            self._cluster,
            self._oracle,
            self._catalogue,
            rng=seeded(f"member {machine_id}", self._seed),
            options=MemberOptions(
                commit_every_us=options.number("commit_every_us"),
                is_static=index < options.number("static_members"),
                classic_share=options.number("classic_percent") / 100,
                begins_classic=options.flag("begins_classic"),
                chooses_in_the_end=index > 0 and options.flag("ends_with_changes"),
                leaves_for_good=index == 0 and options.flag("ends_with_changes"),
            ),
            transactions=self._transactions if index >= plain_members else None,
        )
        machine.process = member
        return member

    def _tell_brokers(self) -> None:
        end = len(self._catalogue.changes)
        for node_id, host in self._cluster.hosts.items():
            for after_us in self._cluster.arrivals_us(CONTROLLER_ID, node_id)[:1]:
                take = self._cluster.nodes[node_id].take
                self._cluster.nodes[node_id].machine.timeline.push(
                    after_us, take, host.learn_topics, end
                )

    def awaited(self) -> str:
        """Check the offsets, and whether every subscribed partition has one owner."""
        leader_id = self._cluster.find_coordinator(seeded("end", self._seed))
        coordinator = None if leader_id is None else self._cluster.hosts[leader_id].coordinator
        if not isinstance(coordinator, GroupCoordinator):
            return "a coordinator that has loaded"
        if not self._transactions.is_idle():
            return "the transactions to end"
        if unsettled := self._unsettled():
            return unsettled
        if coordinator.transactional.unstable(GROUP_ID):
            return "the pending offsets to be decided"
        self._oracle.finish(positions_by_name(coordinator.fetch_offsets(GROUP_ID, None)))
        return ""

    def _unsettled(self) -> str:
        """Return a pending task of the members; "" if there is none."""
        members = [member for member in self._members if not member.has_left]
        if not all(member.has_chosen for member in members):
            return "the members to subscribe to their last topics"
        clients = [member.client for member in members]
        if not self._oracle.is_at_rest(clients, self._subscribed(members)):
            had = {client.member_id: self._catalogue.shown(client.has) for client in clients}
            return f"an owner of each partition, as in the log; the members have {had}"
        for member in members:
            if not member.client.has <= self._subscribed([member]):
                has = self._catalogue.shown(member.client.has)
                return f"{member.client.member_id} to revoke unsubscribed partitions; it has {has}"
        return ""

    def _subscribed(self, members: Iterable[GroupMember]) -> Partitions:
        found = NO_PARTITIONS
        for member in members:
            names, expression = member.subscription
            found |= self._catalogue.partitions(self._catalogue.matching({*names}, expression))
        return found
