"""The roles of a replica, each with its own state, and the table of their legal changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.isr import FollowerProgress, PendingIsr
from quorumlog.wire.codec.identifiers import BrokerId, Offset


@dataclass(slots=True, kw_only=True)
class Unassigned:
    """No metadata was received yet, or this broker is no longer a replica."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """Replicates from `leader_id`, or waits for a leader (NO_LEADER).

    `is_contradicted`: the leader lacks records that are committed here. This replica neither
    fetches nor truncates until another leader epoch begins, or it has left the ISR and the ELR.
    """

    leader_id: BrokerId
    is_contradicted: bool = False


@dataclass(slots=True, kw_only=True)
class Leader:
    """Tracks the log end of each follower.

    `isr` is the ISR that the controller committed; `maximal_isr` adds the replicas that it may yet
    grant (KIP-497). `epoch_start` is our log end when this leader epoch began.
    """

    epoch_start: Offset
    isr: frozenset[BrokerId]
    maximal_isr: frozenset[BrokerId]
    followers: dict[BrokerId, FollowerProgress]
    pending: PendingIsr | None = None

    def note_append(self, now_ms: int, former_end: Offset) -> None:
        """Record that each follower that held our whole log did so until now.

        A fetch that waits for the append then need not be repeated (KAFKA-7152).

        # DEVIATION: in Kafka such a follower is behind since it last fetched.
        # docs/decisions/0023-idle-partitions.md
        """
        for progress in self.followers.values():
            if progress.log_end_offset == former_end:
                progress.caught_up_ms = now_ms


Role = Unassigned | Follower | Leader
LEGAL_CHANGES: Final[Mapping[type[Role], frozenset[type[Role]]]] = {
    Unassigned: frozenset({Follower, Leader}),
    Follower: frozenset({Unassigned, Follower, Leader}),
    Leader: frozenset({Unassigned, Follower, Leader}),
}
