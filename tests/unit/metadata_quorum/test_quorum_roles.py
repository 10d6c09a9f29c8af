"""Every pair of roles, within an epoch and to a newer one; written a second time, on purpose."""

from contextlib import nullcontext
from itertools import product
from typing import get_args

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

VOTERS = tuple(map(BrokerId, (1, 2, 3)))
ROLES: dict[type[Role], Role] = {
    Unattached: Unattached(election_deadline_ms=1),
    Prospective: Prospective(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Candidate: Candidate(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Follower: Follower(fetch_deadline_ms=1),
    Leader: Leader(
        epoch_start_offset=Offset(0),
        granting_voters=(),
        followers={},
        begin_epoch_deadline_ms=1,
        check_quorum_deadline_ms=1,
    ),
    Resigned: Resigned(election_deadline_ms=1, preferred_candidates=(), tell_ms={}),
}
LEGAL_WITHIN = {
    (Unattached, Unattached), (Unattached, Prospective), (Unattached, Follower),
    (Prospective, Unattached), (Prospective, Follower),
    (Candidate, Prospective), (Candidate, Follower), (Candidate, Leader),
    (Follower, Prospective),
    (Leader, Resigned),
}  # fmt: skip
LEGAL_TO_NEWER = {(Prospective, Candidate), *product(ROLES, (Unattached, Follower))}
OBSERVERS = {
    (source, target) for source in (Unattached, Follower) for target in (Unattached, Follower)
}


def quorum(node_id: int = 1) -> Quorum:
    made = Quorum(
        node_id=BrokerId(node_id),
        voters=VOTERS,
        settings=QuorumSettings(),
        random_fraction=lambda: 0.0,
    )
    made.leader_epoch = Epoch(4)
    return made


def test_all_roles_are_here() -> None:
    assert set(get_args(Role)) == set(ROLES)


@pytest.mark.parametrize("is_newer", [False, True], ids=["within", "to_newer"])
@pytest.mark.parametrize(("source", "target"), list(product(ROLES, repeat=2)))
def test_every_pair_of_roles(source: type[Role], target: type[Role], is_newer: bool) -> None:
    node = quorum()
    node.role = ROLES[source]
    is_legal = (source, target) in (LEGAL_TO_NEWER if is_newer else LEGAL_WITHIN)
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        node._become(ROLES[target], leader_epoch=Epoch(4 + is_newer))
    assert node.role is ROLES[target if is_legal else source]
    assert node.leader_epoch == 4 + (is_legal and is_newer)


@pytest.mark.parametrize(("source", "target"), list(product((Unattached, Follower), ROLES)))
def test_an_observer_only_follows(source: type[Role], target: type[Role]) -> None:
    node = quorum(node_id=9)
    node.role = ROLES[source]
    is_legal = (source, target) in OBSERVERS
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        node._become(ROLES[target], leader_epoch=Epoch(5))


def test_an_epoch_never_falls() -> None:
    with pytest.raises(InvariantViolation, match="an epoch never falls"):
        quorum()._become(ROLES[Unattached], leader_epoch=Epoch(3))


def test_a_newer_epoch_forgets_leader_and_vote_and_the_same_one_keeps_them() -> None:
    node = quorum()
    node._become(ROLES[Unattached], voted_id=BrokerId(2))
    node._become(ROLES[Follower], leader_id=BrokerId(3))
    assert (node.leader_id, node.voted_id) == (3, 2)
    node._become(ROLES[Prospective])
    assert (node.leader_id, node.voted_id) == (3, 2)
    node._become(ROLES[Unattached], leader_epoch=Epoch(5))
    assert (node.leader_id, node.voted_id) == (NOBODY, NOBODY)
