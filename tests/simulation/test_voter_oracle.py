"""Each rule of voters that change, with a history that breaks it (KIP-853)."""

import pytest

from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.entries import Entry, content_of
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.voter_model import Key, directory_id, voter_of
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.log.voter_records import encode_voters

NODES = (1, 2, 3, 4)
A = Entry(1, b"a", 0)


def voters(*node_ids: int, epoch: int = 1, disks: dict[int, int] | None = None) -> Entry:
    """A record of these voters, with their first disks unless `disks` has another."""
    disk = {one: (disks or {}).get(one, 1) for one in node_ids}
    named = VoterSet(tuple(voter_of(one, directory_id(one, disk[one])) for one in node_ids))
    [pair] = encode_voters(named, sets_kraft_version=False)
    return Entry(epoch, content_of(*pair), 0)


def keys(*node_ids: int) -> frozenset[Key]:
    return frozenset(Key(one, directory_id(one, 1)) for one in node_ids)


def oracle(*entries: Entry) -> Oracle:
    """Four nodes hold the voters 1, 2 and 3, and these records, durably but uncommitted."""
    made = Oracle(NODES, (1, 2, 3))
    made.voters.directories.update({one: directory_id(one, 1) for one in NODES})
    for node_id in NODES:
        made.appended(node_id, [voters(1, 2, 3), *entries])
        made.flushed(node_id, 1 + len(entries))
    return made


def test_the_good_story_is_good() -> None:
    good = oracle()
    good.stands(1)
    for voter in (1, 2):
        good.saw_vote(voter, 1, 1)
    good.became_leader(1, 1)
    good.advanced(1, 1, leads_epoch=1)
    good.counts(1, keys(1, 2, 3))
    good.changes_voters(1, 1)
    good.appended(1, [voters(1, 2, 3, 4)])
    good.counts(1, keys(1, 2, 3, 4))
    good.votes_as(4, directory_id(4, 1))
    good.votes_as(4, None)
    for node_id in (1, 3, 4):
        if node_id != 1:
            good.appended(node_id, [voters(1, 2, 3, 4)])
        good.flushed(node_id, 2)
    good.advanced(1, 2, leads_epoch=1)
    good.lost_disk(4, directory_id(4, 2))
    good.saw_vote(4, 1, 2)  # the node with the new disk is another
    good.advanced(3, 2, leads_epoch=None)


def test_the_first_voters_are_the_configured_ones() -> None:
    bad = Oracle(NODES, (1, 2, 3))
    with pytest.raises(Violation, match="upgrade"):
        bad.appended(1, [voters(1, 2, 4)])


def test_a_change_is_of_one_voter() -> None:
    with pytest.raises(Violation, match="one-voter"):
        oracle().appended(1, [voters(1, 2, 4)])


def test_one_change_at_a_time() -> None:
    bad = oracle()
    bad.advanced(1, 1, leads_epoch=1)
    bad.appended(1, [voters(1, 2)])
    with pytest.raises(Violation, match="one-change"):
        bad.changes_voters(1, 1)


def test_no_change_before_a_commit_of_the_own_epoch() -> None:
    bad = oracle()
    bad.advanced(1, 1, leads_epoch=1)
    with pytest.raises(Violation, match="change-own-epoch"):
        bad.changes_voters(2, 2)


def test_a_node_that_may_not_vote_yet_is_not_added() -> None:
    story = oracle()
    story.lost_disk(4, directory_id(4, 2))
    with pytest.raises(Violation, match="added-votes"):
        story.appended(1, [voters(1, 2, 3, 4, disks={4: 2})])
    story.may_vote(4)
    story.appended(1, [voters(1, 2, 3, 4, disks={4: 2})])


def test_a_node_counts_what_its_log_says() -> None:
    with pytest.raises(Violation, match="voters-in-force"):
        oracle().counts(1, keys(1, 2))


def test_a_commit_needs_the_majority_of_the_set_in_force() -> None:
    bad = oracle()
    bad.advanced(1, 1, leads_epoch=1)
    for node_id in (1, 2):
        bad.appended(node_id, [voters(1, 2, 3, 4)])
        bad.flushed(node_id, 2)
    with pytest.raises(Violation, match="commit-durable"):
        bad.advanced(1, 2, leads_epoch=1)


def test_only_a_voter_stands() -> None:
    with pytest.raises(Violation, match="stands"):
        oracle().stands(4)


def test_one_that_is_leaving_stands_until_that_is_committed() -> None:
    leaving = oracle(voters(2, 3))
    leaving.stands(1)
    leaving.advanced(1, 1, leads_epoch=1)
    leaving.stands(1)
    leaving.advanced(1, 2, leads_epoch=1)
    with pytest.raises(Violation, match="stands"):
        leaving.stands(1)


def test_only_a_voter_leads() -> None:
    with pytest.raises(Violation, match="leader-votes"):
        oracle().became_leader(4, 1)


def test_a_leader_has_the_votes_of_a_majority() -> None:
    bad = oracle()
    bad.saw_vote(1, 1, 1)
    bad.saw_vote(4, 1, 1)  # it is no voter
    with pytest.raises(Violation, match="elected"):
        bad.became_leader(1, 1)


def test_the_vote_of_a_lost_disk_does_not_count_for_the_new_one() -> None:
    bad = oracle()
    bad.lost_disk(2, directory_id(2, 2))
    for voter in (1, 2):
        bad.saw_vote(voter, 1, 1)
    with pytest.raises(Violation, match="elected"):
        bad.became_leader(1, 1)


def test_a_node_votes_with_the_directory_that_it_has() -> None:
    bad = oracle()
    bad.lost_disk(2, directory_id(2, 2))
    with pytest.raises(Violation, match="votes-as"):
        bad.votes_as(2, directory_id(2, 1))
