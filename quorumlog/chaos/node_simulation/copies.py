"""The copies of each partition on disk after faults that destroy copies, and their shared loss.

It reads the files on the disks. From the product it takes only the members of ISR and ELR, which
held all committed records. When a fault damages a copy, the longest intact prefix among the
members' copies is the log that the cluster must keep from then on.

    best-copy     a new leader holds, in whole batches, the prefix of the best copy
    loss-told     if no copy holds a committed record any more, the loss is reported: the
                  controller logs UNCLEAN ELECTION with the partition, or it stays leaderless
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.chaos.node_simulation.committed_log import CommittedLog
from quorumlog.chaos.node_simulation.disk_faults import is_identified
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.metadata_quorum.driver import active_controller
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition


class Copied(NamedTuple):
    """A partition at the oracle. newest_epoch: the newest leader epoch so far."""

    key: tuple[TopicId, TopicPartition]
    image: PartitionImage
    committed: CommittedLog
    newest_epoch: int
    is_compacted: bool

    @property
    def name(self) -> str:
        """The topic and the partition, as in the controllers' log lines."""
        return f"{self.key[1].topic}-{self.key[1].partition}"

    @property
    def members(self) -> frozenset[int]:
        """The replicas that held all committed records, by the metadata."""
        image = self.image
        return frozenset({*image.isr, *image.elr, *image.last_known_elr})


@dataclass(slots=True, kw_only=True)
class SharedLoss:
    """Committed records of a partition, [held, committed), that no member's copy holds any more.

    epoch: the newest leader epoch at the loss. leader_id: a later leader without these records.
    """

    held: int
    committed: int
    epoch: int
    leader_id: int | None = None


class Copies:
    """The copies of the partitions of one run on the disks of its machines.

    keeps_members: replicas that leave an ISR below min.insync.replicas stay in the ELR. Otherwise
    an ISR may shrink to a member that has just lost its memory, which is no bug (decision 11).
    """

    def __init__(
        self, machines: Mapping[int, Machine], log_dirs: Sequence[str], *, keeps_members: bool
    ) -> None:
        self._machines: Final = machines
        self._log_dirs: Final = log_dirs
        self._keeps_members: Final = keeps_members
        self._members: Final[dict[tuple[TopicId, TopicPartition], frozenset[int]]] = {}
        self._lost_in: Final[dict[tuple[TopicId, TopicPartition], int]] = {}
        self.losses: Final[dict[str, list[SharedLoss]]] = {}  # by the name of a partition
        self.announced: Final = _UncleanElections()

    def held(self, node_id: int, copied: Copied) -> int:
        """Return the end of the committed prefix that a machine's disk holds without a gap.

        A directory without the partition's topic id does not count.
        """
        topic_id, at = copied.key
        disk, most = self._machines[node_id].disk, 0
        for log_dir in self._log_dirs:
            path = f"{log_dir}/{at.topic}-{at.partition}"
            if is_identified(disk, path, topic_id):
                files = disk.copied(path)[""]
                held = copied.committed.held_by(files, is_compacted=copied.is_compacted)
                most = max(most, held)
        return most

    def look(
        self, copied: Copied, worse_on: int | None, *, is_decided_before: bool = False
    ) -> bool:
        """Cut the committed log to the best member's copy; return whether this is a loss.

        worse_on: the machine on which a fault has just damaged copies; None: members may have left.
        is_decided_before: they may have left by a change that was in the metadata log before the
        damage, and is committed only now; it cannot be undone.
        """
        before = self._members.get(copied.key, frozenset())
        self._members[copied.key] = copied.members
        has_left = (is_decided_before or not self._keeps_members) and not before <= copied.members
        if not (worse_on in copied.members or has_left) or not copied.members:
            return False
        best = max(self.held(node_id, copied) for node_id in sorted(copied.members))
        if best >= copied.committed.end_offset:
            return False
        loss = SharedLoss(
            held=best, committed=copied.committed.end_offset, epoch=copied.newest_epoch
        )
        self.losses.setdefault(copied.name, []).append(loss)
        self._lost_in[copied.key] = loss.epoch
        copied.committed.cut(best)
        return True

    def lost_in(self, key: tuple[TopicId, TopicPartition]) -> int:
        """Return the newest leader epoch whose commits may be lost; -1: there was no loss.

        Only later leaders define the committed records.
        """
        return self._lost_in.get(key, -1)

    def look_at_leader(
        self, copied: Copied, node_id: int, log_end_offset: int, violated: Callable[[str], None]
    ) -> None:
        """Check the files of a new leader, and record the losses that become final with it."""
        held, committed = self.held(node_id, copied), copied.committed.end_offset
        if held < committed:
            violated(
                f"best-copy: {copied.name}: node {node_id} leads epoch {copied.newest_epoch}, and "
                f"its files hold {held} of {committed} records that a copy held whole"
            )
        for loss in self.losses.get(copied.name, ()):
            if copied.newest_epoch > loss.epoch and log_end_offset < loss.committed:
                loss.leader_id = node_id

    def listen(self) -> None:
        """Collect the controllers' warnings from now on; other handlers stay as they are."""
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.getLogger().level)
        logger = logging.getLogger(active_controller.__name__)
        logger.setLevel(logging.WARNING)
        logger.addHandler(self.announced)

    def untold(self) -> str:
        """Return a final loss that no controller has logged, or ""."""
        for name, losses in sorted(self.losses.items()):
            for loss in losses:
                if loss.leader_id is not None and not self.announced.named(name):
                    return (
                        f"{name}: node {loss.leader_id} leads with {loss.held} of "
                        f"{loss.committed} committed records, and no UNCLEAN ELECTION is logged"
                    )
        return ""


class _UncleanElections(logging.Handler):
    """Collects the controllers' log lines about unclean elections."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: Final[list[str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "UNCLEAN ELECTION" in message:
            self._lines.append(message)

    def named(self, partition: str) -> bool:
        """Return whether a line names the partition."""
        pattern = re.compile(rf"(?<![\w.-]){re.escape(partition)}(?!\d)")
        return any(pattern.search(line) for line in self._lines)
