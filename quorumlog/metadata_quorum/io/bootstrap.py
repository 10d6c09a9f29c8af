"""A voter's first start: whether the cluster is new, or this voter has lost its vote.

At kraft.version 0 it refuses a `quorum-state` with voters that differ from the configured ones: two
sets of voters that overlap too little have two majorities. From version 1 on the log contains the
voters, and the configured ones do not count (KIP-853). That holds once version 1 is certainly
committed: a truncation of its record brings back version 0, and with it the configured voters.
"""

import logging
from dataclasses import replace
from typing import Final

from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.log.election_store import FILE_NAME, Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY
from quorumlog.metadata_quorum.settings import NEW_CLUSTER_FILE, MetadataQuorumSettings
from quorumlog.storage.errors import StorageError

_logger: Final = logging.getLogger(__name__)


class VotersChanged(StorageError):
    """The configured voters differ from those with which this voter has voted."""


def _check_voters(
    settings: MetadataQuorumSettings, election: Election, voters_in_log: VoterSet | None
) -> None:
    """Raise VotersChanged if the voter's election state is of another quorum."""
    voters = tuple(sorted(settings.voters))
    if election.voters is None or election.voters == voters:
        return
    if settings.node_id not in {*election.voters, *voters}:  # an observer does not vote
        return
    told = (
        f"controller.quorum.voters names {_listed(voters)}, but node {settings.node_id} has "
        f"voted in a quorum of {_listed(election.voters)}"
    )
    if voters_in_log is not None:
        raise VotersChanged(
            f"{told}, and its log has kraft.version 1, which may be uncommitted. Set "
            f"{_listed(election.voters)} until the node has caught up with a leader"
        )
    raise VotersChanged(
        f"{told}: the voters of a cluster at "
        "kraft.version 0 cannot change. Set the earlier voters; or, if the cluster never had a "
        f"leader, remove {settings.log_dir}/{DIRECTORY}/{FILE_NAME} on every voter and make "
        f"{settings.log_dir}/{NEW_CLUSTER_FILE}"
    )


def found(
    settings: MetadataQuorumSettings,
    elections: ElectionStore,
    election: Election,
    voters: VoterSet | None,
    *,
    is_upgrade_committed: bool,
) -> Election:
    """Return the election state to start with; that of a new cluster is durable then.

    `voters`: those in the log; None: kraft.version is 0. `is_upgrade_committed`: no truncation can
    bring version 0 back. A node that can become a voter stays new if its votes are unknown: an
    empty log may lack the record that makes it a voter. Raises StorageError; VotersChanged, unless
    version 1 is certainly committed.
    """
    if not (is_upgrade_committed or election.was_voter):  # `was_voter` is saved at the commit
        _check_voters(settings, election, voters)
    is_configured = settings.node_id in settings.voters
    if not election.is_new or not (is_configured or settings.directory_id is not None):
        return replace(election, is_new=False)
    # No other node can hold metadata that this node has lost.
    is_alone = len(settings.voters) == 1 and not settings.bootstrap
    if voters is None and is_configured and (settings.is_new_cluster or is_alone):
        election = replace(election, is_new=False)
        elections.save(election)
        return election
    if not _is_voter(settings, voters):
        _logger.info(
            "node %d has no election state: it votes after it has caught up with a leader",
            settings.node_id,
        )
        return election
    _logger.warning(
        "node %d has lost its last vote: it votes and stands again after it has caught up with a "
        "leader. If a majority of the voters has lost its votes, no leader is elected: restore "
        "their log directories. Only if the whole cluster is new, and no voter ever had metadata, "
        "make an empty file %s in the log directory of each voter and restart the voters",
        settings.node_id,
        NEW_CLUSTER_FILE,
    )
    return election


def _is_voter(settings: MetadataQuorumSettings, voters: VoterSet | None) -> bool:
    if voters is None:
        return settings.node_id in settings.voters
    return voters.has_key(settings.node_id, settings.directory_id)


def _listed(voters: tuple[int, ...]) -> str:
    return ", ".join(map(str, voters))
