"""One simulated process: the real quorum core on the real log, on a disk that forgets.

It performs effects as the package `metadata_quorum.core` asks. What takes time is left to the
simulator: an fsync, a message, a deadline.
"""

import errno
from collections import deque
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.quorum.oracle import Entry, Oracle
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers, validate_batch

DIRECTORY: Final = "/log"
ELECTION_FILE: Final = "/quorum-state"
CHECKED_FROM: Final = 21  # where the part of a batch starts that its checksum covers
ALL: Final = 1 << 30
RESPONSES_MAX: Final = 16
WRITES: Final = frozenset({"append", "truncate", "fsync", "fsync_dir", "rename", "unlink"})


class PowerLost(StorageError):
    """The machine has lost its power: nothing of what was under way comes to its end."""


def entries_of(records: bytes) -> list[Entry]:
    """Return the records of whole batches, in outline."""
    entries: list[Entry] = []
    for position, header in iterate_headers(records):
        content = records[position + CHECKED_FROM : position + header.size_in_bytes]
        count = header.last_offset_delta + 1
        entries += [Entry(header.leader_epoch, content, index) for index in range(count)]
    return entries


def describe(records: bytes) -> events.FetchedRecords | None:
    """Check fetched batches and describe them; None if there are none. Raises CorruptBatch."""
    starts: list[tuple[Epoch, Offset]] = []
    base = end = -1
    for position, header in iterate_headers(records):
        validate_batch(records, position, header)
        base = header.base_offset if base < 0 else base
        end = header.next_offset
        if not starts or starts[-1][0] != header.leader_epoch:
            starts.append((Epoch(header.leader_epoch), Offset(header.base_offset)))
    if base < 0:
        return None
    return events.FetchedRecords(
        base_offset=Offset(base), end_offset=Offset(end), epoch_starts=tuple(starts)
    )


class SimNode:
    """A machine, and the process on it while it runs.

    An event waits in `inbox` while the process writes its election state, or is paused.
    `incarnation` counts the processes: what was meant for an older one is dropped.
    """

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        *,
        quorum_class: type[Quorum],
        settings: QuorumSettings,
        log_settings: LogSettings,
        seed: int,
        oracle: Oracle,
    ) -> None:
        self.node_id: Final = node_id
        self.disk: Final = SimDisk()
        self.disk_rng: Final = seeded(f"disk {node_id}", seed)
        self.incarnation = 0
        self.is_up = False
        self.is_paused = False
        self.is_writing = False
        self.inbox: Final = deque[events.Event]()
        self.leads_epoch: int | None = None
        self.tick_at_us = 0  # of the tick that is scheduled; 0: none is
        self.asked: dict[int, tuple[int, int, int, Any]] = {}  # who waits for our answers
        self.waiting: set[int] = set()  # our requests that have no outcome yet
        self.responses: dict[int, bytes] = {}  # fetched records, by request
        self.proposals: dict[int, tuple[int, list[Entry]]] = {}  # end -> (base, entries)
        self.quorum: Quorum
        self.log: Log
        self._voters = tuple(map(BrokerId, voters))
        self._quorum_class, self._settings, self._log_settings = (
            quorum_class, settings, log_settings,
        )  # fmt: skip
        self._rng = seeded(f"node {node_id}", seed)
        self._oracle = oracle

    def boot(self) -> events.Started:
        """Start the process from what is on the disk."""
        self.incarnation += 1
        self.is_up, self.is_paused, self.is_writing, self.tick_at_us = True, False, False, 0
        for volatile in (self.inbox, self.asked, self.waiting, self.responses, self.proposals):
            volatile.clear()
        self.quorum = self._quorum_class(
            node_id=BrokerId(self.node_id),
            voters=self._voters,
            settings=self._settings,
            random_fraction=self._rng.random,
        )
        self.log = Log.open(self.disk, DIRECTORY, self._log_settings, clean=False)
        leader_epoch, leader_id, voted_id = self.read_election()
        newest = max(leader_epoch, self.log.epochs.latest_epoch)
        self._oracle.recovered(self.node_id, self.read_entries(), newest)
        self._oracle.remembered(self.node_id, leader_epoch, voted_id)
        return events.Started(
            leader_epoch=Epoch(leader_epoch),
            leader_id=BrokerId(leader_id),
            voted_id=BrokerId(voted_id),
            log_end_offset=self.log.log_end_offset,
            flushed_offset=self.log.flushed_offset,
            epoch_starts=tuple(self.log.epochs.entries),
        )

    def stop(self, *, loses_power: bool) -> None:
        """End the process at once; with the power, all goes that was not fsynced."""
        self.is_up = False
        if loses_power:
            self.disk.crash(self.disk_rng)
        else:
            self.disk.kill()

    def read_entries(self) -> list[Entry]:
        """Read the whole log, in outline."""
        entries: list[Entry] = []
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            found = self.log.read(offset, max_bytes=ALL, end_offset=self.log.log_end_offset)
            entries += entries_of(found.records)
            offset = found.next_offset
        return entries

    # --- the election state ---

    def read_election(self) -> tuple[int, int, int]:
        """Return (leader_epoch, leader_id, voted_id)."""
        if not self.disk.exists(ELECTION_FILE):
            return 0, -1, -1
        epoch, leader_id, voted_id = map(int, read_file(self.disk, ELECTION_FILE).split())
        return epoch, leader_id, voted_id

    def write_election(self, effect: effects.PersistElection) -> None:
        """Replace the file, durably. Raises StorageError."""
        text = f"{effect.leader_epoch} {effect.leader_id} {effect.voted_id}"
        try:
            write_file_durably(self.disk, ELECTION_FILE, text.encode())
        except OSError as error:
            raise StorageError(f"cannot write {ELECTION_FILE}: {error}") from error

    # --- the log ---

    def append_own(self, values: list[bytes], *, is_control: bool, now_ms: int) -> list[Entry]:
        """Append one batch as the leader."""
        records = [Record(index, now_ms, None, value) for index, value in enumerate(values)]
        batch = encode_batch(records, is_control=is_control)
        epoch = self.quorum.leader_epoch
        content = batch[CHECKED_FROM:]
        entries = [Entry(epoch, content, index) for index in range(len(values))]
        self._oracle.appended(self.node_id, entries)  # first: power loss may come within
        self.log.append_as_leader(batch, leader_epoch=epoch, wall_ms=now_ms)
        return entries

    def keep_response(self, request_id: int, records: bytes) -> None:
        """Keep what came with a response for its `AppendFetched`; few are ever waiting."""
        self.responses[request_id] = records
        if len(self.responses) > RESPONSES_MAX:
            del self.responses[min(self.responses)]

    def write_log(
        self,
        effect: effects.AppendFetched | effects.TruncateLog | effects.AppendLeaderChange,
        *,
        now_ms: int,
    ) -> None:
        """Perform an effect on the log. Raises StorageError."""
        match effect:
            case effects.AppendLeaderChange():
                self.append_own([b"LeaderChange"], is_control=True, now_ms=now_ms)
            case effects.AppendFetched(request_id=request_id):
                records = self.responses[request_id]
                self._oracle.appended(self.node_id, entries_of(records))
                self.log.append_as_follower(records)
            case effects.TruncateLog(end_offset=end_offset):
                self._oracle.truncates(self.node_id, end_offset)
                self.log.truncate_to(end_offset)
                self._oracle.truncated(self.node_id, end_offset)

    def flush(self) -> None:
        """Make the log durable. Raises StorageError if the disk refuses."""
        self._oracle.flushed(self.node_id, self.log.flush())

    def fail_next_fsync(self) -> None:
        """Let the next fsync of a file fail, once."""

        def fail(operation: str, path: str) -> None:
            if operation == "fsync":
                self.disk.on_operation = None
                raise OSError(errno.EIO, "simulated", path)

        self.disk.on_operation = fail

    def lose_power_within(self, writes: int, *, file: str, times: int) -> None:
        """Lose the power just before the n-th write from now, and again, n writes after that.

        It may be a part of anything: an election, an append, a truncation, a recovery.
        file: only files whose path contains it count.
        """
        left, times_left = writes, times

        def count(operation: str, path: str) -> None:
            nonlocal left, times_left
            left -= operation in WRITES and file in path
            if left > 0:
                return
            left, times_left = writes, times_left - 1
            if not times_left:
                self.disk.on_operation = None
            self.disk.crash(self.disk_rng)
            raise PowerLost(f"simulated, at {operation} of {path}")

        self.disk.on_operation = count
