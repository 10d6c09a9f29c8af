"""One process of the quorum: the driver, metadata log and election file of real nodes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from quorumlog.chaos.mutants.parts import Parts
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.chaos.simulation.worlds.quorum.dependencies import PartitionDependencies
from quorumlog.chaos.simulation.worlds.quorum.messenger import Messenger, Outcome, Reply
from quorumlog.chaos.simulation.worlds.quorum.observed import (
    ObservedDriver,
    ObservedElections,
    ObservedLog,
)
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.quotas import change_of, value_of
from quorumlog.chaos.simulation.worlds.quorum.voter_model import directory_id, voter_set_of
from quorumlog.metadata_quorum.core.events import PeerProcessDied
from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.log.election_store import Election
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId

LOG_DIR: Final = ""
SHARE_OF_SHORT_LOGS: Final = 0.7  # of the lives: the log keeps nothing that two snapshots hold


class QuorumNode:
    """A process. It is the transport, the listener and the publisher of its driver."""

    def __init__(
        self,
        machine: Machine,
        *,
        environment: Environment,
        messenger: Messenger,
        oracle: Oracle,
        parts: Parts,
        settings: MetadataQuorumSettings,
        response_bytes: tuple[int, int],
        has_directories: bool = False,
    ) -> None:
        """`response_bytes`: of records, and of a snapshot, at most in one response."""
        self.machine: Final = machine
        self.node_id: Final = machine.node_id
        self.quorum: Quorum
        self.log: ObservedLog
        self.driver: ObservedDriver
        self.dependencies: Final = PartitionDependencies(machine, environment)
        self._committed: CommittedImage
        self._applied_end = 0
        self._is_founded = False
        self._disks = 1  # how many its machine has had
        self._has_directories: Final = has_directories
        self._messenger: Final = messenger
        self._network: Final = environment.network
        self._oracle: Final = oracle
        self._parts: Final = parts
        self._settings: Final = settings
        self._response_bytes: Final = response_bytes
        self._rng: Final = seeded(f"node {machine.node_id}", environment.seed)

    # --- a life of the process ---

    def boot(self) -> None:
        """Start from the files on the disk. Raises StorageError."""
        self.dependencies.forget()
        self._applied_end = 0
        disk = self._parts.disk(self.machine.disk)
        settings, directory = self._drawn_settings(), f"{LOG_DIR}/{DIRECTORY}"
        self.log = ObservedLog.open(
            disk, LOG_DIR, settings.controller.log_settings, new_log=self._parts.metadata_log
        )
        self.log.fetch_bytes_max, self.log.chunk_bytes_max = self._response_bytes
        self.log.observe(self.node_id, self._oracle)
        self._committed = CommittedImage(self.log)
        elections = ObservedElections(
            disk, directory, (*settings.voters,), node_id=self.node_id, oracle=self._oracle
        )
        election = self._founded(elections)
        self.quorum = self._parts.quorum(
            node_id=settings.node_id,
            voters=voter_set_of(self._configured()),
            settings=settings.quorum,
            random_fraction=self._rng.random,
            directory_id=self.directory_id,
            bootstrap=len(self._messenger.nodes) - 1 if self._disks > 1 else 0,
        )
        self.driver = ObservedDriver(
            self.machine,
            self._oracle,
            counts_voters=self._has_directories,
            quorum=self.quorum,
            log=self.log,
            elections=elections,
            committed=self._committed,
            settings=settings.controller,
            dependencies=self.dependencies.dependencies(
                transport=self, leader_listener=self, random_bytes=self._rng.randbytes
            ),
        )
        self._committed.add_publisher(self)
        self.driver.start(election)

    def _drawn_settings(self) -> MetadataQuorumSettings:
        """Return the settings of this life."""
        is_short = self._rng.random() < SHARE_OF_SHORT_LOGS
        controller = replace(
            self._settings.controller, metadata_max_retention_bytes=0 if is_short else -1
        )
        return replace(self._settings, controller=controller)

    def _founded(self, elections: ObservedElections) -> Election:
        """Return the election state; the oracle compares it, and the log, with those before."""
        election = elections.load()
        if not self._is_founded:  # the cluster is new: a voter without a past may vote
            election = Election()
            elections.save(election)
            self._is_founded = True
        epoch_starts = self.log.epoch_starts()
        latest_epoch = epoch_starts[-1][0] if epoch_starts else 0
        newest = max(election.leader_epoch, latest_epoch)
        self._oracle.recovered(self.node_id, self.log.entries(), newest)
        self._oracle.remembered(self.node_id, election.leader_epoch, election.voted_id)
        return election

    @property
    def directory_id(self) -> str | None:
        """The id of its metadata directory; None: this world does not change voters."""
        return directory_id(self.node_id, self._disks) if self._has_directories else None

    def _configured(self) -> tuple[BrokerId, ...]:
        """Return the configured voters: a new disk comes with them or without them, in turn.

        Never if there was one alone: with an empty disk it would take the cluster for a new one.
        """
        voters = (*self._settings.voters,)
        is_without = self._disks > 1 and (self._disks % 2 == 0 or len(voters) == 1)
        return () if is_without else voters

    def lose_disk(self, down_us: int) -> None:
        """End the process, and start it again later with an empty disk."""
        self.machine.stop(down_us, loses_power=True)
        self.machine.disk.wipe()
        self._disks += 1
        self._oracle.lost_disk(self.node_id, self.directory_id or "")

    def stopped(self, *, loses_power: bool) -> None:
        """Let the system close the connections, unless the machine has lost its power."""
        if loses_power:
            return
        self.driver.stop()  # it refuses every request
        for peer in self._messenger.nodes.values():
            if peer.machine.is_up and peer.quorum.state.leader_id == self.node_id:
                peer.leader_changed(BrokerId(self.node_id))

    def resumed(self) -> None:
        """Make the calls that have waited."""
        self.dependencies.resume()

    @property
    def call(self) -> Callable[..., None]:
        """Call a function within the process, now or when it runs again."""
        return self.dependencies.call

    @property
    def is_busy(self) -> bool:
        """Whether a write is in progress, or calls wait."""
        return self.dependencies.is_busy

    def entries(self) -> list[Entry]:
        """Return the whole log, in outline; a snapshot stands for the records below its start."""
        return self.log.entries(self._committed.image)

    # --- the driver's transport, listener and publisher ---

    def send(
        self,
        destination: BrokerId,
        request: Request,
        *,
        timeout_ms: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Send a request."""
        self._messenger.send(self, destination, request, timeout_ms=timeout_ms, done=done)

    def leader_changed(self, leader_id: BrokerId) -> None:
        """Connect to the leader: a machine that runs without the process refuses at once."""
        if leader_id >= 0 and not self._messenger.nodes[leader_id].machine.is_up:
            self.machine.later(1_000, self._connected, leader_id)

    def _connected(self, leader_id: BrokerId) -> None:
        is_reachable = self._network.is_connected(self.node_id, leader_id)
        if is_reachable and not self._messenger.nodes[leader_id].machine.is_up:
            self.call(self.driver.feed, PeerProcessDied(node_id=leader_id))

    def controller_claimed(self) -> None:
        """Do nothing: the world has no brokers."""

    def publish(self, _: ClusterDelta, image: ClusterImage) -> None:
        """Let the oracle compare the state with that of the committed records."""
        if image.end_offset != self._applied_end:
            self._applied_end = image.end_offset
            self._oracle.applied(self.node_id, image.end_offset, image.access.quotas)

    # --- clients ---

    @property
    def accepts_records(self) -> bool:
        """Whether a client would find this node to be a leader that answers."""
        return self.machine.is_up and not self.machine.is_paused and self.quorum.is_leader

    def propose(self, numbers: Sequence[int]) -> None:
        """Request the change that makes these records from the controller."""
        self.driver.ask(change_of(numbers), Reply(partial(self._acknowledged, numbers)))

    def _acknowledged(self, numbers: Sequence[int], _: object) -> None:
        for number in numbers:
            self._oracle.acknowledge(*self.log.proposed.pop(value_of(number)))
