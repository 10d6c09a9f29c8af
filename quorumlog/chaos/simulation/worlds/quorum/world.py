"""The metadata quorum: voters, observers, and clients that write to every node that leads.

In the calm at the end one node must lead, and all logs must become equal and committed.
"""

from typing import Final

from quorumlog.chaos.faults.quorum import FalseNotice, Resign
from quorumlog.chaos.mutants.parts import REAL_PARTS, Parts
from quorumlog.chaos.schedule import Action, Option, Schedule
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.kernel.run import CALM_US_MAX, Environment
from quorumlog.chaos.simulation.kernel.swarm import Options
from quorumlog.chaos.simulation.worlds.quorum.administrator import Administrator
from quorumlog.chaos.simulation.worlds.quorum.messenger import Messenger, Reply
from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.invariants import some
from quorumlog.metadata_quorum.core.events import PeerProcessDied
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.settings import ControllerSettings, MetadataQuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId

OBSERVERS_MAX: Final = 2
SLOW_DISK_US_MAX: Final = 600_000
FETCH_BYTES_OF_SLOW_DISKS: Final = 10_000
SEGMENT_BYTES_OF_SLOW_DISKS: Final = 2_000
RECORDS_OF_A_SLOW_FLUSH: Final = 10  # a segment has some 20, and takes two flushes
SNAPSHOT_BYTES_LEAST: Final = 200  # of one response: some five make a snapshot
CHANGES: Final = "change_voters_every_us"


def draw_quorum_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` are the voters, and observers come after them."""
    observers = rng.randrange(OBSERVERS_MAX + 1)
    return nodes + observers, {
        "nodes": nodes,
        "observers": observers,
        "propose_every_us": rng.randrange(20_000, 200_000),
        "batch_records_max": rng.randrange(1, 4),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
        "is_death_noticed": rng.random() < 0.5,
        "is_minority_left_down": rng.random() < 0.5,
        "snapshot_every_us": rng.choice((0, 0, rng.randrange(50_000, 1_000_000))),  # 0: never
        "is_hasty": rng.random() < 0.5,  # the timeouts of `quorumlog up`, else Kafka's
        "slow_disks": rng.choice((0, 0, 1, nodes)),  # of so many voters, in the calm, too
        "slow_disk_us": rng.randrange(SLOW_DISK_US_MAX),
    }


def draw_voters_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run whose voters change; one observer at least can become one."""
    _, options = draw_quorum_options(rng, nodes)
    observers = rng.randrange(1, OBSERVERS_MAX + 1)
    changes: dict[str, Option] = {
        "observers": observers,
        "is_minority_left_down": False,  # the voters at the end may be any
        CHANGES: rng.randrange(100_000, 1_000_000),
    }
    return nodes + observers, options | changes


class QuorumWorld:
    """A World. With the option CHANGES, an administrator changes the voters (KIP-853)."""

    def __init__(self, schedule: Schedule, parts: Parts = REAL_PARTS) -> None:
        options = Options(schedule)
        voters = range(1, options.number("nodes") + 1)
        machines = range(1, len(voters) + options.number("observers") + 1)
        self.environment: Final = Environment(schedule.seed, tuple(machines))
        for slow in range(1, options.number("slow_disks") + 1):
            self.environment.steady_us[slow] = options.number("slow_disk_us")
        self.oracle: Final = Oracle(tuple(machines), tuple(voters))
        self.nodes: Final[dict[int, QuorumNode]] = {}
        minority = (len(voters) - 1) // 2
        self.left_down_max: Final = minority if options.flag("is_minority_left_down") else 0
        self._timeline: Final = self.environment.timeline
        self._client_rng: Final = seeded("clients", schedule.seed)
        self._propose_every_us: Final = options.number("propose_every_us")
        self._batch_records_max: Final = options.number("batch_records_max")
        self._proposed = 1  # the next number
        self._has_proposed_in_calm = False
        messenger = Messenger(self.environment.network, self._timeline, self.oracle)
        messenger.nodes = self.nodes
        changes_voters = CHANGES in schedule.options
        for node_id, machine in self.environment.machines.items():
            machine.process = self.nodes[node_id] = QuorumNode(
                machine,
                environment=self.environment,
                messenger=messenger,
                oracle=self.oracle,
                parts=parts,
                settings=_settings(options, BrokerId(node_id)),
                response_bytes=_response_bytes(options),
                has_directories=changes_voters,
            )
        self._administrator: Final = self._administrator_of(options) if changes_voters else None

    def _administrator_of(self, options: Options) -> Administrator:
        for node in self.nodes.values():
            self.oracle.voters.directories[node.node_id] = some(node.directory_id, "voters change")
        return Administrator(
            self.nodes,
            environment=self.environment,
            oracle=self.oracle,
            rng=seeded("voters", self.environment.seed),
            every_us=options.number(CHANGES),
        )

    @property
    def elections(self) -> int:
        """How many leaders were elected so far: one in an epoch at most."""
        return len(self.oracle.leaders)

    @property
    def calm_us_max(self) -> int:
        """The longer, the longer the slowest disk writes the whole log: it may have lost it."""
        slowest_us = max(self.environment.steady_us.values())
        return CALM_US_MAX + slowest_us * self.committed() // RECORDS_OF_A_SLOW_FLUSH

    # --- clients ---

    def begin(self) -> None:
        """Let the clients write."""
        self._propose()
        if self._administrator is not None:
            self._administrator.begin()

    def _propose(self) -> None:
        for node in self.nodes.values():
            if node.accepts_records:
                count = self._client_rng.randrange(1, self._batch_records_max + 1)
                node.propose(range(self._proposed, self._proposed + count))
                self._proposed += count
        if not self.environment.is_calm:
            self._timeline.push(self._propose_every_us, self._propose)

    def committed(self) -> int:
        """Return how many records are committed."""
        return len(self.oracle.committed)

    # --- faults ---

    def members_of(self, role: str) -> list[int]:
        """Return the leader of the newest epoch; none for another role."""
        if role != "metadata-leader":
            return []
        leaders = [n for n in self.nodes.values() if n.machine.is_up and n.quorum.is_leader]
        newest = max(leaders, key=lambda node: node.quorum.state.leader_epoch, default=None)
        return [] if newest is None else [newest.node_id]

    def inflict(self, action: Action, machine: Machine) -> None:
        """Let a leader resign, or a node believe that its leader died."""
        node = self.nodes[machine.node_id]
        match action.fault:
            case Resign():
                node.call(node.driver.resign, Reply(lambda _: None))
            case FalseNotice():
                leader_died = PeerProcessDied(node_id=node.quorum.state.leader_id)
                node.call(node.driver.feed, leader_died)
            case _:
                raise ValueError(f"the quorum world has no fault {action.fault.name}")

    # --- calm ---

    def has_settled(self) -> bool:
        """Return whether one node leads and all is committed, a record of the calm included."""
        nodes = [node for node in self.nodes.values() if not node.machine.is_left_down]
        first = nodes[0].quorum
        leads = any(node.driver.is_active_controller for node in nodes)
        is_committed = first.state.log.high_watermark == first.state.log.end_offset
        if any(node.is_busy for node in nodes):
            return False  # a snapshot is being installed, or a write ends
        if len(self._states()) == 1 and leads and is_committed and self._has_proposed_in_calm:
            for node in nodes:
                self.oracle.finish(node.node_id, node.entries())
            return True
        if leads and not self._has_proposed_in_calm:
            self._propose()
            self._has_proposed_in_calm = True
        return False

    def describe(self) -> str:
        """Return leader, epoch, log end and high watermark by the state of each node."""
        return str(sorted(self._states()))

    def _states(self) -> set[tuple[int, int, int, int]]:
        quorums = [n.quorum for n in self.nodes.values() if not n.machine.is_left_down]
        return {
            (
                quorum.state.leader_id,
                quorum.state.leader_epoch,
                quorum.state.log.end_offset,
                quorum.state.log.high_watermark,
            )
            for quorum in quorums
        }


def _settings(options: Options, node_id: BrokerId) -> MetadataQuorumSettings:
    """Return Kafka's timeouts, or those of `quorumlog up`. Nodes write snapshots in turn."""
    is_hasty = options.flag("is_hasty")
    nodes = options.number("nodes") + options.number("observers")
    # A slow follower flushes each segment on its own.
    segment_bytes_least = SEGMENT_BYTES_OF_SLOW_DISKS if options.number("slow_disks") > 0 else 0
    return MetadataQuorumSettings(
        cluster_id="",
        node_id=node_id,
        voters={BrokerId(one): "" for one in range(1, options.number("nodes") + 1)},
        log_dir="",
        quorum=QuorumSettings(
            controller_quorum_dead_process_notice_enable=options.flag("is_death_noticed"),
            controller_quorum_election_timeout_ms=200 if is_hasty else 1000,
            controller_quorum_fetch_timeout_ms=1000 if is_hasty else 2000,
        ),
        controller=ControllerSettings(
            metadata_log_max_snapshot_interval_ms=options.number("snapshot_every_us")
            * nodes
            // 1000,
            metadata_log_segment_bytes=max(options.number("segment_bytes"), segment_bytes_least),
        ),
    )


def _response_bytes(options: Options) -> tuple[int, int]:
    """Return how many bytes of records, and of a snapshot, a response has at most."""
    count = options.number("fetch_bytes_max")
    if options.number("slow_disks") > 0:
        # Else a slow follower that flushes each batch on its own never catches up.
        count = max(count, FETCH_BYTES_OF_SLOW_DISKS)
    return count, max(count, SNAPSHOT_BYTES_LEAST)
