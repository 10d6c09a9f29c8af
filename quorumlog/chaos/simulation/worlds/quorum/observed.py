"""The driver of a simulated node, its log and its election file, with the oracle beside them.

They do as the product does. The oracle sees a write before it begins: power loss may come within.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.worlds.entries import CONTROL, Entry, content_of, entries_of
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.voter_model import Key
from quorumlog.invariants import some
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    FetchRequest,
    FetchSnapshotResponse,
    Request,
    SnapshotId,
    VoteRequest,
)
from quorumlog.metadata_quorum.driver.dependencies import Responded
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.restored_image import fetched_snapshot, restored_image
from quorumlog.metadata_quorum.log.voter_records import encode_voters
from quorumlog.wire.codec.identifiers import Epoch, Offset

_RARE: Final = frozenset({"is_new", "leader_address", "voter_sets", "was_voter", "write_ms"})


def render_event(event: events.Event) -> str:
    """Return an event of a node as text."""
    match event:
        case events.RequestReceived(request=request):
            return f"asked {render_request(request)}"
        case events.ResponseReceived(source=source, response=response, records=records):
            held = f" records=[{records.base_offset},{records.end_offset})" if records else ""
            return f"<- {source} {render_value(response)}{held}"
        case _:
            return render_value(event)


def render_request(request: Request) -> str:
    """Return a request of a node as text."""
    match request:
        case VoteRequest(replica_epoch=epoch, last_offset=end, last_offset_epoch=last_epoch):
            name = "PreVote" if request.pre_vote else "Vote"
            return f"{name} epoch={epoch} log_ends={end}@{last_epoch}"
        case FetchRequest(current_leader_epoch=epoch, fetch_offset=end, last_fetched_epoch=last):
            return f"Fetch epoch={epoch} from={end}@{last} high_watermark={request.high_watermark}"
        case _:
            return render_value(request)


def render_value(value: Any) -> str:
    """Return the name of a dataclass, and the fields that are not empty, as text."""
    shown = [type(value).__name__]
    for one in fields(value):
        content = getattr(value, one.name)
        if one.name == "request_id" or content is None:
            continue
        if one.name in _RARE and not content:
            continue  # as almost always
        if isinstance(content, tuple):
            content = ",".join(map(str, content))
        elif hasattr(content, "end_offset"):
            content = f"{content.epoch}@{content.end_offset}"
        shown.append(f"{one.name}={getattr(content, 'name', content)}")
    return " ".join(shown)


def render_step(event: events.Event, role: str, state: tuple[int, int, int, int]) -> str:
    """Return an event of a node, and the state of the node after it, as text."""
    epoch, end, flushed, committed = state
    shown = f"epoch={epoch} end={end} flushed={flushed} committed={committed}"
    return f"{render_event(event)} => {role} {shown}"


_ALL_BYTES: Final = 1 << 30
_ROUNDING_MS: Final = 2


class ObservedLog(MetadataLog):
    """A metadata log. `proposed`: by value, the records that this process appended as a leader."""

    _node_id: int
    _oracle: Oracle

    def observe(self, node_id: int, oracle: Oracle) -> None:
        """Show the oracle all that is written from now on."""
        self.proposed: dict[bytes, tuple[int, Entry]] = {}
        self._node_id, self._oracle = node_id, oracle

    def entries(self, image: ClusterImage | None = None) -> list[Entry]:
        """Return the whole log in outline.

        The image stands for the records below the start of the log; None: the image of the snapshot
        at that start.
        """
        entries: list[Entry] = []
        if self.start_offset > 0:
            image = some(image or restored_image(self), "a log that is cut has a snapshot")
            entries = self._oracle.records_below(
                self._node_id, self.start_offset, image.end_offset, image.access.quotas
            )
        while len(entries) < self.end_offset:  # a read ends with its segment
            records = self.read(Offset(len(entries)), self.end_offset, _ALL_BYTES)
            entries += entries_of(records)
        return entries

    def append(  # noqa: D102 - see MetadataLog
        self, values: Sequence[bytes], leader_epoch: Epoch, *, wall_ms: int
    ) -> None:
        entries = [Entry(leader_epoch, value, index) for index, value in enumerate(values)]
        self.proposed |= {
            entry.content: (offset, entry) for offset, entry in enumerate(entries, self.end_offset)
        }
        self._oracle.appended(self._node_id, entries)
        super().append(values, leader_epoch, wall_ms=wall_ms)

    def append_fetched(self, records: bytes) -> None:  # noqa: D102 - see MetadataLog
        self._oracle.appended(self._node_id, entries_of(records))
        super().append_fetched(records)

    def append_leader_change(  # noqa: D102 - see MetadataLog
        self, effect: effects.AppendLeaderChange, *, wall_ms: int
    ) -> None:
        self._oracle.appended(self._node_id, [Entry(effect.leader_epoch, CONTROL, 0)])
        super().append_leader_change(effect, wall_ms=wall_ms)

    def append_voters(  # noqa: D102 - see MetadataLog
        self, effect: effects.AppendVoters, *, wall_ms: int
    ) -> None:
        epoch = effect.leader_epoch
        self._oracle.changes_voters(self._node_id, epoch)
        pairs = encode_voters(effect.voters, sets_kraft_version=effect.sets_kraft_version)
        entries = [Entry(epoch, content_of(*pair), at) for at, pair in enumerate(pairs)]
        self._oracle.appended(self._node_id, entries)
        super().append_voters(effect, wall_ms=wall_ms)

    def truncate_to(self, end_offset: Offset) -> None:  # noqa: D102 - see MetadataLog
        self._oracle.truncates(self._node_id, end_offset)
        super().truncate_to(end_offset)
        self._oracle.truncated(self._node_id, end_offset)

    def flush(self) -> Offset:  # noqa: D102 - see MetadataLog
        end_offset = super().flush()
        self._oracle.flushed(self._node_id, end_offset)
        return end_offset

    def install_fetched(self, snapshot_id: SnapshotId) -> None:  # noqa: D102 - see MetadataLog
        fetched = fetched_snapshot(self.snapshots, snapshot_id)
        state = {} if fetched is None else fetched.image.access.quotas
        self._oracle.installs(self._node_id, snapshot_id.end_offset, state)
        super().install_fetched(snapshot_id)
        self._oracle.installed(self._node_id)


class ObservedElections(ElectionStore):
    """An election file."""

    def __init__(self, *given: Any, node_id: int, oracle: Oracle) -> None:
        super().__init__(*given)
        self._node_id: Final = node_id
        self._oracle: Final = oracle

    def save(self, election: Election) -> None:  # noqa: D102 - see ElectionStore
        super().save(election)
        if not election.is_new:
            self._oracle.may_vote(self._node_id)
        if election.voted_id >= 0:
            self._oracle.saw_vote(self._node_id, election.leader_epoch, election.voted_id)


class ObservedDriver(Driver):
    """A driver: each step of its core is in the trace; rules about time and commits are checked."""

    def __init__(
        self, machine: Machine, oracle: Oracle, *, counts_voters: bool, **given: Any
    ) -> None:
        super().__init__(**given)
        self._machine: Final = machine
        self._oracle: Final = oracle
        self._counts_voters: Final = counts_voters
        self._leads_epoch: int | None = None
        self._ended_ms = 0  # of the last write
        self._left_ms: int | None = None  # from the step that writes to the core's deadline
        self._is_first_write = True  # of the step

    def _step(self, event: events.Event, fetched: Responded | None = None) -> None:
        quorum = self._quorum
        # Before the step: it may commit, and then resign.
        self._leads_epoch = quorum.state.leader_epoch if quorum.is_leader else None
        try:
            super()._step(event, fetched)
        finally:  # the step that breaks a rule is the one to see
            self._trace(event)
        if isinstance(event, events.WriteEnded):
            self._check_deadline()
        elif isinstance(event, events.Started):
            self._compare_voters()

    def _perform(self, effect: effects.Effect) -> None:
        node_id = self._machine.node_id
        match effect:
            case effects.AdvanceHighWatermark(high_watermark=high_watermark):
                self._oracle.advanced(node_id, high_watermark, leads_epoch=self._leads_epoch)
                self._compare_voters()
            case effects.BecomeLeader(leader_epoch=epoch):
                self._oracle.became_leader(node_id, epoch)
            case (
                effects.SendResponse(response=FetchSnapshotResponse(leader_epoch=epoch))
                | effects.AnswerFetchSnapshot(response=FetchSnapshotResponse(leader_epoch=epoch))
            ):
                self._oracle.showed_epoch(node_id, epoch)
            case _:
                pass
        super()._perform(effect)

    def _trace(self, event: events.Event) -> None:
        quorum, machine = self._quorum, self._machine
        role = type(quorum.state.role).__name__
        state = (
            quorum.state.leader_epoch,
            quorum.state.log.end_offset,
            quorum.state.log.flushed_offset,
            quorum.state.log.high_watermark,
        )
        outline = b"%b %b %d %d %d %d" % (type(event).__name__.encode(), role.encode(), *state)
        machine.trace.stepped(
            machine.timeline.now_us, machine.node_id, outline, render_step, event, role, state
        )

    def _compare_voters(self) -> None:
        if self._counts_voters:
            voters = self._quorum.state.voter_set.voters if self._quorum.state.kraft_version else ()
            counted = frozenset(Key(voter.voter_id, voter.directory_id) for voter in voters)
            self._oracle.counts(self._machine.node_id, counted)

    # --- the deadline of the core stands still during a write ---

    def _write(self, work: Callable[[], object], name: str) -> None:
        if self._is_first_write:
            deadline_ms = self._quorum.next_deadline_ms()
            self._left_ms = None if deadline_ms is None else deadline_ms - self._machine.now_ms()
            self._is_first_write = False
        super()._write(work, name)

    def _written(self, began_ms: int, name: str, outcome: object) -> None:
        self._ended_ms = self._machine.now_ms()
        super()._written(began_ms, name, outcome)

    def _check_deadline(self) -> None:
        """Check, once the core has received the ends of all writes, that they used up no time."""
        if self._urgent and isinstance(self._urgent[0], events.WriteEnded):
            return  # another write of the same step
        self._is_first_write = True
        deadline_ms = self._quorum.next_deadline_ms()
        if deadline_ms is None or self._left_ms is None:
            return
        lost_ms = self._left_ms - (deadline_ms - self._ended_ms)
        rule = f"disk-time: {self._machine.node_id} loses {lost_ms} ms of a deadline by its writes"
        check(lost_ms <= _ROUNDING_MS, rule)
