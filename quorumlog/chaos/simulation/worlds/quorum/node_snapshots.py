"""What a node has built from committed records, its snapshots, and those of its leader.

The state is a digest of all records, so that one lost, doubled or foreign record shows.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.entries import Entry, entries_of
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle, digest_of
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import BROKER_RESOURCE, Config
from quorumlog.metadata_quorum.log.restoring import (
    FetchedSnapshot,
    fetched_snapshot,
    restored_image,
)
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode

_PADDING: Final = 30  # records: a snapshot that comes in several answers
INSTALL_SLOWNESS: Final = 20  # times an fsync: so that crashes come between its steps
INSTALL_STEP_US_MAX: Final = 2_000_000  # of a slow disk: the world must settle


class AppliedState:
    """All below `end_offset`, as a digest."""

    def __init__(self, image: ClusterImage | None = None) -> None:
        """Start with what a snapshot holds; None: with nothing."""
        self.end_offset: int = 0
        self.digest = ""
        if image is not None:
            self.end_offset = image.end_offset
            self.digest = image.broker_configs.get("", {}).get("digest", "none")

    def apply(self, entries: list[Entry]) -> None:
        """Apply the next records."""
        self.digest = digest_of(self.digest, entries)
        self.end_offset += len(entries)

    def records(self) -> Iterator[Config]:
        """Yield what a snapshot of this state holds."""
        for index in range(_PADDING):
            yield _config(f"padding {index}", f"{self.end_offset} {index}")
        yield _config("digest", self.digest)


class NodeSnapshots:
    """The snapshots of one node. A run without them (`is_used`) does not build the state."""

    def __init__(
        self, node: "QuorumNode", environment: Environment, oracle: Oracle, *, is_used: bool
    ) -> None:
        self._node: Final = node
        self._environment: Final = environment
        self._oracle: Final = oracle
        self._is_used: Final = is_used
        self._state = AppliedState()
        self._checked: FetchedSnapshot | None = None  # of the draft of a leader's snapshot

    def boot(self) -> SnapshotId | None:
        """Start from the newest snapshot; return what it is. Raises StorageError."""
        image = restored_image(self._node.log)
        self._state = AppliedState(image)
        return None if image is None else self._id_at(image.end_offset)

    def entries_below(self, start: int) -> list[Entry]:
        """Return the records that a snapshot stands for, in a log that starts at `start`."""
        state = self._state
        if start == 0:
            return []
        return self._oracle.records_below(self._node.node_id, start, state.end_offset, state.digest)

    def apply(self, high_watermark: Offset) -> None:
        """Bring the state up to the high watermark. Raises StorageError."""
        state = self._state
        if not self._is_used or state.end_offset >= high_watermark:
            return
        while state.end_offset < high_watermark:
            records = self._node.log.read(Offset(state.end_offset), high_watermark)
            state.apply(entries_of(records))
        self._oracle.applied(self._node.node_id, state.end_offset, state.digest)

    def write(self, *, moves_start: bool) -> None:
        """Write a snapshot of what is committed, if that is durable; perhaps drop the log below."""
        node, log, end_offset = self._node, self._node.log, self._node.quorum.high_watermark
        is_held = log.start_offset < end_offset <= log.flushed_offset
        if node.is_busy or not is_held or end_offset != self._state.end_offset:
            return
        snapshot_id = self._id_at(end_offset)
        try:
            log.checkpoint(end_offset)
            voters = node.quorum.voters_at(end_offset)
            log.snapshots.write(snapshot_id, self._state.records(), last_time_ms=0, voters=voters)
            node.feed(events.SnapshotWritten(snapshot_id=snapshot_id))
            oldest = log.snapshots.ids()[-1]
            if moves_start and log.start_offset < oldest.end_offset and not node.is_busy:
                log.move_start(oldest)
                node.feed(events.LogStartMoved(log_start=oldest))
                log.remove_dead_segments()
        except StorageError:
            node.machine.fail()

    def check(self, snapshot_id: SnapshotId) -> None:
        """Read the draft of a leader's snapshot, soon."""
        fsync_us = self._environment.fsync_us(self._node.node_id)
        self._node.machine.later(fsync_us, self._check, snapshot_id)

    def _check(self, snapshot_id: SnapshotId) -> None:
        try:
            self._checked = fetched_snapshot(self._node.log.snapshots, snapshot_id)
        except StorageError:
            self._node.machine.fail()
            return
        checked = self._checked
        event = events.SnapshotChecked(
            snapshot_id=snapshot_id,
            is_whole=checked is not None,
            voters=None if checked is None else checked.voters,
        )
        self._node.feed(event)

    def install(self, snapshot_id: SnapshotId, done: Callable[[], None]) -> None:
        """Install in three steps: a crash may come between any two."""
        node, log = self._node, self._node.log
        self._state = AppliedState(None if self._checked is None else self._checked.image)
        self._oracle.installs(node.node_id, snapshot_id.end_offset, self._state.digest)
        steps = (log.snapshots.install_fetched, log.begin_install, log.finish_install)

        def take(number: int) -> None:
            try:
                steps[number](snapshot_id)
            except StorageError:
                node.machine.fail()
                return
            if number + 1 < len(steps):
                fsync_us = self._environment.fsync_us(node.node_id)
                step_us = min(INSTALL_SLOWNESS * fsync_us, INSTALL_STEP_US_MAX)
                node.machine.later(step_us, take, number + 1)
                return
            self._oracle.installed(node.node_id)
            done()

        take(0)

    def _id_at(self, end_offset: Offset) -> SnapshotId:
        return SnapshotId(end_offset, self._node.log.epoch_before(end_offset))


def _config(name: str, value: str) -> Config:
    return Config(resource_type=BROKER_RESOURCE, resource_name="", name=name, value=value)
