"""The voters in force, and whether this node is a voter (KIP-853).

At kraft.version 0 they are the configured voters, and a voter is an id. At 1 they are those of the
last Voters record in the log, committed or not, and a voter is an id and a directory id.
"""

from typing import Final

from quorumlog.metadata_quorum.core.log_outline import LogOutline
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId


class Membership:
    """The voters that follow from the log of one node. They change with the log."""

    def __init__(
        self, node_id: BrokerId, directory_id: str | None, configured: VoterSet, log: LogOutline
    ) -> None:
        self._node_id: Final = node_id
        self._directory_id: Final = directory_id
        self._configured: Final = configured
        self._log: Final = log

    @property
    def kraft_version(self) -> int:
        """0: the configured voters are in force; 1: the voters in the log."""
        return 0 if self._log.voter_sets.last is None else 1

    @property
    def voter_set(self) -> VoterSet:
        """The voters in force."""
        return self._log.voter_sets.last or self._configured

    @property
    def is_voter(self) -> bool:
        """Whether this node, with its directory, is a voter."""
        return self.has(self._node_id, self._directory_id)

    def has(self, node_id: BrokerId, directory_id: str | None) -> bool:
        """Whether this replica is a voter. At kraft.version 0 the directory does not count."""
        if self.kraft_version == 0:
            return node_id in self.voter_set.ids
        return self.voter_set.has_key(node_id, directory_id)

    def directory_of(self, voter_id: BrokerId) -> str | None:
        """Return the directory id of this voter; None: any directory counts."""
        voter = self.voter_set.get(voter_id) if self.kraft_version else None
        return None if voter is None else voter.directory_id

    @property
    def flushes_log(self) -> bool:
        """Whether this node's fetches claim that its log is durable.

        Those of a node that can become a voter do, too: the leader counts them from then on.
        """
        return self.is_voter or self._directory_id is not None

    @property
    def may_stand(self) -> bool:
        """Whether this node is a voter, or its removal may still be uncommitted.

        Its log may be longer than those of all remaining voters: then no other node can be elected.
        It does not count its own vote (Raft: Ongaro's dissertation, 4.2.2).
        """
        # DEVIATION: Kafka's voters no longer stand once they append their removal.
        # docs/decisions/0001-voter-changes.md
        if self.is_voter or self.kraft_version == 0:
            return self.is_voter
        sets, committed = self._log.voter_sets, self._log.known_committed
        was_configured = sets.at(committed) is None and self._node_id in self._configured.ids
        return was_configured or any(
            voters.has_key(self._node_id, self._directory_id)
            for voters in sets.may_be_in_force(committed)
        )
