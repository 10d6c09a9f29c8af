"""One process of the quorum: the real core, metadata log and election file, on a simulated machine.

It performs effects as the package `metadata_quorum.core` asks. An fsync takes simulated time, and
a crash may come meanwhile.
"""

from collections import deque
from functools import partial
from typing import Final

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.entries import Entry, entries_of
from quorumlog.chaos.simulation.worlds.quorum.log_writes import write
from quorumlog.chaos.simulation.worlds.quorum.messenger import Caller, Messenger, OnAnswer
from quorumlog.chaos.simulation.worlds.quorum.node_snapshots import NodeSnapshots
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.rendering import render_step
from quorumlog.chaos.simulation.worlds.quorum.ticks import Ticks, Writes, waits_for
from quorumlog.chaos.simulation.worlds.quorum.voter_model import Key, directory_id, voter_set_of
from quorumlog.chaos.simulation.worlds.storage_mutants import Storage
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

LOG_DIR: Final = ""
RESPONSES_MAX: Final = 16
CHECKPOINT_US: Final = 1_000_000
ALL_BYTES: Final = 1 << 30


class QuorumNode:
    """A process. An event waits in the inbox while it writes its election state, or is paused."""

    def __init__(
        self,
        machine: Machine,
        voters: tuple[BrokerId, ...],
        *,
        environment: Environment,
        messenger: Messenger,
        oracle: Oracle,
        quorum_class: type[Quorum],
        storage: Storage,
        settings: QuorumSettings,
        segment_bytes: int,
        has_snapshots: bool,
        has_directories: bool = False,
    ) -> None:
        self.machine: Final = machine
        self.node_id: Final = machine.node_id
        self.quorum: Quorum
        self.log: MetadataLog
        self.asked: Final[dict[int, Caller]] = {}  # the callers that wait for our answers
        self.waiting: Final[set[int]] = set()  # our requests that have no outcome yet
        self._inbox: Final = deque[events.Event]()
        self._responses: Final[dict[int, bytes]] = {}  # fetched records, by request
        self._proposals: Final[dict[int, tuple[int, list[Entry]]]] = {}  # end -> (base, entries)
        self._has_checkpoint_due = False
        self._is_founded = False
        self._disks = 1  # how many its machine has had
        self._has_directories: Final = has_directories
        self.changes: Final[dict[int, OnAnswer]] = {}  # of voters: an administrator waits
        self._leads_epoch: int | None = None
        self._ticks: Final = Ticks(machine, lambda: self.quorum, self.feed)
        self._writes: Final = Writes(machine, lambda: self.quorum)
        self._voters: Final = voters
        self._environment: Final = environment
        self._messenger: Final = messenger
        self._oracle: Final = oracle
        self._quorum_class: Final = quorum_class
        self._storage: Final = storage
        self._settings: Final = settings
        self._log_settings: Final = LogSettings(segment_bytes=segment_bytes)
        self.snapshots: Final = NodeSnapshots(self, environment, oracle, is_used=has_snapshots)
        self._rng: Final = seeded(f"node {machine.node_id}", environment.seed)
        directory = f"{LOG_DIR}/{DIRECTORY}"
        self._elections: Final = ElectionStore(storage.disk(machine.disk), directory, voters)

    # --- a life of the process ---

    def boot(self) -> None:
        """Start from what is on the disk. Raises StorageError."""
        self._writes.forget()
        self._has_checkpoint_due = False
        self._ticks.forget()
        for volatile in (
            self._inbox, self.asked, self.waiting, self._responses, self._proposals, self.changes,
        ):  # fmt: skip
            volatile.clear()
        self.quorum = self._quorum_class(
            node_id=BrokerId(self.node_id),
            voters=voter_set_of(self._configured()),
            settings=self._settings,
            random_fraction=self._rng.random,
            directory_id=self.directory_id,
            bootstrap=len(self._messenger.nodes) - 1 if self._disks > 1 else 0,
        )
        self.log = MetadataLog.open(
            self._storage.disk(self.machine.disk),
            LOG_DIR,
            self._log_settings,
            new_log=self._storage.log,
        )
        snapshot_id = self.snapshots.boot()
        election = self._elections.load()
        if not self._is_founded:  # the cluster is new: a voter without a past may vote
            election = Election()
            self._elections.save(election)
            self._is_founded = True
        epoch_starts = self.log.epoch_starts()
        latest_epoch = epoch_starts[-1][0] if epoch_starts else 0
        newest = max(election.leader_epoch, latest_epoch)
        self._oracle.recovered(self.node_id, self.read_entries(), newest)
        self._oracle.remembered(self.node_id, election.leader_epoch, election.voted_id)
        started = events.Started(
            leader_epoch=election.leader_epoch,
            leader_id=election.leader_id,
            voted_id=election.voted_id,
            voted_directory_id=election.voted_directory_id,
            was_voter=election.was_voter,
            is_new=election.is_new,
            log_end_offset=self.log.end_offset,
            flushed_offset=self.log.flushed_offset,
            epoch_starts=epoch_starts,
            log_start=self.log.start,
            snapshot_id=snapshot_id,
            voter_sets=self.log.voter_sets(snapshot_id),
        )
        self.feed(started)
        self._compare_voters()

    @property
    def directory_id(self) -> str | None:
        """The id of its metadata directory; None: this world does not change voters."""
        return directory_id(self.node_id, self._disks) if self._has_directories else None

    def _configured(self) -> tuple[BrokerId, ...]:
        """Return the configured voters: a new disk comes with them or without them, in turn.

        Never if there was one alone: with an empty disk it would take the cluster for a new one.
        """
        is_without = self._disks > 1 and (self._disks % 2 == 0 or len(self._voters) == 1)
        return () if is_without else self._voters

    def lose_disk(self, down_us: int) -> None:
        """End the process, and start it again later with an empty disk."""
        self.machine.stop(down_us, loses_power=True)
        self.machine.disk.wipe()
        self._disks += 1
        self._oracle.lost_disk(self.node_id, self.directory_id or "")

    def _compare_voters(self) -> None:
        if self._has_directories:
            voters = self.quorum.voter_set.voters if self.quorum.kraft_version else ()
            counted = frozenset(Key(voter.voter_id, voter.directory_id) for voter in voters)
            self._oracle.counts(self.node_id, counted)

    def stopped(self, *, loses_power: bool) -> None:
        """Let the system tell the peers, unless the machine has lost its power."""
        if loses_power:
            return
        for caller in self.asked.values():
            self._messenger.fail_request(self.node_id, caller)
        for peer in self._messenger.nodes.values():
            if peer.machine.is_up and peer.quorum.leader_id == self.node_id:
                peer.notice_if_dead(self.node_id)

    def resumed(self) -> None:
        """Take in what has waited."""
        machine = self.machine
        while (
            self._inbox and machine.is_up and not (machine.is_paused or self._writes.is_under_way)
        ):
            self._step(self._inbox.popleft())

    def feed(self, event: events.Event) -> None:
        """Let the process take in a fact: now, or when it runs again."""
        if self.is_busy:
            self._inbox.append(event)
            return
        self._step(event)

    def feed_response(self, received: events.ResponseReceived, records: bytes) -> None:
        """Feed a response. `records` are kept for its `AppendFetched`; few are ever waiting."""
        if records:
            self._responses[received.request_id] = records
            if len(self._responses) > RESPONSES_MAX:
                del self._responses[min(self._responses)]
        self.feed(received)

    def notice_if_dead(self, leader_id: int) -> None:
        """Connect: a machine that runs without the process refuses at once."""
        if leader_id >= 0 and not self._messenger.nodes[leader_id].machine.is_up:
            self.machine.later(1_000, self._connected, leader_id)

    def _connected(self, leader_id: int) -> None:
        is_reachable = self._environment.network.is_connected(self.node_id, leader_id)
        if is_reachable and not self._messenger.nodes[leader_id].machine.is_up:
            self.feed(events.PeerProcessDied(node_id=BrokerId(leader_id)))

    def read_entries(self) -> list[Entry]:
        """Read the whole log, in outline; a snapshot stands for what is below its start."""
        entries = self.snapshots.entries_below(self.log.start_offset)
        while len(entries) < self.log.end_offset:  # a read ends with its segment
            records = self.log.read(Offset(len(entries)), self.log.end_offset, ALL_BYTES)
            entries += entries_of(records)
        return entries

    # --- steps ---

    @property
    def is_busy(self) -> bool:
        """Whether events would wait in the inbox."""
        return self.machine.is_paused or self._writes.is_under_way or bool(self._inbox)

    def _step(self, event: events.Event) -> None:
        quorum = self.quorum
        # Before the step: it may commit, and then resign.
        self._leads_epoch = quorum.leader_epoch if quorum.is_leader else None
        try:
            ordered = quorum.step(self.machine.now_ms(), event)
        finally:  # the step that breaks a rule is the one to see
            self._trace(event)
        if isinstance(event, events.WriteEnded):
            self._writes.check_deadline(self._inbox)
        self._perform(ordered, 0)

    def _trace(self, event: events.Event) -> None:
        quorum = self.quorum
        role = type(quorum.role).__name__
        state = (
            quorum.leader_epoch,
            quorum.log_end_offset,
            quorum.flushed_offset,
            quorum.high_watermark,
        )
        outline = b"%b %b %d %d %d %d" % (type(event).__name__.encode(), role.encode(), *state)
        self.machine.trace.stepped(
            self.machine.timeline.now_us, self.node_id, outline, render_step, event, role, state
        )

    def _perform(self, ordered: list[effects.Effect], start: int) -> None:
        """Perform effects in order; a crash may come while the election state is written."""
        for index in range(start, len(ordered)):
            effect = ordered[index]
            if waits_for(effect, self.log, self._responses):
                self._writes.begin()
                fsync_us = self._environment.fsync_us(self.node_id)
                self.machine.later(fsync_us, self._write, effect, ordered, index + 1)
                return
            if isinstance(effect, effects.InstallSnapshot):
                self._writes.begin()
                self.snapshots.install(effect.snapshot_id, partial(self._go_on, ordered, index + 1))
                return
            try:
                self._perform_one(effect)
            except StorageError:
                self.machine.fail()
                return
        self._ticks.schedule()
        if start:
            self.resumed()

    def _write(self, effect: effects.Effect, ordered: list[effects.Effect], start: int) -> None:
        try:
            self._perform_one(effect)
        except StorageError:
            self.machine.fail()
            return
        self._go_on(ordered, start)

    def _persist(self, effect: effects.PersistElection) -> None:
        election = Election(
            leader_epoch=effect.leader_epoch,
            leader_id=effect.leader_id,
            voted_id=effect.voted_id,
            voted_directory_id=effect.voted_directory_id,
            was_voter=effect.was_voter,
            is_new=effect.is_new,
        )
        self._elections.save(election)
        if not effect.is_new:
            self._oracle.may_vote(self.node_id)
        if effect.voted_id >= 0:
            self._oracle.saw_vote(self.node_id, effect.leader_epoch, effect.voted_id)

    def _go_on(self, ordered: list[effects.Effect], start: int) -> None:
        self._inbox.appendleft(self._writes.end())
        self._perform(ordered, start)

    def _perform_one(self, effect: effects.Effect) -> None:
        match effect:
            case effects.SendRequest():
                self._messenger.send_request(self, effect)
            case effects.SendResponse(request_id=request_id, response=response) if (
                request_id in self.changes
            ):
                self.changes.pop(request_id)(response)
            case effects.SendResponse(request_id=request_id, response=response):
                self._messenger.send_response(self, request_id, response, b"")
            case effects.AnswerFetch() | effects.AnswerFetchSnapshot():
                self._messenger.answer_fetch(self, effect)
            case effects.FlushLog(log_end_offset=end):
                fsync_us = self._environment.fsync_us(self.node_id)
                self.machine.later(fsync_us, self._flush, end, self.machine.now_ms())
            case (
                effects.AppendFetched()
                | effects.TruncateLog()
                | effects.AppendLeaderChange()
                | effects.AppendVoters()
                | effects.AppendSnapshot()
            ):
                write(self, effect, self._oracle, self._responses)
            case effects.PersistElection():
                self._persist(effect)
            case effects.InstallSnapshot():
                raise AssertionError("_perform does it")
            case _:
                self._announce(effect)

    def _announce(
        self,
        effect: effects.AdvanceHighWatermark
        | effects.CheckSnapshot
        | effects.BecomeLeader
        | effects.ResignLeadership
        | effects.FollowLeader
        | effects.VotersChanged,
    ) -> None:
        match effect:
            case effects.AdvanceHighWatermark(high_watermark=high_watermark):
                self._advance(high_watermark)
            case effects.BecomeLeader(leader_epoch=leader_epoch):
                self._oracle.became_leader(self.node_id, leader_epoch)
            case effects.ResignLeadership():
                self._proposals.clear()
            case effects.CheckSnapshot(snapshot_id=snapshot_id):
                self.snapshots.check(snapshot_id)
            case effects.FollowLeader(leader_id=leader_id):
                self.notice_if_dead(leader_id)
            case effects.VotersChanged():
                pass

    def _flush(self, end: Offset, began_ms: int) -> None:
        try:
            self._oracle.flushed(self.node_id, self.log.flush())
        except StorageError:
            self.machine.fail()
            return
        took_ms = self.machine.now_ms() - began_ms
        self.feed(events.LogFlushed(flushed_offset=end, took_ms=took_ms))

    # --- what clients write ---

    @property
    def accepts_records(self) -> bool:
        """Whether a client would find this node to be a leader that answers."""
        may_step = not (self.machine.is_paused or self._writes.is_under_way)
        return self.machine.is_up and may_step and self.quorum.is_leader

    def propose(self, values: list[bytes]) -> None:
        """Append one batch as the leader; acknowledge it once it is committed."""
        epoch, base = self.quorum.leader_epoch, self.log.end_offset
        entries = [Entry(epoch, value, index) for index, value in enumerate(values)]
        self._oracle.appended(self.node_id, entries)  # first: power loss may come within
        try:
            self.log.append(values, Epoch(epoch), wall_ms=self.machine.now_ms())
        except StorageError:
            self.machine.fail()
            return
        end = self.log.end_offset
        self._proposals[end] = (base, entries)
        self._step(events.RecordsAppended(leader_epoch=epoch, log_end_offset=end))

    def _advance(self, high_watermark: Offset) -> None:
        self._oracle.advanced(self.node_id, high_watermark, leads_epoch=self._leads_epoch)
        self._compare_voters()
        self.snapshots.apply(high_watermark)
        for end in [end for end in self._proposals if end <= high_watermark]:
            base, entries = self._proposals.pop(end)
            for offset, entry in enumerate(entries, base):
                self._oracle.acknowledge(offset, entry)
        if not self._has_checkpoint_due:
            self._has_checkpoint_due = True
            self.machine.later(CHECKPOINT_US, self._checkpoint)

    def _checkpoint(self) -> None:
        self._has_checkpoint_due = False
        try:
            self.log.checkpoint(self.quorum.high_watermark)
        except StorageError:
            self.machine.fail()
