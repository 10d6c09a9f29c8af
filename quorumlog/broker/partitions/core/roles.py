"""The roles of a replica: each holds only its own state, and one table says who may follow whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.isr import FollowerProgress, PendingIsr
from quorumlog.wire.codec.identifiers import BrokerId, Offset


@dataclass(slots=True, kw_only=True)
class Unassigned:
    """No metadata has been seen, or this broker is no longer a replica."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """Replicates from `leader_id`, or from nobody (NO_LEADER)."""

    leader_id: BrokerId


@dataclass(slots=True, kw_only=True)
class Leader:
    """Counts who holds what.

    `isr` is what the controller committed; `maximal_isr` adds whoever it may yet grant
    (KIP-497). `epoch_start` is our log end when this leader epoch began.
    """

    epoch_start: Offset
    isr: frozenset[BrokerId]
    maximal_isr: frozenset[BrokerId]
    followers: dict[BrokerId, FollowerProgress]
    pending: PendingIsr | None = None


Role = Unassigned | Follower | Leader
LEGAL_CHANGES: Final[Mapping[type[Role], frozenset[type[Role]]]] = {
    Unassigned: frozenset({Follower, Leader}),
    Follower: frozenset({Unassigned, Follower, Leader}),
    Leader: frozenset({Unassigned, Follower, Leader}),
}
