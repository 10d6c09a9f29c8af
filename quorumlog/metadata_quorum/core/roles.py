"""The roles of a quorum node, each with only its own state, and the allowed changes of role.

Deadlines are absolute, in ms. The epoch, the leader and the vote belong to no role: see
`quorum_state`. Source: Kafka's `QuorumState`, with KIP-996's Prospective.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Offset


@dataclass(slots=True, kw_only=True)
class Ballot:
    """One round of requests to the other voters: for pre-votes, or for votes."""

    granted: set[BrokerId]
    refused: set[BrokerId] = field(default_factory=set)
    asked: dict[int, BrokerId] = field(default_factory=dict)  # by request id
    ask_again_ms: dict[BrokerId, int] = field(default_factory=dict)  # after a failed request
    asked_again: set[BrokerId] = field(default_factory=set)  # after a refusal


@dataclass(slots=True, kw_only=True)
class Unattached:
    """A node that follows no leader in its epoch; it searches for the leader, voter by voter.

    An observer has no election deadline.
    """

    election_deadline_ms: int | None
    fetch_id: int | None = None  # of the fetch in progress
    fetch_after_ms: int = 0  # not before


@dataclass(slots=True, kw_only=True)
class Prospective:
    """A voter that requests pre-votes (KIP-996); its durable state is unchanged so far."""

    election_deadline_ms: int
    ballot: Ballot


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A voter that has voted for itself and requests the votes of the others."""

    election_deadline_ms: int
    ballot: Ballot


@dataclass(slots=True, kw_only=True)
class Download:
    """A snapshot on its way from the leader; no records are fetched meanwhile."""

    snapshot_id: SnapshotId
    position: int = 0  # bytes in the draft so far
    size: int | None = None  # of the whole snapshot; None before the first chunk


@dataclass(slots=True, kw_only=True)
class Follower:
    """A node that fetches from the leader of its epoch.

    has_fetched: at least one fetch from this leader has succeeded.
    is_leader_gone: since the last successful fetch, the leader's process died, or it resigned; or a
    node that cannot stand has waited a fetch timeout for it.
    """

    fetch_deadline_ms: int
    has_fetched: bool = False
    is_leader_gone: bool = False
    notice_deadline_ms: int | None = None  # of an early election: the leader's process died
    fetch_id: int | None = None  # of the fetch in progress
    fetch_after_ms: int = 0  # not before
    download: Download | None = None  # restarts with another leader, epoch or snapshot


@dataclass(slots=True, kw_only=True)
class Progress:
    """The fetch state of another node in this epoch, as its leader last received it."""

    fetch_offset: Offset = UNKNOWN_OFFSET  # the node holds all records below; a voter, durably
    last_fetch_ms: int | None = None
    caught_up_ms: int | None = None  # when it last held our whole log
    leader_end_then: Offset = UNKNOWN_OFFSET  # our log end at its last fetch
    directory_id: str | None = None  # of the replica; None: it named none
    is_new: bool = False  # it may not vote yet

    def fetched(self, now_ms: int, fetch_offset: Offset, leader_end: Offset) -> None:
        """Record a valid fetch (KIP-836). The offset may go back: a disk was lost."""
        if fetch_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.last_fetch_ms is not None and fetch_offset >= self.leader_end_then:
            # It has reached our log end at its last fetch: it had caught up at that time.
            self.caught_up_ms = max(self.caught_up_ms or self.last_fetch_ms, self.last_fetch_ms)
        self.fetch_offset, self.last_fetch_ms = fetch_offset, now_ms
        self.leader_end_then = leader_end


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedFetch:
    """A valid fetch that waits for records or a newer high watermark."""

    replica_id: BrokerId
    fetch_offset: Offset
    high_watermark: Offset
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChange:
    """A change of the voters that this leader has appended, and whose requester waits."""

    request_id: int
    end_offset: Offset  # committed when all records below are
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Leader:
    """The leader of its epoch: it appends, and answers fetches. `followers`: the other voters.

    A leader that has removed itself from the voters leads until the removal is committed.
    """

    epoch_start_offset: Offset  # of its LeaderChange record
    granting_voters: tuple[BrokerId, ...]
    followers: dict[BrokerId, Progress]
    begin_epoch_deadline_ms: int
    check_quorum_deadline_ms: int
    observers: dict[BrokerId, Progress] = field(default_factory=dict)
    fetched_voters: set[BrokerId] = field(default_factory=set)  # since check-quorum last succeeded
    parked: dict[int, ParkedFetch] = field(default_factory=dict)  # by request id
    high_watermark: Offset = UNKNOWN_OFFSET  # not inherited: KAFKA-12619
    voter_change: VoterChange | None = None  # one at a time
    is_upgrade_decided: bool = False  # awaits a fetch from each voter, with its directory id


@dataclass(slots=True, kw_only=True)
class Resigned:
    """A node that led this epoch, and never will again.

    It sends EndQuorumEpoch until each voter has answered.
    """

    election_deadline_ms: int
    preferred_candidates: tuple[BrokerId, ...]
    end_epoch_due_ms: dict[BrokerId, int]  # when to send it (again)
    end_epoch_sent: dict[int, BrokerId] = field(default_factory=dict)  # by request id


Role = Unattached | Prospective | Candidate | Follower | Leader | Resigned

Changes = Mapping[type[Role], frozenset[type[Role]]]

CHANGES_WITHIN_AN_EPOCH: Final[Changes] = {
    Unattached: frozenset({Unattached, Prospective, Follower}),
    Prospective: frozenset({Unattached, Follower}),
    Candidate: frozenset({Prospective, Follower, Leader}),
    Follower: frozenset({Prospective}),
    Leader: frozenset({Resigned}),
    Resigned: frozenset(),
}
"""A follower loses its leader, and a leader follows another, in a newer epoch only."""

CHANGES_TO_A_NEWER_EPOCH: Final[Changes] = {
    Unattached: frozenset({Unattached, Follower}),
    Prospective: frozenset({Unattached, Follower, Candidate}),
    Candidate: frozenset({Unattached, Follower}),
    Follower: frozenset({Unattached, Follower}),
    Leader: frozenset({Unattached, Follower}),
    Resigned: frozenset({Unattached, Follower}),
}
"""No voter becomes a candidate without the pre-votes of a majority (KIP-996)."""

OBSERVER_ROLES: Final = (Unattached, Follower)
