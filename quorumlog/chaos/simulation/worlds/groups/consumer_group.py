"""The workload of the world `groups`: a consumer group with offsets stored by the brokers."""

import re
from typing import Final

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.options import Options
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster, positions_of
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import KnownTopics
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost
from quorumlog.chaos.simulation.worlds.groups.member import Member
from quorumlog.chaos.simulation.worlds.groups.member_process import GROUP_ID
from quorumlog.chaos.simulation.worlds.groups.oracle import GroupOracle
from quorumlog.chaos.simulation.worlds.groups.transactions import TransactionCoordinator
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

TAG: Final = re.compile(rb"<\d+\.\d+>")
"""The tags that members write in assignments and commits: see `Member`."""

MEMBERS_MAX: Final = 4


def draw_group_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` brokers, then one machine for each member."""
    members = rng.randrange(2, MEMBERS_MAX + 1)
    options: dict[str, Option] = {
        "nodes": nodes,
        "partitions": 1,
        "min_insync_replicas": min(2, nodes),
        "members": members,
        "static_members": rng.randrange(members),
        "partitions_read": rng.randrange(members, 2 * members + 1),
        "commit_every_us": rng.randrange(40_000, 300_000),
        "session_ms": rng.choice((800, 1_200, 3_000)),  # the last: longer than a rebalance
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    has_transactions = rng.random() >= 0.5
    options["transactional_members"] = rng.randrange(members + 1) if has_transactions else 0
    options["bumps_epoch"] = rng.random() < 0.5  # transaction.version 2
    return nodes + members, options


class ConsumerGroup:
    """A Workload. Every broker can be the coordinator; every member has a machine of its own."""

    topic = OFFSETS_TOPIC
    volatile: str | None = None

    def __init__(self, schedule: Schedule, rules: GroupRules = GROUP_RULES) -> None:
        self._options: Final = Options(schedule)
        self._seed: Final = schedule.seed
        self._rules: Final = rules
        first = self._options.number("nodes") + 1
        self.machine_ids = tuple(range(first, first + self._options.number("members")))
        self._brokers: BrokersWorld
        self._cluster: Cluster
        self._transactions: TransactionCoordinator
        self._oracle: Final = GroupOracle(self._find)
        self._tags: Final[dict[bytes, int]] = {}  # -> the offset of the first record with it
        self._searched_up_to = 0

    def clients(self, brokers: BrokersWorld) -> list[Member]:
        """Return the members; add a coordinator host to each broker."""
        self._brokers = brokers
        environment, options = brokers.environment, self._options
        network, at = environment.network, brokers.places[0]
        cluster = Cluster(at, brokers.nodes, brokers.controller, network.arrivals_us)
        self._cluster = cluster
        self._transactions = TransactionCoordinator(
            environment.timeline,
            cluster,
            seeded("transactions", self._seed),
            bumps_epoch=options.flag("bumps_epoch"),
        )
        plain_members = options.number("members") - options.number("transactional_members")
        for node_id, node in brokers.nodes.items():
            verify = self._transactions.verify
            host = CoordinatorHost(node, at, self._rules, verify, KnownTopics())
            cluster.hosts[node_id] = host
            node.coordinators.append(host)
        members = []
        for index, machine_id in enumerate(self.machine_ids):
            machine = environment.machines[machine_id]
            member = Member(
                machine,
                cluster,
                self._oracle,
                rng=seeded(f"member {machine_id}", self._seed),
                partitions=options.number("partitions_read"),
                commit_every_us=options.number("commit_every_us"),
                session_ms=options.number("session_ms"),
                is_static=index < options.number("static_members"),
                transactions=self._transactions if index >= plain_members else None,
            )
            machine.process = member
            members.append(member)
        return members

    def awaited(self) -> str:
        """Compare the coordinator's offsets with the acknowledged commits, once it has loaded."""
        leader_id = self._cluster.find_coordinator(seeded("end", self._seed))
        coordinator = None if leader_id is None else self._cluster.hosts[leader_id].coordinator
        if not isinstance(coordinator, GroupCoordinator):
            return "a coordinator that has loaded"
        if not self._transactions.is_idle():
            return "the transactions to end"
        is_stable = not coordinator.transactional.unstable(GROUP_ID)
        check(is_stable, "transaction-ends: an offset stays pending for ever")
        self._oracle.finish(positions_of(coordinator.fetch_offsets(GROUP_ID, None)))
        return ""

    def _find(self, tag: str) -> int | None:
        """Return the offset of the first committed record with this tag."""
        committed = self._brokers.oracle.committed[self._cluster.at]
        for offset in range(self._searched_up_to, len(committed)):
            for found in TAG.findall(committed[offset].content):
                self._tags.setdefault(found, offset)
        self._searched_up_to = len(committed)
        return self._tags.get(tag.encode())
