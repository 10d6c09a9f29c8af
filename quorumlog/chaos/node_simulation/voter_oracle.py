"""The rules of elections, commits and voter changes in the metadata quorum of whole nodes.

It reads the control records of the nodes' logs itself, and the directory id of each machine.

    elected            the winner of an election is a voter by its own log, or its removal is not
                       committed; a majority of the voters in force in that log has voted for it,
                       each with the directory id of the voter
    leader-complete    the winner holds all records that leaders of older epochs have committed
    commit-majority    a majority of the voters holds all records below a leader's high watermark
    commit-own-epoch   a leader commits older records only with a record of its own epoch
    one-change         a leader's log has at most one uncommitted change, of a single voter
    change-own-epoch   a leader that changes the voters has committed a record of its epoch
    stands             only a node that may be elected sends vote requests
    removed-leads      a leader whose removal is committed in its own log stops leading
    acked-voters       a change that was acknowledged to the administrator is committed
    voters-expected    at the end the first voters are voters again, with their present disks
    caught-up          at the end all nodes have the same log end offset and high watermark
"""

import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.worlds.entries import Entry, content_of
from quorumlog.chaos.simulation.worlds.quorum.voter_model import (
    Key,
    is_voters,
    keys_in,
    majority_of,
)
from quorumlog.metadata_quorum.core.roles import Candidate, Leader, Role
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.node.node import Node
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import Record, decode_batch, iterate_headers

Violated = Callable[[str], None]
Sets = list[tuple[int, frozenset[Key]]]
"""(offset of a voters record, its voters), the oldest first."""

_LEADER_CHANGE_KEY: Final = b"\0\0\0\2"
_LEADER_CHANGE: Final = struct.Struct(">hi")  # version, leader; then two arrays
_ID: Final = struct.Struct(">ib")  # a voter, and no tagged fields


class Held(NamedTuple):
    """The extent of a node's log. `epochs`: (epoch, first offset), the oldest first."""

    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]

    def has(self, end: int, epoch: int) -> bool:
        """Whether the log, or its snapshot, has the record before `end`, with this epoch."""
        return end <= self.end and (end <= self.start or self.epoch_before(end) == epoch)

    def epoch_before(self, end: int) -> int:
        """Return the epoch of the record before `end`."""
        return max((epoch for epoch, first in self.epochs if first < end), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of one node. `committed`: its high watermark."""

    node_id: int
    node: Node
    epoch: int
    role: type[Role]
    committed: int
    end: int

    @classmethod
    def of(cls, node_id: int, node: Node) -> "Seen":
        """Return the state of a running node."""
        quorum = node.quorum._quorum  # noqa: SLF001 - an oracle reads private state
        driver = node.quorum._driver  # noqa: SLF001 - as above
        return cls(
            node_id=node_id,
            node=node,
            epoch=quorum.state.leader_epoch,
            role=type(quorum.state.role),
            committed=max(0, driver._controllership.high_watermark),  # noqa: SLF001 - as above
            end=_log(node).end_offset,
        )


class VoterOracle:
    """The model of one run. Call `look` after each turn, for each running node."""

    def __init__(self, configured: Collection[int], violated: Violated) -> None:
        self._configured: Final = frozenset(Key(voter) for voter in configured)
        self._violated: Final = violated
        self._seen: Final[dict[int, Seen]] = {}
        self._directories: Final[dict[int, str]] = {}
        self._held: Final[dict[Key, Held]] = {}  # by each replica of the run
        self._committed: Sets = []
        self._committed_end = 0
        self._committed_in: Final[dict[int, tuple[int, int]]] = {}  # leader's epoch -> end, epoch
        self._elected: Final[set[int]] = set()  # epochs
        self._known_changes: Final[dict[tuple[int, int], int]] = {}  # (epoch, offset) -> leader
        self._in_force: Final[dict[int, frozenset[Key]]] = {}  # by node, at the last look

    def look(self, node_id: int, node: Node) -> None:
        """Check a node if its state has changed since the last call."""
        seen = Seen.of(node_id, node)
        before = self._seen.get(node_id)
        if seen == before:
            return
        self._seen[node_id] = seen
        log, directory = _log(node), node.quorum.settings.directory_id or ""
        self._directories[node_id] = directory
        epochs = tuple((int(epoch), int(first)) for epoch, first in log.epoch_starts())
        held = Held(log.start_offset, seen.end, epochs)
        self._held[Key(node_id, directory)] = held
        is_news = seen.committed > self._committed_end
        if is_news:
            self._committed.extend(_sets(log, self._committed_end, seen.committed))
            self._committed_end = seen.committed
        later = [*_sets(log, seen.committed)]
        if seen.role in {Leader, Candidate}:
            self._check_role(seen, held, later)
        has_led = before is not None and (before.role, before.epoch) == (Leader, seen.epoch)
        if seen.role is Leader or has_led:  # it may resign when it commits
            self._check_leader(seen, held, later, commits=is_news)
        self._in_force[node_id] = later[-1][1] if later else self._below(seen.committed)

    def _below(self, end: int) -> frozenset[Key]:
        """Return the voters in force by the committed records below `end`."""
        return next(
            (voters for offset, voters in reversed(self._committed) if offset < end),
            self._configured,
        )

    def _is_in(self, node_id: int, voters: frozenset[Key]) -> bool:
        return bool({Key(node_id), Key(node_id, self._directories.get(node_id, ""))} & voters)

    # --- rules ---

    def _check_role(self, seen: Seen, held: Held, later: Sets) -> None:
        """Check that a candidate or leader may be one."""
        possible = [self._below(seen.committed), *(voters for _, voters in later)]
        if any(self._is_in(seen.node_id, voters) for voters in possible):
            return
        if seen.role is Candidate:
            self._violated(f"stands: node {seen.node_id} requests votes, but is no voter")
            return
        # It may lead while its removal is uncommitted; its own high watermark is past it now.
        first = next((first for epoch, first in held.epochs if epoch == seen.epoch), seen.end)
        if seen.committed > first:
            self._violated(f"removed-leads: node {seen.node_id} leads after its removal")

    def _check_leader(self, seen: Seen, held: Held, later: Sets, *, commits: bool) -> None:
        """Check a leader. `commits`: its high watermark is the first to reach this offset."""
        epoch_start = next((first for epoch, first in held.epochs if epoch == seen.epoch), None)
        if epoch_start is None:
            return  # its first record is being written
        if seen.epoch not in self._elected:
            self._elected.add(seen.epoch)
            self._check_election(seen, held, epoch_start)
        self._check_changes(seen, epoch_start, later)
        if commits and seen.committed > epoch_start:
            self._check_commit(seen, held, later)
        elif commits:
            self._violated(
                f"commit-own-epoch: node {seen.node_id} commits {seen.committed} in epoch "
                f"{seen.epoch}, which begins at {epoch_start}"
            )

    def _check_election(self, seen: Seen, held: Held, epoch_start: int) -> None:
        log = _log(seen.node)
        older = [one for epoch, one in self._committed_in.items() if epoch < seen.epoch]
        end, epoch = max(older, default=(0, 0))
        if not held.has(end, epoch):
            self._violated(
                f"leader-complete: node {seen.node_id} leads epoch {seen.epoch} from {epoch_start} "
                f"on, without the committed records up to {end} of epoch {epoch}"
            )
        said = [*_sets(log, seen.committed, epoch_start)]
        voters = said[-1][1] if said else self._below(min(seen.committed, epoch_start))
        granted = _granted(log, epoch_start)
        counted = {one for one in voters if one.node_id in granted and self._is_now(one)}
        if len(counted) < majority_of(voters):
            self._violated(
                f"elected: node {seen.node_id} leads epoch {seen.epoch} with the votes of "
                f"{sorted(granted)}, and the voters are {_shown(voters)}"
            )

    def _is_now(self, voter: Key) -> bool:
        return voter.directory_id in {"", self._directories.get(voter.node_id)}

    def _check_changes(self, seen: Seen, epoch_start: int, later: Sets) -> None:
        """Check each uncommitted set of voters against the set before it."""
        before, changes = self._below(seen.committed), 0
        for offset, voters in later:
            is_first = before is self._configured
            differing = {one.node_id for one in before ^ voters} if is_first else before ^ voters
            if is_first and {one.node_id for one in before} == {one.node_id for one in voters}:
                differing = set()
            changes += bool(differing) and offset >= self._committed_end
            own = offset >= epoch_start and (seen.epoch, offset) not in self._known_changes
            if own:
                self._known_changes[seen.epoch, offset] = seen.node_id
            if len(differing) > 1:
                self._violated(
                    f"one-change: node {seen.node_id} makes {_shown(before)} to {_shown(voters)}"
                )
            if own and differing and seen.committed <= epoch_start:
                self._violated(
                    f"change-own-epoch: node {seen.node_id} changes the voters at {offset} before "
                    f"a commit of epoch {seen.epoch}"
                )
            before = voters
        if changes > 1:
            self._violated(
                f"one-change: the log of node {seen.node_id} has {changes} changes of the voters "
                f"from {seen.committed} on, which are not committed"
            )

    def _check_commit(self, seen: Seen, held: Held, later: Sets) -> None:
        end, epoch = seen.committed, held.epoch_before(seen.committed)
        self._committed_in[seen.epoch] = (end, epoch)
        # A change may have been appended since, in the same turn.
        now = later[-1][1] if later else self._below(end)
        for voters in (self._in_force.get(seen.node_id, now), now):
            holders = [one for one in voters if self._holds(one, end, epoch)]
            if len(holders) >= majority_of(voters):
                return
        holders = [one for one in now if self._holds(one, end, epoch)]
        self._violated(
            f"commit-majority: node {seen.node_id} commits up to {end}, but of the voters "
            f"{_shown(now)} only {_shown(holders)} hold that"
        )

    def _holds(self, voter: Key, end: int, epoch: int) -> bool:
        directory = voter.directory_id or self._directories.get(voter.node_id, "")
        held = self._held.get(Key(voter.node_id, directory))
        return held is not None and held.has(end, epoch)

    # --- acknowledged changes, and the end of the run ---

    def told(self, operation: str, node_id: int) -> None:
        """Check that an acknowledged change is committed."""
        voters = self._below(self._committed_end)
        if (node_id in {one.node_id for one in voters}) != (operation == "add_voter"):
            self._violated(
                f"acked-voters: {operation} {node_id} is acknowledged, not {_shown(voters)}"
            )

    def not_settled(self) -> str:
        """Return the difference from the configured voters, caught up and intact; "": none."""
        voters = self._below(self._committed_end)
        if {one.node_id for one in voters} != {one.node_id for one in self._configured}:
            return f"voters-expected: they are {_shown(voters)}"
        strange = [one for one in voters if not self._is_now(one)]
        if strange:
            return f"voters-expected: {_shown(strange)} have lost their disks"
        ends = {(seen.end, seen.committed) for seen in self._seen.values()}
        return f"caught-up: the nodes have the ends {sorted(ends)}" if len(ends) > 1 else ""


def _log(node: Node) -> MetadataLog:
    return node.quorum._log  # noqa: SLF001 - an oracle reads private state


def _control_records(log: MetadataLog, start: int, end: int) -> Iterator[Record]:
    offset = max(start, log.start_offset)
    while offset < end:
        batches = log.read(Offset(offset), Offset(end))
        for position, header in iterate_headers(batches):
            offset = header.next_offset
            if header.is_control:
                yield from decode_batch(batches, position)


def _sets(
    log: MetadataLog, start: int, end: int | None = None
) -> Iterator[tuple[int, frozenset[Key]]]:
    """Yield (offset, voters) of the voters records at offsets in [start, end)."""
    last = log.end_offset if end is None else end
    for record in _control_records(log, start, last):
        entry = Entry(0, content_of(record.key, record.value or b""), 0)
        if start <= record.offset < last and is_voters(entry):
            yield record.offset, keys_in(entry)


def _granted(log: MetadataLog, epoch_start: int) -> set[int]:
    """Return the ids of the voters that elected the leader, by the first record of its epoch."""
    for record in _control_records(log, epoch_start, epoch_start + 1):
        if record.key == _LEADER_CHANGE_KEY:
            value = record.value or b""
            voters = _LEADER_CHANGE.size
            granting = voters + 1 + (value[voters] - 1) * _ID.size
            count = value[granting] - 1
            at = [granting + 1 + _ID.size * place for place in range(count)]
            return {_ID.unpack_from(value, one)[0] for one in at}
    return set()


def _shown(voters: Collection[Key]) -> str:
    return ", ".join(f"{one.node_id}/{one.directory_id[:4]}" for one in sorted(voters)) or "none"
