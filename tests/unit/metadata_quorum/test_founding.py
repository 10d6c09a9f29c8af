"""What a node believes of its votes at its start: at kraft.version 0, and with voters in a log."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.io.founding import VotersChanged, found
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.voters import directory_id, voter_set

SETTINGS = MetadataQuorumSettings(
    cluster_id="c",
    node_id=BrokerId(1),
    voters={BrokerId(1): "a:1", BrokerId(2): "b:2"},
    log_dir="unused",
    directory_id=directory_id("1"),
)
NEW = Election(is_new=True)
VOTED = Election(leader_epoch=Epoch(3), voters=(BrokerId(1), BrokerId(7)))


def founded(
    directory: Path,
    election: Election,
    voters: VoterSet | None,
    settings: MetadataQuorumSettings = SETTINGS,
    *,
    is_upgrade_committed: bool | None = None,
) -> Election:
    if is_upgrade_committed is None:
        is_upgrade_committed = voters is not None
    store = ElectionStore(RealDisk(), str(directory))
    return found(settings, store, election, voters, is_upgrade_committed=is_upgrade_committed)


def test_the_configured_voters_may_differ_from_those_of_the_vote_once_the_log_says_them(
    tmp_path: Path,
) -> None:
    with pytest.raises(VotersChanged, match="voted in a quorum of 1, 7"):
        founded(tmp_path, VOTED, None)
    assert founded(tmp_path, VOTED, voter_set(1, 5)) == replace(VOTED, is_new=False)


def test_voters_in_the_log_count_for_the_configured_ones_only_once_they_are_committed(
    tmp_path: Path,
) -> None:
    in_log = voter_set(1, 5)
    with pytest.raises(VotersChanged, match=r"kraft\.version 1, which may be uncommitted"):
        founded(tmp_path, VOTED, in_log, is_upgrade_committed=False)
    same = replace(VOTED, voters=(BrokerId(1), BrokerId(2)))  # as configured
    assert founded(tmp_path, same, in_log, is_upgrade_committed=False) == same
    was_voter = replace(VOTED, was_voter=True)  # noted when a set with it was committed
    assert founded(tmp_path, was_voter, in_log, is_upgrade_committed=False) == was_voter


def test_a_voter_of_the_log_that_lost_its_votes_is_new(tmp_path: Path) -> None:
    assert founded(tmp_path, NEW, voter_set(1, 2)).is_new
    wiped = replace(SETTINGS, directory_id=directory_id("another"))
    assert founded(tmp_path, NEW, voter_set(1, 2), wiped).is_new  # its log may end too early


def test_a_node_that_can_become_a_voter_is_new_although_nothing_names_it(tmp_path: Path) -> None:
    joiner = replace(SETTINGS, voters={}, bootstrap=("b:2",))
    assert founded(tmp_path, NEW, None, joiner).is_new
    assert founded(tmp_path, NEW, None, replace(joiner, is_new_cluster=True)).is_new
    assert founded(tmp_path, NEW, voter_set(2, 3)).is_new
    broker = replace(joiner, directory_id=None)
    assert not founded(tmp_path, NEW, None, broker).is_new


def test_the_mark_of_a_new_cluster_does_not_count_once_the_log_says_the_voters(
    tmp_path: Path,
) -> None:
    marked = replace(SETTINGS, is_new_cluster=True)
    assert founded(tmp_path, NEW, voter_set(1, 2), marked).is_new
    assert not founded(tmp_path, NEW, None, marked).is_new


def test_a_single_voter_with_others_to_ask_may_have_lost_its_cluster(tmp_path: Path) -> None:
    alone = replace(SETTINGS, voters={BrokerId(1): "a:1"})
    assert not founded(tmp_path, NEW, None, alone).is_new
    assert founded(tmp_path, NEW, None, replace(alone, bootstrap=("b:2",))).is_new
